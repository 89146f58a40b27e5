"""Reading a hostile tree from outside: nothing outside is seen, nothing hangs, and what is left out is named."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import SandboxFileError, SandboxLimitError
from slipstream.sandbox.files import safe_walk
from slipstream.sandbox.files.safe_open import FOLDER, PLACE, acting_as, open_by_hand, open_by_kernel
from slipstream.sandbox.files.safe_walk import read_file, read_tree, stat_tree

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="openat2 and O_PATH are Linux's")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder beside the root, with what must not be seen."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_bytes(b"secret")
    return folder


@pytest.fixture
def root(tmp_path: Path, outside: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@contextlib.contextmanager
def opened(folder: Path, flags: int = PLACE) -> Iterator[int]:
    fd = os.open(folder, flags | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# ---------------------------------------------------------------- opening


NAMES = ["a", "b", "d", "d/a", "d/e", "d/e/a"]
TARGETS = ["a", "b", "d", "..", "../a", "../..", "/", "/d", "/d/e", "d/e/..", "d/../a", "/../../b", ".", "e", "loop"]
paths = st.lists(st.sampled_from(["a", "b", "d", "e", "..", ".", "", "none"]), min_size=1, max_size=6).map("/".join)
kinds = st.one_of(st.just(None), st.just(b"file"), st.sampled_from(TARGETS))


def identity(opener: Callable[..., int], root_fd: int, path: str, flags: int, links: bool) -> tuple[int, int] | None:
    """What was opened; None for an error."""
    try:
        fd = opener(root_fd, path.encode(), flags, links=links)
    except OSError:
        return None
    try:
        known = os.fstat(fd)
        return known.st_dev, known.st_ino
    finally:
        os.close(fd)


def grow(root: Path, tree: dict[str, bytes | str | None]) -> None:
    """None is a folder, bytes a file, text a link."""
    for name, kind in sorted(tree.items()):
        place = root / name
        if not place.parent.is_dir() or place.parent.is_symlink():
            continue
        if kind is None:
            place.mkdir()
        elif isinstance(kind, bytes):
            place.write_bytes(kind)
        else:
            place.symlink_to(kind)


@given(st.dictionaries(st.sampled_from(NAMES), kinds), paths, st.sampled_from(["", "/"]), st.booleans())
@settings(max_examples=300, deadline=None)
def test_by_hand_and_by_the_kernel_come_to_the_same_place(
    tree: dict[str, bytes | str | None], path: str, start: str, links: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "root"
        root.mkdir()
        (Path(name) / "a").write_bytes(b"outside")
        outside = ((Path(name) / "a").stat().st_dev, (Path(name) / "a").stat().st_ino)
        grow(root, tree)
        with opened(root) as fd:
            for flags in (PLACE, PLACE | os.O_NOFOLLOW, FOLDER):
                found = [identity(opener, fd, start + path, flags, links) for opener in (open_by_kernel, open_by_hand)]
                assert found[0] == found[1]
                assert found[0] != outside


@pytest.mark.parametrize("opener", [open_by_kernel, open_by_hand])
def test_no_way_leads_out(root: Path, outside: Path, opener: Callable[..., int]) -> None:
    (root / "up").symlink_to("../outside/secret")
    (root / "absolute").symlink_to(outside / "secret")
    (root / "kernel").symlink_to("/proc")
    (root / "d").mkdir()
    (root / "d" / "far").symlink_to("../../../../../../../../" + str(outside / "secret"))
    with opened(root) as fd:
        for path in ("up", "absolute", "d/far", "../outside/secret", str(outside / "secret"), "kernel/self/environ"):
            with pytest.raises(FileNotFoundError):
                opener(fd, path.encode(), PLACE)
        for path in ("..", "/", "../../..", "d/../.."):
            assert identity(opener, fd, path, FOLDER, True) == (root.stat().st_dev, root.stat().st_ino)


@pytest.mark.parametrize("opener", [open_by_kernel, open_by_hand])
def test_magic_links_are_not_followed(opener: Callable[..., int]) -> None:
    with opened(Path("/proc")) as fd:
        for path in (f"{os.getpid()}/root", f"{os.getpid()}/cwd/x", f"{os.getpid()}/fd/{fd}"):
            with pytest.raises(OSError):
                opener(fd, path.encode(), PLACE)


@pytest.mark.parametrize("opener", [open_by_kernel, open_by_hand])
def test_links_without_end_are_an_error(root: Path, opener: Callable[..., int]) -> None:
    (root / "loop").symlink_to("loop")
    (root / "one").symlink_to("two/x")
    (root / "two").symlink_to("one/x")
    before = num_descriptors()
    with opened(root) as fd:
        for path in (b"loop", b"one", b"loop/x", b"", b"none"):
            with pytest.raises(OSError):
                opener(fd, path, PLACE)
    assert num_descriptors() == before


def test_a_folder_that_is_swapped_for_a_link_leads_nowhere(root: Path, outside: Path) -> None:
    """Someone inside renames as fast as possible; what is read is the file inside or an error, ever."""
    (root / "d").mkdir()
    (root / "d" / "secret").write_bytes(b"inside")
    (root / "link").symlink_to("../outside")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (root / "d").rename(root / "kept")
            (root / "link").rename(root / "d")
            (root / "d").rename(root / "link")
            (root / "kept").rename(root / "d")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        with opened(root) as fd:
            for _ in range(2000):
                with contextlib.suppress(SandboxFileError):
                    assert read_file(fd, "d/../d/secret", 100) == b"inside"
                for file in read_tree(fd, ".").files.values():
                    assert file.data == b"inside"
    finally:
        stop.set()
        thread.join()


# ---------------------------------------------------------------- reading


def test_a_file_is_read_through_links_inside(root: Path) -> None:
    (root / "work").mkdir()
    (root / "work" / "file").write_bytes(b"0123456789")
    (root / "link").symlink_to("/work/file")
    with opened(root) as fd:
        assert read_file(fd, "link", 10) == read_file(fd, "/work/file", 10) == b"0123456789"
        with pytest.raises(SandboxFileError, match="link: larger than 9 bytes"):
            read_file(fd, "link", 9)
        with pytest.raises(SandboxFileError, match="work: not a regular file"):
            read_file(fd, "work", 9)
        with pytest.raises(SandboxFileError, match="none: No such file"):
            read_file(fd, "none", 9)
        with pytest.raises(SandboxFileError, match=r"'a\\x00b': Invalid"):
            read_file(fd, "a\0b", 9)
        with pytest.raises(SandboxFileError):
            read_file(fd, "\ud800", 9)


def test_nothing_but_regular_files_is_opened(root: Path) -> None:
    os.mkfifo(root / "fifo")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(root / "socket"))
    with opened(root) as fd, server:
        for path in ("fifo", "socket"):
            with pytest.raises(SandboxFileError, match=f"{path}: not a regular file"):
                read_file(fd, path, 9)
        assert read_tree(fd, ".").left_out == {"fifo": "a FIFO", "socket": "a socket"}
    with opened(Path("/")) as fd:
        for path in ("/dev/null", "/dev/zero", "/proc/cpuinfo", "/proc/1/environ"):
            with pytest.raises(SandboxFileError, match=f"{path}: not a regular file"):
                read_file(fd, path, 1 << 20)
        assert list(read_tree(fd, "/proc").left_out.values()) == ["a kernel folder"]
        assert stat_tree(fd, "/proc").entries == []


def test_a_file_that_grows_while_it_is_read_is_too_large(root: Path) -> None:
    (root / "file").write_bytes(b"x" * 10)
    (root / "sparse").touch()
    os.truncate(root / "sparse", 1 << 40)
    stop = threading.Event()

    def append() -> None:
        with (root / "file").open("ab") as file:
            while not stop.is_set():
                file.write(b"y" * 50_000)
                file.flush()
                if file.tell() > 50_000_000:
                    file.truncate(10)

    thread = threading.Thread(target=append)
    thread.start()
    try:
        with opened(root) as fd:
            with pytest.raises(SandboxFileError, match="larger"):
                read_file(fd, "sparse", 1 << 30)
            for _ in range(50):
                with contextlib.suppress(SandboxFileError):
                    assert len(read_file(fd, "file", 2_000_000)) <= 2_000_000
                tree = read_tree(fd, ".", 2_000_000)
                assert sum(len(file.data) for file in tree.files.values()) <= 2_000_000
    finally:
        stop.set()
        thread.join()


def test_a_lease_does_not_make_us_wait(root: Path) -> None:
    (root / "held").write_bytes(b"x")
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # how the holder is asked to give it up
    with (root / "held").open("r+b") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        try:
            with opened(root) as fd, pytest.raises(SandboxFileError, match="held: a program inside has a lease"):
                read_file(fd, "held", 10)
        finally:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            signal.signal(signal.SIGIO, before)


def test_a_tree_is_files_and_links_and_what_was_left_out(root: Path, outside: Path) -> None:
    (root / "work" / "sub").mkdir(parents=True)
    (root / "work" / "sub" / "run").write_bytes(b"#!")
    (root / "work" / "sub" / "run").chmod(0o750)
    (root / "work" / "empty").touch()
    (root / "work" / "out").symlink_to(outside)
    (root / "work" / "new\nline").write_bytes(b"1")
    Path(os.fsdecode(os.fsencode(root / "work") + b"/\xff\xfe")).write_bytes(b"2")
    (root / "work" / ".git").mkdir()
    (root / "work" / ".git" / "config").touch()
    (root / "way").symlink_to("work")
    before = num_descriptors()
    with opened(root) as fd:
        tree = read_tree(fd, "/work", skip={".git"})
        assert {path: (file.data, file.mode & 0o100) for path, file in tree.files.items()} == {
            "sub/run": (b"#!", 0o100),
            "empty": (b"", 0),
            "new\nline": (b"1", 0),
            "\udcff\udcfe": (b"2", 0),
        }
        assert tree.links == {"out": str(outside)}
        assert tree.left_out == {}
        assert set(read_tree(fd, "way").files) == {*tree.files, ".git/config"}
        assert tree.files["sub/run"].mode == 0o750
        for path in ("work/empty", "none", "work/out"):
            with pytest.raises(SandboxFileError, match=path):
                read_tree(fd, path)
    assert num_descriptors() == before


def test_what_does_not_fit_is_left_out_in_the_order_of_the_paths(root: Path) -> None:
    for name, size in (("a", 5), ("b", 50), ("c", 5), ("d", 1), ("e/f", 1)):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"x" * size)
    with opened(root) as fd:
        tree = read_tree(fd, ".", 20, 3)
        assert (list(tree.files), list(tree.left_out)) == (["a", "c", "d"], ["b", "e/f"])
        assert "50 bytes" in tree.left_out["b"]
        assert tree.left_out["e/f"] == "more than 3 files"
        few = stat_tree(fd, ".", max_entries=3)
        assert len(few.entries) <= 3
        assert "more than 3 names" in few.left_out["."]


def test_a_tree_deeper_than_any_path_is_cut_off(root: Path) -> None:
    (root / "file").touch()
    fd = os.open(root, FOLDER)
    for _ in range(3000):
        os.mkdir("deeper", dir_fd=fd)
        below = os.open("deeper", FOLDER, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    try:
        with opened(root) as fd:
            tree = read_tree(fd, ".")
        assert list(tree.files) == ["file"]
        assert list(tree.left_out.values()) == [f"nested deeper than {safe_walk.MAX_DEPTH} folders"]
    finally:
        while (root / "deeper").exists():  # pytest's own removal would recurse
            take_away_the_first(root)


def take_away_the_first(root: Path) -> None:
    """Shorten a chain of folders that is too long for a path."""
    below = root / "deeper" / "deeper"
    if below.exists():
        below.rename(root / "rest")
    (root / "deeper").rmdir()
    if (root / "rest").exists():
        (root / "rest").rename(root / "deeper")


def test_files_that_vanish_meanwhile_are_left_out(root: Path) -> None:
    for number in range(200):
        (root / f"{number:03}").write_bytes(b"x")
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            for number in range(200):
                (root / f"{number:03}").unlink()
                os.mkfifo(root / f"{number:03}")
                (root / f"{number:03}").unlink()
                (root / f"{number:03}").write_bytes(b"x")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        with opened(root) as fd:
            for _ in range(30):
                tree = read_tree(fd, ".")
                assert {file.data for file in tree.files.values()} <= {b"x", b""}
                assert len(stat_tree(fd, ".").entries) <= 201
    finally:
        stop.set()
        thread.join()


def test_a_listing_tells_what_changed(root: Path) -> None:
    (root / "d").mkdir()
    (root / "d" / "f").write_bytes(b"one")
    (root / "link").symlink_to("d")
    with opened(root) as fd:
        first = {entry.path: entry for entry in stat_tree(fd, ".").entries}
        assert set(first) == {"d/f", "link"}
        known = (root / "d" / "f").stat()
        assert first["d/f"] == ("d/f", 3, known.st_mtime_ns, known.st_ctime_ns, known.st_ino, known.st_mode)
        assert stat.S_ISLNK(first["link"].mode)
        (root / "d" / "f").write_bytes(b"two, longer")
        second = {entry.path: entry for entry in stat_tree(fd, ".").entries}
        assert second["d/f"] != first["d/f"]
        assert second["link"] == first["link"]
        assert stat_tree(fd, ".", skip={"d"}).entries == [second["link"]]


def test_a_full_disk_is_a_limit() -> None:
    with pytest.raises(SandboxLimitError, match="here: No space left"):
        with safe_walk.sandbox_file_errors("here"):
            raise OSError(28, "No space left on device")


# ---------------------------------------------------------------- as another user


@as_root
def test_root_reads_and_makes_folders_with_the_rights_of_the_sandbox(root: Path) -> None:
    (root / "shadow").write_bytes(b"hash")
    (root / "shadow").chmod(0o640)
    (root / "link").symlink_to("shadow")
    (root / "open").mkdir()
    (root / "open").chmod(0o777)
    groups = os.getgroups()
    with opened(root) as fd, contextlib.ExitStack() as undo:
        undo.callback(os.setgroups, groups)
        os.setgroups([0, 1])  # the file's group is one of them
        assert read_file(fd, "link", 10) == b"hash"
        with acting_as(65534, 65534):
            with pytest.raises(SandboxFileError, match="link: Permission denied"):
                read_file(fd, "link", 10)
            assert read_tree(fd, ".").left_out == {"shadow": "Permission denied"}
            with pytest.raises(PermissionError):
                os.mkdir("new", dir_fd=fd)
            os.mkdir("open/new", dir_fd=fd)
        assert read_file(fd, "link", 10) == b"hash"
        assert sorted(os.getgroups()) == [0, 1]
    assert (root / "open" / "new").stat().st_uid == 65534
    (root / "mine").touch()
    assert (root / "mine").stat().st_uid == 0
