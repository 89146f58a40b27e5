"""The quickstart's model: half a million random weights, and a tokenizer of the demo tasks' own words."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import slipstream as ss
from slipstream.recipes.demo.tasks import FOLDERS, FORMATS, OPERATIONS

PIECES = r" [a-z]+|\b[a-z]+(?= )"
"""A word with a space before it or after it: so that a choice (a folder, an operation, a format) is a token of its
own."""


def make_model(folder: Path, *, seed: int, shape: ss.TinyShape | None = None) -> Path:
    return ss.make_tiny_model(folder, texts(), seed=seed, shape=shape or ss.TinyShape(), pieces=PIECES)


def texts() -> Iterator[str]:
    """Every message and reply of a rollout, in the pieces that are encoded."""
    yield "assistant\n"
    yield "tool\n[no output]"
    yield ss.reply_text(ss.act("finish"))
    for folder in FOLDERS:
        yield f"user\nStart in {folder}."
        yield f"tool\nlook in {folder}"
        yield ss.reply_text(ss.act("bash", command=f"cat {folder}/note"))
    for (operation, (phrase, _)), form in product(OPERATIONS.items(), FORMATS):
        yield f"tool\n{phrase}, as {form}"
        for folder in FOLDERS:
            yield ss.reply_text(ss.act("bash", command=f"{operation} {folder}/data | {form} > out"))
