"""The index is true to the files as they are now, and reads no more than it must."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import SandboxFileError
from slipstream.tools.codesearch import CodeSearch, Store, host_folder
from slipstream.tools.codesearch.files import FolderFiles, Read, Stamp
from slipstream.tools.codesearch.parsing.languages import language_of
from slipstream.tools.codesearch.tree import CodeTree

from .small_repository import FILES, opened, written


class CountedFiles:
    """Files in memory whose stamps a test sets, and that says what was read."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)
        self.stamps: dict[str, Stamp] = {path: (len(data), 1, 1) for path, data in files.items()}
        self.left_out: dict[str, str] = {}
        self.was_read: list[str] = []
        self.clock_ns = 10**12

    def now_ns(self) -> int:
        return self.clock_ns

    def stat(self, *, code_only: bool = False) -> Mapping[str, Stamp]:
        return {path: stamp for path, stamp in self.stamps.items() if language_of(path) or not code_only}

    @contextmanager
    def reading(self) -> Iterator[Read]:
        def read(path: str) -> bytes:
            self.was_read.append(path)
            if path not in self.files:
                raise SandboxFileError(f"{path} is gone")
            return self.files[path]

        yield read


def everything(tree: CodeTree) -> dict[str, object]:
    """All that a tree says, in a form that two of them can be compared by."""
    names = sorted({name for _, facts in tree.items() for name in facts.names})
    return {
        "files": [(path, f.text, f.error, bytes(f.refs), bytes(f.defs), f.names) for path, f in tree.items()],
        "defined": {n: [(p.path, p.number) for p in tree.code.defined(n)] for n in names},
        "used": {n: [path for path, _ in tree.code.using(n)] for n in names},
        "spelt": {n: [s for s in tree.code.spelt(n) if tree.code.defined(s)] for n in names},
        "modules": {stem: tree.code.modules(stem) for stem in ("a", "b", "d", "__init__")},
        "left_out": tree.left_out,
        "unparsed": tree.unparsed,
    }


PATHS = st.sampled_from(["a.py", "b.py", "d/a.py", "d/__init__.py", "d/notes.txt", "c.go"])
CONTENTS = st.sampled_from(
    [
        b"",
        b"def f():\n    return g()\n",
        b"class F:\n    def g(self):\n        return self.f\n",
        b"def broken(:\n    f()\n",
        b"\0binary",
        b"\xff\xfe not utf-8 def f",
        b"from d import f as G\n",
        b"func f() { g() }\n",
    ]
)
EDITS = st.lists(st.tuples(PATHS, st.one_of(st.none(), CONTENTS)), max_size=12)


@settings(max_examples=60, deadline=None)
@given(start=EDITS, edits=EDITS, ask_after=st.sets(st.integers(0, 11)))
def test_after_any_edits_the_index_equals_a_fresh_one(
    store: Store, start: list[tuple[str, bytes | None]], edits: list[tuple[str, bytes | None]], ask_after: set[int]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, data in start:
            change(folder, path, data)
        kept = CodeTree(host_folder(folder), store)
        kept.refresh()
        for number, (path, data) in enumerate(edits):
            change(folder, path, data)
            if number in ask_after:
                kept.refresh(code_only=number % 2 == 0)
        kept.refresh()
        alone = Store(store.parsers)
        fresh = CodeTree(host_folder(folder), alone)
        fresh.refresh()
        assert everything(kept) == everything(fresh)


def change(folder: Path, path: str, data: bytes | None) -> None:
    file = folder / path
    if data is None:
        file.unlink(missing_ok=True)
    else:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)


def test_an_edit_is_seen_by_the_next_query(tmp_path: Path, store: Store) -> None:
    folder = written(tmp_path, FILES)
    search = opened(folder, store)
    assert "shop/rates.py:4-5" in search.ask(["tax"]).text
    file = folder / "shop/rates.py"
    file.write_text("\n\n" + file.read_text())
    assert "shop/rates.py:6-7" in search.ask(["tax"]).text
    file.rename(folder / "shop/prices.py")
    assert "shop/prices.py:6-7" in search.ask(["tax"]).text
    (folder / "shop/prices.py").unlink()
    assert search.ask(["tax"]).text.startswith('"tax" is found on 2 lines of 1 file:')


def test_an_edit_that_keeps_size_and_modification_time_is_seen(tmp_path: Path, store: Store) -> None:
    folder = written(tmp_path, {"a.py": "def one(): 0\n"})
    search = opened(folder, store)
    search.ask(["one"])
    known = (folder / "a.py").stat()
    (folder / "a.py").write_text("def two(): 0\n")
    os.utime(folder / "a.py", ns=(known.st_atime_ns, known.st_mtime_ns))
    assert "a.py:1 function two" in search.ask(["two"]).text


