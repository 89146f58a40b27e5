"""The quickstart's demonstrations in the words of SmolLM2, its tools described to it."""

from __future__ import annotations

from pathlib import Path

from slipstream.recipes.quickstart.demonstrations import Demonstration, play
from slipstream.render.load import open_renderer


def demonstrations(folder: Path, *, num: int, seed: int, quality: float) -> list[Demonstration]:
    """One rollout of the teacher for each of the first `num` train tasks of the seed."""
    return play(open_renderer(folder), num=num, seed=seed, quality=quality)
