"""Benchmarks: what the parts cost, printed as numbers. Figures to compare stand side by side in one run."""
