"""Questions in the form of Humanity's Last Exam: `id, question, image, answer, answer_type`.

Use them to evaluate, and never to train. Questions with a picture are left out: no tool shows one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import slipstream as ss

ANSWER_TYPES = ("exactMatch", "multipleChoice")
FORM = {
    "exactMatch": "Research the question. Finish with the answer alone.",
    "multipleChoice": "Research the question. Finish with the letter of the right choice alone.",
}


def hle_tasks(
    *,
    path: str,
    index: str = "",
    url: str = "",
    web: str = "",
    judge_url: str = "",
    judge: str = "",
    blocked: tuple[str, ...] = ("huggingface.co", "lastexam.ai"),
) -> Iterator[ss.Task]:
    """A task for each question of a .jsonl file without a picture. They are searched in a local `index`, a retriever at
    `url`, or the `web` (`serper`), where the sites in `blocked` cannot be opened, nor a page with the question."""
    file = Path(path)
    if not file.is_file():
        raise ss.ConfigError(f"there is no file {path}: name one with a question on each line")
    source: dict[str, ss.Json] = {"index": index} if index else {"url": url} if url else {"web": web}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            question, answer, kind = str(row["question"]), str(row["answer"]), str(row.get("answer_type", "exactMatch"))
            name = str(row["id"])
        except (ValueError, KeyError, TypeError) as raised:
            raise ss.ConfigError(
                f"{path}, line {number} is no question ({type(raised).__name__}: {raised})"
            ) from raised
        if kind not in ANSWER_TYPES:
            raise ss.ConfigError(f'{path}, line {number}: answer_type "{kind}": known are {", ".join(ANSWER_TYPES)}')
        if row.get("image"):
            continue
        yield ss.Task(
            id=name,
            instruction=f"{question}\n\n{FORM[kind]}",
            tools=[ss.search_documents, ss.open_page if web else ss.get_document, ss.finish],
            grader=ss.judge(answer, question=question, base_url=judge_url, model=judge),
            limits=ss.AgentLimits(turns=50),
            resources={
                "search": source,
                "pages": {"blocked": list(blocked), "blocked_phrases": [question]},
            },
        )
