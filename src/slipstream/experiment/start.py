"""The start of an experiment: the policy after its warm start, which every arm and seed begins from.

Input: a policy that is open, or the folder of an experiment that has a start. Output: `start/` with a checkpoint, as
it comes back from its compact form with weights rounded to bfloat16, so that a start that travelled is the same to the
bit.
Invariants: it appears whole or not at all; one that was made with other settings is refused.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slipstream.atomic import atomic_file, atomic_folder, write_synced
from slipstream.errors import ConfigError
from slipstream.experiment.evaluations import FOLDER as EVALUATIONS
from slipstream.experiment.evaluations import evaluations
from slipstream.settings import TrainConfig
from slipstream.training.policy import PolicyModel, WarmProgress, warm_up
from slipstream.types import Json

FOLDER, FACTS, CHECKPOINT, COMPACT = "start", "start.json", "version-000000", "start.bin"
LEARNER, VERSION = "learner", "version"
"""Within a checkpoint of the local bridge."""
TELL_EVERY_S = 10.0


class Start:
    def __init__(self, out: Path, digest: str) -> None:
        """`digest`: of the settings that it depends on."""
        self._out = out
        self._digest = digest
        self.folder = out / FOLDER

    @property
    def checkpoint(self) -> Path:
        return self.folder / CHECKPOINT

    @property
    def is_made(self) -> bool:
        if not (self.folder / FACTS).exists() or not self.checkpoint.exists():
            return False
        if (was := self.facts()["settings"]) != self._digest:
            raise ConfigError(
                f"the start in {self.folder} was made with other settings ({was}, here {self._digest}): use the same "
                "model, adapter and warm start, or another --out"
            )
        return True

    def facts(self) -> dict[str, Any]:
        """Our own JSON, hence Any."""
        found: dict[str, Any] = json.loads((self.folder / FACTS).read_text(encoding="utf-8"))
        return found

    def adopt(self, other: Path | None, on_status: Callable[[str], None]) -> None:
        """Take over the start of another experiment, and the evaluations of it."""
        if other is None or self.is_made:
            return
        given = Start(other, self._digest)
        if not given.is_made:
            raise ConfigError(
                f"{other} has no start: name the folder of an experiment that has one, or leave out --start"
            )
        with atomic_folder(self.folder) as part:
            shutil.copytree(given.folder, part, dirs_exist_ok=True)
        for each in evaluations(other):
            place = self._out / EVALUATIONS / each.folder.name
            if each.name.version == 0 and not place.exists():
                shutil.copytree(each.folder, place, ignore=shutil.ignore_patterns("run"))
        on_status(f"the start is that of {other}")

    async def make(self, policy: PolicyModel, config: TrainConfig, on_status: Callable[[str], None]) -> None:
        """The warm start, if the recipe has one; an interrupted one is continued."""
        keep, began_s = self._out / f".{FOLDER}-under-way", time.monotonic()
        metrics: dict[str, float] = {}
        if config.warm_start.source:
            metrics = dict(
                await warm_up(policy, config, keep=keep, on_status=on_status, on_warm=_told_rarely(on_status))
            )
        facts: dict[str, Json] = {
            "settings": self._digest,
            "seconds": round(time.monotonic() - began_s, 2),
            "metrics": dict(metrics),
        }
        exact = self._out / f".{FOLDER}-exact"
        await asyncio.to_thread(shutil.rmtree, exact, ignore_errors=True)
        await policy.learner.save(exact)
        await asyncio.to_thread(self._write, exact, facts)
        await policy.learner.load(self.checkpoint)
        for folder in (exact, keep):
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def _write(self, exact: Path, facts: dict[str, Json]) -> None:
        from slipstream.engine.training.compact import compact

        data = compact(exact / LEARNER, weights="bfloat16")
        restore_start(self._out, data, facts)


def restore_start(out: Path, data: bytes, facts: dict[str, Json]) -> None:
    """Write a start from its compact form."""
    with atomic_folder(out / FOLDER) as part:
        write_synced(part / COMPACT, data)
        restore_checkpoint(part / CHECKPOINT, data, version=0)
        with atomic_file(part / FACTS) as path:
            path.write_text(json.dumps(facts), encoding="utf-8")


def restore_checkpoint(folder: Path, data: bytes, *, version: int) -> None:
    """A checkpoint of the local bridge from its compact form."""
    from slipstream.engine.training.compact import expand

    with atomic_folder(folder) as part:
        expand(data, part / LEARNER)
        write_synced(part / VERSION, str(version).encode())


def _told_rarely(on_status: Callable[[str], None]) -> Callable[[WarmProgress], None]:
    last_s = 0.0

    def tell(progress: WarmProgress) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= TELL_EVERY_S or progress.step == progress.steps:
            last_s = time.monotonic()
            on_status(f"warm start: step {progress.step} of {progress.steps}, loss {progress.loss:.3f}")

    return tell
