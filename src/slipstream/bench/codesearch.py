"""Measures code search on a repository: the first answer, later ones, one after an edit, and a further rollout.

The folder is copied first; only the copy is edited. `query_ms_p50` is over a fixed mix of queries for the repository's
own names; as in a rollout, each query checks every file for changes.
"""

from __future__ import annotations

import gc
import shutil
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from slipstream.tools.codesearch import CodeSearch, Mode, Store, host_folder
from slipstream.tools.codesearch.tree import DefinitionPlace, FileLayer
from slipstream.types import Json

NUM_QUERIES = 60
NUM_EDITS = 9
MEGABYTE = 1_000_000.0


def run(repo: Path, *, num_queries: int = NUM_QUERIES, num_edits: int = NUM_EDITS) -> dict[str, Json]:
    """The figures: first_s, query_ms_p50, after_edit_ms, rollout_mb, files, and details."""
    with tempfile.TemporaryDirectory(prefix="slipstream-codesearch-") as folder:
        copy = Path(folder) / "repository"
        shutil.copytree(repo, copy, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        store = Store()
        try:
            return _measured(copy, store, num_queries, num_edits)
        finally:
            store.close()


def _measured(copy: Path, store: Store, num_queries: int, num_edits: int) -> dict[str, Json]:
    search = CodeSearch(host_folder(copy), store)
    first_s = _timed_s(lambda: search.ask(["main"]))
    names = _names(search)
    kinds: dict[str, list[float]] = {"symbol": [], "callers": [], "text": [], "lines": []}
    for number in range(num_queries):
        place = names[number % len(names)]
        name, line = ".".join(place.qualified), place.definition.line
        queries: dict[str, Callable[[], object]] = {
            "symbol": lambda name=name: search.ask([name]),  # type: ignore[misc]
            "lines": lambda place=place, line=line: search.ask([f"{place.path}:{line}"]),  # type: ignore[misc]
        }
        if number % 3 == 0:
            queries["callers"] = lambda name=name: search.ask([name], mode=Mode.CALLERS)  # type: ignore[misc]
            queries["text"] = lambda place=place: search.ask([place.definition.name], mode=Mode.TEXT)  # type: ignore[misc]
        for kind, query in queries.items():
            kinds[kind].append(_timed_s(query))
    everything = [took for some in kinds.values() for took in some]
    edits, are_correct = _edited(copy, search, names, num_edits)
    rollout_mb, second_s = _further_rollout_mb(copy, store)
    base = search.tree.code.base
    return {
        "first_s": round(first_s, 3),
        "query_ms_p50": _ms(everything),
        "after_edit_ms": _ms(edits),
        "rollout_mb": rollout_mb,
        "files": len(search.tree.paths()),
        "code_files": 0 if base is None else len(base.paths),
        "definitions": sum(facts.num_defs for _, facts in search.tree.code.items()),
        "queries": len(everything),
        "query_ms_p95": round(1000 * sorted(everything)[int(0.95 * (len(everything) - 1))], 2),
        "query_ms_p50_by_kind": {kind: _ms(some) for kind, some in kinds.items()},
        "after_edit_is_correct": are_correct,
        "rollout_first_s": round(second_s, 3),
        "base_mb": round(sum(layer.base.num_bytes for layer in _layers(search) if layer.base) / MEGABYTE, 1),
        "processes": store.parsers.num_processes,
        "left_out": len(search.tree.left_out),
        "not_fully_parsed": len(search.tree.unparsed),
    }


def _layers(search: CodeSearch) -> tuple[FileLayer, FileLayer]:
    return (search.tree.code, search.tree.texts)


def _names(search: CodeSearch) -> list[DefinitionPlace]:
    """Definitions spread evenly over the repository."""
    places = [
        DefinitionPlace(path, facts, number)
        for path, facts in sorted(search.tree.code.items(), key=lambda item: item[0])
        for number in range(facts.num_defs)
    ]
    return places[:: max(1, len(places) // 997)] or places


def _edited(copy: Path, search: CodeSearch, names: list[DefinitionPlace], num_edits: int) -> tuple[list[float], bool]:
    """Add a function to a file and search for it, then remove it and search again."""
    times: list[float] = []
    are_correct = True
    paths = sorted({place.path for place in names if place.path.endswith(".py")})
    for number in range(num_edits):
        file = copy / paths[number * len(paths) // num_edits]
        before = file.read_bytes()
        name = f"added_by_the_benchmark_{number}"
        file.write_bytes(before + f"\n\ndef {name}():\n    pass\n".encode())
        started_s = time.perf_counter()
        found = search.ask([name])
        times.append(time.perf_counter() - started_s)
        are_correct &= f"function {name}" in found.text
        file.write_bytes(before)
        are_correct &= f"function {name}" not in search.ask([name]).text
    return times, are_correct


def _further_rollout_mb(copy: Path, store: Store) -> tuple[float, float]:
    """The memory and time that one more rollout on the same repository takes to read all files."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        started_s = time.perf_counter()
        further = CodeSearch(host_folder(copy), store)
        further.ask(["main"], mode=Mode.TEXT)
        took_s = time.perf_counter() - started_s
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        assert further.tree.paths()
    finally:
        tracemalloc.stop()
    return round((after - before) / MEGABYTE, 2), took_s


def _timed_s(ask: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    ask()
    return time.perf_counter() - started_s


def _ms(seconds: list[float]) -> float:
    return round(1000 * statistics.median(seconds), 2) if seconds else 0.0
