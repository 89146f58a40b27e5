"""Trainers: those that Slipstream drives, each a `train.Learner`, and those that drive it; one file or folder each.

`driven`, `outgoing` and `client` are what trainers that drive share.
"""
