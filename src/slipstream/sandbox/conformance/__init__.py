"""A test suite for any sandbox provider."""
