"""BrowseComp-Plus: questions with a fixed corpus, its relevance lists, and the files its own evaluation reads.

    slipstream index make corpus.jsonl --out bcp-index
    slipstream eval research tasks=slipstream.recipes.research.browsecomp:browsecomp_tasks tasks.args.path=queries.jsonl
        tasks.args.index=bcp-index tasks.args.canary=... model.kind=chat model.base_url=...

The rows are decrypted here, in memory; nothing decrypted is written but the tasks that a run records. Use them to
evaluate, and never to train.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import slipstream as ss

PLAIN_KEYS = frozenset({"query_id"})
FORM = (
    "Search the documents and read those that may hold the answer. Then finish with three lines:\n"
    "Explanation: why, with the ids of the documents in square brackets\n"
    "Exact Answer: the answer alone\n"
    "Confidence: how sure you are, as a percentage"
)
TOOLS = ("search", "get_document")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    query_id: str
    question: str
    answer: str
    gold_docids: tuple[str, ...]
    evidence_docids: tuple[str, ...]
    negative_docids: tuple[str, ...]


def browsecomp_tasks(
    *, path: str, index: str = "", url: str = "", canary: str = "", judge_url: str = "", judge: str = "", limit: int = 5
) -> Iterator[ss.Task]:
    """A task for each query of a file. The corpus is searched in a local `index`, or through a retriever at `url`.
    `canary` decrypts the rows; leave it out for a file that is decrypted already. `judge_url` and `judge` name the
    server and the model that judge; without them the run's own model does."""
    source: dict[str, ss.Json] = {"index": index} if index else {"url": url}
    for query in read_queries(Path(path), canary=canary):
        yield ss.Task(
            id=query.query_id,
            instruction=f"{query.question}\n\n{FORM}",
            tools=[ss.search_documents, ss.get_document, ss.finish],
            grader=ss.judge(query.answer, question=query.question, form="browsecomp", base_url=judge_url, model=judge),
            limits=ss.AgentLimits(turns=100),
            resources={"search": {**source, "limit": limit}},
        )


def read_queries(path: Path, *, canary: str = "") -> list[Query]:
    """The rows of a file, decrypted if there is a canary."""
    if not path.is_file():
        raise ss.ConfigError(f"there is no file {path}: name the queries of BrowseComp-Plus, as .jsonl")
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            row = decrypted(row, canary) if canary else row
            found.append(_query(row))
        except (ValueError, KeyError, TypeError) as raised:
            remedy = "check the canary" if canary else "give tasks.args.canary, if the file is encrypted"
            raise ss.ConfigError(
                f"{path}, line {number} is no query of BrowseComp-Plus ({type(raised).__name__}: {raised}): {remedy}"
            ) from raised
    return found


def _query(row: Mapping[str, Any]) -> Query:
    def docids(key: str) -> tuple[str, ...]:
        return tuple(str(document["docid"]) for document in row.get(key, ()))

    return Query(
        query_id=str(row["query_id"]),
        question=str(row["query"]),
        answer=str(row["answer"]),
        gold_docids=docids("gold_docs"),
        evidence_docids=docids("evidence_docs"),
        negative_docids=docids("negative_docs"),
    )


def decrypted(value: Any, canary: str) -> Any:
    """A row in which every string but the query's id is base64 of the text, XORed with the canary's digest over and
    over. (Any: JSON.)"""
    if isinstance(value, str):
        return _decrypted_text(value, canary)
    if isinstance(value, list):
        return [decrypted(each, canary) for each in value]
    if isinstance(value, dict):
        return {key: each if key in PLAIN_KEYS else decrypted(each, canary) for key, each in value.items()}
    return value


def _decrypted_text(text: str, canary: str) -> str:
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as raised:
        raise ValueError(f"{text[:40]!r} is not base64") from raised
    key = cycle(hashlib.sha256(canary.encode()).digest())
    return bytes(byte ^ mask for byte, mask in zip(data, key, strict=False)).decode("utf-8")


def encrypted(value: Any, canary: str) -> Any:
    """The inverse of `decrypted`, for files of your own in this form."""
    if isinstance(value, str):
        key = cycle(hashlib.sha256(canary.encode()).digest())
        return base64.b64encode(bytes(b ^ mask for b, mask in zip(value.encode(), key, strict=False))).decode()
    if isinstance(value, list):
        return [encrypted(each, canary) for each in value]
    if isinstance(value, dict):
        return {key: each if key in PLAIN_KEYS else encrypted(each, canary) for key, each in value.items()}
    return value


# ---------------------------------------------------------------- relevance lists


def read_relevant(path: Path) -> dict[str, frozenset[str]]:
    """The relevant documents of each query, from lines such as `42 Q0 doc7 1`."""
    found: dict[str, set[str]] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        parts = line.split()
        if not parts:
            continue
        if len(parts) != 4 or not parts[3].isdigit():
            raise ss.ConfigError(f"{path}, line {number} is no relevance: write QUERY Q0 DOCID 1")
        if int(parts[3]) > 0:
            found.setdefault(parts[0], set()).add(parts[2])
    return {query_id: frozenset(docids) for query_id, docids in found.items()}


def recall(retrieved: Mapping[str, Iterable[str]], relevant: Mapping[str, frozenset[str]]) -> float:
    """The mean share of a query's relevant documents that were retrieved, over the queries that have any."""
    shares = [
        len(relevant[query_id].intersection(docids)) / len(relevant[query_id])
        for query_id, docids in retrieved.items()
        if relevant.get(query_id)
    ]
    return sum(shares) / len(shares) if shares else 0.0


# ---------------------------------------------------------------- run files


def retrieved_docids(rollout: ss.Rollout) -> tuple[str, ...]:
    """The documents that searches of a rollout have shown, in order, each once."""
    found: dict[str, None] = {}
    for message in _answers(rollout):
        if message.name == "search" and not message.is_error:
            found.update((str(row["docid"]), None) for row in json.loads(message.content))
    return tuple(found)


def run_file(rollout: ss.Rollout) -> dict[str, ss.Json]:
    """What the benchmark's own evaluation reads of one query."""
    counts = Counter(message.name for message in _answers(rollout) if message.name in TOOLS)
    answer = rollout.ending.answer
    done = answer is not None
    return {
        "query_id": rollout.job.key.task_id,
        "tool_call_counts": dict(counts),
        "status": "completed" if done else "incomplete",
        "retrieved_docids": list(retrieved_docids(rollout)),
        "result": [{"type": "output_text", "output": answer}] if done else [],
    }


def write_run_files(run: ss.Run, folder: str | Path) -> int:
    """Write `run_QUERY.json` for each query of a recorded run; of several samples, the first. Returns how many."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = set[str]()
    for rollout in sorted(run.rollouts(), key=lambda each: each.job.key.sample):
        query_id = rollout.job.key.task_id
        if query_id not in written:
            written.add(query_id)
            (folder / f"run_{query_id}.json").write_text(json.dumps(run_file(rollout), indent=2) + "\n")
    return len(written)


def _answers(rollout: ss.Rollout) -> Iterator[ss.Message]:
    """The answers of tools."""
    for turn in rollout.turns:
        yield from (message for message in turn.messages if message.role is ss.Role.TOOL)
