"""Leases, and the reaper, which removes what killed runs left behind."""
