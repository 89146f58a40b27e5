"""Conformance cases for the optional capabilities: changes, snapshots, endpoints, root. See `suite.py`."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable

from slipstream.errors import SandboxError, SandboxFileError
from slipstream.patches.apply import Entry, apply_patch
from slipstream.sandbox.base import Capability, Changes, Endpoints, Rooted, Sandbox, SandboxProvider, Snapshots
from slipstream.sandbox.conformance.case import (
    Cases,
    Need,
    SpecMaker,
    comes_true,
    command_lines,
    expecting,
    opened,
    output,
)
from slipstream.sandbox.files.safe_walk import read_file
from slipstream.types import File

CAPABILITY_CASES = Cases()


def with_changes(sandbox: Sandbox) -> Changes:
    assert isinstance(sandbox, Changes), "the provider lists `changes`, so its sandboxes must have mark and changes"
    return sandbox


def with_snapshots(sandbox: Sandbox) -> Snapshots:
    assert isinstance(sandbox, Snapshots), "the provider lists `snapshots`, so its sandboxes must have snapshot"
    return sandbox


def with_endpoints(sandbox: Sandbox) -> Endpoints:
    assert isinstance(sandbox, Endpoints), "the provider lists `endpoints`, so its sandboxes must have serve"
    return sandbox


@contextlib.asynccontextmanager
async def opened_from(start: Awaitable[Sandbox]) -> AsyncIterator[Sandbox]:
    sandbox = await start
    try:
        yield sandbox
    finally:
        await sandbox.aclose()


# ---------------------------------------------------------------- changes


@CAPABILITY_CASES.case(Capability.CHANGES)
async def changes_are_told_from_the_start_and_from_a_mark(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    files = {"kept": b"same\n", "edited": b"1\n2\n3\n", "sub/x": b"x\n"}
    spec = make_spec(files={path: File(data=data) for path, data in files.items()})
    async with opened(provider, spec) as sandbox:
        changes = with_changes(sandbox)
        nothing = await changes.changes()
        assert (nothing.patch, nothing.paths) == (b"", ())
        await sandbox.write({"edited": File(data=b"1\ntwo\n3\n"), "made/new": File(data=b"\0bin")})
        await sandbox.write({"kept": File(data=b"same\n"), "sub/x": File(data=b"y\n")})
        changed = await changes.changes()
        assert changed.paths == ("edited", "made/new", "sub/x")
        assert b"diff --git a/edited b/edited\n" in changed.patch
        assert b"\n-2\n+two\n" in changed.patch
        before = {path: Entry(data=data) for path, data in files.items()}
        assert apply_patch(changed.patch, before.get) == {
            "edited": Entry(data=b"1\ntwo\n3\n"),
            "made/new": Entry(data=b"\0bin"),
            "sub/x": Entry(data=b"y\n"),
        }
        assert (await changes.changes("sub")).paths == ("x",)
        assert (await changes.changes("/work/sub")).paths == ("x",)
        await changes.mark()
        assert (await changes.changes()).paths == ()
        await sandbox.write({"edited": File(data=b"1\n2\n3\n")})
        back = await changes.changes()
        assert apply_patch(back.patch, lambda path: Entry(data=b"1\ntwo\n3\n")) == {"edited": Entry(data=b"1\n2\n3\n")}


@CAPABILITY_CASES.case(Capability.CHANGES)
async def changes_that_cannot_be_told(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec(files={"file": File(data=b"")})) as sandbox:
        changes = with_changes(sandbox)
        await sandbox.write({"large": File(data=b"line\n" * 10_000)})
        with expecting(SandboxFileError):
            await changes.changes(max_bytes=1000)
        for path in ("missing", "file"):
            with expecting(SandboxFileError, path):
                await changes.changes(path)
        await sandbox.aclose()
        with expecting(SandboxError):
            await changes.changes()
        with expecting(SandboxError):
            await changes.mark()


@CAPABILITY_CASES.case(Capability.CHANGES, Need.PROGRAMS)
async def changes_tell_all_that_programs_did(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    names = ("gone", "run", "whole/a", "whole/b/c", "turned", "again/old", "moved/x", "touched")
    script = r"""
    rm gone; chmod 755 run; rm -r whole; rm turned; ln -s run turned; touch touched
    rm -r again; mkdir again; echo new > again/new; mv moved other; mkfifo fifo; mkdir empty
    printf 'no newline' > 'sp ace'; echo odd > "$(printf 'new\nline')"; echo bytes > "$(printf '\377')"
    """
    async with opened(provider, make_spec(files={name: File(data=f"{name}\n".encode()) for name in names})) as sandbox:
        await output(sandbox, script)
        changed = await with_changes(sandbox).changes()
        before = {name: Entry(data=f"{name}\n".encode()) for name in names}
        told = apply_patch(changed.patch, before.get)
        assert told == {
            **dict.fromkeys(("gone", "whole/a", "whole/b/c", "again/old", "moved/x")),
            "run": Entry(data=b"run\n", mode=0o100755),
            "turned": Entry(data=b"run", mode=0o120000),
            "again/new": Entry(data=b"new\n"),
            "other/x": Entry(data=b"moved/x\n"),
            "sp ace": Entry(data=b"no newline"),
            "new\nline": Entry(data=b"odd\n"),
            "\udcff": Entry(data=b"bytes\n"),
        }
        assert changed.paths == tuple(sorted(told))


# ---------------------------------------------------------------- snapshots


@CAPABILITY_CASES.case(Capability.SNAPSHOTS)
async def a_fork_has_the_files_of_its_moment(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec(files={"given": File(data=b"0")})) as sandbox:
        await sandbox.write({"x": File(data=b"then"), "/tmp/y": File(data=b"then", mode=0o755)})
        snapshot = await with_snapshots(sandbox).snapshot()
        await sandbox.write({"x": File(data=b"later"), "z": File(data=b"later")})
        async with opened_from(snapshot.open()) as fork, opened_from(snapshot.open()) as other:
            assert len({sandbox.id, fork.id, other.id}) == 3
            assert [await fork.read(path) for path in ("given", "x", "/tmp/y")] == [b"0", b"then", b"then"]
            with expecting(SandboxFileError):
                await fork.read("z")
            await fork.write({"x": File(data=b"fork")})
            assert [await one.read("x") for one in (sandbox, fork, other)] == [b"later", b"fork", b"then"]
        await snapshot.aclose()


@CAPABILITY_CASES.case(Capability.SNAPSHOTS)
async def a_snapshot_outlives_its_sandbox_and_a_fork_its_snapshot(
    provider: SandboxProvider, make_spec: SpecMaker
) -> None:
    async with opened(provider, make_spec()) as sandbox:
        await sandbox.write({"x": File(data=b"1")})
        snapshot = await with_snapshots(sandbox).snapshot()
    with expecting(SandboxError):
        await with_snapshots(sandbox).snapshot()
    async with opened_from(snapshot.open()) as fork:
        await fork.write({"y": File(data=b"2")})
        second = await with_snapshots(fork).snapshot()
        await snapshot.aclose()
        await snapshot.aclose()
        with expecting(SandboxError):
            await snapshot.open()
        assert await fork.read("x") == b"1"
    async with opened_from(second.open()) as fork:
        assert [await fork.read(path) for path in ("x", "y")] == [b"1", b"2"]
    await second.aclose()


@CAPABILITY_CASES.case(Capability.SNAPSHOTS, Need.PROGRAMS)
async def a_fork_has_the_spec_and_no_processes(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec(env={"GIVEN": "yes"}, files={"gone": File(data=b"")})) as sandbox:
        await output(sandbox, "sleep 1000 & rm gone; ln -s x link; mkdir -p d/e")
        snapshot = await with_snapshots(sandbox).snapshot()
        async with opened_from(snapshot.open()) as fork:
            assert await output(fork, "echo $GIVEN; pwd; readlink link; ls") == "yes\n/work\nx\nd\nlink\n"
            assert "sleep 1000" not in (await command_lines(fork)).values()
        assert "sleep 1000" in (await command_lines(sandbox)).values()
        await snapshot.aclose()


@CAPABILITY_CASES.case(Capability.SNAPSHOTS, Capability.CHANGES)
async def the_changes_of_a_fork_are_its_own(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec(files={"x": File(data=b"1\n")})) as sandbox:
        await sandbox.write({"x": File(data=b"2\n")})
        snapshot = await with_snapshots(sandbox).snapshot()
        async with opened_from(snapshot.open()) as fork:
            assert (await with_changes(fork).changes()).paths == ()
            await fork.write({"y": File(data=b"3\n"), "x": File(data=b"4\n")})
            changed = await with_changes(fork).changes()
            assert apply_patch(changed.patch, {"x": Entry(data=b"2\n")}.get) == {
                "x": Entry(data=b"4\n"),
                "y": Entry(data=b"3\n"),
            }
        assert (await with_changes(sandbox).changes()).paths == ("x",)
        await snapshot.aclose()


# ---------------------------------------------------------------- endpoints

PYTHON_CLIENT = (
    "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
    "s.sendall(sys.argv[2].encode()); s.shutdown(1); print(s.recv(99).decode())"
)
PERL_CLIENT = (
    "use IO::Socket::UNIX; my $s = IO::Socket::UNIX->new(Peer => $ARGV[0]) or exit 1; "
    "print $s $ARGV[1]; $s->flush; shutdown($s, 1); print <$s>, qq(\\n)"
)
CLIENT = f"""
if command -v python3 > /dev/null; then exec python3 -c '{PYTHON_CLIENT}' "$@"
elif command -v perl > /dev/null; then exec perl -e '{PERL_CLIENT}' "$@"
else exit 99; fi
"""


async def connect(sandbox: Sandbox, path: str, word: str) -> str:
    """The service's reply to a program inside."""
    result = await sandbox.exec(["sh", "-c", CLIENT, "sh", path, word], timeout_s=60)
    assert result.exit_code != 99, "the base needs python3 or perl, to connect to a socket"
    assert result.exit_code == 0, f"a program inside could not connect to {path}: {result.stderr.text()}"
    return result.stdout.text().strip()


