"""What runs look like in a terminal: live displays, tables, transcripts."""
