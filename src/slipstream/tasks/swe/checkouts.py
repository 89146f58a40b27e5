"""The files of a repository at a commit, taken from a local git repository as data.

Input: a folder with git repositories, bare or not. Output: folders with the files of one commit and, if wanted, the
packages that its tests need. Invariants: git only lists and prints objects; no hook, filter, attribute or setting of a
repository or a user takes effect, and no code of a repository runs. A folder is complete or not there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from slipstream.errors import ConfigError

DEPS = ".deps"
"""The folder of a checkout with installed packages; changes to it never count as work."""
PYTHON = "/usr/bin/python3"
"""The Python of this machine's programs, as sandboxes see it."""
LINK, SUBMODULE, PROGRAM = "120000", "160000", "100755"
_NAMES = ("{owner}+{name}/repo", "{owner}+{name}", "{owner}/{name}", "{owner}__{name}", "{name}")
_NO_SETTINGS = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "HOME": "/nonexistent",
    "PATH": os.defpath,
}


class MissingRepository(ConfigError):
    """A row's repository or commit is not among those given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    mode: str
    object: str
    path: str


class Checkouts:
    """Checkouts of the repositories of a folder, kept in another."""

    def __init__(self, repos: str, trees: str) -> None:
        self._repos = Path(repos).expanduser()
        self._trees = Path(trees).expanduser()
        if not self._repos.is_dir():
            raise ConfigError(f"repos={repos}: there is no such folder: give one that holds git repositories")

    def tree(self, repo: str, commit: str, deps: str = "") -> Path:
        """A folder with the files of a commit of `owner/name`, and the packages of `deps`. Raises MissingRepository."""
        git_folder = self._find(repo)
        files = list(_list(git_folder, repo, commit))
        packages = Path(deps).expanduser().resolve() if deps else None
        if packages is not None and not packages.is_dir():
            raise MissingRepository(f"there is no folder {packages} with the packages that its tests need")
        digest = hashlib.sha256(f"{packages} {_newest_ns(packages)}".encode()).hexdigest()[:12]
        place = self._trees / f"{repo.replace('/', '__')}-{commit[:12]}-{digest}"
        if not place.is_dir():
            self._make(place, git_folder, files, packages)
        return place

    def _find(self, repo: str) -> Path:
        owner, _, name = repo.partition("/")
        for pattern in _NAMES:
            folder = self._repos / pattern.format(owner=owner, name=name)
            for place in (folder, folder / ".git", folder.with_name(f"{folder.name}.git")):
                if (place / "HEAD").is_file() and (place / "objects").is_dir():
                    return place
        raise MissingRepository(f"{self._repos} has no repository {repo}")

    def _make(self, place: Path, git_folder: Path, files: list[_Listed], packages: Path | None) -> None:
        self._trees.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix=".making-", dir=self._trees))
        try:
            making.chmod(0o755)
            _write(git_folder, files, making)
            if packages is not None:
                shutil.copytree(packages, making / DEPS, symlinks=True, dirs_exist_ok=True)
            programs = making / DEPS / "bin"
            programs.mkdir(parents=True, exist_ok=True)
            (programs / "python").unlink(missing_ok=True)
            (programs / "python").symlink_to(PYTHON)
            try:
                making.rename(place)
            except OSError:
                if not place.is_dir():  # else another process was faster
                    raise
        finally:
            shutil.rmtree(making, ignore_errors=True)


def _newest_ns(packages: Path | None) -> int:
    """When a folder of packages last changed, as far as its first two levels show."""
    if packages is None:
        return 0
    inner = [packages, *packages.iterdir()]
    return max(path.lstat().st_mtime_ns for path in inner)


def _git(git_folder: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    argv = ["git", f"--git-dir={git_folder}", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]
    done = subprocess.run([*argv, *arguments], input=stdin, env=_NO_SETTINGS, capture_output=True, check=False)
    if done.returncode != 0:
        raise MissingRepository(
            f"git {arguments[0]} failed in {git_folder}: {done.stderr.decode('utf-8', 'replace').strip()[:300]}"
        )
    return done.stdout


def _list(git_folder: Path, repo: str, commit: str) -> Iterator[_Listed]:
    try:
        listed = _git(git_folder, "ls-tree", "-r", "-z", "--full-tree", f"{commit}^{{commit}}")
    except MissingRepository as raised:
        raise MissingRepository(f"{git_folder} has no commit {commit} of {repo} ({raised})") from None
    for line in listed.split(b"\0")[:-1]:
        facts, _, path = line.partition(b"\t")
        mode, _, object_ = facts.decode().split()
        yield _Listed(mode=mode, object=object_, path=os.fsdecode(path))


def _write(git_folder: Path, files: list[_Listed], folder: Path) -> None:
    wanted = [file for file in files if file.mode != SUBMODULE]
    for file in wanted:
        parts = PurePosixPath(file.path).parts
        if file.path.startswith("/") or ".." in parts or ".git" in parts:
            raise ConfigError(f"{git_folder} has a file at {file.path!r}, which is no path inside a repository")
    asked = "".join(f"{file.object}\n" for file in wanted).encode()
    sent = memoryview(_git(git_folder, "cat-file", "--batch", stdin=asked))
    start = 0
    links: list[tuple[Path, bytes]] = []
    for file in wanted:
        end = start + bytes(sent[start : start + 200]).index(b"\n")
        size = int(bytes(sent[start:end]).split()[2])
        data = sent[end + 1 : end + 1 + size]
        start = end + 2 + size
        place = folder / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.mode == LINK:
            links.append((place, bytes(data)))
            continue
        place.write_bytes(data)
        if file.mode == PROGRAM:
            place.chmod(0o755)
    for place, target in links:  # last, so that no file is written through one
        place.symlink_to(os.fsdecode(target))