async def in_capitals(reader: StreamReader, writer: StreamWriter) -> None:
    writer.write((await reader.read()).upper())
    await writer.drain()
    writer.close()


@CAPABILITY_CASES.case(Capability.ENDPOINTS)
async def a_name_is_served_once(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        endpoints = with_endpoints(sandbox)
        first, second = await endpoints.serve("one", in_capitals), await endpoints.serve("two", in_capitals)
        assert first.startswith("/")
        assert first != second
        with expecting(SandboxFileError, "one"):
            await endpoints.serve("one", in_capitals)
        await sandbox.aclose()
        with expecting(SandboxError):
            await endpoints.serve("three", in_capitals)


@CAPABILITY_CASES.case(Capability.ENDPOINTS, Need.PROGRAMS)
async def programs_reach_a_service_of_the_host(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async def fail(reader: StreamReader, writer: StreamWriter) -> None:
        writer.close()
        raise ValueError("failing on purpose")

    async with opened(provider, make_spec()) as sandbox, opened(provider, make_spec()) as other:
        endpoints = with_endpoints(sandbox)
        path, failing = await endpoints.serve("upper", in_capitals), await endpoints.serve("failing", fail)
        assert await connect(sandbox, path, "hello") == "HELLO"
        words = [f"w{number}" for number in range(8)]
        answers = await asyncio.gather(*(connect(sandbox, path, word) for word in words))
        assert answers == [word.upper() for word in words]
        await sandbox.exec(["sh", "-c", CLIENT, "sh", failing, "x"], timeout_s=60)
        assert await connect(sandbox, path, "again") == "AGAIN"
        assert (await sandbox.exec(["sh", "-c", CLIENT, "sh", "/tmp/none", "x"], timeout_s=60)).exit_code != 0
        assert (await other.exec(["test", "-e", path], timeout_s=60)).exit_code == 1, "another sandbox sees the socket"


@CAPABILITY_CASES.case(Capability.ENDPOINTS, Need.PROGRAMS)
async def closing_cancels_who_still_serves(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def hold(reader: StreamReader, writer: StreamWriter) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
            writer.close()

    async with opened(provider, make_spec()) as sandbox:
        path = await with_endpoints(sandbox).serve("held", hold)
        call = asyncio.ensure_future(sandbox.exec(["sh", "-c", CLIENT, "sh", path, "x"], timeout_s=60))

        async def has_begun() -> bool:
            return began.is_set() or call.done()

        await comes_true("the service is connected to", has_begun)
        assert began.is_set(), "a program inside could not connect"
        await sandbox.aclose()
        assert ended.is_set(), "the service was not cancelled when the sandbox closed"
        await asyncio.gather(call, return_exceptions=True)


# ---------------------------------------------------------------- root


@CAPABILITY_CASES.case(Capability.ROOT)
async def files_are_read_through_the_root(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        assert isinstance(sandbox, Rooted)
        await sandbox.write({"given": File(data=b"here")})
        for path in ("given", "/work/../../work/given"):
            seen = await asyncio.to_thread(_read_through, sandbox, posixpath.join(make_spec().workdir, path))
            assert seen == b"here", f"through the root {path} reads {seen!r}"
        await sandbox.aclose()
        with expecting(OSError):
            await asyncio.to_thread(_read_through, sandbox, "given")


def _read_through(sandbox: Rooted, path: str) -> bytes:
    with sandbox.root() as root, sandbox.rights():
        return read_file(root, path, 1 << 20)
