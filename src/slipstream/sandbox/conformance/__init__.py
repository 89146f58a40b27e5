"""A suite that any sandbox provider can be checked with."""
