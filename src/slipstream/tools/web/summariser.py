"""A summariser on a server of its own, as a NestedModel."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.types import Message, SampleParams

TIMEOUT_S = 120.0


class Summariser:
    """Asks an OpenAI-compatible server. The client belongs to the event loop of its first request."""

    def __init__(self, base_url: str, model: str, api_key_env: str) -> None:
        from slipstream.model.openai import OpenAIChat, OpenAIConfig

        self._chat = OpenAIChat(
            OpenAIConfig(base_url=base_url, model=model, api_key_env=api_key_env, timeout_s=TIMEOUT_S)
        )
        self._is_probed = bool(model)

    async def ask(self, messages: Sequence[Message], *, max_tokens: int) -> str:
        if not self._is_probed:
            await self._chat.probe()
            self._is_probed = True
        reply = await self._chat.chat(messages, [], SampleParams(max_tokens=max_tokens, temperature=0.0))
        return reply.message.content

    async def aclose(self) -> None:
        await self._chat.aclose()
