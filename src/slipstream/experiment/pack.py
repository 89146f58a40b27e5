"""An experiment in pieces of limited size, to be brought from one machine to another.

Input: the folder of an experiment. Output: `experiment-K-of-N.tar`, which joined in order are a tar of the record, the
sessions, the rows of every step and evaluation, the plans and rewards of training, its newest checkpoint and the start.
Left out: the tokens of rollouts, jobs that were under way, and the model underneath, which a checkpoint knows by its
hash. Invariants: every member has its sha256 in the first one, and only members of known names are written. What does
not fit loses precision where it matters least: first the moments of the optimiser are rounded to bfloat16, then the
start is left out.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slipstream.atomic import atomic_file
from slipstream.bounded import inflate
from slipstream.errors import ConfigError
from slipstream.experiment import start as starts
from slipstream.experiment.evaluations import FACTS, FOLDER, ROWS, evaluations
from slipstream.experiment.plan import RECORD, read_record
from slipstream.experiment.session import SESSIONS
from slipstream.experiment.steps import STEPS, TRAINING
from slipstream.record import RunStore
from slipstream.record.copy import copy_steps
from slipstream.training.checkpoints import Checkpoints
from slipstream.types import Json

INDEX = "index.json"
START, CHECKPOINT, PLANS = "start/start.bin", "training/checkpoint.bin", "training/run.db"
_DEFLATED = ".z"
_TEXTS = (RECORD, SESSIONS, f"{TRAINING}/{STEPS}", f"{starts.FOLDER}/{starts.FACTS}")
_EVALUATION = re.compile(rf"{FOLDER}/[\w.-]{{1,120}}/({re.escape(ROWS)}|{re.escape(FACTS)})")
_PIECE = re.compile(r"experiment-(\d+)-of-(\d+)\.tar")
MAX_MEMBER_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class PackLimits:
    max_files: int = 7
    file_bytes: int = 16 << 20
    total_bytes: int = 60 << 20

    @property
    def room(self) -> int:
        return min(self.total_bytes, self.max_files * self.file_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    files: tuple[Path, ...]
    num_bytes: int
    version: int | None
    """Of the checkpoint; None without one."""
    moments: str
    has_start: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    moments: str
    has_start: bool


_CHOICES = (
    _Choice(moments="float32", has_start=True),
    _Choice(moments="bfloat16", has_start=True),
    _Choice(moments="bfloat16", has_start=False),
)


def pack_experiment(out: Path, to: Path, limits: PackLimits | None = None) -> Packed:
    """Raises ConfigError if there is no experiment, or if it does not fit."""
    limits = limits or PackLimits()
    read_record(out)
    small = dict(_small_members(out))
    start = out / starts.FOLDER / starts.COMPACT
    versions = Checkpoints.of_run(out / TRAINING).versions()
    sizes = []
    for choice in _CHOICES:
        members = dict(small)
        if choice.has_start and start.exists():
            members[START] = start.read_bytes()
        if versions:
            members[CHECKPOINT] = _compacted(out, versions[-1], choice.moments)
        data = _tar(members, {"version": versions[-1] if versions else None, "moments": choice.moments})
        if len(data) <= limits.room:
            files = _cut(data, to, limits)
            return Packed(
                files=files,
                num_bytes=len(data),
                version=versions[-1] if versions else None,
                moments=choice.moments,
                has_start=START in members,
            )
        sizes.append(len(data))
    raise ConfigError(
        f"{out} takes {min(sizes):,} bytes when packed, and {limits.room:,} are allowed: allow more, or train a "
        "smaller adapter (learner.lora.rank)"
    )


def _small_members(out: Path) -> Iterator[tuple[str, bytes]]:
    names = [name for name in _TEXTS if (out / name).exists()]
    for each in evaluations(out):
        names += [f"{FOLDER}/{each.folder.name}/{name}" for name in (ROWS, FACTS) if (each.folder / name).exists()]
    for name in names:
        yield f"{name}{_DEFLATED}", zlib.compress((out / name).read_bytes(), 9)
    versions = Checkpoints.of_run(out / TRAINING).versions()
    if versions:
        with tempfile.TemporaryDirectory() as scratch:
            copy_steps(RunStore.read(out / TRAINING), Path(scratch), version=versions[-1])
            yield f"{PLANS}{_DEFLATED}", zlib.compress((Path(scratch) / Path(PLANS).name).read_bytes(), 9)


def _compacted(out: Path, version: int, moments: str) -> bytes:
    from slipstream.engine.training.compact import compact

    folder = Checkpoints.of_run(out / TRAINING).path(version)
    return compact(folder / starts.LEARNER, moments="bfloat16" if moments == "bfloat16" else "float32")


def _tar(members: dict[str, bytes], facts: dict[str, Json]) -> bytes:
    index: dict[str, Json] = {
        **facts,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in members.items()},
    }
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in {INDEX: json.dumps(index).encode(), **members}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return whole.getvalue()


def _cut(data: bytes, to: Path, limits: PackLimits) -> tuple[Path, ...]:
    to.mkdir(parents=True, exist_ok=True)
    for old in to.iterdir():
        if _PIECE.fullmatch(old.name):
            old.unlink()
    pieces = [data[place : place + limits.file_bytes] for place in range(0, len(data), limits.file_bytes)]
    paths = [to / f"experiment-{number}-of-{len(pieces)}.tar" for number in range(1, len(pieces) + 1)]
    for path, piece in zip(paths, pieces, strict=True):
        with atomic_file(path) as part:
            part.write_bytes(piece)
    return tuple(paths)


# ---------------------------------------------------------------- and back


def unpack_experiment(folder: Path, out: Path) -> int | None:
    """Write the experiment in `folder` to `out`, which must hold none. Returns the version of its checkpoint, if it has
    one. Raises ConfigError if a piece is missing or damaged."""
    if (out / RECORD).exists():
        raise ConfigError(f"{out} holds an experiment already: unpack into another folder")
    members, version = _members(folder)
    scratch = out.with_name(f".{out.name}.unpacking")
    shutil.rmtree(scratch, ignore_errors=True)
    for name, data in members.items():
        plain = name.removesuffix(_DEFLATED)
        if plain == CHECKPOINT and version is not None:
            starts.restore_checkpoint(Checkpoints.of_run(scratch / TRAINING).path(version), data, version=version)
        elif plain == START:
            facts = json.loads(_text(members, f"{starts.FOLDER}/{starts.FACTS}", folder))
            starts.restore_start(scratch, data, facts)
        elif plain == f"{starts.FOLDER}/{starts.FACTS}":
            continue  # with the start, if that is here
        elif plain in (*_TEXTS, PLANS) or _EVALUATION.fullmatch(plain):
            path = scratch / plain
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_text(members, plain, folder))
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(scratch.iterdir(), key=lambda path: path.name == RECORD):  # the record last
        path.replace(out / path.name)
    scratch.rmdir()
    return version


def _text(members: dict[str, bytes], name: str, folder: Path) -> bytes:
    try:
        return inflate(members[f"{name}{_DEFLATED}"], MAX_MEMBER_BYTES, name)
    except (KeyError, ValueError, zlib.error) as raised:
        raise _damaged(folder, f"{name}: {raised}") from None


def _members(folder: Path) -> tuple[dict[str, bytes], int | None]:
    data = b"".join(path.read_bytes() for path in _pieces(folder))
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            found = {entry.name: file.read() for entry in tar if entry.isfile() and (file := tar.extractfile(entry))}
        index = json.loads(found.pop(INDEX))
        digests, version = index["sha256"], index["version"]
    except (tarfile.TarError, KeyError, ValueError, TypeError) as raised:
        raise _damaged(folder, repr(raised)) from None
    for name, digest in digests.items():
        if name not in found or hashlib.sha256(found[name]).hexdigest() != digest:
            raise _damaged(folder, f"{name} is not what was packed")
    return {name: found[name] for name in digests}, version


def _pieces(folder: Path) -> list[Path]:
    found = {int(match[1]): path for path in folder.glob("*") if (match := _PIECE.fullmatch(path.name))}
    if not found:
        raise ConfigError(f"{folder} has no packed experiment: give the folder that `experiment pack` wrote")
    match = _PIECE.fullmatch(next(iter(found.values())).name)
    num = int(match[2]) if match else 0
    if missing := [number for number in range(1, num + 1) if number not in found]:
        raise ConfigError(f"{folder} lacks the pieces {missing} of {num}: bring them over too")
    return [found[number] for number in sorted(found)]


def _damaged(folder: Path, why: str) -> ConfigError:
    return ConfigError(f"the packed experiment in {folder} is damaged ({why}): bring it over again")
