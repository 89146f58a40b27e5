"""The files that the index reads.

Input: a folder, as a descriptor of a root and a path below it. Output: stamps and bytes. Invariants: no link is
followed and only regular files are opened, through `sandbox.files`; nothing is written.

A stamp shows whether a file changed without reading it. It has the inode's change time (ctime), which a program cannot
set, unlike the modification time.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

from slipstream.errors import ConfigError, SandboxFileError
from slipstream.sandbox.files.safe_open import FOLDER, open_inside
from slipstream.sandbox.files.safe_walk import read_file
from slipstream.tools.codesearch.parsing.languages import SKIPPED_FOLDERS, is_binary_name, language_of

MAX_FILE_BYTES = 1_000_000
MAX_FILES = 100_000
MAX_DEPTH = 128
SKIPPED = "a folder of a kind that is never searched"
DOUBT_NS = 50_000_000
"""A file or folder that changed this shortly before `stat` may have changed again within one tick of the file system's
clock."""


Stamp = tuple[int, int, int]
"""(size, ctime in nanoseconds, inode). A plain tuple, since there is one for each file at each query."""
Read = Callable[[str], bytes]


class Files(Protocol):
    @property
    def left_out(self) -> Mapping[str, str]:
        """What the last `stat` left out: path -> reason."""
        ...

    def stat(self, *, code_only: bool = False) -> Mapping[str, Stamp]:
        """The files as they are now: path -> stamp. `code_only`: only files whose names say that they are code."""
        ...

    def reading(self) -> AbstractContextManager[Read]:
        """A function from a path to its bytes, which raises SandboxFileError where the file is gone, or is larger than
        MAX_FILE_BYTES."""
        ...

    def now_ns(self) -> int:
        """The time of the clock that stamps use."""
        ...


class _Folder:
    """The content of a folder when it was last listed."""

    __slots__ = ("changed_ns", "code", "folders", "inode", "is_doubtful", "others", "skipped")

    def __init__(self, known: os.stat_result, now_ns: int) -> None:
        self.changed_ns, self.inode = known.st_ctime_ns, known.st_ino
        self.is_doubtful = known.st_ctime_ns > now_ns - DOUBT_NS
        self.code: list[str] = []
        self.others: list[str] = []
        self.folders: list[str] = []
        self.skipped: list[str] = []


Root = Callable[[], AbstractContextManager[int]]
Rights = Callable[[], AbstractContextManager[None]]


class FolderFiles:
    """The files below a folder. A folder is listed again only if it changed; files are checked each time."""

    def __init__(
        self, root: Root, path: str = ".", *, rights: Rights = nullcontext, max_files: int = MAX_FILES
    ) -> None:
        self._root = root
        self._rights = rights
        """What this thread takes on while it touches files, and only then."""
        self._path = path.strip("/") or "."
        self._max_files = max_files
        self._folders: dict[str, _Folder] = {}
        self._unread: dict[str, str] = {}
        self._code: list[str] = []
        self._others: list[str] = []

    @property
    def left_out(self) -> Mapping[str, str]:
        return self._unread

    def now_ns(self) -> int:
        return time.time_ns()

    def stat(self, *, code_only: bool = False) -> dict[str, Stamp]:
        with self._opened() as fd, self._rights():
            self._list(fd)
            found: dict[str, Stamp] = {}
            look, regular = os.stat, stat.S_ISREG
            for paths in (self._code,) if code_only else (self._code, self._others):
                for path in paths:
                    try:
                        known = look(path, dir_fd=fd, follow_symlinks=False)
                    except OSError:
                        continue
                    if regular(known.st_mode):
                        found[path] = (known.st_size, known.st_ctime_ns, known.st_ino)
            return found

    @contextmanager
    def reading(self) -> Iterator[Read]:
        with self._opened() as fd:

            def read(path: str) -> bytes:
                with self._rights():
                    return read_file(fd, path, MAX_FILE_BYTES)

            yield read

    @contextmanager
    def _opened(self) -> Iterator[int]:
        with self._root() as root:
            try:
                with self._rights():
                    fd = open_inside(root, os.fsencode(self._path), FOLDER)
            except OSError as error:
                raise SandboxFileError(f"{self._path}: {error.strerror}") from error
            try:
                yield fd
            finally:
                os.close(fd)

    def _list(self, root: int) -> None:
        """Update the lists of paths: check every known folder, list those that changed."""
        known, is_changed = self._folders, not self._folders
        fresh: dict[str, _Folder] = {}
        todo = [""]
        while todo:
            prefix = todo.pop()
            before = known.get(prefix)
            if before is not None and not before.is_doubtful:
                try:
                    now = os.stat(prefix or ".", dir_fd=root, follow_symlinks=False)
                except OSError:
                    is_changed = True
                    continue
                if now.st_ctime_ns == before.changed_ns and now.st_ino == before.inode:
                    fresh[prefix] = before
                    todo += before.folders
                    continue
            is_changed = True
            listed = self._look_into(root, prefix)
            if listed is not None:
                fresh[prefix] = listed
                todo += listed.folders
        if is_changed or len(fresh) != len(known):
            self._flatten(fresh)
        self._folders = fresh

    def _look_into(self, root: int, prefix: str) -> _Folder | None:
        try:
            fd = open_inside(root, os.fsencode(prefix) or b".", FOLDER | os.O_NOFOLLOW, links=False)
        except OSError:
            return None
        try:
            listed = _Folder(os.fstat(fd), self.now_ns())
            with os.scandir(fd) as entries:
                for entry in entries:
                    self._sort_in(listed, prefix, entry)
        except OSError:
            return None
        finally:
            os.close(fd)
        return listed

    @staticmethod
    def _sort_in(listed: _Folder, prefix: str, entry: os.DirEntry[str]) -> None:
        name = entry.name
        try:
            name.encode()
        except UnicodeEncodeError:
            return  # no model could write it
        if entry.is_dir(follow_symlinks=False):
            if name in SKIPPED_FOLDERS or prefix.count("/") >= MAX_DEPTH:
                listed.skipped.append(f"{prefix}{name}/")
            else:
                listed.folders.append(f"{prefix}{name}/")
        elif entry.is_file(follow_symlinks=False) and not is_binary_name(name):
            (listed.code if language_of(name) else listed.others).append(prefix + name)

    def _flatten(self, folders: Mapping[str, _Folder]) -> None:
        code = sorted(path for folder in folders.values() for path in folder.code)
        others = sorted(path for folder in folders.values() for path in folder.others)
        self._code, rest = code[: self._max_files], code[self._max_files :]
        room = self._max_files - len(self._code)
        self._others, rest = others[:room], rest + others[room:]
        skipped = sorted(path for folder in folders.values() for path in folder.skipped)
        self._unread = dict.fromkeys(rest, f"more than {self._max_files} files") | dict.fromkeys(skipped, SKIPPED)


def host_folder(folder: Path) -> FolderFiles:
    """The files of a folder on this machine that a user named. Raises ConfigError if it is not a folder."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder: name the root of a repository")

    @contextmanager
    def root() -> Iterator[int]:
        fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)

    return FolderFiles(root)
