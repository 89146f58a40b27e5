"""The embedded torch engine and learner, for small models in one process."""
