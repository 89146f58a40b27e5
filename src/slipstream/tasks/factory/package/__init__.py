"""A Python package made ready for the factory: fetched, laid out, its tests run in sandboxes."""
