"""Patches as git writes them, made, read and applied without git."""
