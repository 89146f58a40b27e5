"""Hints: rules that look at the calls and answers so far, and append advice to the next observation.

`agent.hints.on=true` enables them, and `agent.hints.NAME=false` disables one of them. Each hint given is recorded with
its message.
"""

from slipstream.agent.hints.adviser import FINISH_RULES, HELD, RULES, Adviser

__all__ = ["FINISH_RULES", "HELD", "RULES", "Adviser"]
