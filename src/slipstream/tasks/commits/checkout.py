"""Makes the trees of a commit: the reference, with the fix and its tests, and the agent's, with neither.

Input: a Candidate, its repository, a folder for downloads. Output: a Checkout: the reference as a Package whose tests
can be run, and what the fix and its tests change.
Invariants: files come from the repository's objects; links and submodules are left out; requirements are installed once
for all commits that declare the same, and are shared by their trees.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from slipstream.patches.apply import Entry, make_patch
from slipstream.patches.parse import LINK, PROGRAM
from slipstream.sandbox.base import SandboxProvider
from slipstream.tasks.commits.repository import Change, Repository
from slipstream.tasks.commits.selection import Candidate, in_package, num_changed_lines, unusable
from slipstream.tasks.factory.hiding import cuts_of, without
from slipstream.tasks.factory.package.fetch import Package, clear
from slipstream.tasks.factory.package.install import (
    Interpreter,
    add_metadata,
    compile_requirements,
    importable,
)
from slipstream.tasks.factory.package.layout import Layout, read_layout
from slipstream.tasks.factory.package.runner import DEPS
from slipstream.tasks.factory.package.sources import Skipped

Entries = Mapping[str, Entry | None]
"""Files by path; None for no file."""


class Install(Protocol):
    """Gives a tree its requirements; returns those of the tests that cannot be had. Raises Skipped."""

    async def __call__(self, tree: Path, layout: Layout, downloads: Path, python: Interpreter) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    candidate: Candidate
    reference: Package
    missing: tuple[str, ...]
    """Requirements of the tests that cannot be installed."""
    tests: Entries
    """The files that the commit's tests change, with it."""
    old_tests: Entries
    """The same in its parent."""
    fix: Entries
    """The source files that the commit changes, with it."""
    old_source: Entries
    """The same in its parent."""

    @property
    def oracle(self) -> bytes:
        return make_patch(self.old_source, self.fix)

    @property
    def test_patch(self) -> bytes:
        return make_patch(self.old_tests, self.tests)

    @property
    def broken(self) -> dict[str, str | None]:
        """The source files without the fix, as text."""
        return texts_of(self.old_source)


def texts_of(entries: Entries) -> dict[str, str | None]:
    return {path: None if entry is None else entry.data.decode() for path, entry in entries.items()}


