"""Ranks definitions by BM25 over words of code, for queries without an exact match.

Input: words as a model wrote them. Output: Places, best first. Invariants: `parseHTTPDate`, `parse_http_date` and
"parse http dates" are the same words; equal scores are ordered by path; the number of names examined is limited.

The words of a definition are those of its name, of the names around it, of its docstring's first line and of the names
that it uses. They are not indexed: the few names that contain a word of the query are looked up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from slipstream.tools.codesearch.parsing.facts import FileFacts
from slipstream.tools.codesearch.tree import CodeTree, DefinitionPlace

K, B = 1.2, 0.6
NAME_WEIGHT, AROUND_WEIGHT, DOC_WEIGHT, USE_WEIGHT = 4.0, 1.5, 2.0, 0.5
MAX_WORDS = 12
MAX_LOOKUPS = 4000
"""How many (name, file) pairs are examined for one word; a more frequent word says little."""
TYPICAL_LINES = 20.0
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_]+|\d+")
STOP_WORDS = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "for",
        "from",
        "how",
        "in",
        "is",
        "it",
        "of",
        "on",
        "or",
        "that",
        "the",
        "this",
        "to",
        "what",
        "where",
        "which",
        "with",
    ]
)


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


def rank(tree: CodeTree, query: str, limit: int) -> list[tuple[float, DefinitionPlace]]:
    asked = list(dict.fromkeys(words(query)))[:MAX_WORDS]
    files = dict(tree.code.items())
    num_defs = sum(facts.num_defs for facts in files.values()) or 1
    scores: dict[tuple[str, int], float] = {}
    names_by_word = _names_with(tree, asked)
    docs_by_word = _docs_with(files, asked)
    for word in asked:
        counts = _counts(tree, word, names_by_word[word])
        for path, number in docs_by_word[word]:
            counts[path, number] = counts.get((path, number), 0.0) + DOC_WEIGHT
        rarity = math.log(1 + (num_defs - len(counts) + 0.5) / (len(counts) + 0.5))
        for (path, number), count in counts.items():
            definition = files[path].definition(number)
            length = (definition.last - definition.first + 1) / TYPICAL_LINES
            score = rarity * count * (K + 1) / (count + K * (1 - B + B * min(length, 20.0)))
            scores[path, number] = scores.get((path, number), 0.0) + score
    best = sorted(scores.items(), key=lambda item: (-round(item[1], 9), item[0]))[:limit]
    return [(score, DefinitionPlace(path, files[path], number)) for (path, number), score in best]


def _names_with(tree: CodeTree, asked: list[str]) -> dict[str, list[str]]:
    """For each word, the names that contain it."""
    found: dict[str, list[str]] = {word: [] for word in asked}
    if not asked:
        return found
    names = set(() if tree.code.base is None else tree.code.base.used)
    for facts in tree.code.changed().values():
        names.update(facts.names)
    holds_one = re.compile("|".join(map(re.escape, asked)), re.IGNORECASE)
    for name in names:
        if holds_one.search(name):
            for word in set(words(name)).intersection(found):
                found[word].append(name)
    return {word: sorted(some, key=lambda name: (len(name), name)) for word, some in found.items()}


def _docs_with(files: dict[str, FileFacts], asked: Iterable[str]) -> dict[str, list[tuple[str, int]]]:
    found: dict[str, list[tuple[str, int]]] = {word: [] for word in asked}
    if not found:
        return found
    holds_one = re.compile("|".join(map(re.escape, found)), re.IGNORECASE)
    for path, facts in files.items():
        for number, doc in facts.docs.items():
            if holds_one.search(doc):
                for word in set(words(doc)).intersection(found):
                    found[word].append((path, number))
    return found


def _counts(tree: CodeTree, word: str, names: list[str]) -> dict[tuple[str, int], float]:
    """How often definitions contain a word, weighted by where."""
    counts: dict[tuple[str, int], float] = {}
    lookups = 0
    for name in names:
        for place in tree.code.defined(name):
            key = (place.path, place.number)
            counts[key] = counts.get(key, 0.0) + NAME_WEIGHT
            parent = place.definition.parent
            if parent >= 0:
                counts[place.path, parent] = counts.get((place.path, parent), 0.0) + AROUND_WEIGHT
        using = tree.code.using(name)
        lookups += len(using)
        if lookups > MAX_LOOKUPS:
            continue
        for path, facts in using:
            for use in facts.uses_of(name):
                if 0 <= use.owner < facts.num_defs:
                    counts[path, use.owner] = counts.get((path, use.owner), 0.0) + USE_WEIGHT
    return counts
