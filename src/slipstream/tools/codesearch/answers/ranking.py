"""Ranks files for a text in a user's words: a question, an error message with its traceback, a whole bug report.

Input: the text and the files of code. Output: files, best first, each with the definitions and lines that fit best.
Invariants: strings and comments count as much as names, whichever lines they go over; equal scores are ordered by path;
the work of one query is bounded in the bytes that it looks through. Tests are left out as long as other code fits,
unless the text asks for tests.

A file is scored by BM25 over the words of the text, which are looked for in the file's own text; by the definitions,
files and frames of a traceback that the text names; and, for the best files so far, by the runs of words that they
share with it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slipstream.tools.codesearch.answers.text_search import STRING_PREFIX, phrase_pattern
from slipstream.tools.codesearch.base import is_test, module_of
from slipstream.tools.codesearch.parsing.facts import VALUES, Definition, FileFacts
from slipstream.tools.codesearch.tree import CodeTree, DefinitionPlace

K, B = 1.2, 0.4
MAX_TERMS = 80
MIN_TERMS = 8
MAX_SCANNED_BYTES = 3 << 30
"""The product of the bytes of the code and the words that are looked for in them."""
CODE_WEIGHT, PART_WEIGHT, VALUE_WEIGHT = 2.0, 0.6, 0.4
"""Of a word that is written as code, of a part of a longer name, and of a word in a quoted value."""
PLAIN_SHARE = 0.3
"""Of the worth of a name, for a plain word that happens to be one."""
PATH_WEIGHT = 4.0
DEFINED_WEIGHT = 1.5
NAMED_FILE, LAST_FRAME = 25.0, 25.0
RUN_WORDS, RUN_WEIGHT, MAX_RUNS = 4, 2.0, 400
ASIDE_SHARE = 0.3
NUM_CANDIDATES = 40
NUM_DEFINITIONS = 3
MIN_CHARS = 3

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_]+|\d+")
_NAME = re.compile(r"[^\W\d]\w*")
_CALLED = re.compile(r"([^\W\d]\w*)\(")
_QUOTED_CODE = re.compile(r"``?([^`\n]{1,200})``?")
_VALUE = re.compile(r"'([^'\n]{1,200})'|\"([^\"\n]{1,200})\"")
_FRAME = re.compile(r'File "([^"\n]{1,300})", line (\d{1,7})(?:, in ([\w<>]{1,100}))?')
_FILE = re.compile(r"[\w./\\-]{1,200}\.\w{1,4}\b")
_SPACE = re.compile(rb"\W+")
_ASIDE = frozenset(
    ("doc", "docs", "example", "examples", "benchmark", "benchmarks", "demo", "demos", "vendor", "_vendor", "vendored")
)
"""Folders of code that is not the project's own work, or not what is run."""
_ABOUT_TESTS = frozenset({"test", "tests", "testing", "pytest", "unittest"})
STOP_WORDS = frozenset(
    ("a", "an", "and", "are", "for", "from", "how", "in", "is", "it", "of", "on", "or", "that", "the", "this", "to")
)
_COMMON = (
    "what where which with "
    "about above actual actually after again all also always another any anything around because been before "
    "behavior behaviour being below between bug but call called came can cannot case check code could currently "
    "description did different do does doesn doing done down during each either else error even every example "
    "exception expect expected fail failed failing fails few fix following get gets getting give given gives got "
    "had happen happens has have having here hold however http https if instead into issue its itself just know "
    "last least left less let like line lines look looks made make makes many may maybe me might more most much "
    "must my need needs never new no none not nothing now often old once one only open other otherwise our out over "
    "own please possible problem python quite raise raised raises rather recent report reported reproduce result "
    "results right run running runs said same second see seem seems several she should show shows side simple since "
    "so some something step steps still such sure than their them then there therefore these they thing things "
    "think those though through thus too traceback true try trying two under unless until up upon use used useful "
    "user using usually value version very want was way we well were when whenever whether while who whole whose "
    "why will without work worked working works would wrong yes yet you your "
)
COMMON = STOP_WORDS.union(_COMMON.split())
"""Words that a report of anything has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A file that fits a text, and where."""

    path: str
    facts: FileFacts
    score: float
    places: tuple[DefinitionPlace, ...]
    """Its definitions that fit best, by line."""
    lines: tuple[int, ...] = ()
    """Lines with a run of words of the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What a text asks for."""

    terms: Mapping[str, float]
    """Words and whole names in lower case, with their weight."""
    names: Mapping[str, float]
    """Names as they are written, with their weight."""
    runs: tuple[tuple[str, ...], ...]
    """Runs of words that may be in a string or a comment."""
    frames: tuple[tuple[str, int, str], ...]
    """(path, line, function) of a traceback, the innermost last."""
    files: frozenset[str]


