"""Files and folders that are whole or not there: written beside their place, then renamed into it.

Input: the place of an export. Output: a path to write to, which becomes that place when all went well. Always holds:
nothing that stands there is replaced without `force`, and a device, a pipe or a socket never; what was there is put
back if the new one cannot take its place; a killed export leaves at most something named `*.partial-*`; what the disk
refuses is a ConfigError.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slipstream.errors import ConfigError

MANIFEST = "manifest.jsonl"
"""In every folder that was exported, and what tells it from any other folder."""


@contextmanager
def written_beside(path: Path, *, force: bool) -> Iterator[Path]:
    """Where to write a file so that it is at `path`, and durable, when the block ends well."""
    _check_free(path, force=force)
    beside = _beside(path)
    try:
        with _one_sentence(path):
            yield beside
            with beside.open("rb") as stream:
                os.fsync(stream.fileno())
            beside.replace(path)
            _sync_folder(path.parent)
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


@contextmanager
def folder_written_beside(path: Path, *, force: bool) -> Iterator[Path]:
    """The same for a folder, which is made. Its files are not synced one by one."""
    _check_free(path, force=force)
    if path.is_symlink() or path.is_file():
        raise ConfigError(f"{path} is no folder, so no folder takes its place: choose another place")
    beside = _beside(path)
    replaced = _beside(path)
    try:
        with _one_sentence(path):
            beside.mkdir()
            yield beside
            if path.exists():
                path.rename(replaced)
            beside.rename(path)
            _sync_folder(path.parent)
    finally:
        with _one_sentence(path):
            if replaced.exists() and not path.exists():
                replaced.rename(path)
        for folder in (beside, replaced):
            shutil.rmtree(folder, ignore_errors=True)


def _check_free(path: Path, *, force: bool) -> None:
    """Refuse a place that is taken, unless an export may be replaced."""
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent} for {path.name}: make it, or choose another place")
    if not os.path.lexists(path):
        return
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ConfigError(f"{path} is no file, so it is not replaced: choose another place with --out")
    if not force:
        raise ConfigError(f"{path} is there already: choose another place with --out, or replace it with --force")
    if path.is_dir() and not (path / MANIFEST).is_file():
        raise ConfigError(f"{path} is a folder that no export made, so it is not replaced: choose another place")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Say in one sentence that `path` cannot be read."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as raised:
        raise ConfigError(f"{path} cannot be read ({raised}): name what `slipstream export` wrote") from raised


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial-{secrets.token_hex(4)}")


@contextmanager
def _one_sentence(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as raised:
        raise ConfigError(
            f"{path} cannot be written ({raised}): see that its disk has room, or choose another place"
        ) from raised


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
