"""Measures Slipstream's own overhead per rollout, and how long hostile input blocks the event loop."""
