"""Replays of made tasks: the calls of the hidden tests, recorded under the reference, and fresh arguments for them."""

from pathlib import Path

RECORDER = Path(__file__).with_name("recorder.py")
"""The plugin that records calls in a sandbox."""
