"""The chat format of Qwen2.5-Instruct and Qwen2.5-Coder-Instruct.

ChatML with Qwen's own tool prompt in the system message. A call is a JSON object between `<tool_call>` and
`</tool_call>`; the answers to a reply's calls share one user message, each between `<tool_response>` tags.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from slipstream.render.base import Tokenizer
from slipstream.render.formats.calls import loose_calls
from slipstream.render.formats.chatml import ChatMLFormat
from slipstream.types import Message, Role, ToolSpec

DEFAULT_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
_TOOLS_BEFORE = (
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_AFTER = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call>"
)


class Qwen25Format(ChatMLFormat):
    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        default_system: str = DEFAULT_SYSTEM,
        show_tools: bool = True,
        bare_calls: bool = False,
    ) -> None:
        """`bare_calls` also reads calls that are written as JSON without the tags, or with wrong ones, as Qwen2.5-Coder
        often does, and line breaks inside their strings. What it reads in the format's own way stays as it is."""
        super().__init__(tokenizer, default_system=default_system, show_tools=show_tools)
        self._reads_bare_calls = bare_calls

    def parse(self, sampled: list[int], tail: list[int], tools: Sequence[ToolSpec]) -> Message:
        message = super().parse(sampled, tail, tools)
        if not self._reads_bare_calls or any(call.problem is None for call in message.calls):
            return message
        text = "\n".join((message.content, *(call.raw for call in message.calls))).strip("\n")
        content, calls = loose_calls(text, tools)
        return replace(message, content=content, calls=calls) if calls else message

    def _system(self, system: str, tools: Sequence[ToolSpec]) -> str:
        if not tools:
            return system
        specs = "".join(f"\n{json.dumps(_spec(tool), ensure_ascii=False)}" for tool in tools)
        return f"{system}{_TOOLS_BEFORE}{specs}{_TOOLS_AFTER}"

    def _given(self, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = []
        answers = ""
        for place, message in enumerate(messages):
            if message.role is not Role.TOOL:
                ids += super()._given([message])
                continue
            answers += f"\n<tool_response>\n{message.content}\n</tool_response>"
            if place + 1 == len(messages) or messages[place + 1].role is not Role.TOOL:
                ids += self._turn(f"user{answers}")
                answers = ""
        return ids


def _spec(tool: ToolSpec) -> dict[str, object]:
    about = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": about}
