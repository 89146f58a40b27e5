"""The small model of `slipstream train memory`, and the rollouts that it begins by imitating."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import slipstream as ss
from slipstream.recipes.memory import NUM_WORDS
from slipstream.recipes.memory.needles import WORDS, needle_tasks
from slipstream.recipes.memory.policy import reader, window_reader

_ANY = "|".join(WORDS[:NUM_WORDS])
PIECES = rf"(?:{_ANY}) (?:{_ANY}|\?)|(?:{_ANY})|[0-9]+"
"""Every line is a token, and so are a key by itself and a number: two layers find a token sooner than they find what
follows one."""


def make_model(folder: Path, *, seed: int) -> Path:
    """Random weights, and a tokenizer that knows the words of both agents."""
    memory = needle_tasks(num=150, seed=seed, split="train", words=NUM_WORDS)
    long = needle_tasks(num=4, seed=seed, split="train", sections=64, words=NUM_WORDS)
    return ss.tiny_model([*memory, *long], reader(quality=0.7), folder=folder, seed=seed, pieces=PIECES)


def make_window_model(folder: Path, *, seed: int) -> Path:
    tasks = needle_tasks(num=150, seed=seed, split="train", words=NUM_WORDS, window=True)
    return ss.tiny_model(tasks, window_reader(quality=0.7), folder=folder, seed=seed, pieces=PIECES)


def demonstrations(
    folder: Path, *, num: int, drills: int, seed: int, quality: float, window: bool = False
) -> Sequence[object]:
    """Rollouts on train tasks, each turn of the memory agent a sample, and none chosen by its reward: `num` of a
    forgetful teacher, on documents as they are trained on, and `drills` of one who makes no mistakes, on documents of a
    single section, which show how a line is looked up and nothing of how it is kept."""
    script = window_reader if window else reader
    kinds: tuple[dict[str, Any], ...] = ({"num": num}, {"num": drills, "sections": 1})
    long, short = (needle_tasks(split="train", seed=seed, words=NUM_WORDS, window=window, **args) for args in kinds)
    with tempfile.TemporaryDirectory(prefix="slipstream-") as runs:
        return [
            *ss.demonstrations(long, script(quality=quality), runs=runs, quiet=True).read(folder),
            *ss.demonstrations(short, script(), runs=runs, quiet=True).read(folder),
        ]
