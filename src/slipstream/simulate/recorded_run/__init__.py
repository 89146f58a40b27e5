"""Recorded runs: read, fitted, and replayed under other settings."""