def test_only_what_changed_is_read_again(store: Store) -> None:
    files = CountedFiles({"a.py": b"def a(): 0\n", "b.py": b"def b(): 0\n", "c.txt": b"c\n"})
    tree = CodeTree(files, store)
    assert tree.refresh() == 3
    files.was_read.clear()
    assert tree.refresh() == 0
    files.files["b.py"], files.stamps["b.py"] = b"def bb(): 0\n", (12, 2, 1)
    assert tree.refresh() == 1
    assert files.was_read == ["b.py"]
    assert tree.code.num_changed == 1


def test_a_file_that_only_was_touched_stays_shared(store: Store) -> None:
    files = CountedFiles({"a.py": b"def a(): 0\n", "b.py": b"def b(): 0\n"})
    tree = CodeTree(files, store)
    tree.refresh()
    files.stamps["a.py"] = (11, 5, 5)
    tree.refresh()
    assert tree.code.num_changed == 0
    files.files["a.py"], files.stamps["a.py"] = b"def x(): 0\n", (11, 6, 5)
    tree.refresh()
    assert tree.code.num_changed == 1
    files.files["a.py"], files.stamps["a.py"] = b"def a(): 0\n", (11, 7, 5)
    tree.refresh()
    assert tree.code.num_changed == 0


def test_a_file_that_changed_just_before_it_was_read_is_read_once_more(store: Store) -> None:
    files = CountedFiles({"a.py": b"def a(): 0\n"})
    files.stamps["a.py"] = (11, files.clock_ns - 1, 1)
    tree = CodeTree(files, store)
    tree.refresh()
    files.files["a.py"] = b"def b(): 0\n"  # within the same tick of the clock: the stamp is the same
    tree.refresh()
    assert [place.path for place in tree.code.defined("b")] == ["a.py"]
    files.clock_ns += 10**9
    tree.refresh()
    files.was_read.clear()
    tree.refresh()
    assert files.was_read == []


def test_a_file_that_vanishes_between_the_listing_and_the_reading_is_left_out(store: Store) -> None:
    files = CountedFiles({"a.py": b"def a(): 0\n", "b.py": b"def b(): 0\n"})
    del files.files["a.py"]
    search = CodeSearch(files, store)
    assert "b.py:1 function b" in search.ask(["b"]).text
    assert search.tree.paths() == ["b.py"]


def test_rollouts_on_one_repository_share_its_base() -> None:
    files = {f"m{n}.py": f"def f{n}(): return {n}\n".encode() for n in range(40)}
    with_own_store = Store()
    try:
        first, second = CodeTree(CountedFiles(files), with_own_store), CodeTree(CountedFiles(files), with_own_store)
        edited = CodeTree(CountedFiles({**files, "m3.py": b"def other(): 0\n"}), with_own_store)
        for tree in (first, second, edited):
            tree.refresh(code_only=True)
        assert with_own_store.num_bases == 1
        assert first.code.base is second.code.base is edited.code.base
        assert (second.code.num_changed, edited.code.num_changed) == (0, 1)
        assert second.get("m5.py") is first.get("m5.py")
        assert [place.path for place in edited.code.defined("other")] == ["m3.py"]
        assert edited.code.defined("f3") == []
        assert [place.path for place in first.code.defined("f3")] == ["m3.py"]
    finally:
        with_own_store.close()


def test_a_tree_that_became_another_gets_a_base_of_its_own(store: Store) -> None:
    files = CountedFiles({f"m{n}.py": b"def old(): 0\n" for n in range(60)})
    tree = CodeTree(files, store)
    tree.refresh()
    before = tree.code.base
    for n in range(50):
        files.files[f"m{n}.py"], files.stamps[f"m{n}.py"] = f"def new{n}(): 0\n".encode(), (20, 2, n)
    tree.refresh()
    assert tree.code.base is not before
    assert tree.code.num_changed < 15
    assert len(tree.code.defined("old")) == 10


def test_nothing_is_written_into_the_repository(tmp_path: Path, store: Store) -> None:
    folder = written(tmp_path, FILES)
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*"))
    opened(folder, store).ask(["Order"])
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*")) == before


def test_folders_are_listed_again_only_when_they_change(tmp_path: Path) -> None:
    folder = written(tmp_path, FILES)
    long_ago = FolderFilesOfTomorrow.of(folder)
    assert sorted(long_ago.stat()) == sorted(FILES)
    listed = long_ago.num_listed
    long_ago.stat()
    assert long_ago.num_listed == listed
    (folder / "shop/more.py").write_text("")
    assert "shop/more.py" in long_ago.stat()
    assert long_ago.num_listed == listed + 1


class FolderFilesOfTomorrow(FolderFiles):
    """With a clock that is a day ahead, so that nothing is in doubt; counts the folders it lists."""

    num_listed = 0

    @staticmethod
    def of(folder: Path) -> FolderFilesOfTomorrow:
        return FolderFilesOfTomorrow(host_folder(folder)._root)

    def now_ns(self) -> int:
        return super().now_ns() + 86_400 * 10**9

    def _look_into(self, root: int, prefix: str):  # type: ignore[no-untyped-def]
        self.num_listed += 1
        return super()._look_into(root, prefix)
