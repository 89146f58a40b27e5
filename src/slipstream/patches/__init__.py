"""Makes, parses and applies patches in git's format, without git."""
