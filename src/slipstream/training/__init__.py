"""Training: one loop for every Learner."""

from slipstream.training.learner import Learner

__all__ = ["Learner"]
