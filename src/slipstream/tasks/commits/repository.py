"""Reads commits and files of a local git clone.

Input: the path of a clone, bare or not. Output: Commits, and the bytes of their files.
Invariants: only commands that read objects are run, with the configuration of neither the system nor the user, without
hooks, filters, external diffs, replaced objects or transports, so nothing that the repository holds is executed; the
clone is not written to.
"""

from __future__ import annotations

import datetime
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import ConfigError
from slipstream.patches.apply import Entry
from slipstream.patches.parse import LINK, PROGRAM

SAFE = (
    "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.attributesFile=/dev/null", "core.pager=cat",
    "protocol.allow=never", "gc.auto=0", "maintenance.auto=false",
)  # fmt: skip
ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ATTR_NOSYSTEM": "1",
    "LC_ALL": "C",
}
TIMEOUT_S = 300.0
AT_A_TIME = 200
"""Commits whose changes one command lists."""
MAX_FILE_BYTES = 16 << 20
SUBMODULE = 0o160000


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """A file of a commit."""

    id: str
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    path: str
    old: Blob | None
    new: Blob | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A commit with one parent."""

    id: str
    parent: str
    when: str
    """The author's date, in UTC."""
    message: str
    changes: tuple[Change, ...]

    @property
    def subject(self) -> str:
        return self.message.strip().partition("\n")[0].strip()


