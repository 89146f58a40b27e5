"""Compares a folder in two containers, through descriptors of their roots.

Input: the root before and the root after. Output: a Changed. Invariants: reading is as safe as in `safe_walk.py`; files
are compared by their bytes, since a program inside can set times and sizes; only what differs is kept in memory.
"""

from __future__ import annotations

import os
import stat

from slipstream.errors import SandboxFileError
from slipstream.offload import OffloadLimits
from slipstream.patches.apply import PatchError, entries_of, make_patch
from slipstream.sandbox.base import Changed
from slipstream.sandbox.files.safe_open import FOLDER, open_inside
from slipstream.sandbox.files.safe_walk import (
    MAX_ENTRIES,
    Listing,
    Stat,
    list_folder,
    read_entries,
    sandbox_file_errors,
)
from slipstream.sandbox.local.changes import MAX_CHANGED_FILES, some_of
from slipstream.types import FileTree

LIMITS = OffloadLimits(cpu_s=120)
"""For the process that compares."""
MAX_READ_BYTES = 256 << 20
"""For the files that differ, on either side; files beyond it are left out."""


def compare(before_fd: int, after_fd: int, path: str, max_bytes: int) -> Changed:
    """Runs in its own process (`offload.apart`). Raises SandboxFileError if `path` is not a folder in the second root,
    or if too much differs."""
    with sandbox_file_errors(path):
        new_folder = open_inside(after_fd, os.fsencode(path), FOLDER)
    try:
        old_folder = _open_or_none(before_fd, path)
        try:
            return _compare(old_folder, new_folder, max_bytes)
        finally:
            if old_folder is not None:
                os.close(old_folder)
    finally:
        os.close(new_folder)


def _open_or_none(root_fd: int, path: str) -> int | None:
    try:
        return open_inside(root_fd, os.fsencode(path), FOLDER)
    except OSError:  # it did not exist yet
        return None


def _compare(old_folder: int | None, new_folder: int, max_bytes: int) -> Changed:
    old = Listing(entries=[], left_out={}) if old_folder is None else list_folder(old_folder, (), MAX_ENTRIES)
    new = list_folder(new_folder, (), MAX_ENTRIES)
    old_by_path = {entry.path: entry for entry in old.entries}
    new_by_path = {entry.path: entry for entry in new.entries}
    paths = {
        path
        for path in {*old_by_path, *new_by_path}
        if _may_differ(old_by_path.get(path), new_by_path.get(path))
        and not _same(old_folder, new_folder, old_by_path.get(path), new_by_path.get(path))
    }
    if len(paths) > MAX_CHANGED_FILES:
        raise SandboxFileError(
            f"{len(paths)} files changed, more than the {MAX_CHANGED_FILES} allowed: remove those that are not work"
        )
    before = FileTree() if old_folder is None else _read(old_folder, old_by_path, paths, MAX_READ_BYTES)
    after = _read(new_folder, new_by_path, paths, MAX_READ_BYTES)
    left_out = {path: why for path, why in new.left_out.items() if old.left_out.get(path) != why}
    left_out |= {**before.left_out, **after.left_out}
    old_entries, new_entries = entries_of(before), entries_of(after)
    for path in left_out:
        old_entries.pop(path, None)
        new_entries.pop(path, None)
    try:
        patch = make_patch(old_entries, new_entries, max_bytes=max_bytes)
    except PatchError as raised:
        raise SandboxFileError(str(raised)) from raised
    told_paths = [path for path in {*old_entries, *new_entries} if old_entries.get(path) != new_entries.get(path)]
    return Changed(patch=patch, paths=tuple(sorted(told_paths)), left_out=some_of(left_out))


def _may_differ(old: Stat | None, new: Stat | None) -> bool:
    """False for the same kind of special file on both sides."""
    return old is None or new is None or stat.S_ISREG(new.mode) or stat.S_ISLNK(new.mode) or old.mode != new.mode


def _same(old_folder: int | None, new_folder: int, old: Stat | None, new: Stat | None) -> bool:
    if old_folder is None or old is None or new is None or old.size != new.size or old.mode != new.mode:
        return False
    one, other = (_read(folder, {old.path: old}, {old.path}, old.size) for folder in (old_folder, new_folder))
    return one == other and not one.left_out


def _read(folder: int, entries: dict[str, Stat], paths: set[str], max_bytes: int) -> FileTree:
    wanted = [entries[path] for path in paths if path in entries]
    return read_entries(folder, Listing(entries=wanted, left_out={}), max_bytes, MAX_CHANGED_FILES)
