import io
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from tiny_package import write_source

from slipstream.errors import ConfigError
from slipstream.tasks.factory.package.layout import read_layout
from slipstream.tasks.factory.package.sources import (
    MAX_UNPACKED_BYTES,
    MAX_UNPACKED_FILES,
    Requirement,
    Skipped,
    _fetch,
    _write,
    read_requirement,
    unpack_source,
    unpack_wheel,
)


def tar_of(place: Path, files: dict[str, bytes], link: tuple[str, str] | None = None) -> Path:
    with tarfile.open(place, "w:gz") as packed:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            packed.addfile(member, io.BytesIO(data))
        if link is not None:
            member = tarfile.TarInfo(link[0])
            member.type, member.linkname = tarfile.SYMTYPE, link[1]
            packed.addfile(member)
    return place


def test_a_requirement_is_a_name_with_a_version_or_a_path(tmp_path: Path) -> None:
    assert read_requirement("toolz==1.0.0") == Requirement(name="toolz", version="1.0.0")
    place = tar_of(tmp_path / "my-pack-2.1.tar.gz", {})
    assert read_requirement(str(place)) == Requirement(name="my-pack", version="2.1", path=place)
    with pytest.raises(ConfigError, match="NAME==VERSION"):
        read_requirement("toolz>=1")


def test_an_archive_writes_nowhere_but_into_its_folder(tmp_path: Path) -> None:
    files = {"p-1/a.py": b"1", "p-1/../../out.py": b"2", "/abs/b.py": b"3"}
    unpack_source(tar_of(tmp_path / "p-1.tar.gz", files, ("p-1/link", "/etc/passwd")), tmp_path / "to")
    assert [path.name for path in (tmp_path / "to").rglob("*")] == ["a.py"]
    assert not (tmp_path / "out.py").exists()


def test_a_damaged_archive_is_skipped_with_the_reason(tmp_path: Path) -> None:
    place = tmp_path / "p-1.tar.gz"
    place.write_bytes(b"nothing")
    with pytest.raises(Skipped, match="not a readable tar or zip archive"):
        unpack_source(place, tmp_path / "to")


def test_a_wheels_files_come_without_its_scripts(tmp_path: Path) -> None:
    place = tmp_path / "p-1-py3-none-any.whl"
    with zipfile.ZipFile(place, "w") as packed:
        packed.writestr("p/__init__.py", "")
        packed.writestr("p-1.data/scripts/run", "")
        packed.writestr("p-1.data/purelib/q.py", "")
    unpack_wheel(place, tmp_path / "to")
    found = {path.relative_to(tmp_path / "to").as_posix() for path in (tmp_path / "to").rglob("*") if path.is_file()}
    assert found == {"p/__init__.py", "q.py"}


def test_the_layout_of_a_package_is_read_without_running_it(tmp_path: Path) -> None:
    layout = read_layout(write_source(tmp_path / "s"), name="x", version="0")
    assert (layout.name, layout.version, layout.root, layout.modules) == ("tinypack", "1.2", ".", ("tinypack",))
    assert layout.sources == ("tinypack/__init__.py", "tinypack/core.py")
    assert layout.tests == ("tests/test_core.py",)
    assert layout.test_requires == ()


def test_a_package_below_src_and_what_its_tests_import(tmp_path: Path) -> None:
    (tmp_path / "src/pack").mkdir(parents=True)
    (tmp_path / "src/pack/__init__.py").write_text("")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text("import yaml, os\nimport helper\nfrom pack import x\nfrom . import y\n")
    (tmp_path / "tests/helper.py").write_text("import freezegun\n")
    layout = read_layout(tmp_path, name="pack", version="1")
    assert layout.root == "src" and layout.test_requires == ("freezegun", "pyyaml")


def test_a_package_without_tests_is_skipped(tmp_path: Path) -> None:
    folder = write_source(tmp_path / "s")
    (folder / "tests/test_core.py").unlink()
    with pytest.raises(Skipped, match="no tests"):
        read_layout(folder, name="tinypack", version="1")


def test_an_archive_that_unpacks_to_too_much_is_skipped_on_the_way(tmp_path: Path) -> None:
    place = tmp_path / "p-1.zip"
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("p-1/zeros", "w", force_zip64=True) as member:
            for _ in range(50):
                member.write(bytes(1 << 20))
    assert place.stat().st_size < 1 << 20
    with pytest.raises(Skipped, match="it is larger than 3 MB unpacked"):
        unpack_source(place, tmp_path / "to", max_bytes=3 << 20)
    assert (tmp_path / "to" / "zeros").stat().st_size == 3 << 20


def test_an_archive_of_very_many_files_is_skipped(tmp_path: Path) -> None:
    files = ((PurePosixPath("p-1"), io.BytesIO()) for _ in range(MAX_UNPACKED_FILES + 1))
    with pytest.raises(Skipped, match=f"it has more than {MAX_UNPACKED_FILES} files"):
        _write(files, tmp_path, 1, strip=1)


def test_a_download_that_is_too_large_is_skipped(tmp_path: Path) -> None:
    with (tmp_path / "p").open("wb") as stream:
        stream.truncate(MAX_UNPACKED_BYTES + 1)  # a hole, which takes no room on the disk
    with pytest.raises(Skipped, match=f"is larger than the {MAX_UNPACKED_BYTES} bytes that are read"):
        _fetch((tmp_path / "p").as_uri())


def test_a_checkout_is_read_without_its_metadata_file(tmp_path: Path) -> None:
    source = write_source(tmp_path / "tinypack")
    (source / "PKG-INFO").unlink()
    (source / "setup.py").write_text("""
from setuptools import setup

needed = ["six>=1.16"]
setup(name="tinypack", install_requires=needed, version=read_version(), tests_require=["mock"])
""")
    (source / "tinypack/__init__.py").write_text("from tinypack.core import clamp\n\n__version__ = '3.4.dev0'\n")
    layout = read_layout(source, name="folder", version="0")
    assert (layout.name, layout.version, layout.requires) == ("tinypack", "3.4.dev0", ("six>=1.16",))
    assert layout.test_requires == ("mock",)
    (source / "setup.cfg").write_text(
        "[metadata]\nname = other\nversion = attr: x.y\n\n[options]\ninstall_requires =\n    attrs\n    idna>2\n"
    )
    layout = read_layout(source, name="folder", version="0")
    assert (layout.name, layout.version, layout.requires) == ("other", "3.4.dev0", ("attrs", "idna>2"))
    (source / "pyproject.toml").write_text(
        '[project]\nname = "third"\nversion = "5"\ndependencies = []\n\n'
        '[dependency-groups]\ntests = ["pytest>=9", "Hypo.thesis>1; python_version > \'3\'", {include-group = "x"}]\n'
    )
    layout = read_layout(source, name="folder", version="0")
    assert (layout.name, layout.version, layout.requires) == ("third", "5", ())
    assert layout.test_requires == ("Hypo.thesis>1; python_version > '3'",)
