"""The simulated machine: an engine, cores and attempts on virtual time."""
