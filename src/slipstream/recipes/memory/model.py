"""The small model of `slipstream train memory`, and the rollouts that it begins by imitating."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import slipstream as ss
from slipstream.recipes.memory.needles import WORDS, needle_tasks
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
    folder: Path, *, num: int, drills: int, seed: int, quality: float, window: bool = False
) -> Sequence[object]:
    """Rollouts on train tasks, each turn of the memory agent a sample, and none chosen by its reward: `num` of a
    forgetful teacher, on documents as they are trained on, and `drills` of one who makes no mistakes, on documents of a
    single section, which show how a line is looked up and nothing of how it is kept."""
    script = window_reader if window else reader
    long = needle_tasks(num=num, seed=seed, split="train", window=window)
    short = needle_tasks(num=drills, seed=seed, kind="needles", needles=4, sections=1, split="train", window=window)
    with tempfile.TemporaryDirectory(prefix="slipstream-") as runs:
        return [
            *ss.demonstrations(long, script(quality=quality), runs=runs, quiet=True).read(folder),
            *ss.demonstrations(short, script(), runs=runs, quiet=True).read(folder),
        ]
