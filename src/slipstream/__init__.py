"""Slipstream trains and evaluates multi-turn, long-horizon LLM agents with reinforcement learning."""

__version__ = "0.1.0"
