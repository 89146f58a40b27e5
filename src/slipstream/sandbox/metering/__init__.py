"""Limits on memory, processes and CPU time: control groups, or a watchdog."""
