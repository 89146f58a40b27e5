"""The editor as a model uses it, in a real sandbox and in one without programs."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slipstream.errors import SandboxLimitError
from slipstream.sandbox.base import Sandbox
from slipstream.sandbox.fake import FakeProvider, FakeSandbox, few_programs
from slipstream.sandbox.local.provider import LocalProvider
from slipstream.simulate.clock import run_virtual
from slipstream.tools import CallResult, OpenToolset, Toolset
from slipstream.tools.editor.text import NotText, common_ends, decode, find_places, fold
from slipstream.types import File, SandboxLimits, SandboxSpec, ToolCall

needs_sandboxes = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")

CODE = b"def add(a, b):\n    return a - b\n\n\ndef twice(a):\n    return add(a, a)\n"


class Desk:
    """An editor and the sandbox it works in."""

    def __init__(self, tools: OpenToolset, sandbox: Sandbox) -> None:
        self._tools = tools
        self.sandbox = sandbox

    async def result(self, command: str, path: str, **arguments: Any) -> CallResult:
        call = ToolCall(id="c", name="edit", arguments={"command": command, "path": path, **arguments})
        (result,) = await self._tools.run([call], ())
        return result

    async def does(self, command: str, path: str, **arguments: Any) -> str:
        result = await self.result(command, path, **arguments)
        assert not result.is_error, result.text
        return result.text

    async def refuses(self, command: str, path: str, **arguments: Any) -> str:
        result = await self.result(command, path, **arguments)
        assert result.is_error, result.text
        return result.text

    async def sh(self, command: str) -> str:
        result = await self.sandbox.exec(["/bin/sh", "-c", command], timeout_s=20)
        return result.stdout.text() + result.stderr.text()


ScriptedCall = Callable[[Desk], Awaitable[None]]


def in_sandbox(scene: ScriptedCall, files: Mapping[str, bytes | File] | None = None, **limits: int) -> None:
    async def main() -> None:
        given = {path: file if isinstance(file, File) else File(data=file) for path, file in (files or {}).items()}
        provider = LocalProvider()
        sandbox = await provider.open(SandboxSpec(files=given, limits=SandboxLimits(**limits)))
        try:
            async with Toolset.named(["edit"]).open(sandbox=sandbox) as tools:
                await scene(Desk(tools, sandbox))
        finally:
            await provider.aclose()

    asyncio.run(main())


# ---------------------------------------------------------------- view


@needs_sandboxes
def test_a_file_is_viewed_with_line_numbers_and_its_tabs() -> None:
    async def scene(desk: Desk) -> None:
        assert await desk.does("view", "Makefile") == "1| all:\n2| \techo hi"
        assert await desk.does("view", "/work/Makefile", view_range=[2, -1]) == "2| \techo hi\n[lines 2 to 2 of 2]"
        assert await desk.does("view", "Makefile", view_range=["1", 99]) == await desk.does("view", "Makefile")
        assert await desk.does("view", "empty") == "[empty is empty]"
        assert "beyond the end: Makefile has 2 lines" in await desk.refuses("view", "Makefile", view_range=[3, 4])
        assert "give first and last line" in await desk.refuses("view", "Makefile", view_range=[2, 1])
        assert "view_range" in await desk.refuses("view", "Makefile", view_range=[1])

    in_sandbox(scene, {"Makefile": b"all:\n\techo hi\n", "empty": b""})


@needs_sandboxes
def test_encodings_are_shown_and_said() -> None:
    async def scene(desk: Desk) -> None:
        assert await desk.does("view", "utf16.txt") == "1| grün\n[the file is in utf-16-le]"
        assert "é\n[the file is in iso8859-1]" in await desk.does("view", "latin.py")
        told = await desk.does("view", "odd.txt")
        assert told == "1| abcdef\\xff\n[some bytes are no text and shown as \\x..: edit around them]"

    files = {
        "utf16.txt": "\ufeffgrün\r\n".encode("utf-16-le"),
        "latin.py": b"# coding: latin-1\nx = '\xe9\n",
        "odd.txt": b"abcdef\xff\n",
    }
    in_sandbox(scene, files)


@needs_sandboxes
def test_long_code_is_folded_and_long_text_is_begun() -> None:
    code = "".join(f"def f{number}(a):\n    return a + {number}\n\n\n" for number in range(300))
    notes = "".join(f"line {number}\n" for number in range(1, 5001))

    async def scene(desk: Desk) -> None:
        told = await desk.does("view", "long.py")
        assert told.startswith(
            "long.py has 1200 lines. Its outline, with first and last lines:\n          1-2 def f0(a):\n"
        )
        assert "    1197-1198 def f299(a):" in told
        assert told.endswith("[folded: see code with view_range, such as [1, 2]]")
        assert await desk.does("view", "long.py", view_range=[5, 6]) == (
            "5| def f1(a):\n6|     return a + 1\n[lines 5 to 6 of 1200]"
        )
        told = await desk.does("view", "notes.txt")
        last = int(told.rsplit("[lines 1 to ", 1)[1].split()[0])
        assert told.endswith(f"[lines 1 to {last} of 5000; go on with view_range [{last + 1}, 5000]]")
        assert "left out" not in told and len(told) < 16_000
        told = await desk.does("view", "wide.js")
        assert told == "1| " + "x" * 1000 + "[... 99000 more characters]"

    in_sandbox(scene, {"long.py": code.encode(), "notes.txt": notes.encode(), "wide.js": b"x" * 100_000})


@needs_sandboxes
def test_a_folder_is_listed_two_levels_deep() -> None:
    async def scene(desk: Desk) -> None:
        await desk.sh("mkdir -p src/deep/er many node_modules/x .git 'odd\nname'; touch .hidden; ln -s a.py link")
        await desk.sh("for n in $(seq 50); do touch many/$n; done")
        told = (await desk.does("view", ".")).split("\n")
        assert told[0] == ".: 6 entries, hidden ones not shown"
        assert told[1:3] == ["a.py", "link"]
        assert told[3] == "many/" and told[44] == "  [10 more]"
        assert told[45:] == ["node_modules/", "  [1 entries]", "odd\\x0aname/", "src/", "  b.py", "  deep/"]
        assert await desk.does("view", "src/deep") == "src/deep: 1 entry, hidden ones not shown\ner/"
        assert await desk.does("view", "src/deep/er") == "src/deep/er: 0 entries, hidden ones not shown"
        assert "leave view_range out" in await desk.refuses("view", "src", view_range=[1, 2])

    in_sandbox(scene, {"a.py": b"", "src/b.py": b""})


@needs_sandboxes
def test_what_cannot_be_edited_is_told_with_a_remedy() -> None:
    async def scene(desk: Desk) -> None:
        await desk.sh("mkfifo pipe; ln -s nowhere link; ln -s loop loop; mkdir folder; truncate -s 5M huge.txt")
        assert 'there is no src/mian.py (did you mean "main.py"?)' in await desk.refuses("view", "src/mian.py")
        assert "below the working directory" in await desk.refuses("view", "src/mian.py")
        assert "is a folder" in await desk.refuses("str_replace", "folder", old_str="a", new_str="b")
        assert "no regular file" in await desk.refuses("view", "pipe")
        assert "no regular file" in await desk.refuses("view", "/dev/null")
        assert "leads nowhere" in await desk.refuses("view", "link")
        assert "leads nowhere" in await desk.refuses("view", "loop")
        assert "5242880 bytes" in await desk.refuses("view", "huge.txt")
        assert "is binary, 3 bytes" in await desk.refuses("view", "binary")
        assert "is no path" in await desk.refuses("view", " ")
        assert "is no path" in await desk.refuses("view", "a\0b")
        assert "create needs file_text" in await desk.refuses("create", "new")
        assert "str_replace needs old_str" in await desk.refuses("str_replace", "src/main.py")
        assert "insert needs insert_line" in await desk.refuses("insert", "src/main.py", new_str="x")
        assert "NUL" in await desk.refuses("create", "new", file_text="a\0b")
        assert '"view" or "create"' in await desk.refuses("open", "src/main.py")
        assert await desk.sh("ls folder; cat src/main.py") == "x\n"

    in_sandbox(scene, {"src/main.py": b"x\n", "binary": b"\0\1\2"})


# ---------------------------------------------------------------- edits


@needs_sandboxes
def test_an_edit_changes_what_it_was_asked_to_and_keeps_the_mode() -> None:
    async def scene(desk: Desk) -> None:
        told = await desk.does("str_replace", "run.py", old_str="a - b", new_str="a + b")
        assert told.startswith("Edited run.py:\n1| def add(a, b):\n2|     return a + b\n")
        assert await desk.sandbox.read("run.py") == CODE.replace(b"-", b"+")
        assert await desk.sh("stat -c %a run.py locked.txt") == "755\n444\n"
        await desk.does("insert", "locked.txt", insert_line=0, new_str="first")
        assert await desk.sandbox.read("locked.txt") == b"first\nlast"
        await desk.does("insert", "locked.txt", insert_line=2, new_str="more")
        assert await desk.sandbox.read("locked.txt") == b"first\nlast\nmore"
        assert await desk.sh("stat -c %a run.py locked.txt") == "755\n444\n"
        assert "beyond the end" in await desk.refuses("insert", "locked.txt", insert_line=9, new_str="x")

    in_sandbox(scene, {"run.py": File(data=CODE, mode=0o755), "locked.txt": File(data=b"last", mode=0o444)})


@needs_sandboxes
def test_line_endings_and_encodings_stay() -> None:
    async def scene(desk: Desk) -> None:
        await desk.does("str_replace", "dos.txt", old_str="two\nthree", new_str="two\nand\nthree")
        assert await desk.sandbox.read("dos.txt") == b"one\r\ntwo\r\nand\r\nthree\r\n"
        await desk.does("str_replace", "dos.txt", old_str="one\r\n", new_str="one\n")
        assert await desk.sandbox.read("dos.txt") == b"one\ntwo\r\nand\r\nthree\r\n"
        await desk.does("str_replace", "latin.py", old_str="x", new_str="ö")
        assert await desk.sandbox.read("latin.py") == b"# coding: latin-1\ny = '\xe9\xf6'\n"
        told = await desk.refuses("str_replace", "latin.py", old_str="y", new_str="€")
        assert "is in iso8859-1, which has no '€' (U+20AC)" in told
        await desk.does("insert", "bom.txt", insert_line=0, new_str="top")
        assert await desk.sandbox.read("bom.txt") == b"\xef\xbb\xbftop\na\n"
        await desk.does("str_replace", "odd.bin.txt", old_str="good", new_str="better")
        assert await desk.sandbox.read("odd.bin.txt") == b"\xff\xfd some better text \x80\r"

    files = {
        "dos.txt": b"one\r\ntwo\r\nthree\r\n",
        "latin.py": b"# coding: latin-1\ny = '\xe9x'\n",
        "bom.txt": b"\xef\xbb\xbfa\n",
        "odd.bin.txt": b"\xff\xfd some good text \x80\r",
    }
    in_sandbox(scene, files)


@needs_sandboxes
def test_a_miss_shows_the_closest_lines_and_changes_nothing() -> None:
    async def scene(desk: Desk) -> None:
        told = await desk.refuses("str_replace", "a.py", old_str="\treturn a - b", new_str="x")
        assert told == (
            "edit: old_str was not found in a.py, so nothing was changed. Closest:\n"
            "line 2 (indentation differs: old_str has 1 tab instead of 4 spaces in line 2):\n"
            "2|     return a - b"
        )
        told = await desk.refuses("str_replace", "a.py", old_str="whatever else", new_str="    return a - b\n")
        assert told.endswith("But new_str is there already, at line 2.")
        assert "Nothing in its 6 lines is similar" in await desk.refuses(
            "str_replace", "a.py", old_str="whatever", new_str="x"
        )
        assert "old_str is empty" in await desk.refuses("str_replace", "a.py", old_str="", new_str="x")
        assert "are the same" in await desk.refuses("str_replace", "a.py", old_str="a", new_str="a")
        assert await desk.sandbox.read("a.py") == CODE

    in_sandbox(scene, {"a.py": CODE})


@needs_sandboxes
def test_line_numbers_that_were_copied_from_a_view_are_understood() -> None:
    async def scene(desk: Desk) -> None:
        old, new = "1| def add(a, b):\n2|     return a - b", "1| def add(a, b):\n2|     return a + b"
        told = await desk.does("str_replace", "a.py", old_str=old, new_str=new)
        assert told.endswith("[without the line numbers in old_str and new_str]")
        assert await desk.sandbox.read("a.py") == CODE.replace(b"a - b", b"a + b")
        await desk.does("insert", "a.py", insert_line=2, new_str="3|     # never reached")
        assert (await desk.sandbox.read("a.py")).split(b"\n")[2] == b"    # never reached"

    in_sandbox(scene, {"a.py": CODE})


@needs_sandboxes
def test_an_ambiguous_edit_shows_the_places_and_changes_nothing() -> None:
    async def scene(desk: Desk) -> None:
        told = await desk.refuses("str_replace", "a.py", old_str="    return a", new_str="x")
        assert told == (
            "edit: old_str is in a.py 2 times, so nothing was changed. It begins in these lines:\n"
            "2|     return a - b\n6|     return add(a, a)\n"
            "Give more of the lines around the one that is meant, so that old_str is there once."
        )
        assert "more than 10 times" in await desk.refuses("str_replace", "b", old_str="xx", new_str="y")
        assert "2 times" in await desk.refuses("str_replace", "dos", old_str="a\r\n", new_str="b\r\n")
        assert await desk.sandbox.read("a.py") == CODE

    in_sandbox(scene, {"a.py": CODE, "b": b"x" * 100, "dos": b"a\r\na\r\n"})


@needs_sandboxes
def test_a_file_is_created_as_it_is_given_and_never_over_another() -> None:
    async def scene(desk: Desk) -> None:
        assert await desk.does("create", "new/deep/a.txt", file_text="a\r\n\tb") == "Created new/deep/a.txt: 2 lines."
        assert await desk.sandbox.read("new/deep/a.txt") == b"a\r\n\tb"
        assert "already there" in await desk.refuses("create", "new/deep/a.txt", file_text="c")
        assert "is a folder" in await desk.refuses("create", "new", file_text="c")
        await desk.does("create", "empty", file_text="full")
        assert await desk.sandbox.read("empty") == b"full"
        assert await desk.does("create", "-n", file_text="") == "Created -n: 0 lines."
        assert await desk.does("view", "-n") == "[-n is empty]"

    in_sandbox(scene, {"empty": b""})


# ---------------------------------------------------------------- undo


@needs_sandboxes
def test_edits_are_undone_one_by_one_and_a_created_file_goes_away() -> None:
    async def scene(desk: Desk) -> None:
        await desk.does("create", "b.txt", file_text="one\n")
        await desk.does("insert", "./b.txt", insert_line=1, new_str="two")
        await desk.does("str_replace", "/work/b.txt", old_str="one", new_str="1")
        assert await desk.does("undo", "b.txt") == "Undid the last edit of b.txt.\n1| one\n2| two"
        await desk.does("undo", "b.txt")
        assert await desk.sandbox.read("b.txt") == b"one\n"
        assert await desk.does("undo", "b.txt") == "Undid the creation of b.txt: it is gone again."
        assert await desk.sh("ls") == "a.txt\n"
        assert "no edit of b.txt to undo" in await desk.refuses("undo", "b.txt")
        assert "no edit of a.txt to undo" in await desk.refuses("undo", "a.txt")

    in_sandbox(scene, {"a.txt": b"a\n"})


@needs_sandboxes
def test_undo_never_loses_what_something_else_wrote() -> None:
    async def scene(desk: Desk) -> None:
        await desk.does("str_replace", "a.txt", old_str="a", new_str="b")
        await desk.sh("echo more >> a.txt")
        assert "undo would lose that" in await desk.refuses("undo", "a.txt")
        assert await desk.sandbox.read("a.txt") == b"b\nmore\n"

    in_sandbox(scene, {"a.txt": b"a\n"})


def test_what_can_be_undone_lives_as_long_as_the_rollout() -> None:
    async def main() -> None:
        sandbox = await FakeProvider().open(SandboxSpec(files={"a": File(data=b"x")}))
        toolset = Toolset.named(["edit"])
        for _ in range(2):
            async with toolset.open(sandbox=sandbox) as tools:
                desk = Desk(tools, sandbox)
                assert "no edit of a to undo" in await desk.refuses("undo", "a")
                old = (await sandbox.read("a")).decode()
                await desk.does("str_replace", "a", old_str=old, new_str=old + "y")
        assert await sandbox.read("a") == b"xyy"

    run_virtual(main())


# ---------------------------------------------------------------- syntax


@needs_sandboxes
def test_a_syntax_error_is_told_and_whether_it_is_new() -> None:
    async def scene(desk: Desk) -> None:
        told = await desk.does("str_replace", "a.py", old_str="add(a, b):", new_str="add(a, b:")
        assert "\n[new syntax error, line 1: " in told
        told = await desk.does("str_replace", "a.py", old_str="twice(a):", new_str="twice(a)")
        assert "\n[syntax error, line 1: " in told and "there was one before this edit too: line 1: " in told
        assert "syntax" not in await desk.does("undo", "a.py")
        assert "syntax" not in await desk.does("str_replace", "a.py", old_str="add(a, b:", new_str="add(a, b):")
        assert "[new syntax error, line 1: 'return' outside function]" in await desk.does(
            "create", "b.py", file_text="return 1\n"
        )
        assert "[new syntax error, line 2: " in await desk.does("create", "c.json", file_text='{"a": 1,\n}')
        assert "syntax" not in await desk.does("create", "d.txt", file_text="def (")

    in_sandbox(scene, {"a.py": CODE})


@needs_sandboxes
def test_code_that_crashes_a_parser_is_nobodys_trouble() -> None:
    async def scene(desk: Desk) -> None:
        told = await desk.does("create", "deep.py", file_text="(" * 100_000 + ")" * 100_000)
        assert told.startswith("Created deep.py: 1 line.")
        told = await desk.does("create", "minus.py", file_text="x = " + "-" * 1_000_000 + "1\n")
        assert told.startswith("Created minus.py: 1 line.")
        await desk.sh("touch ast.py warnings.py; echo 'raise SystemExit(9)' > sys.py")
        assert "new syntax error" in await desk.does("create", "e.py", file_text="def (")

    in_sandbox(scene)


# ---------------------------------------------------------------- where the sandbox gives less


@needs_sandboxes
def test_a_full_disk_leaves_the_file_as_it_was() -> None:
    async def scene(desk: Desk) -> None:
        before = await desk.sandbox.read("a.txt")
        await desk.sh("head -c 100M /dev/zero > filler")
        told = await desk.refuses("str_replace", "a.txt", old_str="mark", new_str="m" * 2_000_000)
        assert told.endswith("nothing was changed")
        assert await desk.sandbox.read("a.txt") == before
        assert "nothing was changed" in await desk.refuses("create", "b.txt", file_text="m" * 2_000_000)
        assert await desk.sh("ls") == "a.txt\nfiller\n"

    in_sandbox(scene, {"a.txt": b"x" * 1_000_000 + b"mark\n"}, disk_mb=8)


def test_without_programs_in_the_sandbox_files_can_still_be_edited() -> None:
    async def main() -> None:
        sandbox = await FakeProvider().open(SandboxSpec(files={"a.py": File(data=CODE)}))
        async with Toolset.named(["edit"]).open(sandbox=sandbox) as tools:
            desk = Desk(tools, sandbox)
            assert (await desk.does("view", "a.py")).startswith("1| def add(a, b):")
            await desk.does("str_replace", "a.py", old_str="a - b", new_str="a + b")
            await desk.does("undo", "a.py")
            assert "No such file" in await desk.refuses("view", "b.py")
            await desk.does("create", "b.py", file_text="def (")
            assert "already there" in await desk.refuses("create", "a.py", file_text="x")
            assert "could not be removed" in await desk.refuses("undo", "b.py")
            assert sandbox.files["/work/a.py"].data == CODE

    run_virtual(main())


PIECES = st.sampled_from(
    [
        b"a",
        b"bc",
        b" ",
        b"\t",
        b"\n",
        b"\r\n",
        b"\r",
        "é€😀".encode(),
        b"\xff",
        b"\xc3",
        b"\xef\xbb\xbf",
        b"\x0c",
        b"\x85",
    ]
)
HEADS = st.sampled_from([b"", b"", b"\xef\xbb\xbf", b"# coding: latin-1\n", b"#!/bin/sh\r\n# coding=gbk\r\n"])


@given(HEADS, st.lists(PIECES, max_size=25).map(b"".join), st.data())
def test_a_random_file_keeps_every_byte_that_no_edit_asked_for(head: bytes, body: bytes, draw: st.DataObject) -> None:
    data = head + body
    try:
        folded = decode(data).folded
    except NotText:
        folded = ""
    assume(folded)
    start = draw.draw(st.integers(0, len(folded) - 1))
    old = folded[start : draw.draw(st.integers(start + 1, len(folded)))]
    new = draw.draw(st.text("ab\t\n", max_size=6))
    assume(old != new and not any(0xD800 <= ord(character) < 0xE000 for character in old))
    assume("coding" not in old)

    async def main() -> None:
        sandbox = await FakeProvider().open(SandboxSpec(files={"file": File(data=data, mode=0o755)}))
        async with Toolset.named(["edit"]).open(sandbox=sandbox) as tools:
            desk = Desk(tools, sandbox)
            result = await desk.result("str_replace", "file", old_str=old, new_str=new)
            after = sandbox.files["/work/file"].data
            if result.is_error:
                assert after == data
                assert len(find_places(folded, old, 2)) == 2 or "nothing would change" in result.text
                return
            num_head, num_tail = common_bytes(data, after)
            file, lead = decode(data), folded.find(old)
            kept_head, kept_tail = common_ends(old, new)
            assert num_head >= len(file.bom + file.encode(file.text[: file.raw(lead + kept_head)]))
            assert num_tail >= len(file.encode(file.text[file.raw(lead + len(old) - kept_tail) :]))
            assert fold(after[len(file.bom) :].decode(file.encoding, file.errors)) == folded.replace(old, new, 1)
            await desk.does("undo", "file")
            assert sandbox.files["/work/file"].data == data

    run_virtual(main())


def common_bytes(one: bytes, other: bytes) -> tuple[int, int]:
    """How many bytes both begin with, and how many both end with; the two may overlap."""
    pairs = list(zip(one, other, strict=False))
    from_end = list(zip(reversed(one), reversed(other), strict=False))
    return tuple(next((n for n, (a, b) in enumerate(each) if a != b), len(each)) for each in (pairs, from_end))  # type: ignore[return-value]


class Failing(FakeSandbox):
    """Its first write tears the file and fails; so do all others if `always`."""

    def __init__(self, always: bool) -> None:
        super().__init__(SandboxSpec(files={"a": File(data=b"old")}), few_programs, "failing")
        self._always = always
        self._failed = False

    async def write(self, files: Mapping[str, File]) -> None:
        if self._always or not self._failed:
            self._failed = True
            self._keep({path: File(data=b"") for path in files})
            raise SandboxLimitError("the disk is full")
        await super().write(files)


@pytest.mark.parametrize("always", [False, True])
def test_a_torn_write_is_put_right_or_owned_up_to(always: bool) -> None:
    async def main() -> None:
        sandbox = Failing(always)
        async with Toolset.named(["edit"]).open(sandbox=sandbox) as tools:
            told = await Desk(tools, sandbox).refuses("str_replace", "a", old_str="old", new_str="new")
        if always:
            assert "could not be put back" in told
        else:
            assert told == "edit: the disk is full; nothing was changed"
            assert sandbox.files["/work/a"].data == b"old"

    run_virtual(main())


@needs_sandboxes
def test_a_large_file_is_edited_as_a_small_one_is() -> None:
    """It is worked on in another process."""
    lines = b"".join(b"line %d\r\n" % number for number in range(20_000))

    async def scene(desk: Desk) -> None:
        assert "Edited x" in await desk.does("str_replace", "x", old_str="line 10000\nline 10001", new_str="new")
        assert await desk.sandbox.read("x") == lines.replace(b"line 10000\r\nline 10001", b"new")
        assert "Undid the last edit" in await desk.does("undo", "x")
        assert await desk.sandbox.read("x") == lines
        assert "Edited x" in await desk.does("insert", "x", insert_line=20_000, new_str="end")
        assert await desk.sandbox.read("x") == lines + b"end\r\n"
        assert "is beyond the end" in await desk.refuses("insert", "x", insert_line=20_002, new_str="end")
        assert "`lime` instead of `line` in line 10" in await desk.refuses(
            "str_replace", "x", old_str="line 8\nlime 9\n", new_str="y"
        )
        assert "20001| end" in await desk.does("view", "x", view_range=[20_001, -1])

    in_sandbox(scene, {"x": lines})
