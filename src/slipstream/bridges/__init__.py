"""Learners: each trainer that Slipstream drives, behind `train.Learner`; one file or folder each."""
