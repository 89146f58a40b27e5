"""Looks up paths and lists folders in the sandbox.

Input: a path a model wrote. Output: its kind, mode and size; or the names below it, two levels deep. Invariants: only
the sandbox's own `sh`, `ls` and `find` are run. If the sandbox lacks them, the path is unknown until it is read; that
is not an error.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from slipstream.errors import ToolError
from slipstream.names import did_you_mean
from slipstream.sandbox.base import Sandbox

TIMEOUT_S = 20.0
MAX_ENTRIES = 400
MAX_BELOW = 40
"""How many names of a second-level folder are shown."""
NEW_FILE_MODE = 0o644

_MAX_PATH_CHARS = 4_000
_MISSING, _DANGLING = 4, 5
_SIZE = re.compile(r"[0-9]{1,19}")
_LOOK = """\
if [ -L "$1" ] && ! [ -e "$1" ]; then exit 5; fi
if ! [ -e "$1" ]; then LC_ALL=C ls -a -- "$(dirname -- "$1")" 2>/dev/null; exit 4; fi
LC_ALL=C ls -dlnL -- "$1" || exit 3
printf '\\0'
cd -- "$(dirname -- "$1")" && pwd -P
"""
_LIST = """\
cd -- "$1" || exit 3
find . -mindepth 1 -maxdepth 2 -name '.?*' -prune -o -type d -print0
printf '\\0'
find . -mindepth 1 -maxdepth 2 -name '.?*' -prune -o ! -type d -print0
"""
_NOISE = frozenset({"node_modules", "__pycache__"})
"""Folders that are listed but not opened."""


class PlaceKind(StrEnum):
    FILE = "file"
    FOLDER = "folder"
    OTHER = "other"
    MISSING = "missing"
    UNKNOWN = "unknown"
    """The sandbox has no programs to find out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditorPlace:
    path: str
    """As the model wrote it."""
    kind: PlaceKind
    mode: int = NEW_FILE_MODE
    size: int = 0
    real: str = ""
    """The resolved path, the same for every way to write it, as far as known."""
    siblings: tuple[str, ...] = ()
    """For a missing path: the names in its folder."""


async def look(sandbox: Sandbox, path: str, *, timeout_s: float = TIMEOUT_S) -> EditorPlace:
    """Raises ToolError for an invalid path or a dangling link."""
    if not path.strip() or "\0" in path or len(path) > _MAX_PATH_CHARS:
        raise ToolError(f"edit: {path[:60]!r} is no path: give the path of a file, such as src/main.py")
    result = await sandbox.exec(
        ["/bin/sh", "-c", _LOOK, "sh", path], timeout_s=min(TIMEOUT_S, timeout_s), max_output_bytes=1 << 17
    )
    output = result.stdout.head + result.stdout.tail
    unknown = EditorPlace(path=path, kind=PlaceKind.UNKNOWN, real=posixpath.normpath(path))
    if result.exit_code == _DANGLING:
        raise ToolError(f"edit: {path} is a link that leads nowhere: remove it with rm, or give another path")
    if result.exit_code == _MISSING:
        names = output.decode("utf-8", "replace").split("\n")
        known = tuple(name for name in names if name not in ("", ".", ".."))
        return EditorPlace(path=path, kind=PlaceKind.MISSING, real=unknown.real, siblings=known)
    if result.exit_code != 0:
        return unknown
    listed, _, folder = output.partition(b"\0")
    return _from_listing(listed.decode("utf-8", "replace"), folder.decode("utf-8", "replace").rstrip("\n"), unknown)


async def mode_of(sandbox: Sandbox, path: str, *, timeout_s: float = TIMEOUT_S) -> int:
    """The mode of an existing file; the default for new files if there is none, or if it is unknown."""
    try:
        place = await look(sandbox, path, timeout_s=timeout_s)
    except ToolError:  # the write will report what is wrong with the path
        return NEW_FILE_MODE
    return place.mode if place.kind is PlaceKind.FILE else NEW_FILE_MODE


