"""Answers sized for a model: in full when short, a preview when long, folded to one line each when many.

Input: Places and lines of files. Output: text with line numbers. Invariants: every definition has its path and lines;
what is not shown is counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.tools.codesearch.answers.ranking import Fit
from slipstream.tools.codesearch.answers.resolve import CONTAINERS
from slipstream.tools.codesearch.answers.uses import Site
from slipstream.tools.codesearch.parsing.facts import Definition, FileFacts
from slipstream.tools.codesearch.tree import DefinitionPlace
from slipstream.tools.line_numbers import with_number

FULL_LINES = 150
FULL_CHARS = 7000
PREVIEW_LINES = 12
HEAD_LINES = 40
MAX_FOLDED = 25
MAX_MEMBERS = 80
MAX_ATTRIBUTES = 20
MAX_LINE_CHARS = 240
MAX_SIGNATURE_LINES = 12
MAX_SIGNATURE_CHARS = 160
ANSWER_CHARS = 12_000
_DECORATORS = re.compile(r"^(?:@[\w.]+(?:\([^()]*\))?\s+(?=\S))+")
WITH_BODY = ("class", "function", "method", "interface", "struct", "enum", "trait", "impl", "module", "macro")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchAnswer:
    text: str
    next_step: str = ""
    """What to ask next, in a sentence."""
    kind: str = ""
    """The kind of next step: `rest`, `narrow`, `callers`, `nothing`."""
    is_empty: bool = False


def numbered(lines: Sequence[str], first: int, last: int) -> str:
    """Lines `first` to `last` with their numbers."""
    width = len(str(last))
    return "\n".join(
        with_number(number, cut_line(line), width) for number, line in enumerate(lines[first - 1 : last], first)
    )


def cut_line(line: str) -> str:
    line = line.rstrip()
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]} [... {len(line) - MAX_LINE_CHARS} more]"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def where(path: str, first: int, last: int) -> str:
    return f"{path}:{first}" if first == last else f"{path}:{first}-{last}"


def headline(place: DefinitionPlace) -> str:
    definition = place.definition
    kind = "" if definition.kind == "impl" else f"{definition.kind} "
    return f"{where(place.path, definition.first, definition.last)} {kind}{'.'.join(place.qualified)}"


def full(place: DefinitionPlace) -> tuple[str, str]:
    """A definition in full if it is short, else folded; and a term for a part that is not shown."""
    definition = place.definition
    lines = place.facts.lines()
    last = min(definition.last, len(lines))
    body = numbered(lines, definition.first, last)
    head = headline(place)
    if last - definition.first < FULL_LINES and len(body) <= FULL_CHARS:
        return f"{head}\n{body}", ""
    if definition.kind in CONTAINERS and (members := place.facts.children(definition.number)):
        shown_to = max(definition.line, min(members[0].first - 1, definition.line + PREVIEW_LINES))
        shown = numbered(lines, definition.first, shown_to)
        outline, rest = outlined(place.facts, members, lines)
        return f"{head}\n{shown}\n{outline}", f"{place.path}:{'.'.join(place.qualified)}.{rest or members[0].name}"
    shown_to = min(definition.line + HEAD_LINES, last)
    shown = numbered(lines, definition.first, shown_to)
    more = f"[lines {shown_to + 1}-{last} are not shown]"
    return f"{head}\n{shown}\n{more}", f"{place.path}:{shown_to + 1}-{last}"


def written_outside(members: Sequence[DefinitionPlace]) -> str:
    """Members of a type that are in blocks of their own, one line each."""
    shown = ["members in other blocks:"]
    for place in members[:MAX_MEMBERS]:
        definition = place.definition
        place_text = where(place.path, definition.first, definition.last)
        shown.append(f"  {place_text}: {signature(place.facts.lines(), definition)}")
    if len(members) > MAX_MEMBERS:
        shown.append(f"  [{len(members) - MAX_MEMBERS} more]")
    return "\n".join(shown)


def preview(place: DefinitionPlace) -> str:
    definition = place.definition
    lines = place.facts.lines()
    last = min(definition.last, len(lines))
    shown_to = min(last, max(definition.first + PREVIEW_LINES - 1, definition.line))
    text = f"{headline(place)}\n{numbered(lines, definition.first, shown_to)}"
    return text if shown_to >= last else f"{text}\n[lines {shown_to + 1}-{last} are not shown]"


def folded(places: Sequence[DefinitionPlace], limit: int = MAX_FOLDED) -> str:
    """One line per definition, with its first line of code."""
    shown = []
    texts: dict[str, list[str]] = {}
    for place in places[:limit]:
        if place.path not in texts:
            texts[place.path] = place.facts.lines()
        shown.append(f"{headline(place)}: {signature(texts[place.path], place.definition)}")
    if len(places) > limit:
        shown.append(f"[{len(places) - limit} more]")
    return "\n".join(shown)


def fitting(fits: Sequence[Fit]) -> str:
    """Files that fit a text, each with the definitions and lines that do."""
    shown: list[str] = []
    for fit in fits:
        lines = fit.facts.lines()
        shown.append(f"{fit.path} ({len(lines)} lines)")
        for place in fit.places:
            definition = place.definition
            span = where("", definition.first, definition.last)[1:]
            shown.append(f"  {span}: {'.'.join(place.qualified)}: {signature(lines, definition)}")
        shown += [f"  {with_number(line, cut_line(lines[line - 1]))}" for line in fit.lines if line <= len(lines)]
    return "\n".join(shown)


def signature(lines: Sequence[str], definition: Definition) -> str:
    """The first line of a definition, with the rest of its arguments and without decorators before it."""
    at = definition.line - 1
    text = lines[at].strip() if at < len(lines) else definition.name
    for line in lines[at + 1 : at + MAX_SIGNATURE_LINES]:
        if text.count("(") + text.count("[") <= text.count(")") + text.count("]"):
            break
        text = f"{text} {line.strip()}"
    text = _DECORATORS.sub("", text).replace("( ", "(").replace(", )", ")").replace(" )", ")") or text
    return text if len(text) <= MAX_SIGNATURE_CHARS else f"{text[:MAX_SIGNATURE_CHARS]}..."


def outlined(
    facts: FileFacts, members: Sequence[Definition], lines: Sequence[str], indent: str = "  "
) -> tuple[str, str]:
    """Members, one line each, including those of nested classes; and the first with a body, as the next term."""
    shown: list[str] = []
    first_body = ""
    num_hidden = 0
    attributes = [member.name for member in members if member.kind == "attribute"]
    if attributes:
        more = f" and {len(attributes) - MAX_ATTRIBUTES} more" if len(attributes) > MAX_ATTRIBUTES else ""
        shown.append(f"{indent}attributes: {', '.join(attributes[:MAX_ATTRIBUTES])}{more}")

    def add(definition: Definition, depth: int) -> None:
        nonlocal first_body, num_hidden
        if definition.kind == "attribute":
            return
        if len(shown) >= MAX_MEMBERS:
            num_hidden += 1
            return
        if definition.kind in WITH_BODY and not first_body:
            first_body = definition.name
        place = where("", definition.first, definition.last)[1:]
        doc = facts.docs.get(definition.number, "")
        comment = f"  # {doc}" if doc else ""
        shown.append(f"{indent * (depth + 1)}{place}: {signature(lines, definition)}{comment}")
        if definition.kind in CONTAINERS and depth < 3:
            for child in facts.children(definition.number):
                add(child, depth + 1)

    for member in members:
        add(member, 0)
    if num_hidden:
        shown.append(f"{indent}[{num_hidden} more]")
    return "\n".join(shown), first_body


def file_outline(path: str, facts: FileFacts) -> str:
    lines = facts.lines()
    tops = facts.children(-1)
    if not tops:
        shown_to = min(len(lines), HEAD_LINES)
        more = f"\n[lines {shown_to + 1}-{len(lines)} are not shown]" if shown_to < len(lines) else ""
        return f"{path} ({len(lines)} lines)\n{numbered(lines, 1, shown_to)}{more}"
    text = f"{path} ({len(lines)} lines)"
    if facts.error:
        text += f"\n[{facts.error}]"
    return f"{text}\n{outlined(facts, tops, lines)[0]}"


def entity(place: DefinitionPlace) -> str:
    """The term that finds exactly this definition."""
    return f"{place.path}:{'.'.join(place.qualified)}"


def shown_lines(path: str, facts: FileFacts, lines: Sequence[int], limit: int) -> str:
    """Some lines of a file, grouped by the definition that they are in."""
    text = facts.lines()
    shown = []
    before = None
    for line in lines[:limit]:
        around = facts.enclosing(line)
        inside = f" in {'.'.join(facts.qualified(around))}" if around >= 0 else ""
        if inside != before:
            shown.append(f"{path}{inside}")
            before = inside
        shown.append(f"  {with_number(line, cut_line(text[line - 1]) if line <= len(text) else '')}")
    if len(lines) > limit:
        shown.append(f"  [{len(lines) - limit} more lines]")
    return "\n".join(shown)


def shown_sites(some: Sequence[Site], limit: int) -> str:
    """Uses of a name, one line each."""
    shown: list[str] = []
    texts: dict[str, list[str]] = {}
    for site in some[:limit]:
        if site.path not in texts:
            texts[site.path] = site.facts.lines()
        lines = texts[site.path]
        inside = f" in {'.'.join(site.facts.qualified(site.use.owner))}" if site.use.owner >= 0 else ""
        code = lines[site.use.line - 1].strip() if site.use.line <= len(lines) else ""
        shown.append(f"  {site.path}:{site.use.line}{inside}: {code[:120]}")
    if len(some) > limit:
        rest = some[limit:]
        shown.append(f"  [{len(rest)} more in {len({site.path for site in rest})} files]")
    return "\n".join(shown)


def joined(terms: Sequence[str], answers: Sequence[SearchAnswer], notes: Sequence[str]) -> SearchAnswer:
    """Several answers as one, each truncated to its share."""
    share = ANSWER_CHARS // max(1, len(answers))
    texts = []
    for number, each in enumerate(answers):
        text = each.text
        if len(text) > share:
            end = text.rfind("\n", 0, share)
            kept = text[: end if end > 0 else share]
            text = f"{kept}\n[{text.count(chr(10), len(kept))} more lines of this answer: narrow the query]"
        heading = cut_line(" ".join(terms[number].split())) if terms else ""
        texts.append(f"== {heading}\n{text}" if len(answers) > 1 else text)
    first = next((each for each in answers if each.next_step), answers[0])
    return SearchAnswer(
        text="\n".join([*texts, *notes]),
        next_step=first.next_step,
        kind=first.kind,
        is_empty=all(each.is_empty for each in answers),
    )
