"""Sandboxes that are started before they are asked for."""
