"""Questions to be answered by search over a local index: NQ, TriviaQA, PopQA, HotpotQA, 2Wiki, MuSiQue and Bamboogle.

| set | fields |
|---|---|
| NQ | `question`, `answer` (a list) |
| TriviaQA | `question`, `answer` with `value` and `aliases` |
| PopQA | `question`, `possible_answers` (a list, as JSON) |
| HotpotQA, 2WikiMultihopQA | `question`, `answer` |
| MuSiQue | `question`, `answer`, `answer_aliases`, `answerable` |
| Bamboogle | `Question`, `Answer` |
| the form that FlashRAG gives to all of them | `question`, `golden_answers` |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import slipstream as ss
from slipstream.recipes.react.files import SAMPLE, first_of, path_of, tools_without


def read_questions(
    *,
    path: str = "questions",
    index: str = "",
    num: int | None = None,
    grader: Literal["exact", "f1"] = "exact",
    limit: int = 3,
    without: str = "",
    turns: int = 10,
) -> tuple[ss.Task, ...]:
    """The questions of a file, or of the shipped sample, with `index` (`slipstream index make`) to search and `limit`
    results of a search. A file without an index is closed book. `without` names a tool that agents do not get."""
    place = index or (_sample_index() if path == "questions" else "")
    known = {"search": ss.search_documents, "get_document": ss.get_document, "finish": ss.finish}
    names = tools_without(tuple(known) if place else ("finish",), without)
    asked = "Search for what you need. Finish with the answer alone." if place else "Finish with the answer alone."
    resources: Mapping[str, ss.Json] = {"search": {"index": place, "limit": limit}} if place else {}
    grade = {"exact": ss.exact, "f1": ss.f1}[grader]
    rows = [row for row in ss.read_rows(path_of(path), num) if row.fields.get("answerable", True)]
    return tuple(
        ss.Task(
            id=f"{number:05d}",
            instruction=f"{first_of(row, 'question', 'Question')}\n\n{asked}",
            tools=[known[name] for name in names],
            grader=grade(*answers(row)),
            limits=ss.AgentLimits(turns=turns),
            resources=resources,
        )
        for number, row in enumerate(rows)
    )


def answers(row: ss.Row) -> list[str]:
    """All answers that a row takes for right."""
    fields = row.fields
    for name in ("golden_answers", "possible_answers", "answers"):
        if fields.get(name) is not None:
            return _listed(row, row.structure(name))
    answer: Any = fields.get("answer", fields.get("Answer"))
    if isinstance(answer, dict):
        return _listed(row, [answer.get("value"), *(answer.get("aliases") or [])])
    aliases = row.structure("answer_aliases") if fields.get("answer_aliases") else []
    return _listed(row, [*(answer if isinstance(answer, list) else [answer]), *aliases])


def _listed(row: ss.Row, found: Any) -> list[str]:
    named = [each for each in found if isinstance(each, str) and each.strip()] if isinstance(found, list) else []
    if not named:
        raise row.wrong("it has no answer")
    return list(dict.fromkeys(named))


def _sample_index() -> str:
    """The index of the sample's passages, made when it is first needed; of words alone, so that it needs no model."""
    out = ss.default_home() / "indexes" / "react-sample"
    ss.make_index(SAMPLE / "passages.jsonl", out, encoder="", reuse=True)
    return str(out)
