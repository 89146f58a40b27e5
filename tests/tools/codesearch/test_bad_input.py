"""Whatever lies in a repository, there is an answer for the rest, in bounded time, and it says what was left out."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from slipstream.errors import ToolError
from slipstream.tools.codesearch import CodeSearch, Mode, Store, host_folder
from slipstream.tools.codesearch.files import FolderFiles
from slipstream.tools.codesearch.parsing.facts import BadReply, decode
from slipstream.tools.codesearch.parsing.parsers import Job, Lost, Parsers, Reply
from slipstream.types import Json

from .small_repository import opened, written

GOOD = "def good():\n    return 1\n"


def test_files_that_do_not_parse_are_found_by_name_and_by_text(tmp_path: Path, store: Store) -> None:
    search = opened(
        written(tmp_path, {"bad.py": "class A:\n    def f(self):\n        x = = 1\n", "good.py": GOOD}), store
    )
    assert search.ask(["A.f"]).text.startswith("bad.py:2-3 method A.f")
    assert "bad.py in A.f\n  3|         x = = 1" in search.ask(["x = = 1"]).text
    assert "[not fully parsed: bad.py (line 3: invalid syntax)]" in search.ask(["zzz"]).text


def test_huge_and_binary_files_are_named_as_left_out(tmp_path: Path, store: Store) -> None:
    files: dict[str, str | bytes] = {"huge.py": b"x = 1\n" * 200_000, "data.txt": b"good\0good", "good.py": GOOD}
    search = opened(written(tmp_path, files), store)
    assert search.ask(["good"]).text.endswith("[left out: huge.py (larger than 1000 kB)]")
    text = search.ask(["zzz"]).text
    assert "huge.py (larger than 1000 kB)" in text
    assert "data.txt (binary)" in text
    assert search.ask(["huge.py"]).text.startswith("huge.py is not in the index: larger than 1000 kB.")


def test_invalid_utf_8_is_searched_and_shown(tmp_path: Path, store: Store) -> None:
    files: dict[str, str | bytes] = {
        "a.py": b"# \xff\xfe\ndef good():\n    return '\xe9'\n",
        "b.txt": b"caf\xe9 good\n",
    }
    search = opened(written(tmp_path, files), store)
    assert "def good():" in search.ask(["good"]).text
    text = search.ask(["good"], mode=Mode.TEXT).text
    assert "b.txt\n  1| caf\ufffd good" in text
    text.encode()


def test_links_loops_and_strange_files_are_not_followed(tmp_path: Path, store: Store) -> None:
    outside = tmp_path / "outside"
    written(outside, {"secret.py": "def secret(): 0\n"})
    folder = written(tmp_path / "repository", {"good.py": GOOD, "d/e.py": GOOD})
    (folder / "loop").symlink_to(".")
    (folder / "d" / "up").symlink_to("..")
    (folder / "link.py").symlink_to(outside / "secret.py")
    (folder / "linked").symlink_to(outside)
    os.mkfifo(folder / "pipe.py")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(folder / "socket.py"))
        (folder / b"caf\xe9.py".decode("utf-8", "surrogateescape")).write_text(GOOD)
        search = opened(folder, store)
        assert search.ask(["secret"]).is_empty
        assert search.tree.paths() == ["d/e.py", "good.py"]


def test_a_folder_that_became_a_link_is_not_followed(tmp_path: Path, store: Store) -> None:
    outside = written(tmp_path / "outside", {"a.py": "def secret(): 0\n"})
    folder = written(tmp_path / "repository", {"d/a.py": GOOD, "b.py": GOOD})
    search = opened(folder, store)
    search.ask(["good"])
    (folder / "d" / "a.py").unlink()
    (folder / "d").rmdir()
    (folder / "d").symlink_to(outside)
    assert search.ask(["secret"]).is_empty
    assert search.tree.paths() == ["b.py"]


def test_a_repository_with_too_many_files_answers_for_the_first(tmp_path: Path, store: Store) -> None:
    written(tmp_path, {f"m{n:03}.py": f"def f{n}(): 0\n" for n in range(50)})
    files = FolderFiles(host_folder(tmp_path)._root, max_files=20)
    search = CodeSearch(files, store)
    assert "m019.py:1 function f19" in search.ask(["f19"]).text
    text = search.ask(["f20"]).text
    assert "[left out: m020.py and 29 more (more than 20 files)]" in text


def test_what_there_was_no_time_to_parse_is_parsed_at_the_next_query(tmp_path: Path) -> None:
    written(tmp_path, {f"m{n:02}.py": f"def f{n}(): 0\n" for n in range(30)})
    with Parsers(num_processes=1) as parsers:
        search = opened(tmp_path, Store(parsers, parse_timeout_s=0.0))
        search.tree.refresh(code_only=True)
        assert len(search.tree.unparsed) == 30
        assert search.tree.code.defined("f7") == []
        assert "m07.py:1 function f7" in search.ask(["f7"]).text
        assert search.tree.unparsed == {}


def test_an_empty_repository_has_nothing(tmp_path: Path, store: Store) -> None:
    assert opened(tmp_path, store).ask(["good"]).is_empty


def test_a_catastrophic_regular_expression_is_stopped(tmp_path: Path) -> None:
    written(tmp_path, {"a.txt": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab\n", "b.txt": "xaa\n"})
    with Parsers(num_processes=1) as parsers:
        text = opened(tmp_path, Store(parsers)).ask([r"x?(a+)+$"], mode=Mode.REGEX).text
    assert "b.txt" in text
    assert text.endswith("[not searched: a.txt (it took longer than 1 s)]")


def test_a_pattern_that_is_too_long_is_refused(tmp_path: Path, store: Store) -> None:
    with pytest.raises(ToolError, match="make it shorter"):
        opened(tmp_path, store).ask(["a" * 1001], mode=Mode.REGEX)


def test_a_file_that_takes_too_long_costs_its_own_time_alone(tmp_path: Path) -> None:
    # The definitions of a file are read one scope after the other, so this takes seconds and no mistake is made.
    slow = "".join("(" for _ in range(150)) + "1" + ")" * 150
    files: dict[str, str | bytes] = {f"g{n}.py": f"def good{n}(): 0\n" for n in range(20)}
    files["slow.py"] = "\n".join(f"x{n} = {slow}" for n in range(2800))
    written(tmp_path, files)
    with Parsers(num_processes=1, job_timeout_s=0.05) as parsers:
        search = opened(tmp_path, Store(parsers))
        assert "g19.py:1 function good19" in search.ask(["good19"]).text
        assert "slow.py (not parsed: it took longer than 0.05 s)" in search.ask(["zzz"]).text
        assert "slow.py" in search.ask(["x2799"]).text


def test_a_file_that_needs_too_much_memory_is_scanned_or_left(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"good.py": GOOD, "big.py": "x = [" + "1," * 450_000 + "]\ndef late(): 0\n"}
    written(tmp_path, files)
    with Parsers(num_processes=1, max_memory_bytes=120 << 20) as parsers:
        search = opened(tmp_path, Store(parsers))
        assert "good.py:1-2 function good" in search.ask(["good"]).text
        assert "big.py" in search.ask(["def late"], mode=Mode.TEXT).text


def test_a_process_that_ends_is_replaced_and_the_others_jobs_are_done() -> None:
    jobs = [Job(key=str(n), header={"op": "parse", "language": "python"}, data=GOOD.encode()) for n in range(9)]
    jobs.insert(4, Job(key="bad", header={"op": "parse", "language": "klingon"}))
    with Parsers(num_processes=2) as parsers:
        results = {job.key: result for job, result in parsers.run(jobs, width=2)}
        assert results.pop("bad") == Lost(reason="it ended the process that read it")
        assert len(results) == 9
        assert all(isinstance(result, Reply) for result in results.values())


def test_jobs_that_are_not_begun_in_time_are_told() -> None:
    jobs = (Job(key=str(n), header={"op": "parse", "language": "python"}, data=GOOD.encode()) for n in range(500))
    with Parsers(num_processes=1) as parsers:
        results = [result for _, result in parsers.run(jobs, timeout_s=0.0)]
        assert results == [Lost(reason="there was no time for it yet")] * 500


def test_the_process_can_open_no_file() -> None:
    """An encoding that was not loaded beforehand would have to be, from a file."""
    with Parsers(num_processes=1) as parsers:
        job = Job(key="", header={"op": "parse", "language": "python"}, data=b"# coding: iso8859-2\ndef f(): 0\n")
        for _, result in parsers.run([job]):
            assert isinstance(result, Reply)
            assert result.header["error"]


@pytest.mark.parametrize(
    ("header", "blob"),
    [
        ({"names": 3}, b""),
        ({"names": ["a", 3]}, b""),
        ({"names": ["a" * 1000]}, b""),
        ({"names": [], "defs": 7, "imports": []}, b""),
        ({"names": [], "defs": "x", "imports": []}, b""),
        ({"names": ["a"], "defs": 6, "imports": []}, b"\1\0\0\0" * 6),
        ({"names": ["a"], "defs": 6, "imports": []}, b"\0\0\0\0\0\0\0\0\2\0\0\0" + b"\1\0\0\0" * 3),
        ({"names": ["a"], "defs": 0, "imports": []}, b"\xff" * 8),
        ({"names": ["a"], "defs": 0, "imports": []}, b"\1" + b"\0" * 7),
        ({"names": ["a"], "defs": 0, "imports": []}, b"abc"),
        ({"names": ["a"], "defs": 0, "imports": [1]}, b""),
        ({"names": ["a"], "defs": 0, "imports": [1, 2, 3, "a", "b"]}, b""),
        ({"names": ["a"], "defs": 0, "imports": ["x", 2, "c", "a", "b"]}, b""),
        ({"names": ["a"], "defs": 0, "imports": [], "docs": [[5, "x"]]}, b""),
        ({"names": ["a"], "defs": 0, "imports": [], "bases": [[0, "x"]]}, b""),
    ],
)
def test_a_reply_that_makes_no_sense_is_refused(header: dict[str, Json], blob: bytes) -> None:
    with pytest.raises(BadReply):
        decode(b"", "python", header, blob, {})
