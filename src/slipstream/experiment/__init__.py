"""Experiments: one arm of a comparison, from its start to its report, in stages that survive the loss of a machine."""
