"""The quickstart's demonstrations in the words of SmolLM2, its tools described to it."""

from __future__ import annotations

from pathlib import Path

import slipstream as ss
from slipstream.recipes.quickstart.demonstrations import play


def demonstrations(folder: Path, *, num: int, seed: int, quality: float) -> list[ss.Demonstration]:
    """One rollout of the teacher for each of the first `num` train tasks of the seed."""
    return play(ss.DemonstrationWriter(folder), num=num, seed=seed, quality=quality)
