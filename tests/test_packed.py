"""What goes between processes comes out as it went in."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.packing import packed, unpacked
from slipstream.seams import TurnTaken
from slipstream.types import (
    JobKey,
    Message,
    Role,
    Sampled,
    SampleParams,
    Span,
    SpanKind,
    StopReason,
    ToolCall,
    Turn,
    token_ids,
)


class Colour(StrEnum):
    RED = "red"
    ROUGE = "red"


class Number(Enum):
    ONE = 1


@dataclass(frozen=True, slots=True)
class One:
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived(Base):
    more: Mapping[str, int] = field(default_factory=dict)


@dataclass
class WithDict:
    value: int = 0


class Loose(WithDict):
    """Holds what its fields do not tell of."""


@dataclass(slots=True)
class Cached:
    value: int
    twice: int = field(init=False, default=0, compare=False)


@pytest.mark.parametrize(
    "value",
    [
        One(1),
        One((1, 2)),
        One(None),
        Derived(name="n", more={"a": 1}),
        [Derived(), Base(name="b")],
        WithDict(3),
        Colour.RED,
        Number.ONE,
        {Colour.RED: One(Number.ONE)},
        array("f", [1.5, -2.0]),
        array("i"),
        array("b", [1, -1]),
    ],
)
def test_it_comes_out_as_it_went_in(value: object) -> None:
    came = unpacked(packed(value))
    assert came == value
    assert type(came) is type(value)


def test_an_alias_of_a_member_is_the_member() -> None:
    assert unpacked(packed(Colour.ROUGE)) is Colour.RED


def test_what_is_beside_the_fields_is_kept_too() -> None:
    loose = Loose(1)
    loose.extra = "kept"  # type: ignore[attr-defined]
    assert unpacked(packed(loose)).extra == "kept"
    cached = Cached(2)
    cached.twice = 4
    assert unpacked(packed(cached)).twice == 4


def test_the_same_value_twice_is_one_value_there() -> None:
    one = One([1])
    first, second = unpacked(packed((one, one)))
    assert first is second


_TEXT = st.text(max_size=20)
_IDS = st.lists(st.integers(0, 50_000), max_size=20)


@given(_IDS, _TEXT, st.sampled_from(StopReason), st.one_of(st.none(), st.integers(0, 9)))
def test_a_turn_comes_out_as_it_went_in(ids: list[int], text: str, stop: StopReason, parent: int | None) -> None:
    sampled = Sampled.at_version(ids, [-0.5] * len(ids), version=3, stop=stop)
    said = Message(role=Role.ASSISTANT, content=text, calls=(ToolCall(id="c", name=text, arguments={"a": [text]}),))
    key = JobKey(phase="train", step=1, task_id=text, sample=0)
    turn = Turn(index=1, parent=parent, added=token_ids(ids), sampled=sampled, messages=(said,))
    told = TurnTaken(key=key, attempt=1, turn=turn)
    span = Span(kind=SpanKind.TOOL, start_s=0.5, end_s=1.5, name=text, counts={"error": 1})
    assert unpacked(packed((told, span, SampleParams(seed=1)))) == (told, span, SampleParams(seed=1))
