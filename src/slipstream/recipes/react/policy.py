"""A scripted agent for the sample. What it answers, it has read in what its tools showed; it knows no answer.

Problems of mathematics it turns into Python and copies what that prints. For code it has a few programs at hand, of
which the interpreter tells it which one gives what the statement's example shows. For questions it searches for one
fact after another. Where a tool shows nothing of use, it gives up.
"""

from __future__ import annotations

import re

import slipstream as ss
from slipstream.recipes.react import candidates
from slipstream.recipes.react.programs import WORK

UNKNOWN = "unknown"
_TASK = re.compile(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", re.DOTALL)
_SHOWN = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
_SEARCHED = re.compile(r'"name": "search", "arguments": \{"query": "([^"]*)"')

_PROBLEMS = {
    r"makes (\d+) trays of (\d+) rolls and sells (\d+)": "print({0} * {1} - {2})",
    r"sum of the digits of (\d+)\^(\d+)": "print(sum(map(int, str({0} ** {1}))))",
    r"primes are there below (\d+)": "print(sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(2, {0})))",
    r"1/k over k from (\d+) to (\d+)": (
        "from fractions import Fraction\nprint(sum(Fraction(1, k) for k in range({0}, {1} + 1)))"
    ),
    r"positive root of x\^2 = (\d+)": "print('\\\\sqrt{{' + str({0}) + '}}')",
    r"remainder when (\d+)\^(\d+) is divided by (\d+)": "print(pow({0}, {1}, {2}))",
}

_NAME = r"([A-Z]\w+ [A-Z]\w+)"
_FACTS = {
    "founder": rf"{{}} was founded by {_NAME}",
    "author": rf"{{}} was written by {_NAME}",
    "designer": rf"{{}} was designed by {_NAME}",
    "birthplace": r"{} was born in (\w+)",
    "place of death": r"{} died in (\w+)",
    "school": r"{} was educated at (the University of \w+)",
    "city": r"{} is in the city of (\w+)",
    "country": r"{} is a town in (\w+)",
    "capital": r"capital of {} is (\w+)",
}
_QUESTIONS = {
    r"who founded (the [\w ]+)": ("founder",),
    r"who wrote the novel ([\w ]+)\?": ("author",),
    r"in what town was ([\w ]+) born": ("birthplace",),
    r"in which town was the founder of ([\w ]+) born": ("founder", "birthplace"),
    r"where did the designer of ([\w ]+) die": ("designer", "place of death"),
    r"the university where the author of ([\w ]+) was educated": ("author", "school", "city"),
    r"capital of the country in which the birthplace of ([\w ]+) lies": ("birthplace", "country", "capital"),
}


def policy() -> ss.Script:
    def script(scene: ss.ScriptedCall) -> ss.Message:
        asked = _TASK.search(scene.prompt_text)
        task, shown = "" if asked is None else asked[1], _SHOWN.findall(scene.prompt_text)
        if r"\boxed{answer}" in task:
            return _mathematics(task, shown)
        if WORK in task:
            return _code(task, shown)
        return _question(task, shown, _SEARCHED.findall(scene.prompt_text))

    return script


def _mathematics(task: str, shown: list[str]) -> ss.Message:
    if shown:
        is_result = re.fullmatch(r"[\d/]+|\\sqrt\{\d+\}", shown[-1])
        return ss.act("finish", answer=f"\\boxed{{{shown[-1]}}}" if is_result else UNKNOWN)
    for pattern, code in _PROBLEMS.items():
        if found := re.search(pattern, task):
            return ss.act("python", code=code.format(*found.groups()))
    return ss.act("finish", answer=UNKNOWN)


def _code(task: str, shown: list[str]) -> ss.Message:
    if not shown:
        return ss.act("python", code=candidates.trial(task))
    if len(shown) == 1 and (fits := re.search(r"fits: (\d+)", shown[0])):
        return ss.act("write_file", path=WORK, content=candidates.solution(int(fits[1]), task))
    return ss.act("finish")


def _question(task: str, shown: list[str], searched: list[str]) -> ss.Message:
    for pattern, facts in _QUESTIONS.items():
        if not (asked := re.search(pattern, task, re.IGNORECASE)):
            continue
        known = asked[1]
        for fact in facts:
            if found := re.search(_FACTS[fact].format(re.escape(known)), "\n".join(shown), re.IGNORECASE):
                known = found[1]
                continue
            query = f"{fact} of {known}"
            return ss.act("finish", answer=UNKNOWN) if query in searched else ss.act("search", query=query)
        return ss.act("finish", answer=known)
    return ss.act("finish", answer=UNKNOWN)
