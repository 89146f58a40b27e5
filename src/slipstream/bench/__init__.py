"""Benchmarks that print figures. Figures to be compared are measured in the same run."""
