"""Leases, and the reaper of what killed runs left behind."""
