"""The sandbox interface: an agent's commands run inside, and nothing they do reaches the host.

Input: a SandboxSpec. Output: results of commands and bytes of files.
Invariants: whatever was started inside is dead when `aclose` returns; closing twice is fine; cancelling any method
kills what that call started and leaves the sandbox usable; code that reads or
writes files from outside never follows a link out of the sandbox, never opens a FIFO or a device, and never runs a host
program on the agent's files.

Every provider implements `Sandbox`. `Changes`, `Snapshots`, `Endpoints` and `Rooted` are optional capabilities: a
provider lists the ones its sandboxes have, and `slipstream.sandbox.conformance.suite` tests those it lists.
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
    """A program's output, truncated in the middle if it was too long: the first bytes, the last bytes, and the total
    number of bytes."""

    head: bytes
    tail: bytes = b""
    num_bytes: int = 0

    @property
    def num_left_out(self) -> int:
        return max(0, self.num_bytes - len(self.head) - len(self.tail))

    def text(self) -> str:
        """Decoded as UTF-8 (undecodable bytes replaced), with a line that says how much was left out."""
        if not self.num_left_out:
            return (self.head + self.tail).decode("utf-8", "replace")
        head, tail = self.head.decode("utf-8", "replace"), self.tail.decode("utf-8", "replace")
        return f"{head}\n[... {self.num_left_out} bytes left out ...]\n{tail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    exit_code: int | None
    """None if it was killed at its deadline; 128 + n if it died of signal n."""
    stdout: Captured
    stderr: Captured
    timed_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellResult:
    exit_code: int | None
    """None if the command was killed at its deadline, or if it ended the shell without a status."""
    output: Captured
    """Standard output and standard error, interleaved as they arrived."""
    timed_out: bool = False
    restarted: bool = False
    """The shell itself had to be replaced (it exited, or could not be interrupted): the working directory was kept if
    possible; its variables are lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """What changed below a folder since the last `mark`."""

    patch: bytes = b""
    """In git's form, `a/` and `b/` before each path: additions, deletions, modes, links, and binary files whole."""
    paths: tuple[str, ...] = ()
    """The paths in the patch, sorted, relative to the folder."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Changed paths that are not in the patch, and why."""


class Capability(StrEnum):
    CHANGES = "changes"
    SNAPSHOTS = "snapshots"
    ENDPOINTS = "endpoints"
    ROOT = "root"


class Shell(Protocol):
    """A persistent shell: its working directory, variables and functions last from one command to the next."""

    async def run(self, command: str, *, timeout_s: float, max_output_bytes: int = 1 << 20) -> ShellResult:
        """Run one command until it ends or its deadline passes. At the deadline everything it started in the foreground
        is killed (the whole process group), and the shell stays usable. Standard input is empty.

        Raises SandboxError if the sandbox is lost, SandboxBroken if the agent broke it, SandboxLimitError if no process
        could be started.
        """
        ...

    async def aclose(self) -> None: ...


class Sandbox(Protocol):
    """One sandbox. Once it is lost, every method raises: SandboxError if the provider or the host is at fault,
    SandboxBroken if the programs inside are (see `blame`)."""

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

        As in a shell, a program that is not found has exit code 127, one that may not be executed 126. At the deadline
        the whole process group is killed. `max_output_bytes` applies to each stream; output beyond it is dropped from
        the middle. A process left running in the background does not delay the result.

        Raises SandboxError if the sandbox is lost, SandboxLimitError if no process could be started.
        """
        ...

    async def shell(self) -> Shell:
        """Start a persistent shell in the workdir."""
        ...

    async def read(self, path: str, *, max_bytes: int = 16 << 20) -> bytes:
        """The bytes of a regular file; relative paths start at the workdir, links are followed inside the sandbox.

        Raises SandboxFileError if it is missing, not a regular file, unreadable or larger than `max_bytes`.
        """
        ...

    async def read_tree(self, path: str, *, max_bytes: int = 64 << 20, max_files: int = 10_000) -> FileTree:
        """The files below a folder; links are returned as links. Files are read in path order, and those that do not
        fit the limits are left out and named.

        Raises SandboxFileError if it is missing or not a folder.
        """
        ...

    async def write(self, files: Mapping[str, File]) -> None:
        """Write files, creating folders as needed and replacing existing files.

        Raises SandboxFileError for a path that cannot be written, SandboxLimitError if the disk limit is reached.
        """
        ...

    async def healthy(self) -> bool:
        """Whether the sandbox still responds. Never raises."""
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class Changes(Protocol):
    """A sandbox that can report what changed in it."""

    async def mark(self) -> None:
        """Report changes from now on. Before the first call they are reported since the sandbox was opened."""
        ...

    async def changes(self, path: str | None = None, *, max_bytes: int = 16 << 20) -> Changed:
        """What changed below a folder (the workdir by default).

        Raises SandboxFileError if it is not a folder, or if the patch would be larger than `max_bytes`.
        """
        ...


class Snapshot(Protocol):
    """A saved copy of a sandbox's files, from which new sandboxes can start. It outlives the sandbox."""

    @property
    def id(self) -> str: ...

    async def open(self) -> Sandbox:
        """Start a sandbox with these files: a fork. It has the original's spec, and none of its processes."""
        ...

    async def aclose(self) -> None:
        """Discard the files. Sandboxes opened from it keep running."""
        ...


@runtime_checkable
class Snapshots(Protocol):
    """A sandbox whose files can be saved, to start others from."""

    async def snapshot(self) -> Snapshot:
        """Save the files as they are now. The sandbox keeps running."""
        ...


@runtime_checkable
class Rooted(Protocol):
    """A sandbox on this machine whose files can be read directly, without a request to it."""

    def root(self) -> AbstractContextManager[int]:
        """A descriptor of its root folder, for `sandbox.files.safe_walk`. Raises OSError if the sandbox is gone."""
        ...

    def rights(self) -> AbstractContextManager[None]:
        """Gives the current thread the sandbox user's file rights, for as long as it touches files there."""
        ...


OnConnect = Callable[[StreamReader, StreamWriter], Awaitable[None]]


@runtime_checkable
class Endpoints(Protocol):
    """A sandbox from which chosen services of the host can be reached, and nothing else."""

    async def serve(self, name: str, on_connect: OnConnect) -> str:
        """Let programs inside connect to a Unix socket; returns its path inside. `on_connect` runs on the host
        for each connection, and is cancelled when the sandbox closes.

        Raises SandboxFileError if the name is taken.
        """
        ...


class SandboxProvider(Protocol):
    """Starts sandboxes of one kind."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What its sandboxes can do beyond `Sandbox`."""
        ...

    def check(self) -> None:
        """Raise ConfigError, which says how to fix it, if this machine cannot run such sandboxes."""
        ...

    def check_spec(self, spec: SandboxSpec) -> None:
        """Raise ConfigError if this provider could never open such a sandbox. Cheap; called before anything runs."""
        ...

    async def open(self, spec: SandboxSpec) -> Sandbox:
        """Start one and write the spec's files into it; the caller runs `setup` (see `ready.open_sandbox`).

        Raises SandboxError if it does not start. Nothing is left behind then, nor if the call is cancelled.
        """
        ...

    async def aclose(self) -> None:
        """Close every sandbox that is still open."""
        ...
