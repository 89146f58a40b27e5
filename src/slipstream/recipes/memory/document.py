"""A long document as a task: what the agent is asked, and the sections that its tool shows one at a time.

Input: a problem, a text or its sections, the answers. Output: an `ss.Task`. Invariants: no section is empty; a document
that is empty, or longer than `Sizes` allows, is refused before anything runs; the number of turns grows with the number
of sections.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import slipstream as ss
from slipstream.recipes.memory.tools import finish, next_with_summary

CHARS_PER_TOKEN = 4
"""For English prose, about. Readers do not have the model's tokenizer."""
SPARE_TURNS = 2
"""Besides one for the question, one for each section and one for the answer."""
WINDOW_BESIDE = 4_096
"""Tokens of the window beside what is shown: the tools' descriptions, thinking, refused calls."""
SYSTEM = (
    "You answer a question about a document that is too long to be shown at once. It comes in sections. "
    "next_with_summary shows the next one and forgets everything except your summary: write down whatever may help to "
    "answer the question, and keep what you noted before. After the last section call finish with the answer, as short "
    "as possible."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How a document is cut up. The defaults are those of MemAgent."""

    section_tokens: int = 5_000
    memory_tokens: int = 1_024
    """The longest summary that is accepted."""
    max_sections: int = 4_096
    """A longer document is refused."""

    def __post_init__(self) -> None:
        for name in ("section_tokens", "memory_tokens", "max_sections"):
            if getattr(self, name) < 1:
                raise ss.ConfigError(f"{name}={getattr(self, name)}: give 1 or more")


def sections_of(text: str, sizes: Sizes) -> list[str]:
    """The text in pieces of about `section_tokens`, cut between paragraphs, sentences or words where there are any."""
    return list(_pieces(text, sizes.section_tokens * CHARS_PER_TOKEN, sizes))


def packed(parts: Iterable[str], sizes: Sizes) -> list[str]:
    """Paragraphs put together into sections of about `section_tokens`; one that is longer is cut up."""
    return sections_of("\n\n".join(part.strip() for part in parts if part.strip()), sizes)


def document_task(
    *,
    id: str,
    problem: str,
    sections: Sequence[str],
    grader: Any,  # whatever ss.Task takes as one
    sizes: Sizes,
    system: str = SYSTEM,
    extra: Mapping[str, ss.Json] | None = None,
) -> ss.Task:
    """The agent is asked `problem` alone at first; its window holds the memory and one section twice over."""
    where = f"document {id}"
    if not sections or not all(section.strip() for section in sections):
        raise ss.ConfigError(f"{where} is empty or has an empty section: leave it out, or give its text")
    if len(sections) > sizes.max_sections:
        raise ss.ConfigError(
            f"{where} has more than {sizes.max_sections} sections: raise max_sections or section_tokens"
        )
    if not problem.strip():
        raise ss.ConfigError(f"{where} has no question: leave it out")
    longest = max(map(len, sections)) + 2 * sizes.memory_tokens * CHARS_PER_TOKEN + len(problem) + len(system)
    return ss.Task(
        id=id,
        instruction=problem,
        system=system,
        tools=[next_with_summary, finish],
        grader=grader,
        extra=extra,
        limits=ss.AgentLimits(
            turns=len(sections) + 2 + SPARE_TURNS,
            context_tokens=2 * longest // CHARS_PER_TOKEN + WINDOW_BESIDE,
            tool_seconds=60.0 + len(sections),
        ),
        resources={"sections": list(sections), "memory_chars": sizes.memory_tokens * CHARS_PER_TOKEN},
    )


_BREAKS = re.compile(r"\n\s*\n|(?<=[.!?])\s+|\s+")


def _pieces(text: str, max_chars: int, sizes: Sizes) -> Iterator[str]:
    start, num = 0, 0
    while start < len(text):
        end = _cut(text, start, max_chars)
        if piece := text[start:end].strip():
            num += 1
            if num > sizes.max_sections + 1:
                return  # refused by document_task: an endless one is not cut up to its end
            yield piece
        start = end


def _cut(text: str, start: int, max_chars: int) -> int:
    """Where the section that begins at `start` ends: at the best break in its second half."""
    end = start + max_chars
    if end >= len(text):
        return len(text)
    floor = start + max(1, max_chars // 2)
    found = list(_BREAKS.finditer(text, floor, end))
    if not found:
        return end
    return max(found, key=lambda each: (_rank(each[0], text, each.start()), each.start())).end()


def _rank(gap: str, text: str, at: int) -> int:
    if gap.count("\n") > 1:
        return 2
    return int(text[at - 1] in ".!?")
