"""Models: what samples, and how it is reached.

Here are the Protocols alone, so that importing them loads no HTTP library. The implementations are imported by module:
`slipstream.model.openai` (clients of OpenAI-compatible endpoints), `slipstream.model.scripted` (models for tests) and
`slipstream.model.server` (an endpoint around any model).
"""

from slipstream.model.base import ChatModel, ChatReply, Completer, Scorer, SessionKeeper, TokenScore, WorkReporter

__all__ = ["ChatModel", "ChatReply", "Completer", "Scorer", "SessionKeeper", "TokenScore", "WorkReporter"]
