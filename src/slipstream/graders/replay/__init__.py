"""Replay: recorded calls are repeated on the work, in a process that does not know the expected values."""
