"""The chat formats, one per module, and what they share."""
