"""Models: the Protocols of what samples, and the clients that reach it.

This module has only the Protocols, so that importing it loads no HTTP library. Import the implementations by module:
`slipstream.model.openai` (clients of OpenAI-compatible endpoints), `slipstream.model.scripted` (models for tests) and
`slipstream.model.server` (an endpoint around any model).
"""

from slipstream.model.base import ChatModel, ChatReply, Completer, Scorer, SessionKeeper, TokenScore, WorkReporter

__all__ = ["ChatModel", "ChatReply", "Completer", "Scorer", "SessionKeeper", "TokenScore", "WorkReporter"]
