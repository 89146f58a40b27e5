"""The cases for what every sandbox does: programs, the shell, files, life and death. See `suite.py`."""

from __future__ import annotations

import asyncio

from slipstream.errors import SandboxError, SandboxFileError, SandboxLimitError
from slipstream.sandbox.base import SandboxProvider
from slipstream.sandbox.conformance.case import (
    LONG_S,
    Cases,
    Need,
    SpecMaker,
    all_gone,
    becomes,
    expecting,
    opened,
    output,
    sh,
)
from slipstream.sandbox.ready import open_sandbox
from slipstream.types import File, SandboxLimits

BASICS = Cases()

# ---------------------------------------------------------------- programs


@BASICS.case()
async def exec_gives_output_and_exit_code(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        result = await sandbox.exec(["echo", "one", "two"], timeout_s=LONG_S)
        assert (result.exit_code, result.stdout.text(), result.timed_out) == (0, "one two\n", False)
        assert (await sh(sandbox, "exit 7")).exit_code == 7


@BASICS.case()
async def a_program_that_does_not_exist_is_127(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        assert (await sandbox.exec(["no-such-program"], timeout_s=LONG_S)).exit_code == 127


@BASICS.case()
async def the_deadline_ends_a_program(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        result = await sandbox.exec(["sleep", "1000"], timeout_s=0.1)
        assert (result.exit_code, result.timed_out) == (None, True)
        assert (await sandbox.exec(["true"], timeout_s=LONG_S)).exit_code == 0


@BASICS.case()
async def long_output_is_cut_in_the_middle(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        words = [str(number) for number in range(1000)]
        result = await sandbox.exec(["echo", *words], timeout_s=LONG_S, max_output_bytes=20)
        assert (result.stdout.head, result.stdout.tail) == (b"0 1 2 3 4 ", b"7 998 999\n")
        assert result.stdout.num_bytes == len(" ".join(words)) + 1


@BASICS.case()
async def execs_run_side_by_side(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        calls = [sandbox.exec(["echo", str(number)], timeout_s=LONG_S) for number in range(20)]
        results = await asyncio.gather(*calls)
        assert [result.stdout.text() for result in results] == [f"{number}\n" for number in range(20)]


@BASICS.case()
async def cancelling_an_exec_leaves_the_sandbox_usable(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        with expecting(TimeoutError):
            async with asyncio.timeout(0.1):
                await sandbox.exec(["sleep", "1000"], timeout_s=500)
        assert (await sandbox.exec(["true"], timeout_s=LONG_S)).exit_code == 0


@BASICS.case(Need.PROGRAMS)
async def cancelling_kills_what_the_call_started(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        shell = await sandbox.shell()
        for call in (
            lambda: sh(sandbox, "sleep 1001 & sleep 1002", timeout_s=500),
            lambda: shell.run("sleep 1003; sleep 1004", timeout_s=500),
        ):
            with expecting(TimeoutError):
                async with asyncio.timeout(0.5):
                    await call()
        await all_gone(sandbox, "sleep 100")
        assert (await shell.run("echo on", timeout_s=LONG_S)).output.text() == "on\n"


@BASICS.case(Need.PROGRAMS)
async def exec_takes_stdin_environment_and_directory(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec(env={"ONE": "1", "TWO": "none"}, workdir="/work/place")) as sandbox:
        script = "cat; echo $ONE $TWO; pwd; echo gone >&2"
        result = await sandbox.exec(["sh", "-c", script], stdin=b"in\n", env={"TWO": "2"}, cwd="/tmp", timeout_s=LONG_S)
        assert (result.stdout.text(), result.stderr.text()) == ("in\n1 2\n/tmp\n", "gone\n")
        assert await output(sandbox, "pwd; cat") == "/work/place\n"
        large = await sandbox.exec(["wc", "-c"], stdin=b"x" * 3_000_000, timeout_s=LONG_S)
        assert large.stdout.text().strip() == "3000000"
        unread = await sandbox.exec(["true"], stdin=b"x" * 3_000_000, timeout_s=LONG_S)
        assert unread.exit_code == 0
        with expecting(SandboxFileError, "/nowhere"):
            await sandbox.exec(["true"], cwd="/nowhere", timeout_s=LONG_S)


@BASICS.case(Need.PROGRAMS)
async def output_is_bytes_and_each_stream_has_its_own_cap(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        raw = await sh(sandbox, r"printf '\377\000\033[31m'")
        assert raw.stdout.head + raw.stdout.tail == b"\xff\0\x1b[31m"
        script = ["sh", "-c", "head -c 300000 /dev/zero; head -c 200000 /dev/zero >&2; echo end"]
        both = await sandbox.exec(script, timeout_s=LONG_S, max_output_bytes=1000)
        assert (both.stdout.num_bytes, both.stderr.num_bytes) == (300_004, 200_000)
        assert len(both.stdout.head + both.stdout.tail) == len(both.stderr.head + both.stderr.tail) == 1000
        assert both.stdout.tail.endswith(b"end\n")


@BASICS.case(Need.PROGRAMS)
async def endless_output_ends_at_the_deadline(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        result = await sandbox.exec(["yes"], timeout_s=0.5, max_output_bytes=1000)
        assert result.timed_out
        assert len(result.stdout.head + result.stdout.tail) <= 1000
        assert await sandbox.healthy()


@BASICS.case(Need.PROGRAMS)
async def arguments_may_be_long(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        words = ["word"] * 100_000
        result = await sandbox.exec(["echo", *words], timeout_s=LONG_S)
        assert result.stdout.num_bytes == 5 * len(words)
        odd = ["", " ", "a\nb", "'", '"', "$HOME", "*", "ünï"]
        result = await sandbox.exec(["sh", "-c", 'for x; do printf "<%s>" "$x"; done', "sh", *odd], timeout_s=LONG_S)
        assert result.stdout.text() == "".join(f"<{word}>" for word in odd)


@BASICS.case(Need.PROGRAMS)
async def how_programs_end(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        assert (await sh(sandbox, "kill -9 $$")).exit_code == 128 + 9
        assert (await sandbox.exec(["/etc/passwd"], timeout_s=LONG_S)).exit_code == 126
        assert (await sandbox.exec(["/etc/passwd/x"], timeout_s=LONG_S)).exit_code in (126, 127)
        assert (await sandbox.exec(["a\0b"], timeout_s=LONG_S)).exit_code == 126
        assert (await sandbox.exec(["\ud800"], timeout_s=LONG_S)).exit_code == 126


@BASICS.case(Need.PROGRAMS)
async def a_process_left_behind_delays_nothing_and_lives_on(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        result = await sh(sandbox, "sleep 1000 & echo $!")
        assert result.exit_code == 0
        await becomes(sandbox, int(result.stdout.text()), "sleep 1000")
        assert (await sh(sandbox, "yes & echo begun")).exit_code == 0


@BASICS.case(Need.PROGRAMS)
async def the_deadline_kills_the_whole_session(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        result = await sh(sandbox, "echo out; sleep 1001 & (sleep 1003 & sleep 1004)", timeout_s=0.5)
        assert (result.timed_out, result.stdout.text()) == (True, "out\n")
        await all_gone(sandbox, "sleep 100")


@BASICS.case(Need.PROGRAMS)
async def programs_may_open_their_output_by_name(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        result = await sh(sandbox, "echo a > /dev/stdout; echo b > /dev/stderr")
        assert (result.stdout.text(), result.stderr.text()) == ("a\n", "b\n")


# ---------------------------------------------------------------- the shell


@BASICS.case()
async def a_shell_runs_commands(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        shell = await sandbox.shell()
        result = await shell.run("echo hello", timeout_s=LONG_S)
        assert (result.exit_code, result.output.text(), result.restarted) == (0, "hello\n", False)
        assert (await shell.run("false", timeout_s=LONG_S)).exit_code == 1
        late = await shell.run("sleep 1000", timeout_s=0.2)
        assert (late.timed_out, late.exit_code) == (True, None)
        assert (await shell.run("true", timeout_s=LONG_S)).exit_code == 0
        await shell.aclose()
        await shell.aclose()
        with expecting(SandboxError):
            await shell.run("true", timeout_s=LONG_S)
        assert await sandbox.healthy()


@BASICS.case(Need.PROGRAMS)
async def a_shell_keeps_its_state(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec(env={"GIVEN": "yes"})) as sandbox:
        shell, other = await sandbox.shell(), await sandbox.shell()
        await shell.run("mkdir -p sub && cd sub; NAME=value; greet() { echo hi $1; }", timeout_s=LONG_S)
        result = await shell.run("pwd; echo $NAME $GIVEN; greet you; cat; echo err >&2", timeout_s=LONG_S)
        assert result.output.text() == "/work/sub\nvalue yes\nhi you\nerr\n"
        assert (await other.run("pwd; echo ${NAME:-none}", timeout_s=LONG_S)).output.text() == "/work\nnone\n"
        await shell.run("sleep 1000", timeout_s=0.3)
        result = await shell.run("pwd; echo $NAME", timeout_s=LONG_S)
        assert result.restarted or result.output.text() == "/work/sub\nvalue\n"
        await all_gone(sandbox, "sleep 1000")


@BASICS.case(Need.PROGRAMS)
async def a_shell_that_ended_is_replaced(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        shell = await sandbox.shell()
        ended = await shell.run("exit 5", timeout_s=LONG_S)
        after = await shell.run("echo back", timeout_s=LONG_S)
        assert after.output.text() == "back\n"
        assert ended.restarted or after.restarted
        flood = await shell.run("yes", timeout_s=0.5, max_output_bytes=100)
        assert flood.timed_out
        assert len(flood.output.head + flood.output.tail) <= 100
        assert (await shell.run("echo on", timeout_s=LONG_S)).output.text() == "on\n"


# ---------------------------------------------------------------- files


@BASICS.case()
async def files_are_written_and_read(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec(files={"given.txt": File(data=b"given")})) as sandbox:
        assert await sandbox.read("given.txt") == b"given"
        binary = b"\0\xff" * 3
        files = {"a/b/c.bin": binary, "/tmp/d": b"", "given.txt": b"x", "large": bytes(range(256)) * 8000}
        await sandbox.write({path: File(data=data) for path, data in files.items()})
        for path, data in files.items():
            assert await sandbox.read(path) == data, path
        assert await sandbox.read("/work/a/b/c.bin") == binary


@BASICS.case()
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


@BASICS.case()
async def no_path_leads_out(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    """Above the root of a sandbox there is its root."""
    async with opened(provider, make_spec()) as sandbox:
        await sandbox.write({"/work/../../../../tmp/seen": File(data=b"inside")})
        assert await sandbox.read("/tmp/seen") == b"inside"
        assert await sandbox.read("../../../../../tmp/seen") == b"inside"


@BASICS.case()
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


@BASICS.case()
async def what_does_not_fit_a_tree_is_named(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    sizes = {"a": 5, "b": 50, "c": 5, "d": 1}
    async with opened(provider, make_spec(files={path: File(data=bytes(n)) for path, n in sizes.items()})) as sandbox:
        tree = await sandbox.read_tree(".", max_bytes=20)
        assert (set(tree.files), set(tree.left_out)) == ({"a", "c", "d"}, {"b"})
        tree = await sandbox.read_tree(".", max_files=2)
        assert (set(tree.files), set(tree.left_out)) == ({"a", "b"}, {"c", "d"})


@BASICS.case(Need.PROGRAMS)
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


@BASICS.case(Need.DISK_LIMIT)
async def the_disk_limit_stops_writing(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec(limits=SandboxLimits(disk_mb=8, file_mb=4))) as sandbox:
        with expecting(SandboxLimitError):
            await sandbox.write({"big": File(data=bytes(5 << 20))})
        with expecting(SandboxLimitError):
            await sandbox.write({f"part{number}": File(data=bytes(2 << 20)) for number in range(5)})
        await sandbox.write({"part0": File(data=b"small"), "big": File(data=b"")})


@BASICS.case(Need.PROGRAMS)
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


@BASICS.case(Need.PROGRAMS)
async def programs_may_change_what_was_written(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec(files={"d/given": File(data=b"1\n")})) as sandbox:
        await sandbox.write({"d/written": File(data=b"2\n")})
        await output(
            sandbox, "echo more >> d/given; echo more >> d/written; touch d/new; mv d/new d/moved; chmod 600 d/*"
        )
        assert await sandbox.read("d/given") == b"1\nmore\n"
        assert await sandbox.read("d/written") == b"2\nmore\n"
        await output(sandbox, "rm -r d")


@BASICS.case(Need.PROGRAMS)
async def many_files_at_once(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    many = {f"d{number % 10}/file-{number}.txt": File(data=str(number).encode()) for number in range(3000)}
    async with opened(provider, make_spec(files=many)) as sandbox:
        assert (await output(sandbox, "find . -type f | wc -l")).strip() == "3000"
        assert await sandbox.read("d7/file-2007.txt") == b"2007"
        assert len((await sandbox.read_tree(".")).files) == 3000


# ---------------------------------------------------------------- life and death


@BASICS.case()
async def closing_twice_is_fine_and_ends_everything(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    sandbox = await provider.open(make_spec())
    shell = await sandbox.shell()
    assert await sandbox.healthy()
    pending = asyncio.gather(
        sandbox.exec(["sleep", "1000"], timeout_s=500),
        shell.run("sleep 1000", timeout_s=500),
        return_exceptions=True,
    )
    await asyncio.sleep(0)
    await sandbox.aclose()
    await sandbox.aclose()
    assert [type(error) for error in await pending] == [SandboxError, SandboxError]
    assert not await sandbox.healthy()
    for call in (
        lambda: sandbox.exec(["true"], timeout_s=LONG_S),
        lambda: sandbox.read("x"),
        lambda: sandbox.read_tree("."),
        lambda: sandbox.write({"x": File(data=b"")}),
        lambda: sandbox.shell(),
        lambda: shell.run("true", timeout_s=LONG_S),
    ):
        with expecting(SandboxError):
            await call()


@BASICS.case()
async def sandboxes_are_apart(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as one, opened(provider, make_spec()) as other:
        assert one.id != other.id
        await one.write({"x": File(data=b"1"), "/tmp/y": File(data=b"1")})
        for path in ("x", "/tmp/y"):
            with expecting(SandboxFileError):
                await other.read(path)
        await one.aclose()
        assert await other.healthy()
        assert (await other.exec(["true"], timeout_s=LONG_S)).exit_code == 0


@BASICS.case()
async def a_start_that_is_cancelled_harms_no_other(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        for delay_s in (0.0, 0.005, 0.02):
            task = asyncio.ensure_future(provider.open(make_spec()))
            await asyncio.sleep(delay_s)
            if not task.cancel():
                await task.result().aclose()
            await asyncio.gather(task, return_exceptions=True)
        assert await sandbox.healthy()
        async with opened(provider, make_spec()) as another:
            assert await another.healthy()


@BASICS.case()
async def open_sandbox_runs_the_setup(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    sandbox = await open_sandbox(provider, make_spec(setup=("true", "echo made")), timeout_s=LONG_S)
    enough_s = 0.5 + 5 * (loop.time() - began)
    assert await sandbox.healthy()
    with expecting(SandboxError, r"'exit 3' ended with 3"):
        await open_sandbox(provider, make_spec(setup=("true", "exit 3")), timeout_s=LONG_S)
    with expecting(SandboxError, r"'sleep 1000' ran out of time"):
        await open_sandbox(provider, make_spec(setup=("sleep 1000",)), timeout_s=enough_s)
    await sandbox.aclose()


@BASICS.case()
async def closing_the_provider_closes_its_sandboxes(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    provider.check()
    provider.check_spec(make_spec())
    sandboxes = [await provider.open(make_spec()) for _ in range(2)]
    await provider.aclose()
    await provider.aclose()
    assert [await sandbox.healthy() for sandbox in sandboxes] == [False, False]
