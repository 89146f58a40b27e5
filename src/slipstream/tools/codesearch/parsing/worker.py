"""The process that parses files and matches regular expressions, so that malicious ones do no harm.

    worker.py MAX_MEMORY_BYTES LANGUAGE...

Input: frames on standard input, each two lengths, a JSON header and the bytes of a file. Output: a frame for each, in
the same form and order. Invariants: once it has sent that it is ready, it cannot open files or sockets, write files, or
start or signal processes; it is not root (`confine.py`). A job that takes more CPU seconds than its header allows ends
it.

A standalone program: it is run by path in isolated mode, and loads its neighbours by path.
"""

# ruff: noqa: PTH100, PTH118, PTH120

from __future__ import annotations

import codecs
import gc
import importlib.util
import json
import os
import re
import resource
import struct
import sys
import unicodedata
from array import array
from bisect import bisect_right
from typing import Any, BinaryIO

LENGTHS = struct.Struct("<II")
ENCODINGS = ("ascii", "latin-1", "utf-8-sig", "cp1252", "iso8859-15", "koi8-r", "cp1251", "utf-16")
"""Loaded early, since nothing can be opened later; a file in another encoding is scanned and not parsed."""


def load(name: str) -> Any:
    """A neighbour of this file, as a module."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def allow_cpu(seconds: float) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def send(out: BinaryIO, header: dict[str, Any], blob: bytes = b"") -> None:
    text = json.dumps(header, separators=(",", ":")).encode()
    out.write(LENGTHS.pack(len(text), len(blob)) + text + blob)
    out.flush()


def send_facts(out: BinaryIO, facts: Any) -> None:
    header = {
        "names": facts.names,
        "docs": facts.docs,
        "bases": facts.bases,
        "imports": [field for found in facts.imports for field in found],
        "types": [field for found in facts.types for field in found],
        "error": facts.error,
        "defs": len(facts.defs),
    }
    send(out, header, facts.defs.tobytes() + array("Q", facts.refs).tobytes())


# ---------------------------------------------------------------- regular expressions


def longest_literal(pattern: str, flags: int) -> str:
    """A text that every match must contain; "" if none is certain."""
    try:
        from re import _parser  # type: ignore[attr-defined]

        parsed = _parser.parse(pattern, flags)
        if (flags | parsed.state.flags) & re.IGNORECASE:
            return ""
        best = run = ""
        for kind, value in parsed:
            run = run + chr(value) if str(kind) == "LITERAL" else ""
            best = max(best, run, key=len)
    except (ImportError, AttributeError, TypeError, ValueError, RecursionError):
        return ""
    return best if "\n" not in best and "\r" not in best else ""


def match_lines(compiled: re.Pattern[str], data: bytes, max_lines: int) -> list[int]:
    """The lines at which matches begin, each once, at most `max_lines`."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    starts: list[int] | None = None
    lines: list[int] = []
    for found in compiled.finditer(text):
        if starts is None:
            starts = [0, *(newline.end() for newline in re.finditer("\n", text))]
        line = bisect_right(starts, found.start())
        if not lines or lines[-1] != line:
            lines.append(line)
            if len(lines) >= max_lines:
                break
    return lines


class Patterns:
    """Keeps the last compiled pattern, since a query uses the same one for many files."""

    def __init__(self) -> None:
        self._key: tuple[str, int] = ("", -1)
        self._compiled: re.Pattern[str] | None = None

    def get(self, pattern: str, flags: int) -> re.Pattern[str]:
        if self._compiled is None or self._key != (pattern, flags):
            self._compiled, self._key = re.compile(pattern, flags), (pattern, flags)
        return self._compiled


# ---------------------------------------------------------------- the loop


def parsed(parse: Any, data: bytes) -> Any:
    """The facts about a file. A bug in the parser costs its definitions, not this process."""
    try:
        return parse(data)
    except Exception as error:
        return sys.modules["python_source"].scan(data, f"{type(error).__name__}: {error}")


def answer(job: dict[str, Any], data: bytes, parsers: dict[str, Any], patterns: Patterns, out: BinaryIO) -> None:
    allow_cpu(job["cpu_s"])
    if job["op"] == "parse":
        send_facts(out, parsed(parsers[job["language"]], data))
        return
    flags = re.MULTILINE
    try:
        compiled = patterns.get(job["pattern"], flags)
    except (re.error, RecursionError, OverflowError) as error:
        send(out, {"error": str(error)})
        return
    if job["op"] == "literal":
        send(out, {"literal": longest_literal(job["pattern"], flags)})
    else:
        send(out, {"lines": match_lines(compiled, data, job["max_lines"])})


def main(max_memory_bytes: int, languages: list[str]) -> None:
    parsers: dict[str, Any] = {"python": load("python_source").parse}
    if languages:
        grammars = load("grammars")
        for language in languages:
            parsers[language] = grammars.open_grammar(language)
    for encoding in ENCODINGS:
        codecs.lookup(encoding)
    unicodedata.normalize("NFKC", "a")  # `compile` would import this at the first non-ASCII name
    sys.setrecursionlimit(3000)
    gc.disable()  # the trees have no cycles, and looking for cycles would take half of the time
    source, out = sys.stdin.buffer, sys.stdout.buffer
    confine = load("confine").confine
    confine(max_memory_bytes)
    send(out, {"ready": sorted(parsers)})
    patterns = Patterns()
    while len(lengths := source.read(LENGTHS.size)) == LENGTHS.size:
        header_bytes, data_bytes = LENGTHS.unpack(lengths)
        job = json.loads(source.read(header_bytes))
        answer(job, source.read(data_bytes), parsers, patterns, out)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
