"""What Slipstream itself costs a rollout, and how long hostile input holds up the event loop."""
