"""What differs between a folder in two containers, read through descriptors of their roots.

Input: the two roots, the one before and the one after. Output: a Changed. Invariants: what `safe_walk.py` says of
reading; files are compared by their bytes, since a program inside can set every time and size; no more is kept in
memory than what differs.
"""

from __future__ import annotations

import os
import stat

from slipstream.errors import SandboxFileError
from slipstream.offload import OffloadLimits
from slipstream.patches.apply import PatchError, entries_of, make_patch
from slipstream.sandbox.base import Changed
from slipstream.sandbox.files.safe_open import FOLDER, open_inside
from slipstream.sandbox.files.safe_walk import MAX_ENTRIES, Listing, Stat, list_folder, read_entries, told
from slipstream.sandbox.local.changes import MAX_CHANGED_FILES, some_of
from slipstream.types import FileTree

LIMITS = OffloadLimits(cpu_s=120)
"""Of the process that compares."""
MAX_READ_BYTES = 256 << 20
"""Of the files that differ, on either side; what is beyond is left out."""


def compare(before_fd: int, after_fd: int, path: str, max_bytes: int) -> Changed:
    """For a process of its own (`offload.apart`). Raises SandboxFileError if `path` is no folder in the second, and if
    too much differs."""
    with told(path):
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
    except OSError:  # it was not there yet
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
            f"{len(paths)} files were changed, where {MAX_CHANGED_FILES} may be: remove what is not work"
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
    """False for what is the same kind of special file in both."""
    return old is None or new is None or stat.S_ISREG(new.mode) or stat.S_ISLNK(new.mode) or old.mode != new.mode


def _same(old_folder: int | None, new_folder: int, old: Stat | None, new: Stat | None) -> bool:
    if old_folder is None or old is None or new is None or old.size != new.size or old.mode != new.mode:
        return False
    one, other = (_read(folder, {old.path: old}, {old.path}, old.size) for folder in (old_folder, new_folder))
    return one == other and not one.left_out


def _read(folder: int, entries: dict[str, Stat], paths: set[str], max_bytes: int) -> FileTree:
    wanted = [entries[path] for path in paths if path in entries]
    return read_entries(folder, Listing(entries=wanted, left_out={}), max_bytes, MAX_CHANGED_FILES)
