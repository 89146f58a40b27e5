"""Two-hop lookups for a small model: a generated corpus of one-token names behind the real index and the real site.

In each of many districts live people of the same names. A page is about one of them: who is their boss, friend, tutor
and rival, and their town, job, pet and food. A task asks for such a thing of such a person: `amber: pet of tutor of
anna`. The agent searches for `anna amber`, opens the page that is found, searches for the tutor who is named there,
opens that page, and finishes with the pet. Held-out tasks are combinations that no training task has.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

import slipstream as ss
from slipstream.recipes.research.site import HOST, Site, site_at

PORT = 8732
PEOPLE = (
    *("anna", "bert", "carl", "dora", "emil", "fred", "gina", "hugo"),
    *("ines", "jack", "kate", "liam", "mona", "nils", "olga", "paul"),
)
DISTRICTS = (
    *("amber", "basil", "cedar", "daisy", "ebony", "fennel", "garnet", "hazel"),
    *("indigo", "jasper", "lilac", "maple", "olive", "poplar", "quartz", "violet"),
)
CODE_STARTS = (
    *("bako", "dimu", "felo", "gari", "hupe", "kino", "lura", "meto"),
    *("nabi", "pudo", "rike", "sovu", "tami", "vela", "wido", "zuro"),
)
CODE_ENDS = (
    *("aket", "ebul", "ifon", "omar", "uzet", "abin", "edok", "ilam"),
    *("opur", "usan", "arit", "efol", "igun", "ovel", "ukas", "azem"),
)
HELD_OUT_SHARE = 4
"""One in so many combinations is held out."""
WHO = ("boss", "friend", "tutor", "rival")
WHAT: Mapping[str, tuple[str, ...]] = {
    "town": ("oslo", "rome", "bern", "lima", "cork", "york", "kiel", "nice"),
    "job": ("baker", "pilot", "nurse", "judge", "miner", "actor", "clerk", "guard"),
    "pet": ("cat", "dog", "owl", "fox", "hen", "rat", "bee", "ant"),
    "food": ("rice", "soup", "corn", "plum", "leek", "fish", "bean", "pear"),
}
TURNS = 5
RESULTS = 2


class Split(StrEnum):
    TRAIN = "train"
    HELD_OUT = "held_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What one page says: `facts["boss"] == "bert"`, `facts["pet"] == "owl"`."""

    code: str
    """Its address: two words with a dash between."""
    name: str
    district: str
    facts: Mapping[str, str]

    @property
    def text(self) -> str:
        return " ".join(f"{key} {value}" for key, value in self.facts.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    district: str
    name: str
    who: str
    what: str

    @property
    def question(self) -> str:
        return f"{self.district}: {self.what} of {self.who} of {self.name}"

    @property
    def split(self) -> Split:
        digest = hashlib.sha256(self.question.encode()).digest()
        return Split.HELD_OUT if digest[0] % HELD_OUT_SHARE == 0 else Split.TRAIN


@cache
def pages(seed: int) -> Mapping[tuple[str, str], Page]:
    """Every page, by district and name."""
    chance = random.Random(f"lookups {seed}")
    codes = [f"{start}-{end}" for start in CODE_STARTS for end in CODE_ENDS]
    chance.shuffle(codes)
    found = {}
    for district in DISTRICTS:
        for name in PEOPLE:
            others = chance.sample([each for each in PEOPLE if each != name], len(WHO))
            facts = dict(zip(WHO, others, strict=True))
            facts |= {key: chance.choice(values) for key, values in WHAT.items()}
            found[district, name] = Page(code=codes.pop(), name=name, district=district, facts=facts)
    return found


def answer_of(lookup: Lookup, seed: int) -> str:
    known = pages(seed)
    other = known[lookup.district, lookup.name].facts[lookup.who]
    return known[lookup.district, other].facts[lookup.what]


def lookups(*, num: int, seed: int, split: Split) -> list[Lookup]:
    """Drawn with the seed, with repetition."""
    chance = random.Random(f"lookup tasks {seed} {split}")
    found: list[Lookup] = []
    while len(found) < num:
        drawn = Lookup(
            district=chance.choice(DISTRICTS),
            name=chance.choice(PEOPLE),
            who=chance.choice(WHO),
            what=chance.choice(list(WHAT)),
        )
        if drawn.split is split:
            found.append(drawn)
    return found


def lookup_tasks(
    *,
    num: int = 64,
    seed: int = 0,
    split: str = Split.TRAIN,
    world: int = 0,
    port: int = PORT,
    encoder: str = "minilm",
    folder: str = "",
) -> tuple[ss.Task, ...]:
    """Tasks of a split. `world` is the seed of the pages, `folder` where the index is kept."""
    if split not in list(Split):
        raise ss.ConfigError(f'there is no split "{split}": use one of {", ".join(Split)}')
    serve_pages(world, port)
    index = make_lookup_index(world, encoder=encoder, folder=folder)
    resources: dict[str, ss.Json] = {
        "search": {"index": str(index), "limit": RESULTS, "form": "plain"},
        "pages": {
            "private_hosts": [f"{HOST}:{port}"],
            "summarise": "none",
            "base": f"http://{HOST}:{port}/lookups/{world}/",
        },
    }
    return tuple(
        ss.Task(
            id=f"{number:05d}-{lookup.district}-{lookup.what}-{lookup.who}-{lookup.name}",
            instruction=lookup.question,
            tools=[ss.search_documents, ss.open_page, ss.finish],
            grader=ss.exact(answer_of(lookup, world)),
            limits=ss.AgentLimits(turns=TURNS),
            resources=resources,
        )
        for number, lookup in enumerate(lookups(num=num, seed=seed, split=Split(split)))
    )


def serve_pages(world: int, port: int) -> Site:
    site = site_at(port)
    for page in pages(world).values():
        site.pages.setdefault(f"/lookups/{world}/{page.code}", f"<html><body><p>{page.text}</p></body></html>".encode())
    return site


def make_lookup_index(world: int, *, encoder: str, folder: str) -> Path:
    """The index of who a page is about: that alone, so no answer is in a snippet."""
    place = Path(folder) if folder else ss.default_home() / "indexes"
    place.mkdir(parents=True, exist_ok=True)
    source, out = place / f"lookups-{world}.jsonl", place / f"lookups-{world}"
    rows = [{"docid": page.code, "text": f"{page.name} {page.district}"} for page in pages(world).values()]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if not source.is_file() or source.read_text() != text:
        source.write_text(text)
    ss.make_index(source, out, encoder=encoder, reuse=True)
    return out
