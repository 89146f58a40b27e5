"""Model folders: what they hold, read and written, and the operations with weights."""
