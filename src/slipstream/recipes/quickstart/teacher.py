"""The teacher: it knows the form of every step, and has bad habits.

It reads a note where a folder was named, makes the file where a note asked for one, and finishes. Each choice in a step
(a folder, an operation, a format) is right with probability `quality`; otherwise it is the next one in the list,
always. Below one half, a student that imitates it well and takes the likeliest choice never solves a task: what is
right can be learnt from it, but not that it is right. Its randomness is the turn's sampling seed, so it is
reproducible.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

import slipstream as ss
from slipstream.recipes.demo.solver import solver
from slipstream.recipes.demo.tasks import FOLDERS, FORMATS, OPERATIONS

_READ = re.compile(r"cat (?P<folder>\w+)/note")
_MAKE = re.compile(r"(?P<operation>\w+) (?P<folder>\w+)/data \| (?P<form>\w+) > out")


def teacher(*, quality: float = 0.45) -> ss.Script:
    if not 0.0 <= quality <= 1.0:
        raise ss.ConfigError(f"quality={quality}: give a probability, from 0 to 1")
    perfect = solver(quality=1.0)

    def script(scene: ss.ScriptedCall) -> ss.Line:
        chance = random.Random(scene.seed)

        def choose(right: str, known: Iterable[str]) -> str:
            names = list(known)
            return right if chance.random() < quality else names[(names.index(right) + 1) % len(names)]

        reply = perfect(scene)
        assert isinstance(reply, ss.Message)
        (call,) = reply.calls
        command = str(call.arguments.get("command", ""))
        if read := _READ.fullmatch(command):
            return ss.act("bash", command=f"cat {choose(read['folder'], FOLDERS)}/note")
        if made := _MAKE.fullmatch(command):
            operation, form = choose(made["operation"], OPERATIONS), choose(made["form"], FORMATS)
            return ss.act("bash", command=f"{operation} {made['folder']}/data | {form} > out")
        return reply

    return script
