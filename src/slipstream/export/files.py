"""Where exports are written and read.

Invariants: an export appears complete or not at all (`slipstream.atomic`); what exists is replaced only with `force`,
and a device, a pipe or a socket never; what the disk refuses is a ConfigError.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream.atomic import atomic_file, atomic_folder
from slipstream.errors import ConfigError

MANIFEST = "manifest.jsonl"
"""In every exported folder: how one is told from any other folder."""


@contextmanager
def exported_file(path: Path, *, force: bool) -> Iterator[Path]:
    """Where to write a file that becomes `path`, flushed to disk, if the block ends well."""
    _check_free(path, force=force)
    with _refused_by_disk(path), atomic_file(path) as part:
        yield part


@contextmanager
def exported_folder(path: Path, *, force: bool) -> Iterator[Path]:
    """The same for a folder, which exists already. Its files are not flushed one by one."""
    _check_free(path, force=force)
    if path.is_symlink() or path.is_file():
        raise ConfigError(f"{path} is not a folder, so no folder can replace it: choose another path with --out")
    with _refused_by_disk(path), atomic_folder(path) as part:
        yield part


def _check_free(path: Path, *, force: bool) -> None:
    """Refuse a place that is taken, unless an export may be replaced."""
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent} for {path.name}: create it, or choose another with --out")
    if not os.path.lexists(path):
        return
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ConfigError(f"{path} is not a regular file, so it is not replaced: choose another path with --out")
    if not force:
        raise ConfigError(f"{path} already exists: choose another path with --out, or replace it with --force")
    if path.is_dir() and not (path / MANIFEST).is_file():
        raise ConfigError(f"{path} is not an exported folder, so it is not replaced: choose another path with --out")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What cannot be read is a ConfigError that names `path`."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as raised:
        raise ConfigError(f"{path} cannot be read ({raised}): name what `slipstream export` wrote") from raised


@contextmanager
def _refused_by_disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as raised:
        raise ConfigError(
            f"{path} cannot be written ({raised}): make room on its disk, or choose another path with --out"
        ) from raised
