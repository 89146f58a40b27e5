"""Reads long-context question sets: RULER, HotpotQA and MuSiQue files, in the form they are published in.

Input: a file, JSONL or one JSON array. Output: tasks, each document cut into sections of `section_tokens`.

    slipstream eval memory tasks=slipstream.recipes.memory.readers:hotpotqa tasks.args.path=FILE
        tasks.args.length_tokens=200000 model.kind=chat model.base_url=http://localhost:8000/v1

The paragraphs of HotpotQA and MuSiQue fill a few sections at most. With `length_tokens` those of other rows are mixed
in, as MemAgent does, until the document is that long.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import slipstream as ss
from slipstream.recipes.memory.document import CHARS_PER_TOKEN, Sizes, document_task, packed, sections_of

MAX_FILE_BYTES = 4 << 30
Metric = Literal["exact", "f1"]


def ruler(
    *,
    path: str,
    num: int | None = None,
    match: Literal["all", "part"] = "all",
    section_tokens: int = 5_000,
    memory_tokens: int = 1_024,
    max_sections: int = 4_096,
) -> Iterator[ss.Task]:
    """RULER: the last line of `input` is the question, what stands before it is the document. The reward is the share
    of `outputs` that the answer contains; with `match=part` one is enough, as for its question answering."""
    sizes = Sizes(section_tokens=section_tokens, memory_tokens=memory_tokens, max_sections=max_sections)
    for place, row in enumerate(islice(_rows(path), num), start=1):
        where = f"{path}, row {place}"
        outputs = _texts(row, "outputs", where)
        document, _, question = _text(row, "input", where).strip().rpartition("\n")
        yield document_task(
            id=f"ruler-{row.get('index', place)}",
            problem=question,
            sections=sections_of(document, sizes),
            grader=contains,
            extra={"outputs": list(outputs), "match": match},
            sizes=sizes,
        )


def hotpotqa(
    *,
    path: str,
    num: int | None = None,
    metric: Metric = "exact",
    length_tokens: int | None = None,
    seed: int = 0,
    section_tokens: int = 5_000,
    memory_tokens: int = 1_024,
    max_sections: int = 4_096,
) -> Iterator[ss.Task]:
    """HotpotQA: `context` holds titles and sentences."""
    sizes = Sizes(section_tokens=section_tokens, memory_tokens=memory_tokens, max_sections=max_sections)
    questions: list[_Question] = []
    for place, row in enumerate(_rows(path), start=1):
        where = f"{path}, row {place}"
        context = row.get("context")
        if not isinstance(context, list):
            raise ss.ConfigError(f"{where} has no list `context`: is it a HotpotQA file with paragraphs?")
        questions.append(
            _Question(
                id=f"hotpotqa-{row.get('_id', place)}",
                text=_text(row, "question", where),
                answers=(_text(row, "answer", where),),
                paragraphs=tuple(_titled(entry, where) for entry in context),
            )
        )
    yield from _tasks(questions[:num], questions, metric, length_tokens, seed, sizes)


def musique(
    *,
    path: str,
    num: int | None = None,
    metric: Metric = "exact",
    length_tokens: int | None = None,
    seed: int = 0,
    section_tokens: int = 5_000,
    memory_tokens: int = 1_024,
    max_sections: int = 4_096,
) -> Iterator[ss.Task]:
    """MuSiQue: an answer may be given by any of its aliases. Questions without an answer are left out."""
    sizes = Sizes(section_tokens=section_tokens, memory_tokens=memory_tokens, max_sections=max_sections)
    questions: list[_Question] = []
    for place, row in enumerate(_rows(path), start=1):
        where = f"{path}, row {place}"
        if row.get("answerable", True) is False:
            continue
        paragraphs = row.get("paragraphs")
        if not isinstance(paragraphs, list):
            raise ss.ConfigError(f"{where} has no list `paragraphs`: is it a MuSiQue file?")
        aliases = _texts(row, "answer_aliases", where) if row.get("answer_aliases") else ()
        questions.append(
            _Question(
                id=f"musique-{row.get('id', place)}",
                text=_text(row, "question", where),
                answers=(_text(row, "answer", where), *aliases),
                paragraphs=tuple(_paragraph(entry, where) for entry in paragraphs),
            )
        )
    if not questions:
        raise ss.ConfigError(f"{path} has no question that can be answered")
    yield from _tasks(questions[:num], questions, metric, length_tokens, seed, sizes)


def contains(answer: str, task: ss.Task) -> float:
    """The share of the expected outputs that the answer contains, whatever their case; with `match=part` any of them
    counts for all."""
    outputs = task.extra["outputs"]
    assert isinstance(outputs, list)
    found = [str(output).casefold() in answer.casefold() for output in outputs]
    return float(any(found)) if task.extra["match"] == "part" else sum(found) / len(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    id: str
    text: str
    answers: tuple[str, ...]
    paragraphs: tuple[str, ...]


def _tasks(
    asked: Sequence[_Question],
    others: Sequence[_Question],
    metric: Metric,
    length_tokens: int | None,
    seed: int,
    sizes: Sizes,
) -> Iterator[ss.Task]:
    if metric not in ("exact", "f1"):
        raise ss.ConfigError(f'metric="{metric}": give exact or f1')
    pool = sorted({paragraph for question in others for paragraph in question.paragraphs})
    for question in asked:
        paragraphs = list(question.paragraphs)
        if length_tokens is not None:
            paragraphs = _mixed(question, pool, length_tokens, random.Random(f"{seed} {question.id}"))
        yield document_task(
            id=question.id,
            problem=question.text,
            sections=packed(paragraphs, sizes),
            grader=ss.exact(*question.answers) if metric == "exact" else ss.f1(*question.answers),
            sizes=sizes,
        )


def _mixed(question: _Question, pool: Sequence[str], length_tokens: int, chance: random.Random) -> list[str]:
    """The question's own paragraphs among others, in any order, so many that the document has about that length. Other
    rows' paragraphs come again where there are too few."""
    own = set(question.paragraphs)
    others = [paragraph for paragraph in pool if paragraph not in own]
    wanted = length_tokens * CHARS_PER_TOKEN - sum(map(len, own))
    if wanted > 0 and not others:
        raise ss.ConfigError(f"length_tokens={length_tokens}: the file has no other paragraphs to mix in")
    mixed = list(question.paragraphs)
    while wanted > 0:
        mixed.append(chance.choice(others))
        wanted -= max(1, len(mixed[-1]))
    chance.shuffle(mixed)
    return mixed


