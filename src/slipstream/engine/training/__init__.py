"""The embedded learner: updates, supervised training, checkpoints."""
