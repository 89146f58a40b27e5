"""Makes the replays of tasks: calls of the hidden tests, recorded on the reference, and fresh arguments for them."""

from pathlib import Path

RECORDER = Path(__file__).with_name("recorder.py")
"""The plugin that records calls in a sandbox."""
