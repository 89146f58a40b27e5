"""What this machine can isolate: `slipstream sandbox check`."""
