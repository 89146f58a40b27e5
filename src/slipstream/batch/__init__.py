"""From rollouts to training data. Pure: no input or output, no clock, no randomness."""