def _from_listing(listed: str, folder: str, unknown: EditorPlace) -> EditorPlace:
    """Parse a line of `ls -dln`: mode, links, owner, group, size, and the rest."""
    words = listed.split(maxsplit=5)
    if len(words) < 5 or len(words[0]) < 10:
        return unknown
    kind = {"-": PlaceKind.FILE, "d": PlaceKind.FOLDER}.get(words[0][0], PlaceKind.OTHER)
    real = posixpath.join(folder, posixpath.basename(unknown.real)) if folder else unknown.real
    size = int(words[4]) if kind is PlaceKind.FILE and _SIZE.fullmatch(words[4]) else 0
    return EditorPlace(path=unknown.path, kind=kind, mode=_mode(words[0]), size=size, real=real)


def _mode(letters: str) -> int:
    """`-rwsr-xr-x` as a number."""
    mode = 0
    for bit, letter in zip(range(8, -1, -1), letters[1:10], strict=True):
        if letter in "rwxst":
            mode |= 1 << bit
    for place, bit in ((3, 0o4000), (6, 0o2000), (9, 0o1000)):
        if letters[place] in "sStT":
            mode |= bit
    return mode


def missing(place: EditorPlace) -> ToolError:
    name = posixpath.basename(place.path.rstrip("/"))
    close = did_you_mean(name, place.siblings[:2_000])
    below = "" if place.path.startswith("/") else ", wherever bash may be"
    relative = f" A relative path is below the working directory{below}." if below else ""
    return ToolError(
        f"edit: there is no {place.path}{close}.{relative} View its folder, or look for it with find, then try again."
    )


# ---------------------------------------------------------------- folders


async def list_folder(sandbox: Sandbox, path: str, *, timeout_s: float) -> str:
    """The contents of a folder, two levels deep, without hidden names."""
    result = await sandbox.exec(
        ["/bin/sh", "-c", _LIST, "sh", path], timeout_s=min(TIMEOUT_S, timeout_s), max_output_bytes=1 << 20
    )
    if result.exit_code not in (0, 1):  # 1: some folders could not be entered
        why = "that took too long" if result.timed_out else result.stderr.text().strip()[:200] or "find failed"
        raise ToolError(f"edit: {path} cannot be listed ({why}): list it with bash, such as `ls {path} | head`")
    whole = (result.stdout.head + result.stdout.tail).decode("utf-8", "replace")
    folders, _, files = whole.partition("\0\0")
    if not whole.partition("\0\0")[1]:  # no folders: their list is empty and not terminated
        folders, files = "", whole.removeprefix("\0")
    entries = [(*_steps(name), "/") for name in _names(folders)] + [(*_steps(name), "") for name in _names(files)]
    left_out = " Part of a very long list was left out." if result.stdout.num_left_out else ""
    return listing(path, entries) + left_out


def _names(listed: str) -> list[str]:
    return [name.removeprefix("./") for name in listed.split("\0") if name]


def _steps(name: str) -> tuple[str, str]:
    first, _, second = name.partition("/")
    return first, second


def listing(path: str, entries: Sequence[tuple[str, str, str]]) -> str:
    """`entries` are (first name, second name or "", "/" for a folder)."""
    below: dict[str, list[str]] = {}
    top: dict[str, str] = {}
    for first, second, mark in entries:
        if second:
            below.setdefault(first, []).append(second + mark)
        else:
            top[first] = mark
    lines = [f"{path}: {len(top)} {'entry' if len(top) == 1 else 'entries'}, hidden ones not shown"]
    for name in sorted(top):
        if len(lines) > MAX_ENTRIES:
            lines.append(f"[{len(top)} entries in all: view a folder of it, or use find]")
            break
        lines.append(f"{name}{top[name]}")
        lines += _second_level(name, sorted(below.get(name, ())))
    return "\n".join(_one_line(line) for line in lines)


def _second_level(name: str, names: Sequence[str]) -> list[str]:
    if name in _NOISE and names:
        return [f"  [{len(names)} entries]"]
    more = [f"  [{len(names) - MAX_BELOW} more]"] if len(names) > MAX_BELOW else []
    return [f"  {each}" for each in names[:MAX_BELOW]] + more


_CONTROL: Mapping[int, str] = {code: f"\\x{code:02x}" for code in (*range(32), 127)}


def _one_line(name: str) -> str:
    return name.translate(_CONTROL)
