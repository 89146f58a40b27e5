"""An invented encyclopedia: companies and the people who founded them, each with a page, and questions that need two.

Invariants: the same seed gives the same pages and questions. What is indexed of a page is its first sentences, which
never say what is asked; the page's text does, once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

_STARTS = (
    "Bal",
    "Cor",
    "Dra",
    "Fen",
    "Gal",
    "Hel",
    "Jor",
    "Kel",
    "Lum",
    "Mar",
    "Nor",
    "Pel",
    "Quin",
    "Ros",
    "Sel",
)
_ENDS = ("adan", "beck", "dale", "ena", "ford", "grove", "haven", "iva", "land", "mere", "nika", "ora", "pool", "ton")
_FIRST = ("Ada", "Boris", "Clara", "Dmitri", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kaya", "Luis", "Mira")
_TRADES = ("turbines", "bicycles", "sewing machines", "lenses", "clocks", "pianos", "ferries", "tractors", "kilns")
_SUBJECTS = ("botany", "law", "chemistry", "music", "geology", "medicine", "architecture", "astronomy", "history")
_SUFFIXES = ("Works", "Brothers", "Company", "Industries")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One page of the encyclopedia."""

    slug: str
    title: str
    abstract: str
    """What is indexed."""
    body: tuple[str, ...]
    """The paragraphs of the page."""
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    text: str
    answer: str
    company: str


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    entries: tuple[Entry, ...]
    questions: tuple[Question, ...]


def make_world(*, seed: int, num_companies: int) -> World:
    chance = random.Random(f"research world {seed}")
    names = _names(chance)
    cities = [next(names) for _ in range(24)]
    entries: list[Entry] = []
    questions: list[Question] = []
    for number in range(num_companies):
        company, person = f"{next(names)} {chance.choice(_SUFFIXES)}", f"{chance.choice(_FIRST)} {next(names)}"
        trade, subject = chance.choice(_TRADES), chance.choice(_SUBJECTS)
        born, seat, home = chance.sample(cities, 3)
        year = chance.randint(1850, 1930)
        entries.append(_company(company, person, trade, seat, year))
        entries.append(_person(person, trade, born, home, subject, year))
        if number % 2:
            asked = (f"In which town was the founder of {company} born?", born)
        else:
            asked = (f"Which subject did the founder of {company} study?", subject)
        questions.append(Question(text=asked[0], answer=asked[1], company=company))
    return World(entries=tuple(entries), questions=tuple(questions))


def _names(chance: random.Random) -> Iterator[str]:
    every = [start + end for start in _STARTS for end in _ENDS]
    chance.shuffle(every)
    yield from every


def slug_of(title: str) -> str:
    return title.lower().replace(" ", "-")


def _company(company: str, person: str, trade: str, seat: str, year: int) -> Entry:
    return Entry(
        slug=slug_of(company),
        title=company,
        abstract=f"{company} is a maker of {trade}. This page tells its history, from a workshop to a factory.",
        body=(
            f"{company} is a maker of {trade} with its seat in {seat}. At its height it had {year % 900 + 80} workers.",
            f"The company was founded by {person} in {year}, in a workshop behind the railway station of {seat}.",
            f"Its {trade} were sold in eleven countries, and some are still in use. The factory became a museum, which "
            "shows tools, drawings and letters of the first years.",
        ),
        links=(slug_of(person),),
    )


def _person(person: str, trade: str, born: str, home: str, subject: str, year: int) -> Entry:
    return Entry(
        slug=slug_of(person),
        title=person,
        abstract=f"{person} was an inventor of {trade}. This page tells the life of a founder.",
        body=(
            f"{person} was an inventor, known for improvements of {trade}, and lived in {home} for many years.",
            f"{person} was born in {born} in {year - 34}, the youngest of four children of a miller.",
            f"After school {person.split()[0]} studied {subject} for three years, and left without a degree.",
            f"A street in {home} bears the name. Letters and drawings are kept in the town's archive.",
        ),
    )
