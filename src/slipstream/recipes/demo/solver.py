"""A scripted solver of the demo tasks, of a given quality.

Its structure is always right: it reads a note where a folder was named, makes the file where a note asked for one,
and finishes when that is done. Each choice in a step (a folder, an operation, a format) is right with probability
`quality`, and otherwise one of the wrong ones. Its randomness is the turn's sampling seed, so it is reproducible.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

import slipstream as ss
from slipstream.recipes.demo.tasks import FOLDERS, FORMATS, OPERATIONS

_FOLDER = "|".join(FOLDERS)
_ASKED = {phrase: name for name, (phrase, _) in OPERATIONS.items()}
_CLUES = re.compile(
    rf"(?:Start|look) in (?P<folder>{_FOLDER})\b"
    rf"|(?P<asked>{'|'.join(_ASKED)}), as (?P<format>{'|'.join(FORMATS)})\b"
    r"|(?P<done>> out)\b"
)
_READ = re.compile(rf"cat ({_FOLDER})/note")


def solver(*, quality: float = 1.0) -> ss.Script:
    if not 0.0 <= quality <= 1.0:
        raise ss.ConfigError(f"quality={quality}: give a probability, from 0 to 1")

    def script(scene: ss.ScriptedCall) -> ss.Message:
        chance = random.Random(scene.seed)

        def choose(right: str, known: Iterable[str]) -> str:
            if chance.random() < quality:
                return right
            return chance.choice([name for name in known if name != right])

        clues = list(_CLUES.finditer(scene.prompt_text))
        if not clues:
            return _call("finish")
        clue = clues[-1]
        if clue["folder"]:
            return _call("bash", command=f"cat {choose(clue['folder'], FOLDERS)}/note")
        if clue["asked"]:
            folder = _READ.findall(scene.prompt_text)[-1]
            operation, form = choose(_ASKED[clue["asked"]], OPERATIONS), choose(clue["format"], FORMATS)
            return _call("bash", command=f"{operation} {folder}/data | {form} > out")
        return _call("finish")

    return script


def _call(name: str, **arguments: str) -> ss.Message:
    return ss.Message(role=ss.Role.ASSISTANT, calls=(ss.ToolCall(id="call", name=name, arguments=dict(arguments)),))
