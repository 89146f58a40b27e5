"""The chat formats, one module each, and what they share."""
