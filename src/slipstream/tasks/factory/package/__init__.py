"""Prepares a Python package for the factory: fetches it, finds its layout, and runs its tests in sandboxes."""
