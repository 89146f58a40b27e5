"""What is no change: files that were written before anything ran are known without a look."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest
from local_stage import provided

from slipstream.errors import SandboxFileError
from slipstream.sandbox.files.overlay import OverlayLayer
from slipstream.sandbox.local import bwrap
from slipstream.sandbox.local import sandbox as local
from slipstream.sandbox.local.changes import read_marked_layer
from slipstream.sandbox.local.lower_folders import LowerFolders
from slipstream.sandbox.local.sandbox import LocalSandbox
from slipstream.types import File, SandboxSpec

FILES = {
    "note": File(data=b"one\n"),
    "bin/run": File(data=b"#!/bin/sh\n", mode=0o755),
    "a/b/c": File(data=b""),
    "/tmp/x/y": File(data=b"\0\1"),
    "/work/deep": File(data=b"whole path"),
}


def in_sandbox(scene: Callable[[LocalSandbox], Awaitable[None]], spec: SandboxSpec | None = None) -> None:
    async def main() -> None:
        async with provided() as provider:
            await scene(await provider.open(spec or SandboxSpec()))

    asyncio.run(main())


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of how many areas was looked at."""
    seen: list[int] = []

    def noted(upper_fd: int) -> OverlayLayer:
        seen.append(upper_fd)
        return read_marked_layer(upper_fd)

    monkeypatch.setattr(local, "read_marked_layer", noted)
    return seen


def seen(layers: Mapping[str, OverlayLayer]) -> dict[str, tuple[object, ...]]:
    return {
        name: (dict(layer.files), dict(layer.links), layer.folders, layer.deleted, layer.opaque)
        for name, layer in layers.items()
    }


def test_what_is_known_of_files_that_were_written_is_what_a_look_would_find(looks: list[int]) -> None:
    async def scene(sandbox: LocalSandbox) -> None:
        await sandbox.write(FILES)
        await sandbox.write({"note": File(data=b"two\n", mode=0o600), "bin/more": File(data=b"")})
        await sandbox.mark()
        assert looks == []
        known = seen(sandbox._marked)
        await sandbox.exec(["/bin/true"], timeout_s=30)
        await sandbox.mark()
        assert len(looks) == 2
        assert known == seen(sandbox._marked)
        assert known["files"][2] == {"bin", "a", "a/b"}

    in_sandbox(scene)


def test_changes_are_told_from_what_was_written_before(looks: list[int]) -> None:
    async def scene(sandbox: LocalSandbox) -> None:
        await sandbox.write(FILES)
        await sandbox.mark()
        assert (await sandbox.changes()).paths == ()
        await sandbox.write({"note": File(data=b"one\n")})
        assert (await sandbox.changes()).paths == ()
        commands = "echo two > note; rm -r a; chmod 644 bin/run; mkdir new; : > new/x"
        await sandbox.exec(["/bin/sh", "-c", commands], timeout_s=30)
        assert (await sandbox.changes()).paths == ("a/b/c", "bin/run", "new/x", "note")
        assert (await sandbox.changes("/tmp")).paths == ()

    in_sandbox(scene)


@pytest.mark.parametrize("path", ["../tmp/../work/x", "./x", "/proc/self/cwd/x", "a//x"])
def test_a_path_that_goes_round_about_is_looked_for(looks: list[int], path: str) -> None:
    async def scene(sandbox: LocalSandbox) -> None:
        await sandbox.write({path: File(data=b"1")})
        await sandbox.mark()
        assert looks
        assert (await sandbox.changes()).paths == ()

    in_sandbox(scene)


def test_after_a_write_that_failed_there_is_a_look(looks: list[int]) -> None:
    async def scene(sandbox: LocalSandbox) -> None:
        with pytest.raises(SandboxFileError):
            await sandbox.write({"a": File(data=b"1"), "a/b": File(data=b"2"), "c": File(data=b"3")})
        await sandbox.mark()
        assert looks
        assert list(sandbox._marked["files"].files) == ["a"]

    in_sandbox(scene)


def test_where_something_lies_below_there_is_a_look(tmp_path: Path, looks: list[int]) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    async def scene(sandbox: LocalSandbox) -> None:
        await sandbox.write({"link/x": File(data=b"1")})
        await sandbox.mark()
        assert looks
        assert list(sandbox._marked["files"].files) == ["real/x"]

    in_sandbox(scene, SandboxSpec(tree=str(tmp_path)))


def test_a_ground_tells_only_what_it_can() -> None:
    spec = SandboxSpec()
    ground = LowerFolders(spec=spec, areas=bwrap.areas_of(spec, None))
    assert ground.written({}) == {"tmp": OverlayLayer(), "files": OverlayLayer()}
    assert ground.written({"/etc/passwd": File(data=b"")}) is None
    assert ground.written({"/workshop": File(data=b"")}) is None
