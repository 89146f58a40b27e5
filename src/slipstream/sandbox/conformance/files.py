"""Conformance cases for reading and writing files. See `suite.py`."""

from __future__ import annotations

from slipstream.errors import SandboxFileError, SandboxLimitError
from slipstream.sandbox.base import SandboxProvider
from slipstream.sandbox.conformance.case import (
    LONG_S,
    Cases,
    Need,
    SpecMaker,
    expecting,
    opened,
    output,
)
from slipstream.types import File, SandboxLimits

FILE_CASES = Cases()


@FILE_CASES.case()
async def files_are_written_and_read(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec(files={"given.txt": File(data=b"given")})) as sandbox:
        assert await sandbox.read("given.txt") == b"given"
        binary = b"\0\xff" * 3
        files = {"a/b/c.bin": binary, "/tmp/d": b"", "given.txt": b"x", "large": bytes(range(256)) * 8000}
        await sandbox.write({path: File(data=data) for path, data in files.items()})
        for path, data in files.items():
            assert await sandbox.read(path) == data, path
        assert await sandbox.read("/work/a/b/c.bin") == binary


@FILE_CASES.case()
async def files_that_cannot_be_read(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        await sandbox.write({"ten": File(data=b"0123456789"), "folder/file": File(data=b"")})
        assert await sandbox.read("ten", max_bytes=10) == b"0123456789"
        with expecting(SandboxFileError, "ten"):
            await sandbox.read("ten", max_bytes=9)
        with expecting(SandboxFileError, "missing"):
            await sandbox.read("missing")
        with expecting(SandboxFileError, "folder"):
            await sandbox.read("folder")
        with expecting(SandboxFileError, "folder"):
            await sandbox.write({"folder": File(data=b"")})
        with expecting(SandboxFileError, "ten"):
            await sandbox.write({"ten/below": File(data=b"")})
        with expecting(SandboxFileError):
            await sandbox.read("a\0b")
        with expecting(SandboxFileError):
            await sandbox.write({"a\0b": File(data=b"")})
        assert await sandbox.healthy()


@FILE_CASES.case()
async def no_path_leads_out(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    """The parent of a sandbox's root is the root."""
    async with opened(provider, make_spec()) as sandbox:
        await sandbox.write({"/work/../../../../tmp/seen": File(data=b"inside")})
        assert await sandbox.read("/tmp/seen") == b"inside"
        assert await sandbox.read("../../../../../tmp/seen") == b"inside"


@FILE_CASES.case()
async def a_tree_is_read(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec(files={"sub/x": File(data=b"1"), "y": File(data=b"22")})) as sandbox:
        await sandbox.write({"sub/deep/run.sh": File(data=b"\0\xff", mode=0o755)})
        tree = await sandbox.read_tree("/work")
        data = {path: file.data for path, file in tree.files.items()}
        assert data == {"sub/x": b"1", "y": b"22", "sub/deep/run.sh": b"\0\xff"}
        assert bool(tree.files["sub/deep/run.sh"].mode & 0o100)
        assert not tree.files["y"].mode & 0o100
        assert (dict(tree.links), dict(tree.left_out)) == ({}, {})
        assert set((await sandbox.read_tree("sub")).files) == {"x", "deep/run.sh"}
        for path in ("y", "missing"):
            with expecting(SandboxFileError, path):
                await sandbox.read_tree(path)


@FILE_CASES.case()
async def what_does_not_fit_a_tree_is_named(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    sizes = {"a": 5, "b": 50, "c": 5, "d": 1}
    async with opened(provider, make_spec(files={path: File(data=bytes(n)) for path, n in sizes.items()})) as sandbox:
        tree = await sandbox.read_tree(".", max_bytes=20)
        assert (set(tree.files), set(tree.left_out)) == ({"a", "c", "d"}, {"b"})
        tree = await sandbox.read_tree(".", max_files=2)
        assert (set(tree.files), set(tree.left_out)) == ({"a", "b"}, {"c", "d"})


@FILE_CASES.case(Need.PROGRAMS)
async def a_tree_has_links_and_odd_names_and_no_fifos(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    script = r"""
    mkdir d; echo x > d/file; ln -s file d/link; ln -s /etc d/out; ln -s nowhere d/dangling; ln -s . d/loop
    mkfifo d/fifo; echo y > "$(printf 'd/new\nline')"; echo z > "$(printf 'd/\377')"
    """
    async with opened(provider, make_spec()) as sandbox:
        await output(sandbox, script)
        tree = await sandbox.read_tree("d")
        assert {path: file.data for path, file in tree.files.items()} == {
            "file": b"x\n",
            "new\nline": b"y\n",
            "\udcff": b"z\n",
        }
        assert tree.links == {"link": "file", "out": "/etc", "dangling": "nowhere", "loop": "."}
        assert set(tree.left_out) == {"fifo"}


@FILE_CASES.case(Need.DISK_LIMIT)
async def the_disk_limit_stops_writing(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec(limits=SandboxLimits(disk_mb=8, file_mb=4))) as sandbox:
        with expecting(SandboxLimitError):
            await sandbox.write({"big": File(data=bytes(5 << 20))})
        with expecting(SandboxLimitError):
            await sandbox.write({f"part{number}": File(data=bytes(2 << 20)) for number in range(5)})
        await sandbox.write({"part0": File(data=b"small"), "big": File(data=b"")})


@FILE_CASES.case(Need.PROGRAMS)
async def modes_links_and_read_only_files(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        script = File(data=b"#!/bin/sh\necho ran\n", mode=0o755)
        await sandbox.write({"run.sh": script, "kept": File(data=b"old", mode=0o400)})
        assert (await sandbox.exec(["./run.sh"], timeout_s=LONG_S)).stdout.text() == "ran\n"
        await sandbox.write({"kept": File(data=b"new")})
        assert await sandbox.read("kept") == b"new"
        await output(sandbox, "ln -s kept link; ln -s nowhere dangling; ln -s loop loop; mkfifo fifo")
        assert await sandbox.read("link") == b"new"
        await sandbox.write({"link": File(data=b"through"), "dangling": File(data=b"made")})
        assert await sandbox.read("kept") == b"through"
        assert await sandbox.read("dangling") == b"made"
        for path in ("fifo", "/dev/zero"):
            with expecting(SandboxFileError, "not a regular file"):
                await sandbox.read(path)
        with expecting(SandboxFileError, "loop"):
            await sandbox.read("loop")
        with expecting(SandboxFileError, "kept/below"):
            await sandbox.write({"kept/below": File(data=b"x")})
        with expecting(SandboxFileError):
            await sandbox.write({"/proc/self/comm": File(data=b"x")})
        assert await sandbox.healthy()


@FILE_CASES.case(Need.PROGRAMS)
async def programs_may_change_what_was_written(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec(files={"d/given": File(data=b"1\n")})) as sandbox:
        await sandbox.write({"d/written": File(data=b"2\n")})
        await output(
            sandbox, "echo more >> d/given; echo more >> d/written; touch d/new; mv d/new d/moved; chmod 600 d/*"
        )
        assert await sandbox.read("d/given") == b"1\nmore\n"
        assert await sandbox.read("d/written") == b"2\nmore\n"
        await output(sandbox, "rm -r d")


@FILE_CASES.case(Need.PROGRAMS)
async def many_files_at_once(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    many = {f"d{number % 10}/file-{number}.txt": File(data=str(number).encode()) for number in range(3000)}
    async with opened(provider, make_spec(files=many)) as sandbox:
        assert (await output(sandbox, "find . -type f | wc -l")).strip() == "3000"
        assert await sandbox.read("d7/file-2007.txt") == b"2007"
        assert len((await sandbox.read_tree(".")).files) == 3000
