"""From settings to live parts: model, sandboxes, scheduling and dispatcher. `run.start_run` puts a run together."""
