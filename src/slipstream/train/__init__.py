"""Training: one loop for every Learner."""

from slipstream.train.learner import Learner

__all__ = ["Learner"]
