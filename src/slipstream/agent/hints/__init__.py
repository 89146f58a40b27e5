"""Hints: rules that look at what was called and answered so far, and add a word of advice to the next observation.

`agent.hints.on=true` switches them on, and `agent.hints.NAME=false` one of them off. Each one given is on record with
the message it is in.
"""

from slipstream.agent.hints.adviser import FINISH_RULES, HELD, RULES, Adviser

__all__ = ["FINISH_RULES", "HELD", "RULES", "Adviser"]
