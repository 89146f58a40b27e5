"""The writable layer of an overlay, read from outside: against overlays that the kernel itself makes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.patches.apply import apply_patch, entries_of, make_patch
from slipstream.sandbox.files.overlay import OverlayLayer, read_below, read_layer
from slipstream.sandbox.files.safe_open import PLACE
from slipstream.sandbox.files.safe_walk import read_tree
from slipstream.types import File, FileTree

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="overlays are Linux's")

MOUNT = 'mount -t overlay none -o "lowerdir=$1/lower,upperdir=$1/upper,workdir=$1/work$3" "$1/merged" || exit 77\n'


def overlaid(folder: Path, script: str, options: str) -> None:
    """Run a script in an overlay, mounted in a namespace of its own, and keep what is seen then in `after`."""
    for name in ("upper", "work", "merged"):
        (folder / name).mkdir()
    steps = MOUNT + 'cd "$1/merged" && sh -e -c "$2" && cp -a "$1/merged" "$1/after"'
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--user", "--map-root-user"]
    command = [*unshare, "sh", "-c", steps, "sh", str(folder), script, options]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode == 77:
        pytest.skip(f"overlays cannot be mounted here: {done.stderr.decode()}")
    assert done.returncode == 0, done.stderr.decode()


def grow(lower: Path) -> None:
    for name in (
        "kept",
        "changed",
        "gone",
        "d/gone",
        "d/kept",
        "whole/a",
        "whole/b/c",
        "again/old",
        "mv/x",
        "turned",
    ):
        (lower / name).parent.mkdir(parents=True, exist_ok=True)
        (lower / name).write_text(f"{name}\n")
    (lower / "link").symlink_to("kept")


SCRIPT = """
echo more >> changed; rm gone d/gone; rm -r whole again; mkdir again; echo new > again/new; mkdir again/below
rm link; ln -s changed link; mkfifo fifo; chmod 755 d/kept; cp -r mv copied; rm -r mv
rm turned; mkdir turned; echo in > turned/file; mkdir -p new/deep; echo x > new/deep/file; touch kept
"""
needs_mount = pytest.mark.skipif(
    shutil.which("unshare") is None or shutil.which("mount") is None, reason="needs unshare and mount"
)


@needs_mount
@pytest.mark.parametrize("options", [",userxattr", ""])
def test_what_changed_is_found_from_the_layer_alone(tmp_path: Path, options: str) -> None:
    if not options and os.geteuid() != 0:
        pytest.skip("trusted attributes are root's")
    grow(tmp_path / "lower")
    overlaid(tmp_path, SCRIPT, options)
    fds = [os.open(tmp_path / name, PLACE) for name in ("upper", "lower", "after")]
    try:
        layer = read_layer(fds[0], prefix="user.overlay." if options else "trusted.overlay.")
        below = read_below(fds[1], ".", layer)
        whole, after = read_tree(fds[1], "."), read_tree(fds[2], ".")
    finally:
        for fd in fds:
            os.close(fd)
    assert {"gone", "d/gone", "whole", "mv"} <= layer.deleted
    assert {"again", "turned"} <= layer.opaque | layer.deleted
    assert layer.left_out == {"fifo": "a FIFO"}
    assert set(below.files) == {path for path in whole.files if not layer.shows(path)}
    old, new = entries_of(whole), entries_of(after)
    patch = make_patch(entries_of(below), entries_of(FileTree(files=layer.files, links=layer.links)))
    merged = {**old, **apply_patch(patch, old.get)}
    assert {path: entry for path, entry in merged.items() if entry is not None} == new
    shown = {path for path in old if layer.shows(path)}
    assert shown | {*layer.files, *layer.links} == set(new)


def test_whiteouts_as_attributes(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name in ("gone", "empty"):
        (tmp_path / "d" / name).touch()
    (tmp_path / "gone").touch()
    try:
        os.setxattr(tmp_path / "d", "user.overlay.opaque", b"x")
        os.setxattr(tmp_path / "d" / "gone", "user.overlay.whiteout", b"y")
        os.setxattr(tmp_path / "gone", "user.overlay.whiteout", b"y")
    except OSError:
        pytest.skip("this file system has no attributes of users")
    fd = os.open(tmp_path, PLACE)
    try:
        layer = read_layer(fd)
        assert (set(layer.deleted), set(layer.opaque), set(layer.folders)) == ({"d/gone"}, set(), {"d"})
        assert set(layer.files) == {"d/empty", "gone"}
        os.setxattr(tmp_path / "d", "user.overlay.opaque", b"y")
        assert read_layer(fd).opaque == {"d"}
        assert read_layer(fd, prefix="trusted.overlay.").opaque == frozenset()
        assert read_layer(fd, "none") == OverlayLayer()
        os.setxattr(tmp_path / "d", "user.overlay.redirect", b"/other")
        assert read_layer(fd).left_out == {"d": "a folder renamed as a whole"}
    finally:
        os.close(fd)


def test_what_a_layer_shows() -> None:
    layer = OverlayLayer(
        files={"f": File(data=b"")},
        links={"l": "x"},
        folders=frozenset({"d", "o", "d/e"}),
        deleted=frozenset({"g", "d/h"}),
        opaque=frozenset({"o"}),
    )
    shown = [
        path for path in ("f", "l", "d", "g", "g/x", "d/h", "d/h/y", "o/x", "d/x", "z", "f/x") if layer.shows(path)
    ]
    assert shown == ["d/x", "z"]
    assert not OverlayLayer(opaque=frozenset({"."})).shows("z")
