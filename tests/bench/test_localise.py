from pathlib import Path

from slipstream.bench.localise import Shown, files_in, first_answers, grep, grep_ranks, shown_in
from slipstream.tasks.factory.building import issue_in

ANSWER = """2 definitions of pick:
pack/a.py:3-5 function pick
3| def pick(x):
4|     return x
5|
pack/b.py:10-40 class Pick
10| class Pick:
  12-14: def take(self):
pack/c.py in other
  21| pick(1)
pack/d.py:1 variable pick"""


def test_answers_are_counted_by_the_path_they_begin_with() -> None:
    assert first_answers(ANSWER, 1).endswith("5|")
    assert first_answers(ANSWER, 9) == ANSWER


def test_what_is_shown_is_lines_and_named_members_but_not_all_of_a_class() -> None:
    shown = shown_in(ANSWER, 3)
    assert Shown(path="pack/a.py", first=3, last=5) in shown
    assert Shown(path="pack/b.py", first=12, last=14) in shown
    assert Shown(path="pack/c.py", first=21, last=21) in shown
    assert Shown(path="pack/b.py", first=10, last=40) not in shown
    assert not any(one.path == "pack/d.py" for one in shown)


def test_grep_shows_no_more_than_so_many_characters(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = pick(1)\n")
    (tmp_path / "b.py").write_text("\n\ndef pick(): pass\n")
    line = len("a.py:1:x = pick(1)\n")
    assert grep(tmp_path, ["pick"], line) == [Shown(path="a.py", first=1, last=1)]
    assert grep(tmp_path, ["pick"], 100)[1] == Shown(path="b.py", first=3, last=3)
    assert grep(tmp_path, ["pick"], line - 1) == [] and grep(tmp_path, [], 100) == []


def test_files_are_those_that_begin_a_line() -> None:
    paths = {"pack/a.py", "pack/b.py", "pack/d.py", "1.txt"}
    assert files_in(ANSWER + "\npack/a.py in x\n  pack/c.py:1: x\nno.py", paths) == [
        "pack/a.py",
        "pack/b.py",
        "pack/d.py",
    ]


def test_grep_may_list_by_path_by_lines_and_by_names(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one\n")
    (tmp_path / "b.py").write_text("one\n" * 3)
    (tmp_path / "c.py").write_text("one\ntwo\n")
    assert grep_ranks(tmp_path, ["one", "two"], len("a.py:1:one\n")) == [
        ["a.py"],
        ["b.py", "c.py", "a.py"],
        ["c.py", "b.py", "a.py"],
    ]


def test_the_issue_is_the_instruction_without_what_every_one_has() -> None:
    told = "/work holds x 1.0. A user reports:\n\nIt fails.\n\nAlways.\n\nFind the cause and fix it."
    assert issue_in(told) == "It fails.\n\nAlways."
    assert issue_in("Fix it.") == "Fix it."