def _titled(entry: ss.Json, where: str) -> str:
    match entry:
        case [str() as title, list() as sentences] if all(isinstance(sentence, str) for sentence in sentences):
            return f"{title}\n{''.join(map(str, sentences)).strip()}"
    raise ss.ConfigError(f"{where}: a paragraph is {str(entry)[:80]!r}, and should be [title, [sentences]]")


def _paragraph(entry: ss.Json, where: str) -> str:
    if isinstance(entry, dict) and isinstance(entry.get("paragraph_text"), str):
        title = entry.get("title")
        return f"{title}\n{entry['paragraph_text']}" if isinstance(title, str) else str(entry["paragraph_text"])
    raise ss.ConfigError(f"{where}: a paragraph is {str(entry)[:80]!r}, and should have a `paragraph_text`")


def _rows(path: str) -> Iterator[Mapping[str, ss.Json]]:
    """The objects of a JSONL file or of one JSON array."""
    file = Path(path).expanduser()
    if not file.is_file():  # a device or a pipe might never end
        raise ss.ConfigError(f"{path} is no file: set tasks.args.path to the data set's file")
    if (size := file.stat().st_size) > MAX_FILE_BYTES:
        raise ss.ConfigError(f"{path} has {size:,} bytes, and at most {MAX_FILE_BYTES:,} are read: split it")
    num = 0
    try:
        with file.open(encoding="utf-8") as lines:
            start = lines.read(1)
            lines.seek(0)
            whole = enumerate(json.load(lines), start=1) if start == "[" else None
            for number, row in whole or (
                (number, json.loads(line)) for number, line in enumerate(lines, 1) if line.strip()
            ):
                if not isinstance(row, dict):
                    raise ss.ConfigError(f"{path}, row {number} is a {type(row).__name__}, and should be an object")
                num += 1
                yield row
    except (OSError, ValueError, RecursionError) as raised:
        raise ss.ConfigError(f"{path} cannot be read after row {num}: {raised}") from raised
    if not num:
        raise ss.ConfigError(f"{path} has no rows")


def _text(row: Mapping[str, ss.Json], key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ss.ConfigError(f"{where} has no text under `{key}`")
    return value


def _texts(row: Mapping[str, ss.Json], key: str, where: str) -> tuple[str, ...]:
    value = row.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
        raise ss.ConfigError(f"{where} has no list of texts under `{key}`")
    return tuple(map(str, value))
