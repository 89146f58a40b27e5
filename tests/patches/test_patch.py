"""Patches, against git itself: what we write it applies, what it writes we apply, and the trees are the same."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import tempfile
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.patches.apply import (
    COMPARISONS_PER_LINE,
    MAX_PATCH_LINES,
    MAX_TEXT_LINES,
    Entry,
    PatchError,
    _apply_delta,
    _Search,
    apply_patch,
    blob_hash,
    entries_of,
    make_patch,
)
from slipstream.patches.parse import MAX_BINARY_BYTES, Section, sections
from slipstream.types import File, FileTree

LINK, PROGRAM = 0o120000, 0o100755
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is the oracle")
Entries = dict[str, Entry]


def git(folder: Path, *args: str, stdin: bytes = b"", places: Mapping[str, str] | None = None) -> bytes:
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
    env |= {"GIT_CEILING_DIRECTORIES": str(folder.parent), **(places or {})}
    done = subprocess.run(["git", *args], cwd=folder, env=env, input=stdin, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    return done.stdout


def lay_out(folder: Path, entries: Mapping[str, Entry]) -> None:
    folder.mkdir()
    for path, entry in entries.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if entry.mode == LINK:
            place.symlink_to(os.fsdecode(entry.data))
        else:
            place.write_bytes(entry.data)
            place.chmod(entry.mode & 0o777)


def found_in(folder: Path) -> Entries:
    entries = {}
    for place in folder.rglob("*"):
        path, mode = str(place.relative_to(folder)), place.lstat().st_mode
        if stat.S_ISLNK(mode):
            entries[path] = Entry(data=os.fsencode(place.readlink()), mode=LINK)
        elif stat.S_ISREG(mode):
            entries[path] = Entry(data=place.read_bytes(), mode=PROGRAM if mode & 0o100 else 0o100644)
    return entries


def patch_of_git(folder: Path, old: Entries, new: Entries, *options: str) -> bytes:
    ids = []
    git(folder, "init", "--quiet", "--template=", "--bare", "repository")
    places = {"GIT_DIR": str(folder / "repository")}
    for side, tree in (("a", old), ("b", new)):
        lay_out(folder / side, tree)
        places |= {"GIT_INDEX_FILE": str(folder / f"{side}.index"), "GIT_WORK_TREE": str(folder / side)}
        git(folder / side, "add", "-A", places=places)
        ids.append(git(folder / side, "write-tree", places=places).decode().strip())
    return git(folder, "diff-tree", "-p", "-r", "--binary", "--full-index", *options, *ids, places=places)


def after(old: Entries, changed: Mapping[str, Entry | None]) -> Entries:
    merged: dict[str, Entry | None] = {**old, **changed}
    return {path: entry for path, entry in merged.items() if entry is not None}


NAMES = ["a", "b c", "d/e", "d/f/g", "tab\there", 'quo"te', "back\\slash", "ünï", "new\nline", "\udcff\udc80", " x"]
text = st.lists(st.sampled_from([b"one\n", b"two\n", b"\n", b"three\r\n", b"-- x\n", b"+++ y\n", b"@@\n"]), max_size=12)
contents = st.one_of(
    text.map(b"".join),
    st.tuples(text.map(b"".join), st.sampled_from([b"end", b"\r", b"\\ No newline at end of file"])).map(b"".join),
    st.binary(max_size=60),
    st.binary(min_size=1, max_size=8).map(lambda piece: b"\0" + piece * 100),
)
entry = st.one_of(
    st.builds(Entry, data=contents, mode=st.sampled_from([0o100644, 0o100644, PROGRAM])),
    st.builds(Entry, data=st.sampled_from([b"a", b"../x", b"/etc/passwd", b"d/e"]), mode=st.just(LINK)),
)
trees = st.dictionaries(st.sampled_from(NAMES), entry, max_size=4)


@needs_git
@given(trees, trees)
@settings(max_examples=40, deadline=None)
def test_git_applies_what_we_write_and_comes_to_the_same_tree(old: Entries, new: Entries) -> None:
    patch = make_patch(old, new)
    assert after(old, apply_patch(patch, old.get)) == new
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "tree"
        lay_out(folder, old)
        if patch:
            git(folder, "apply", "--whitespace=nowarn", "-", stdin=patch)
        assert found_in(folder) == new
        if patch:
            git(folder, "apply", "--whitespace=nowarn", "-R", "-", stdin=patch)
            assert found_in(folder) == old


@needs_git
@given(trees, trees, st.sampled_from([(), ("-M10%",), ("-C10%", "--find-copies-harder"), ("-U0",), ("-U1", "-M")]))
@settings(max_examples=40, deadline=None)
def test_we_apply_what_git_writes_and_come_to_the_same_tree(
    old: Entries, new: Entries, options: tuple[str, ...]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        patch = patch_of_git(Path(name), old, new, *options)
    assert after(old, apply_patch(patch, old.get)) == new


@needs_git
def test_the_text_is_that_of_git(tmp_path: Path) -> None:
    numbers = b"".join(b"%d\n" % number for number in range(60))
    edited = numbers.replace(b"\n7\n", b"\nseven\n").replace(b"\n15\n", b"\n")  # 7 lines apart: two hunks
    edited = edited.replace(b"\n40\n", b"\nforty\n").replace(b"\n47\n", b"\nmore\n47\n")  # 6 lines: one
    old = {
        "gone": Entry(data=b"x\n"),
        "kept": Entry(data=numbers),
        "mode": Entry(data=b"m"),
        "sp ace": Entry(data=b"no end"),
        "to link": Entry(data=b"file\n"),
    }
    new = {
        "empty": Entry(data=b""),
        "kept": Entry(data=edited, mode=PROGRAM),
        "mode": Entry(data=b"m", mode=PROGRAM),
        "sp ace": Entry(data=b"no end\n"),
        "to link": Entry(data=b"kept", mode=LINK),
        "tab\t": Entry(data=b"1\n2\n"),
    }
    theirs = patch_of_git(tmp_path, old, new)
    # git names the function a hunk lies in; we do not
    theirs = b"".join(
        line.rpartition(b" @@")[0] + b" @@\n" if line.startswith(b"@@ ") else line for line in theirs.splitlines(True)
    )
    assert make_patch(old, new) == theirs


@needs_git
def test_a_large_binary_change_comes_as_a_delta_and_is_applied(tmp_path: Path) -> None:
    data = bytes(number * number % 251 for number in range(100_000))
    old, new = {"bin": Entry(data=data)}, {"bin": Entry(data=data[:5000] + b"\0new\0" + data[7000:] + data[:300])}
    patch = patch_of_git(tmp_path, old, new)
    assert b"\ndelta " in patch
    assert apply_patch(patch, old.get) == new
    with pytest.raises(PatchError, match="the binary data was made for a different file"):
        apply_patch(patch, {"bin": Entry(data=data + b"x")}.get)


@needs_git
def test_renames_that_swap_two_files(tmp_path: Path) -> None:
    one, two = Entry(data=b"one\n" * 30), Entry(data=b"two\n" * 30)
    patch = (
        b"diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n"
        b"diff --git a/y b/x\nsimilarity index 100%\nrename from y\nrename to x\n"
    )
    assert apply_patch(patch, {"x": one, "y": two}.get) == {"x": two, "y": one}
    lay_out(tmp_path / "tree", {"x": one, "y": two})
    git(tmp_path / "tree", "apply", "-", stdin=patch)
    assert found_in(tmp_path / "tree") == {"x": two, "y": one}


@pytest.mark.skipif(shutil.which("diff") is None, reason="diff is the oracle")
def test_what_diff_writes_is_applied(tmp_path: Path) -> None:
    old = {"kept": Entry(data=b"1\n2\n3\n"), "gone": Entry(data=b"x\n"), "d/sp ace": Entry(data=b"a")}
    new = {"kept": Entry(data=b"1\nzwei\n3\n"), "made": Entry(data=b"y"), "d/sp ace": Entry(data=b"b\n")}
    lay_out(tmp_path / "a", old)
    lay_out(tmp_path / "b", new)
    for zone in ("UTC", "Asia/Kolkata"):
        env = {"PATH": os.environ["PATH"], "TZ": zone, "LC_ALL": "C"}
        command = ["diff", "-ruN", "a", "b"]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False)
        assert after(old, apply_patch(done.stdout, old.get)) == new


def test_a_hunk_is_found_where_it_moved_to_and_the_nearest_place_wins() -> None:
    old, new = b"head\nblock\nfoot\n", b"head\nBLOCK\nfoot\n"
    patch = make_patch({"f": Entry(data=old)}, {"f": Entry(data=new)})
    moved = b"x\n" * 50 + old
    assert apply_patch(patch, {"f": Entry(data=moved)}.get) == {"f": Entry(data=b"x\n" * 50 + new)}
    twice = b"x\n" * 3 + old + b"x\n" * 9 + old
    assert apply_patch(patch, {"f": Entry(data=twice)}.get) == {"f": Entry(data=b"x\n" * 3 + new + b"x\n" * 9 + old)}


def test_a_hunk_that_nearly_fits_everywhere_is_given_up() -> None:
    """Without a bound this would compare 100,000 lines at 100,000 places."""
    data = b"\n" * 200_000
    hunk = b"@@ -1,100001 +1,100001 @@\n" + b" \n" * 50_000 + b"-x\n+y\n" + b" \n" * 50_000
    with pytest.raises(PatchError, match="hunk 1"):
        apply_patch(b"--- a/f\n+++ b/f\n" + hunk, {"f": Entry(data=data)}.get)


class Counted(bytes):
    """A line that counts how often it is compared."""

    num_compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.num_compared += 1
        return bytes.__eq__(self, other)

    __hash__ = bytes.__hash__


def test_the_lines_compared_for_all_hunks_are_in_proportion_to_the_file() -> None:
    """Every second line is the same, and each of 2,000 hunks nearly fits at 5,000 places."""
    lines: list[bytes] = [
        Counted(b"same\n") if number % 2 else Counted(b"%d\n" % (number % 7)) for number in range(10_000)
    ]
    search = _Search(lines)
    Counted.num_compared = 0
    wanted: list[bytes] = [b"same\n", b"0\n", b"same\n", b"2\n", b"same\n", b"0\n"]
    assert [search.find(wanted, 0, place) for place in range(0, 10_000, 5)] == [None] * 2_000
    assert Counted.num_compared < 2 * COMPARISONS_PER_LINE * len(lines)


def test_a_hunk_is_looked_for_where_its_rarest_line_stands() -> None:
    """From its first line on, it would nearly fit at 9,000 places, and be given up before the right one."""
    same = [b"same\n"] * 10_000
    assert _Search([*same, b"rare\n", *same]).find([*same[:200], b"rare\n"], 0, 0) == 9_800


@pytest.mark.parametrize(
    "data", [b"\n" * 7_800_000, b"x" * 5_000_000, b"a\n" * (MAX_TEXT_LINES + 1)], ids=["newlines", "long line", "lines"]
)
def test_a_text_too_large_to_compare_by_lines_is_told_whole(data: bytes) -> None:
    for old, new in (({}, {"x": Entry(data=data)}), ({"x": Entry(data=data)}, {"x": Entry(data=data[2:])})):
        patch = make_patch(old, new)
        assert b"GIT binary patch\nliteral" in patch
        assert len(patch) < 40_000
        assert apply_patch(patch, old.get) == new


def test_the_lines_of_all_files_together_are_bounded() -> None:
    """Without a bound, a patch of 16 MB could have 8 million lines, each of which costs a microsecond or two."""
    many = {f"{number}": Entry(data=b"\n" * MAX_TEXT_LINES) for number in range(10)}
    patch = make_patch({}, many)
    assert patch.count(b"\n") <= MAX_PATCH_LINES + 20_000
    assert apply_patch(patch, lambda path: None) == many


def test_a_patch_that_grows_too_large_is_given_up_on_the_way() -> None:
    with pytest.raises(PatchError, match="exceeds the limit of 1000 bytes"):
        make_patch({}, {"x": Entry(data=os.urandom(5_000))}, max_bytes=1_000)


def _delta_size(size: int) -> bytes:
    """As git writes it: seven bits at a time, the lowest first."""
    low, high = size & 0x7F, size >> 7
    return bytes([low | 0x80]) + _delta_size(high) if high else bytes([low])


def test_packed_data_larger_than_it_says_is_not_unpacked_whole() -> None:
    data = make_patch({}, {"x": Entry(data=bytes(64 << 20))})
    tracemalloc.start()
    try:
        with pytest.raises(PatchError, match="the binary data is corrupt"):
            list(sections(data.replace(b"literal %d" % (64 << 20), b"literal 100")))
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 1 << 20


def test_a_binary_change_that_would_make_a_huge_file_is_refused() -> None:
    """Some bytes that copy the old file again and again."""
    base = bytes(0xFFFFFF)
    num_copies = MAX_BINARY_BYTES // len(base) + 1
    delta = _delta_size(len(base)) + _delta_size(num_copies * len(base)) + b"\xf0\xff\xff\xff" * num_copies
    section = Section(line=1, new_path="x")
    with pytest.raises(PatchError, match="corrupt"):
        _apply_delta(section, base, delta)
    with pytest.raises(PatchError, match="of more than"):
        list(sections(b"diff --git a/x b/x\nindex 1234..5678\nGIT binary patch\nliteral 999999999\n\n"))


def test_a_hunk_that_does_not_fit_is_named() -> None:
    numbers = [b"%d\n" % number for number in range(60)]
    old = {"d/f": Entry(data=b"".join(numbers))}
    new = {"d/f": Entry(data=b"".join(numbers).replace(b"\n5\n", b"\nfive\n").replace(b"\n50\n", b"\nfifty\n"))}
    changed = {"d/f": Entry(data=b"".join(numbers).replace(b"\n52\n", b"\nother\n"))}
    with pytest.raises(PatchError, match=r"d/f: hunk 2 \(@@ -48,7 \+48,7 @@\) does not apply"):
        apply_patch(make_patch(old, new), changed.get)


def header(path: str, mode: str = "100644") -> bytes:
    return f"diff --git a/{path} b/{path}\nnew file mode {mode}\nindex 0000000..1234567\n".encode()


def body(path: str) -> bytes:
    return f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n".encode()


BAD = {
    "absolute": (b"--- /etc/passwd\n+++ /etc/passwd\n@@ -1 +1 @@\n-a\n+b\n", "absolute"),
    "dots": (header("../x") + body("../x"), "not normalized"),
    "inner dots": (header("a/../../x") + body("a/../../x"), "not normalized"),
    "git folder": (header("sub/.git/config") + body("sub/.git/config"), r"\.git"),
    "git folder in capitals": (header(".GIT/hooks/x") + body(".GIT/hooks/x"), r"\.git"),
    "rename into git": (b"diff --git a/a b/.git/x\nrename from a\nrename to .git/x\n", r"\.git"),
    "submodule": (header("sub", "160000"), "submodules"),
    "setuid": (header("sub", "104755"), "not one of 100644"),
    "folder": (header("sub", "040000"), "not one of 100644"),
    "names that differ": (header("x") + body("y"), "names differ"),
    "no name": (b"diff --git a/x b/y\nindex 1234..1234 100644\n", "does not name a single file"),
    "chatter": (b"Here is the patch:\n" + header("x") + body("x"), "line 1"),
    "too few lines": (header("x") + b"--- /dev/null\n+++ b/x\n@@ -0,0 +1,3 @@\n+x\n", "ends early"),
    "more lines than": (header("x") + b"--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n x\n", "more lines than"),
    "no hunk": (header("x") + b"--- /dev/null\n+++ b/x\n", "hunk is missing"),
    "binary without data": (header("x") + b"Binary files /dev/null and b/x differ\n", "--binary"),
    "damaged data": (header("x") + b"GIT binary patch\nliteral 4\nLc${NM%g@i\n\n", "line"),
    "already exists": (header("there") + body("there"), "already exists"),
    "below a link": (header("link/x") + body("link/x"), "is not a folder"),
    "missing": (b"--- a/none\n+++ b/none\n@@ -1 +1 @@\n-a\n+b\n", "does not exist"),
    "a link as a file": (b"--- a/link\n+++ b/link\n@@ -1 +1 @@\n-a\n+b\n", "is a link"),
    "deletes too much": (b"--- a/there\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n", "the patch deletes it"),
}
TREE = {"there": Entry(data=b"1\n2\n"), "link": Entry(data=b"/etc", mode=LINK), "a": Entry(data=b"")}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_patch_is_refused_and_says_why(name: str) -> None:
    patch, why = BAD[name]
    with pytest.raises(PatchError, match=why):
        apply_patch(patch, TREE.get)


def test_a_link_made_by_the_patch_itself_leads_nowhere() -> None:
    link = {"out": Entry(data=b"/etc", mode=LINK)}
    patch = make_patch({}, link) + header("out/passwd") + body("out/passwd")
    with pytest.raises(PatchError, match="is not a folder"):
        apply_patch(patch, lambda path: None)


@given(st.binary(max_size=200), trees)
@settings(max_examples=200, deadline=None)
def test_a_damaged_patch_raises_nothing_else(noise: bytes, tree: Entries) -> None:
    whole = make_patch({}, tree)
    place = len(whole) // 2
    for patch in (noise, whole[:place], whole[:place] + noise + whole[place:], b"diff --git " + noise, b"--- " + noise):
        with contextlib.suppress(PatchError):
            apply_patch(patch, TREE.get)


def test_a_tree_becomes_entries() -> None:
    tree = FileTree(files={"f": File(data=b"x", mode=0o640), "p": File(data=b"", mode=0o711)}, links={"l": "\udcff"})
    assert entries_of(tree) == {
        "f": Entry(data=b"x"),
        "p": Entry(data=b"", mode=PROGRAM),
        "l": Entry(data=b"\xff", mode=LINK),
    }
    assert blob_hash(Entry(data=b"hello\n")) == b"ce013625030ba8dba906f756967f9e9ca394464a"
