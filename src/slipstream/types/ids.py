"""Token ids, and JSON as a type."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TypeAlias

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
"""What `json.loads` returns."""

TokenIds: TypeAlias = "array[int]"


def token_ids(ids: Iterable[int] = ()) -> TokenIds:
    """A compact, typed copy of `ids`."""
    return array("i", ids)


NO_TOKENS = token_ids()
