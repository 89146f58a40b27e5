"""Values of ours to bytes and back, between processes: pickle, with shorter ways for what most messages are made of.

Dataclasses with slots go by the values of their fields, arrays by their bytes, members of enums by their names; what
pickle does with them by itself takes about twice as long, and one process has to read what all the others write.
"""

from __future__ import annotations

import io
import pickle
from array import array
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from typing import Any


def packed(message: Any) -> bytes:
    out = io.BytesIO()
    _Packer(out, pickle.HIGHEST_PROTOCOL).dump(message)
    return out.getvalue()


unpacked = pickle.loads


class _Ways(dict[type[Any], Callable[[Any], Any]]):
    """By type. pickle asks for one that it does not know itself; KeyError: it has to know."""

    def __missing__(self, kind: type[Any]) -> Callable[[Any], Any]:
        if issubclass(kind, Enum):
            self[kind] = lambda member: (_member, (kind, member.name))
        elif is_dataclass(kind) and (names := _slots_of(kind)):
            self[kind] = _way_of(kind, names)
        else:
            raise KeyError(kind)
        return self[kind]


class _Packer(pickle.Pickler):
    dispatch_table = _Ways({array: lambda packed: (_array, (packed.typecode, packed.tobytes()))})


def _way_of(kind: type[Any], names: tuple[str, ...]) -> Callable[[Any], Any]:
    values_of: Callable[[Any], Any] = attrgetter(*names)
    if len(names) == 1:
        return lambda value: (_made, (kind, values_of(value)))
    return lambda value: (_made, (kind, *values_of(value)))


def _slots_of(kind: type[Any]) -> tuple[str, ...]:
    """The fields of a dataclass, if they are slots and all there is to it; else none."""
    names = tuple(field.name for field in fields(kind))
    own = {name for base in kind.__mro__ for name in base.__dict__.get("__slots__", ())}
    has_more = any("__slots__" not in base.__dict__ for base in kind.__mro__[:-1])
    return () if has_more or own != set(names) else names


class _Setters(dict[type[Any], tuple[Callable[[Any, Any], None], ...]]):
    """Of the slots of a dataclass: past `__setattr__`, which a frozen one refuses."""

    def __missing__(self, kind: type[Any]) -> tuple[Callable[[Any, Any], None], ...]:
        self[kind] = tuple(getattr(kind, name).__set__ for name in _slots_of(kind))
        return self[kind]


_SETTERS = _Setters()


def _made(kind: type[Any], *values: Any) -> Any:
    made = object.__new__(kind)
    for put, value in zip(_SETTERS[kind], values, strict=True):
        put(made, value)
    return made


def _array(typecode: str, content: bytes) -> array[Any]:
    made: array[Any] = array(typecode)
    made.frombytes(content)
    return made


def _member(kind: type[Enum], name: str) -> Enum:
    return kind._member_map_[name]
