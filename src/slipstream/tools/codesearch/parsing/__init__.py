"""Parses source files in confined processes."""