class Checkouts:
    """Makes the trees of one repository's commits."""

    def __init__(
        self, repository: Repository, name: str, folder: Path, downloads: Path, provider: SandboxProvider,
        python: Interpreter, install: Install,
    ) -> None:  # fmt: skip
        self._repository = repository
        self._name = name
        self._folder = folder
        self._downloads = downloads
        self._provider = provider
        self._python = python
        self._add_requirements = install
        self._failed: dict[str, Skipped] = {}
        """Why requirements cannot be installed, by their digest."""

    async def make(self, candidate: Candidate, *, max_lines: int) -> Checkout:
        """Raises Skipped if the commit cannot become a task."""
        tree = self._folder / candidate.commit.id[:12] / "source"
        changed, layout = await asyncio.to_thread(self._write, candidate, tree)
        fix, old_source = changed["fix"], changed["old_source"]
        if not any(path.endswith(".py") for path in fix):
            raise Skipped("it changes no Python source of the package")
        if why := next(filter(None, (unusable(entries) for entries in changed.values())), ""):
            raise Skipped(why)
        if (num := num_changed_lines(make_patch(old_source, fix))) > max_lines:
            raise Skipped(f"its fix changes {num} lines, more than {max_lines}")
        missing = await self._install(tree, layout)
        tree = await importable(tree, layout, self._downloads, self._python, self._provider)
        return Checkout(
            candidate=candidate,
            reference=Package(layout=layout, tree=tree),
            missing=missing,
            tests=changed["tests"],
            old_tests=changed["old_tests"],
            fix=fix,
            old_source=old_source,
        )

    def _write(self, candidate: Candidate, tree: Path) -> tuple[dict[str, Entries], Layout]:
        """Write the parent's files with the commit's tests and fix."""
        files = self._repository.files(candidate.commit.parent)
        entries: dict[str, Entry | None] = dict(self._repository.entries(files))
        after = self._after((*candidate.tests, *candidate.sources))
        tests = {change.path: after[change.path] for change in candidate.tests}
        write_files(tree, {**entries, **tests})
        shutil.rmtree(tree / DEPS, ignore_errors=True)
        clear(tree)
        layout = read_layout(tree, name=self._name, version="0")
        fix = {change.path: after[change.path] for change in candidate.sources if in_package(change.path, layout)}
        write_files(tree, fix)
        changed: dict[str, Entries] = {
            "tests": tests,
            "old_tests": {path: entries.get(path) for path in tests},
            "fix": fix,
            "old_source": {path: entries.get(path) for path in fix},
        }
        return changed, layout

    def _after(self, changes: tuple[Change, ...]) -> dict[str, Entry | None]:
        found = self._repository.entries({change.path: change.new for change in changes if change.new is not None})
        return {change.path: found.get(change.path) for change in changes}

    async def _install(self, tree: Path, layout: Layout) -> tuple[str, ...]:
        """Give the tree its requirements, which trees that need the same share."""
        wanted = json.dumps([layout.name, self._python.label, sorted(layout.requires), sorted(layout.test_requires)])
        digest = hashlib.blake2b(wanted.encode(), digest_size=8).hexdigest()
        shared = self._downloads / f"installed-{digest}"
        told = shared.with_suffix(".json")
        if digest in self._failed:
            raise self._failed[digest]
        if not told.is_file():
            try:
                missing = await self._install_once(tree, layout, shared)
            except Skipped as raised:
                self._failed[digest] = raised
                raise
            told.write_text(json.dumps(missing), encoding="utf-8")
        await asyncio.to_thread(link_folder, shared, tree / DEPS)
        add_metadata(tree, layout)
        return tuple(json.loads(told.read_text(encoding="utf-8")))

    async def _install_once(self, tree: Path, layout: Layout, shared: Path) -> tuple[str, ...]:
        bare = self._folder / f"bare-{shared.name}"  # sandboxes see a path as it was when the first of them opened
        shutil.rmtree(bare, ignore_errors=True)
        shutil.rmtree(shared, ignore_errors=True)
        await asyncio.to_thread(shutil.copytree, tree, bare)
        try:
            missing = await self._add_requirements(bare, layout, self._downloads, self._python)
            await compile_requirements(bare, layout, self._provider)
            await asyncio.to_thread(shutil.move, bare / DEPS, shared)
        finally:
            await asyncio.to_thread(shutil.rmtree, bare, ignore_errors=True)
        return missing


def write_files(folder: Path, entries: Entries) -> None:
    """Write files and remove those that are None. Links are left out."""
    for path, entry in entries.items():
        place = folder / path
        if entry is None:
            place.unlink(missing_ok=True)
        elif entry.mode != LINK and ".." not in place.parts:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(entry.data)
            place.chmod(0o755 if entry.mode == PROGRAM else 0o644)


def link_folder(source: Path, target: Path) -> None:
    """A copy of a folder whose files take no room of their own if the file system allows that."""

    def link(one: str, other: str) -> None:
        try:
            os.link(one, other, follow_symlinks=False)
        except OSError:
            shutil.copy2(one, other, follow_symlinks=False)

    shutil.copytree(source, target, symlinks=True, copy_function=link)


def agent_tree(checkout: Checkout, failing: tuple[str, ...], tree: Path) -> None:
    """Write the agent's tree: the parent's files, without the tests that the commit's fail."""
    shutil.rmtree(tree, ignore_errors=True)
    link_folder(checkout.reference.tree / DEPS, tree / DEPS)
    skip = {DEPS, "__pycache__"}
    shutil.copytree(
        checkout.reference.tree, tree, dirs_exist_ok=True, ignore=lambda _, names: [one for one in names if one in skip]
    )
    write_files(tree, {**checkout.old_source, **checkout.old_tests})
    for path, entry in checkout.old_tests.items():
        hidden = [test for test in failing if test.partition("::")[0] == path]
        if entry is not None and hidden and (cuts := cuts_of(entry.data.decode(), hidden)) is not None:
            write_files(tree, {path: replace(entry, data=without(entry.data.decode(), cuts).encode())})
