"""The Hydra configuration of `slipstream.bridges.verl.main`."""
