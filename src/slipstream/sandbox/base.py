"""Sandbox: a place where an agent's commands run, and nothing they do gets out.

Input: a SandboxSpec. Output: results of commands and bytes of files.
Invariants: whatever was started inside is dead when `aclose` returns; closing twice is fine; cancelling any method
kills what that call started and leaves the sandbox usable; whoever reads or writes files from outside never follows a
link out of the sandbox, never opens a FIFO or a device, and never runs a program on the agent's files on the host.

What every provider gives is `Sandbox`. `Changes`, `Snapshots`, `Endpoints` and `Rooted` are capabilities beside it: a
provider names those that its sandboxes have, and `slipstream.sandbox.conformance.suite` tests what it names.
"""

from __future__ import annotations

from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from slipstream.types import File, FileTree, SandboxSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """Output of a program, cut in the middle where it was too long: the first bytes, the last bytes, and how many
    there were in all."""

    head: bytes
    tail: bytes = b""
    num_bytes: int = 0

    @property
    def num_left_out(self) -> int:
        return max(0, self.num_bytes - len(self.head) - len(self.tail))

    def text(self) -> str:
        """As UTF-8, undecodable bytes replaced, with a line that says how much was left out."""
        if not self.num_left_out:
            return (self.head + self.tail).decode("utf-8", "replace")
        head, tail = self.head.decode("utf-8", "replace"), self.tail.decode("utf-8", "replace")
        return f"{head}\n[... {self.num_left_out} bytes left out ...]\n{tail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    exit_code: int | None
    """None if it was killed at its deadline; 128 + n if signal n ended it."""
    stdout: Captured
    stderr: Captured
    timed_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellResult:
    exit_code: int | None
    """None if the command was killed at its deadline, or if it ended the shell without a status."""
    output: Captured
    """Standard output and standard error, as they came."""
    timed_out: bool = False
    restarted: bool = False
    """The shell itself had to be replaced (it exited, or would not be interrupted): the working directory was kept
    where possible, its variables are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """What is different below a folder since the sandbox was marked."""

    patch: bytes = b""
    """In git's form, `a/` and `b/` before each path: additions, deletions, modes, links, and binary files whole."""
    paths: tuple[str, ...] = ()
    """What the patch is about, sorted, relative to the folder."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Changed paths that the patch does not tell, and why."""


class Capability(StrEnum):
    CHANGES = "changes"
    SNAPSHOTS = "snapshots"
    ENDPOINTS = "endpoints"
    ROOT = "root"


class Shell(Protocol):
    """A shell that lives on between commands: its working directory, variables and functions last."""

    async def run(self, command: str, *, timeout_s: float, max_output_bytes: int = 1 << 20) -> ShellResult:
        """Run one command to its end or its deadline. At the deadline whatever it started in the foreground is
        killed, the whole process group, and the shell goes on. Standard input is empty.

        Raises SandboxError if the sandbox is lost, SandboxBroken if the agent lost it, SandboxLimitError if no process
        could be started.
        """
        ...

    async def aclose(self) -> None: ...


class Sandbox(Protocol):
    """One sandbox. Every method raises SandboxError once the sandbox is lost by a fault of provider or host, and
    SandboxBroken once it is lost by what ran inside (see `blame`)."""

    @property
    def id(self) -> str: ...

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout_s: float,
        max_output_bytes: int = 1 << 20,
    ) -> ExecResult:
        """Run a program with the sandbox's environment plus `env`, in `cwd` (the workdir by default).

        A program that cannot be found is exit code 127, one that may not be run 126, as in a shell. At the deadline
        the whole process group is killed. `max_output_bytes` holds for each stream; what exceeds it is read and
        dropped from the middle. A process left behind in the background does not delay the result.

        Raises SandboxError if the sandbox is lost, SandboxLimitError if no process could be started.
        """
        ...

    async def shell(self) -> Shell:
        """Start a persistent shell in the workdir."""
        ...

    async def read(self, path: str, *, max_bytes: int = 16 << 20) -> bytes:
        """The bytes of a regular file; a relative path is below the workdir, links are followed inside the sandbox.

        Raises SandboxFileError if it is missing, no regular file, unreadable or larger than `max_bytes`.
        """
        ...

    async def read_tree(self, path: str, *, max_bytes: int = 64 << 20, max_files: int = 10_000) -> FileTree:
        """The files below a folder, links neither followed nor left out. What does not fit any more is left out, in
        the order of the paths, and named.

        Raises SandboxFileError if it is missing or no folder.
        """
        ...

    async def write(self, files: Mapping[str, File]) -> None:
        """Write files, making folders as needed and replacing what is there.

        Raises SandboxFileError for a path that cannot be written, SandboxLimitError if the disk limit is reached.
        """
        ...

    async def healthy(self) -> bool:
        """Whether the sandbox still answers. Never raises."""
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class Changes(Protocol):
    """A sandbox that can tell what was changed in it."""

    async def mark(self) -> None:
        """Changes are told from this moment on. Until it is called, from the moment the sandbox was open."""
        ...

    async def changes(self, path: str | None = None, *, max_bytes: int = 16 << 20) -> Changed:
        """What is different below a folder (the workdir by default).

        Raises SandboxFileError if the folder is none, or the patch would be larger than `max_bytes`.
        """
        ...


class Snapshot(Protocol):
    """The files of a sandbox as they were, from which others start. It outlives the sandbox."""

    @property
    def id(self) -> str: ...

    async def open(self) -> Sandbox:
        """Start a sandbox with these files: a fork. It has the spec of the first, and no processes."""
        ...

    async def aclose(self) -> None:
        """Forget the files. Sandboxes that were opened from it go on."""
        ...


@runtime_checkable
class Snapshots(Protocol):
    """A sandbox whose files can be kept, to start others from."""

    async def snapshot(self) -> Snapshot:
        """Keep the files as they are now. The sandbox goes on."""
        ...


@runtime_checkable
class Rooted(Protocol):
    """A sandbox on this machine whose files can be looked at without asking it, and so quickly."""

    def root(self) -> AbstractContextManager[int]:
        """A descriptor of its root folder, for `sandbox.files.safe_walk`. Raises OSError if the sandbox is gone."""
        ...

    def rights(self) -> AbstractContextManager[None]:
        """What a thread takes on while it touches files there, and only then: the rights of the sandbox's user."""
        ...


OnConnect = Callable[[StreamReader, StreamWriter], Awaitable[None]]


@runtime_checkable
class Endpoints(Protocol):
    """A sandbox from which one service of the host can be reached, and nothing else."""

    async def serve(self, name: str, on_connect: OnConnect) -> str:
        """Let programs inside connect to a Unix socket, whose path inside is returned. `on_connect` runs on the host
        for each connection, and is cancelled when the sandbox closes.

        Raises SandboxFileError if the name is taken.
        """
        ...


class SandboxProvider(Protocol):
    """Starts sandboxes of one kind."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What its sandboxes can do beside `Sandbox`."""
        ...

    def check(self) -> None:
        """Raise ConfigError, with the remedy, if this machine cannot run such sandboxes."""
        ...

    def check_spec(self, spec: SandboxSpec) -> None:
        """Raise ConfigError if this provider could never open such a sandbox. Cheap, and before anything runs."""
        ...

    async def open(self, spec: SandboxSpec) -> Sandbox:
        """Start one and write the spec's files into it; `setup` is the caller's (see `ready.open_sandbox`).

        Raises SandboxError if it does not come up; nothing is left behind then, nor if this call is cancelled.
        """
        ...

    async def aclose(self) -> None:
        """Close every sandbox that is still open."""
        ...
