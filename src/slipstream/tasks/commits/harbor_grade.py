"""Grades a Harbor task: writes the commit's tests, runs them, and writes the reward. A standalone program for the
container: standard library only, started without `site` (`-I -S`).

Input: `expected.json` beside it. Output: `reward.txt` in the verifier's folder, 0 or 1, in place of whatever was there.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any


def main() -> None:
    expected = json.loads(pathlib.Path(__file__).with_name("expected.json").read_text(encoding="utf-8"))
    logs = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "/logs/verifier")
    logs.mkdir(parents=True, exist_ok=True)
    reward = 0
    try:
        reward = int(is_solved(expected))
    finally:
        for name in ("reward.json", "reward.txt"):
            (logs / name).unlink(missing_ok=True)
        (logs / "reward.txt").write_text(f"{reward}\n", encoding="utf-8")


def is_solved(expected: dict[str, Any]) -> bool:
    """Whether every expected test passed, by pytest's own summary."""
    for path, text in expected["restore"].items():
        place = pathlib.Path(path)
        place.unlink(missing_ok=True)
        if text is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
    flags = ["-rA", "-o", "addopts=", "-p", "no:cacheprovider"]
    done = subprocess.run(
        ["python3", "-B", "-m", "pytest", *flags, *expected["tests"]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    sys.stdout.buffer.write(done.stdout)
    sys.stdout.buffer.flush()
    lines = done.stdout.decode("utf-8", "replace").split("\n")
    passed = {line.removeprefix("PASSED ") for line in lines if line.startswith("PASSED ")}
    failed = {line.split(" ", 1)[1].partition(" - ")[0] for line in lines if line.startswith(("FAILED ", "ERROR "))}
    wanted = {*expected["fail_to_pass"], *expected["pass_to_pass"]}
    return wanted <= passed - failed


if __name__ == "__main__":
    main()
