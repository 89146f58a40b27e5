"""The tuned settings of the fixed policies, printed by `slipstream bench dispatch --regime R --tune`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    bounded: int
    """Slots."""
    pipeline: tuple[int, int, int]
    """Workers to initialise, run and grade."""


TUNED: Mapping[str, Tuned] = {
    "paper": Tuned(bounded=192, pipeline=(96, 106, 96)),
    "kv": Tuned(bounded=48, pipeline=(48, 48, 48)),
    "cpu": Tuned(bounded=192, pipeline=(96, 120, 96)),
    "tail": Tuned(bounded=144, pipeline=(96, 106, 96)),
    "slowstart": Tuned(bounded=192, pipeline=(96, 106, 96)),
    "faults": Tuned(bounded=144, pipeline=(96, 120, 96)),
    "stream": Tuned(bounded=60, pipeline=(48, 48, 48)),
}