def words(text: str) -> list[str]:
    """The words of a name or a sentence, in lower case and without a plural's s."""
    found = []
    for word in _WORD.findall(text):
        word = word.lower()
        if len(word) > 3 and word[-1] == "s" and word[-2] != "s":
            word = word[:-1]
        if len(word) > 1 and word not in STOP_WORDS:
            found.append(word)
    return found


def asks_for_tests(text: str) -> bool:
    """Whether a short text names tests; a report may mention them without being about them."""
    asked = re.findall(r"[a-z]+", text.lower())
    return len(asked) <= 8 and not _ABOUT_TESTS.isdisjoint(asked)


def rank_files(tree: CodeTree, items: Sequence[tuple[str, FileFacts]], text: str, limit: int) -> list[Fit]:
    asked = _read(text)
    items = [(path, facts) for path, facts in items if facts.language]
    if not asks_for_tests(text):
        code = [(path, facts) for path, facts in items if not is_test(path)]
        if fits := _ranked(tree, code, asked, limit):
            return fits
    return _ranked(tree, items, asked, limit)


def _ranked(tree: CodeTree, items: Sequence[tuple[str, FileFacts]], asked: _Asked, limit: int) -> list[Fit]:
    num_bytes = sum(len(facts.text) for _, facts in items) or 1
    max_terms = max(MIN_TERMS, min(MAX_TERMS, MAX_SCANNED_BYTES // num_bytes))
    terms = dict(sorted(asked.terms.items(), key=lambda item: (-item[1], -len(item[0]), item[0]))[:max_terms])
    counts, rarity = _counted(items, terms)
    typical = num_bytes / len(items) if items else 1.0
    bonus = _named(tree, items, asked)
    scores: dict[str, float] = {}
    for path, facts in items:
        length = 1 - B + B * min(len(facts.text) / typical, 8.0)
        found = counts.get(path, {})
        score = sum(terms[term] * rarity[term] * n * (K + 1) / (n + K * length) for term, n in found.items())
        if total := (score + bonus.get(path, 0.0)) * _share(path):
            scores[path] = total
    facts_by_path = dict(items)
    best = sorted(scores, key=lambda path: (-round(scores[path], 9), path))[:NUM_CANDIDATES]
    runs = _shared_runs({path: facts_by_path[path] for path in best}, asked.runs)
    for path, (worth, _) in runs.items():
        scores[path] += worth * _share(path)
    best = sorted(best, key=lambda path: (-round(scores[path], 9), path))[:limit]
    return [_fit(path, facts_by_path[path], scores[path], asked, terms, rarity, runs.get(path)) for path in best]


# ---------------------------------------------------------------- the text


def _read(text: str) -> _Asked:
    values = " ".join(found[1] or found[2] or "" for found in _VALUE.finditer(text))
    in_values = Counter(_NAME.findall(values))
    code = set(_CALLED.findall(text))
    for quoted in _QUOTED_CODE.findall(text):
        code.update(_NAME.findall(quoted))
    names: dict[str, float] = {}
    terms: dict[str, float] = {}
    everything = Counter(_NAME.findall(text))
    for name, number in everything.items():
        parts = words(name)
        is_code = name in code or len(parts) > 1 or "_" in name.strip("_")
        weight = CODE_WEIGHT if is_code else 1.0
        if in_values[name] >= number and not is_code:
            weight = VALUE_WEIGHT
        weight *= 1 + 0.3 * math.log(number)
        if len(name) >= MIN_CHARS and name.lower() not in COMMON:
            names[name] = weight if is_code else PLAIN_SHARE * weight
            if len(parts) > 1:
                terms[name.lower()] = max(terms.get(name.lower(), 0.0), weight)
        for part in parts:
            if len(part) >= MIN_CHARS and part not in COMMON:
                share = PART_WEIGHT if len(parts) > 1 else 1.0
                terms[part] = max(terms.get(part, 0.0), weight * share)
    frames = tuple((found[1], int(found[2]), found[3] or "") for found in _FRAME.finditer(text))
    files = frozenset(found.replace("\\", "/") for found in _FILE.findall(text))
    return _Asked(
        terms=terms,
        names=names,
        runs=_runs(text),
        frames=frames,
        files=files,
    )


def _runs(text: str) -> tuple[tuple[str, ...], ...]:
    """Every few words in a row, of which two say something."""
    found: dict[tuple[str, ...], None] = {}
    for line in re.split(r"\n\s*\n|[`]", text.lower()):
        row = re.findall(r"\w+", line)
        for at in range(len(row) - RUN_WORDS + 1):
            run = tuple(row[at : at + RUN_WORDS])
            if sum(len(word) > 2 and word not in COMMON and not word.isdigit() for word in run) >= 2:
                found[run] = None
    return tuple(found)[:MAX_RUNS]


# ---------------------------------------------------------------- files


def _counted(
    items: Sequence[tuple[str, FileFacts]], terms: Iterable[str]
) -> tuple[dict[str, dict[str, int]], dict[str, float]]:
    """How often each file has each term, in its text or its path, and how much a term says."""
    needles = [(term, term.encode()) for term in terms]
    counts: dict[str, dict[str, int]] = {}
    num_files: Counter[str] = Counter()
    for path, facts in items:
        lower = facts.text.lower()
        found = {term: n for term, needle in needles if (n := lower.count(needle))}
        parts = words(" ".join(module_of(path)[-2:]))
        for term in terms:
            if term in parts:
                found[term] = found.get(term, 0) + int(PATH_WEIGHT)
        counts[path] = found
        num_files.update(found.keys())
    total = len(items)
    rarity = {term: math.log(1 + (total - n + 0.5) / (n + 0.5)) for term, n in num_files.items()}
    return counts, rarity


def _share(path: str) -> float:
    return 1.0 if _ASIDE.isdisjoint(path.split("/")[:-1]) else ASIDE_SHARE


def _named(tree: CodeTree, items: Sequence[tuple[str, FileFacts]], asked: _Asked) -> dict[str, float]:
    """What files are worth for defining a name of the text, or for being named there."""
    worth: dict[str, float] = {}
    paths = {path for path, _ in items}
    for name, weight in asked.names.items():
        places = {place.path for place in tree.code.defined(name)} & paths
        for path in places:
            rare = math.log(1 + len(items) / len(places))
            worth[path] = worth.get(path, 0.0) + DEFINED_WEIGHT * weight * rare
    by_name: dict[str, list[str]] = {}
    for path in paths:
        by_name.setdefault(path.rpartition("/")[2], []).append(path)
    for number, (frame, _, _) in enumerate(asked.frames, 1):
        for path in _same_file(frame, by_name):
            worth[path] = max(worth.get(path, 0.0), LAST_FRAME * (0.5 + 0.5 * number / len(asked.frames)))
    for file in asked.files:
        for path in _same_file(file, by_name):
            worth[path] = worth.get(path, 0.0) + NAMED_FILE
    return worth


def _same_file(named: str, by_name: Mapping[str, Sequence[str]]) -> list[str]:
    """The paths that end most like the named one; none if too many do."""
    parts = named.replace("\\", "/").split("/")
    best: list[str] = []
    best_common = 0
    for path in by_name.get(parts[-1], ()):
        common = 0
        for one, other in zip(reversed(parts), reversed(path.split("/")), strict=False):
            if one != other:
                break
            common += 1
        if common >= best_common:
            best = [*best, path] if common == best_common else [path]
            best_common = common
    return sorted(best) if len(best) <= 3 else []


def _shared_runs(
    files: Mapping[str, FileFacts], runs: Sequence[tuple[str, ...]]
) -> dict[str, tuple[float, tuple[str, ...]]]:
    """For each file, what the runs of words are worth that it shares with the text, and the longest of the rarest."""
    plain = {path: _plain(facts.text) for path, facts in files.items()}
    holding: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        needle = b" %s " % " ".join(run).encode()
        if having := [path for path, text in plain.items() if needle in text]:
            holding[run] = having
    found: dict[str, tuple[float, tuple[str, ...]]] = {}
    for run, having in holding.items():
        worth = RUN_WEIGHT * math.log(1 + len(files) / len(having))
        for path in having:
            so_far, best = found.get(path, (0.0, run))
            best = run if len(having) < len(holding[best]) else best
            found[path] = (so_far + worth / (1 + so_far / 10), best)
    return found


def _plain(text: bytes) -> bytes:
    """The words of a file with one blank between them, so that strings that go over lines are whole."""
    return b" %s " % _SPACE.sub(b" ", STRING_PREFIX.sub(b"", text.lower()))


# ---------------------------------------------------------------- definitions


def _fit(
    path: str,
    facts: FileFacts,
    score: float,
    asked: _Asked,
    terms: Mapping[str, float],
    rarity: Mapping[str, float],
    run: tuple[float, tuple[str, ...]] | None,
) -> Fit:
    lines = facts.text.lower().splitlines()
    framed = {line for frame, line, _ in asked.frames if path.endswith(frame.rpartition("/")[2])}
    functions = {function for _, _, function in asked.frames}
    scored: list[tuple[float, Definition]] = []
    for definition in facts.definitions():
        if definition.kind in VALUES and definition.name not in asked.names:
            continue
        body = _own_lines(facts, definition, lines)
        found = {term: n for term, weight in terms.items() if (n := body.count(term.encode()))}
        length = 0.5 + 0.5 * min(body.count(b"\n") / 20, 10.0)
        worth = sum(terms[term] * rarity.get(term, 0.0) * n * (K + 1) / (n + K * length) for term, n in found.items())
        worth += 6.0 * asked.names.get(definition.name, 0.0)
        worth += 20.0 * (
            definition.name in functions and any(definition.first <= at <= definition.last for at in framed)
        )
        if worth:
            scored.append((worth, definition))
    scored.sort(key=lambda each: (-round(each[0], 9), each[1].first))
    best = [each for worth, each in scored[:NUM_DEFINITIONS] if worth >= 0.4 * scored[0][0]]
    shown = tuple(DefinitionPlace(path, facts, each.number) for each in sorted(best, key=lambda each: each.first))
    return Fit(path=path, facts=facts, score=score, places=shown, lines=_lines_of(facts, run))


def _own_lines(facts: FileFacts, definition: Definition, lines: Sequence[bytes]) -> bytes:
    """The text of a definition; of one with members, what is before the first."""
    last = definition.last
    if definition.kind in ("class", "interface", "struct", "trait", "impl", "module"):
        bodies = [child.first for child in facts.children(definition.number) if child.kind not in VALUES]
        last = min(bodies, default=last + 1) - 1
    return b"\n".join(lines[definition.first - 1 : last])


def _lines_of(facts: FileFacts, run: tuple[float, tuple[str, ...]] | None) -> tuple[int, ...]:
    if run is None or (pattern := phrase_pattern(" ".join(run[1]), ignore_case=True)) is None:
        return ()
    found = pattern.search(facts.text)
    return (1 + facts.text.count(b"\n", 0, found.start()),) if found else ()
