"""A scripted agent that reads what the tools show it, and knows nothing else.

It searches for the company, opens the page that the first result names, reads the founder there, searches for the
founder, opens that page, and answers with what it says. Where a step shows nothing, it gives up. Asked to report on a
page for a goal, as the tool `open_page` does, it repeats the sentences that share a word with the goal.
"""

from __future__ import annotations

import re

import slipstream as ss

_ASKED = re.compile(r"(?P<kind>In which town was|Which subject did) the founder of (?P<company>.+?) (?:born|study)\?")
_PAGE = re.compile(
    r"\[purpose (\w+)\]\n(?P<goal>.*?)\n\[end of purpose \1\].*\[page \1\]\n(?P<page>.*?)\n\[end of", re.DOTALL
)
_DOCID = re.compile(r'\{"docid": "([^"]+)", "score": [\d.]+, "title": "([^"]*)"')
_FOUNDER = re.compile(r"founded by ([A-Z]\w+ [A-Z]\w+)")
_FACTS = {"In which town was": re.compile(r"born in (\w+)"), "Which subject did": re.compile(r"studied (\w+)")}
_GOALS = {"In which town was": "where {} was born", "Which subject did": "what {} studied"}
UNKNOWN = "unknown"


def solver() -> ss.Script:
    def script(scene: ss.ScriptedCall) -> ss.Line:
        if asked := _PAGE.search(scene.prompt_text):
            return _report(asked["page"], asked["goal"])
        return _next(scene.prompt_text)

    return script


def _next(text: str) -> ss.Message:
    question = _ASKED.search(text)
    assert question is not None, "the script is for the questions of this recipe"
    company, kind = question["company"], question["kind"]
    read = text[question.end() :]
    found = {title: docid for docid, title in _DOCID.findall(read)}
    if fact := _FACTS[kind].search(read):
        return ss.act("finish", answer=fact[1])
    if founder := _FOUNDER.search(read):
        if founder[1] in found:
            return _once(read, "open_page", url=found[founder[1]], goal=_GOALS[kind].format(founder[1]))
        return _once(read, "search", query=founder[1])
    if company in found:
        return _once(read, "open_page", url=found[company], goal=f"who founded {company}")
    return _once(read, "search", query=company)


def _once(read: str, tool: str, **arguments: str) -> ss.Message:
    """The call, unless it was made before."""
    target = next(iter(arguments.values()))
    made = re.search(rf'"name": "{tool}", "arguments": \{{"\w+": "{re.escape(target)}"', read)
    return ss.act("finish", answer=UNKNOWN) if made else ss.act(tool, **arguments)


def _report(page: str, goal: str) -> str:
    wanted = _stems(goal)
    return " ".join(line for line in re.split(r"(?<=\.)\s+", page) if wanted & _stems(line)) or "nothing relevant"


def _stems(text: str) -> set[str]:
    return {word.rstrip("ed") for word in re.findall(r"[a-z]{4,}", text)}
