"""All cheats, made into patches for a task. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.patches.apply import Entry, make_patch
from slipstream.tasks.cheats.answering import ANSWERING
from slipstream.tasks.cheats.base import Cheat, Files, Target
from slipstream.tasks.cheats.ending import ENDING
from slipstream.tasks.cheats.files import FILES, changed_files
from slipstream.tasks.cheats.forging import FORGING
from slipstream.tasks.cheats.plain import PLAIN, changed_by_plain
from slipstream.tasks.cheats.running import RUNNING

CHEATS: Mapping[str, Cheat] = {**PLAIN, **FILES, **FORGING, **RUNNING, **ANSWERING, **ENDING}


def cheats_of(target: Target) -> dict[str, bytes]:
    """Every cheat, as a patch."""
    return {name: _patch(target, cheat) for name, cheat in CHEATS.items()}


def changed_by_cheats(source: str, test_file: str) -> set[str]:
    """The files of a task that cheats change; all other files that they write are new."""
    return {source, test_file, *changed_by_plain(test_file), *changed_files(test_file)}


def _patch(target: Target, cheat: Cheat) -> bytes:
    files: Files
    if cheat.files is not None:
        files = cheat.files(target)
    else:
        code = cheat.code.replace("TESTS", repr(target.tests))
        files = {target.source: (target.read(target.source) or b"").rstrip(b"\n") + f"\n\n\n{code.strip()}\n".encode()}
    old = {path: target.read(path) for path in files}
    return make_patch(
        {path: None if data is None else Entry(data=data) for path, data in old.items()},
        {path: what if isinstance(what, Entry) else Entry(data=what) for path, what in files.items()},
    )
