"""Checks the syntax of code with the sandbox's own programs.

Input: the name of a file and its bytes. Output: the first error, or None.
Invariants: the text is parsed inside the sandbox, with a deadline and a memory limit, and never run; a checker that is
missing, crashes or takes too long reports nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from slipstream.errors import SandboxLimitError
from slipstream.sandbox.base import Sandbox

TIMEOUT_S = 10.0
MAX_BYTES = 2 << 20
_FOUND = 3
_MAX_SHOWN_CHARS = 200
_LINE = re.compile(r"[0-9]{1,9}")

_LIMITS = """\
import sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except (ImportError, ValueError, OSError):
    pass
data = sys.stdin.buffer.read()
def told(line, what):
    sys.stdout.write("%s\\n%s" % (line or 0, what))
    sys.exit(3)
"""
_PYTHON = (
    _LIMITS
    + """\
import warnings
warnings.simplefilter("ignore")
try:
    compile(data, "file", "exec", 0, True)
except SyntaxError as error:
    told(error.lineno, error.msg)
except ValueError as error:
    told(0, error)
"""
)
_JSON = (
    _LIMITS
    + """\
import json
try:
    json.loads(data.decode("utf-8-sig"))
except UnicodeDecodeError:
    pass
except ValueError as error:
    told(getattr(error, "lineno", 0), getattr(error, "msg", error))
"""
)
_CHECKERS: Mapping[str, Sequence[str]] = {
    ".py": ("python3", "-I", "-S", "-c", _PYTHON),
    ".pyi": ("python3", "-I", "-S", "-c", _PYTHON),
    ".json": ("python3", "-I", "-S", "-c", _JSON),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntaxProblem:
    line: int
    """0 if unknown."""
    what: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}" if self.line else self.what


async def find_problem(sandbox: Sandbox, path: str, data: bytes, *, timeout_s: float) -> SyntaxProblem | None:
    """The first error; None if there is none, or if it is unknown."""
    argv = _CHECKERS.get(PurePosixPath(path).suffix.lower())
    if argv is None or len(data) > MAX_BYTES or timeout_s <= 0:
        return None
    try:
        result = await sandbox.exec(argv, stdin=data, timeout_s=min(TIMEOUT_S, timeout_s), max_output_bytes=10_000)
    except SandboxLimitError:
        return None
    if result.exit_code != _FOUND:
        return None
    number, _, what = result.stdout.text().partition("\n")
    message = " ".join(what.split())[:_MAX_SHOWN_CHARS]
    return SyntaxProblem(line=int(number) if _LINE.fullmatch(number) else 0, what=message or "it does not parse")
