"""The programs that the scripted agent has at hand, and how it tries them on the example of a statement."""

from __future__ import annotations

import json
import re

FUNCTIONS = (
    "def solve(items):\n    return max(items)\n",
    "def solve(items):\n    return sorted(set(items))[-2]\n",
    (
        "def solve(text, shift):\n    turned = ''\n    for each in text:\n        if each.islower():\n"
        "            each = chr((ord(each) - 97 + shift) % 26 + 97)\n        turned += each\n    return turned\n"
    ),
    (
        "def solve(words):\n    common = words[0] if words else ''\n    for word in words:\n"
        "        while not word.startswith(common):\n            common = common[:-1]\n    return common\n"
    ),
    "def solve(items):\n    return sum(a > b for i, a in enumerate(items) for b in items[i + 1 :])\n",
    (
        "def solve(items, num):\n    num %= len(items) or 1\n"
        "    return items[len(items) - num :] + items[: len(items) - num]\n"
    ),
    "def solve(text):\n    return all(text.count(each) % 2 == 0 for each in text)\n",
)
PROGRAMS = (
    "input()\nprint(sum(map(int, input().split())))\n",
    (
        "input()\nbest = here = None\nfor x in map(int, input().split()):\n"
        "    here = x if here is None else max(x, here + x)\n    best = here if best is None else max(best, here)\n"
        "print(best)\n"
    ),
    "import sys\nfor line in sys.stdin.read().split('\\n')[1:]:\n    if line:\n        print(line[::-1])\n",
)
_ENTRY = (r"def (\w+)\(", r"assert (?:set\(|sorted\()?(\w+)\(", r"For example, (\w+)\(")
_TRY_FUNCTIONS = """
for number, source in enumerate(SOURCES):
    names = {}
    exec(source, names)
    names[ENTRY] = names["solve"]
    try:
        if repr(eval(CALL, names)) == repr(eval(EXPECTED)):
            print("fits:", number)
            break
    except Exception:
        pass
"""
_TRY_PROGRAMS = """
import subprocess, sys
for number, source in enumerate(SOURCES):
    ran = subprocess.run([sys.executable, "-c", source], input=GIVEN, capture_output=True, text=True, timeout=20)
    if ran.stdout.strip() == EXPECTED.strip():
        print("fits:", number)
        break
"""


def trial(task: str) -> str:
    """Python that prints which program gives what the example of a statement shows."""
    if printed := re.search(r"Example input:\n(.*?)\n\nExample output:\n(.*?)\n\n", task, re.DOTALL):
        given = {"SOURCES": PROGRAMS, "GIVEN": printed[1] + "\n", "EXPECTED": printed[2]}
        return _code(given, _TRY_PROGRAMS)
    call, expected = _example(task)
    return _code({"SOURCES": FUNCTIONS, "ENTRY": _entry(task), "CALL": call, "EXPECTED": expected}, _TRY_FUNCTIONS)


def solution(number: int, task: str) -> str:
    """What is written into the file."""
    if "Example input:" in task:
        return PROGRAMS[number]
    return f"{FUNCTIONS[number]}\n\n{_entry(task)} = solve\n"


def _code(given: dict[str, object], program: str) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items()) + program


def _entry(task: str) -> str:
    found = (re.search(pattern, task) for pattern in _ENTRY)
    return next((match[1] for match in found if match), "f")


def _example(task: str) -> tuple[str, str]:
    """A call and its value, of a docstring, an assertion or a sentence."""
    for pattern in (r">>> (.+)\n\s*(.+)", r"assert (.+) == (.+)", r"For example, (.+\)) returns (.+)\.\n"):
        if found := re.search(pattern, task):
            return found[1], found[2]
    return "None", "0"
