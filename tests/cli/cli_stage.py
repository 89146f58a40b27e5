"""The command line, run as a user runs it."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-c", "from slipstream.cli.main import main; main()"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """What it printed; how it ended if that was nothing, so that a failure can be understood."""
        assert self.out, f"nothing was printed; exit code {self.code}, standard error: {self.err}"
        value: dict[str, Any] = json.loads(self.out)
        return value


def environment() -> dict[str, str]:
    """Ours, with nothing in it that changes how a display looks."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("COLUMNS", "FORCE_", "NO_COLOR"))}


def slipstream(*arguments: str, cwd: Path) -> Ended:
    """Run the command to its end."""
    done = subprocess.run(
        [*COMMAND, *arguments], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    return Ended(code=done.returncode, out=done.stdout, err=done.stderr)


def refused(*arguments: str, cwd: Path) -> str:
    """What a bad input is told: one sentence on standard error, exit code 2, and no run left behind."""
    before = sorted(path.name for path in cwd.iterdir())
    ended = slipstream(*arguments, cwd=cwd)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("slipstream: ")
    assert ended.err.count("\n") == 1
    assert sorted(path.name for path in cwd.iterdir()) == before
    return ended.err.removeprefix("slipstream: ").rstrip("\n")
