"""The small model of `slipstream train memory`, and the rollouts that it begins by imitating."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import slipstream as ss
from slipstream.recipes.memory.needles import WORDS, Kind, needle_tasks
from slipstream.recipes.memory.policy import reader, window_reader

PIECES = rf" ?(?:{'|'.join(WORDS)})| \?|[0-9]"
"""Every word of the documents is a token, a value with the space before it, and so is every digit."""


def make_model(folder: Path, *, seed: int) -> Path:
    """Random weights, and a tokenizer that knows the words of both agents."""
    memory = needle_tasks(num=150, seed=seed, split="train")
    long = needle_tasks(num=4, seed=seed, split="train", sections=20)
    return ss.tiny_model([*memory, *long], reader(quality=0.7), folder=folder, seed=seed, pieces=PIECES)


def make_window_model(folder: Path, *, seed: int) -> Path:
    tasks = needle_tasks(num=150, seed=seed, split="train", window=True)
    return ss.tiny_model(tasks, window_reader(quality=0.7), folder=folder, seed=seed, pieces=PIECES)


def demonstrations(
    folder: Path, *, num: int, seed: int, quality: float, kind: Kind = "needle", window: bool = False
) -> Sequence[object]:
    """Rollouts of the teacher on train tasks, each turn of the memory agent a sample. None is chosen by its reward."""
    tasks = needle_tasks(num=num, seed=seed, kind=kind, split="train", window=window)
    teacher = window_reader(quality=quality) if window else reader(quality=quality)
    with tempfile.TemporaryDirectory(prefix="slipstream-") as runs:
        return ss.demonstrations(tasks, teacher, runs=runs, quiet=True).read(folder)