class Repository:
    def __init__(self, git_dir: Path) -> None:
        self._git_dir = git_dir

    @classmethod
    def open(cls, path: Path) -> Repository:
        """Raises ConfigError unless there is a clone with a commit."""
        git_dir = _git_dir_of(path)
        if git_dir is None:
            raise ConfigError(f"{path} is no git clone: give the folder of one, or of a bare repository")
        found = cls(git_dir)
        try:
            found._git("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        except ConfigError:
            raise ConfigError(f"{path} has no commit at HEAD: check one out, or fetch one") from None
        return found

    def origin(self) -> str:
        """`owner/name` of where it was cloned from; empty if that is not known."""
        try:
            url = self._git("config", "--local", "--no-includes", "--get", "remote.origin.url").decode().strip()
        except (ConfigError, UnicodeDecodeError):
            return ""
        found = re.fullmatch(r"(?:https?://|ssh://|git@)[^/:]+[/:]([\w.-]+)/([\w.-]+?)(?:\.git)?/?", url)
        return f"{found[1]}/{found[2]}" if found else ""

    def commits(self, since: str = "") -> Iterator[Commit]:
        """Commits with one parent that HEAD has, the newest first: after a revision, or from a date on."""
        limits = self._since(since) if since else []
        ids = self._git("rev-list", "--min-parents=1", "--max-parents=1", *limits, "HEAD", "--").decode().split()
        for place in range(0, len(ids), AT_A_TIME):
            yield from self._read_commits(ids[place : place + AT_A_TIME])

    def files(self, commit: str) -> dict[str, Blob]:
        """The files and links of a commit's tree, without very large ones."""
        found: dict[str, Blob] = {}
        for line in self._git("ls-tree", "-r", "-l", "-z", "--full-tree", commit).split(b"\0")[:-1]:
            facts, _, path = line.partition(b"\t")
            mode, _, blob, size = facts.decode().split()
            if int(mode, 8) != SUBMODULE and int(size) <= MAX_FILE_BYTES:
                found[os.fsdecode(path)] = Blob(id=blob, mode=int(mode, 8))
        return found

    def entries(self, blobs: Mapping[str, Blob]) -> dict[str, Entry]:
        """The contents of files, by path."""
        contents = self._objects({blob.id for blob in blobs.values()})
        found: dict[str, Entry] = {}
        for path, blob in blobs.items():
            if blob.id not in contents:
                raise ConfigError(f"{self._git_dir} lacks the object {blob.id} of {path}: give a complete clone")
            mode = blob.mode if blob.mode in (LINK, PROGRAM) else 0o100644
            found[path] = Entry(data=contents[blob.id], mode=mode)
        return found

    def _since(self, since: str) -> list[str]:
        if re.fullmatch(r"\d{4}-\d\d-\d\d", since):
            try:
                datetime.date.fromisoformat(since)
            except ValueError:
                raise ConfigError(f"--since {since}: there is no such day") from None
            return [f"--since={since}T00:00:00Z"]
        try:
            found = self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{since}^{{commit}}")
        except ConfigError:
            raise ConfigError(f"--since {since}: give a date such as 2025-01-31, or a revision of the clone") from None
        return [f"^{found.decode().split()[-1]}"]

    def _read_commits(self, ids: list[str]) -> Iterator[Commit]:
        heads = self._objects(set(ids))
        command = ("diff-tree", "--stdin", "-r", "-z", "--raw", "--no-renames", "--no-ext-diff", "--no-textconv")
        told = self._git(*command, stdin="".join(f"{id}\n" for id in ids).encode()).split(b"\0")
        changes: dict[str, list[Change]] = {}
        current, place = "", 0
        while place < len(told):
            if told[place].startswith(b":"):
                old_mode, new_mode, old, new, _ = told[place][1:].decode().split()
                changes[current].append(
                    Change(path=os.fsdecode(told[place + 1]), old=_blob(old_mode, old), new=_blob(new_mode, new))
                )
                place += 2
            else:
                if told[place]:
                    current = told[place].decode().strip()
                    changes[current] = []
                place += 1
        for id in ids:
            head, _, message = heads.get(id, b"").partition(b"\n\n")
            parent = re.search(rb"^parent (\w+)$", head, re.MULTILINE)
            when = re.search(rb"^author .* (\d+) [+-]\d{4}$", head, re.MULTILINE)
            if parent is None or when is None or not changes.get(id):
                continue
            day = datetime.datetime.fromtimestamp(int(when[1]), tz=datetime.UTC)
            yield Commit(
                id=id,
                parent=parent[1].decode(),
                when=day.strftime("%Y-%m-%dT%H:%M:%SZ"),
                message=message.decode("utf-8", "replace"),
                changes=tuple(changes[id]),
            )

    def _objects(self, ids: Iterable[str]) -> dict[str, bytes]:
        """The contents of objects; missing ones are left out."""
        told = self._git("cat-file", "--batch", stdin="\n".join(sorted(ids)).encode() + b"\n")
        found: dict[str, bytes] = {}
        place = 0
        while place < len(told):
            line, _, _ = told[place : place + 300].partition(b"\n")
            place += len(line) + 1
            parts = line.decode("utf-8", "replace").split()
            if len(parts) == 3 and parts[2].isdigit():
                size = int(parts[2])
                found[parts[0]] = told[place : place + size]
                place += size + 1
        return found

    def _git(self, *command: str, stdin: bytes = b"") -> bytes:
        settings = [part for setting in SAFE for part in ("-c", setting)]
        try:
            done = subprocess.run(
                ["git", "--no-pager", f"--git-dir={self._git_dir}", *settings, *command],
                input=stdin,
                env={**ENVIRONMENT, "PATH": os.defpath, "HOME": "/nonexistent"},
                cwd="/",
                capture_output=True,
                timeout=TIMEOUT_S,
                check=True,
            )
        except FileNotFoundError:
            raise ConfigError("there is no git on this machine: install it") from None
        except subprocess.CalledProcessError as raised:
            said = raised.stderr.decode("utf-8", "replace").strip()
            raise ConfigError(f"git {command[0]} of {self._git_dir} failed: {said[-300:]}") from None
        except subprocess.TimeoutExpired:
            raise ConfigError(f"git {command[0]} of {self._git_dir} took more than {TIMEOUT_S:g} s") from None
        return done.stdout


def _blob(mode: str, id: str) -> Blob | None:
    number = int(mode, 8)
    return None if number in (0, SUBMODULE) else Blob(id=id, mode=number)


def _git_dir_of(path: Path) -> Path | None:
    place = path.expanduser().resolve()
    if (place / ".git").is_file():  # a work tree beside its repository
        named = (place / ".git").read_text(encoding="utf-8", errors="replace").strip()
        place = (place / named.removeprefix("gitdir: ")).resolve()
        common = place / "commondir"
        return place if (place / "HEAD").is_file() and (common.is_file() or (place / "objects").is_dir()) else None
    for folder in (place / ".git", place):
        if (folder / "HEAD").is_file() and (folder / "objects").is_dir():
            return folder
    return None
