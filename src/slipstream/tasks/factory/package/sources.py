"""Finds, downloads and unpacks source distributions and wheels. None of their code runs.

Input: `NAME==VERSION`, or the path of a source distribution or of a folder. Output: folders of plain files.
Invariants: a download matches the SHA-256 of its index if there is one; an archive writes only into the folder it is
unpacked to, and its links are left out.
"""

from __future__ import annotations

import hashlib
import html
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from slipstream.bounded import TooLarge, chunks
from slipstream.errors import ConfigError

INDEX = "https://pypi.org/simple"
TIMEOUT_S = 120.0
MAX_UNPACKED_BYTES = 400 << 20
MAX_UNPACKED_FILES = 100_000
_NAMED = re.compile(r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==(?P<version>[A-Za-z0-9.!+_-]+)")
_LINK = re.compile(r'<a\s[^>]*?href="(?P<url>[^"]+)"[^>]*>(?P<file>[^<]+)</a>', re.IGNORECASE)


class Skipped(Exception):
    """No tasks can be made from a package; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A package to make tasks from: by name and version, or by path."""

    name: str
    version: str = ""
    path: Path | None = None

    def __str__(self) -> str:
        return f"{self.name}=={self.version}" if self.version else self.name


def read_requirement(text: str) -> Requirement:
    """`toolz==1.0.0`, or the path of a source distribution or of a folder."""
    path = Path(text)
    if path.exists():
        name = re.sub(r"\.(tar\.(gz|bz2|xz)|tgz|zip)$", "", path.resolve().name)
        found = re.fullmatch(r"(.+?)-(\d[^-]*)", name)
        return Requirement(name=found[1] if found else name, version=found[2] if found else "", path=path.resolve())
    named = _NAMED.fullmatch(text.strip())
    if named is None:
        raise ConfigError(
            f"{text!r} is not a package: write NAME==VERSION, such as toolz==1.0.0, or a source distribution's path"
        )
    return Requirement(name=named["name"], version=named["version"])


def normal_name(name: str) -> str:
    """A project's normalised name, as indexes use it."""
    return re.sub(r"[-_.]+", "-", name).lower()


# ---------------------------------------------------------------- downloads


def download_source(wanted: Requirement, folder: Path, *, index: str = INDEX) -> Path:
    """Download the package's source distribution to `folder`."""
    page_url = f"{index.rstrip('/')}/{normal_name(wanted.name)}/"
    try:
        page = _fetch(page_url).decode("utf-8", "replace")
    except urllib.error.HTTPError as raised:
        raise Skipped(f"{index} has no package {wanted.name} (HTTP {raised.code})") from None
    except (urllib.error.URLError, OSError) as raised:
        raise Skipped(f"{page_url} could not be read: {raised}") from None
    for link in _LINK.finditer(page):
        file = html.unescape(link["file"]).strip()
        if not _is_source_of(file, wanted):
            continue
        url, _, fragment = urllib.parse.urljoin(page_url, html.unescape(link["url"])).partition("#")
        place = folder / PurePosixPath(file).name
        if not place.is_file():
            data = _fetch(url)
            expected = fragment.partition("sha256=")[2]
            if expected and hashlib.sha256(data).hexdigest() != expected:
                raise Skipped(f"the SHA-256 of {url} differs from the one in {index}")
            place.write_bytes(data)
        return place
    raise Skipped(f"{index} has no source distribution of {wanted}")


def _is_source_of(file: str, wanted: Requirement) -> bool:
    stem = re.sub(r"\.(tar\.(gz|bz2|xz)|tgz|zip)$", "", file)
    if stem == file or "-" not in stem:
        return False
    name, _, version = stem.rpartition("-")
    return normal_name(name) == normal_name(wanted.name) and version == wanted.version


def _fetch(url: str) -> bytes:
    request = urllib.request.Request(url, headers={"User-Agent": "slipstream", "Accept": "text/html, */*;q=0.1"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        try:
            return b"".join(chunks(answer, MAX_UNPACKED_BYTES, url))
        except TooLarge as raised:
            raise Skipped(str(raised)) from raised


def download_wheels(requirements: Sequence[str], folder: Path, *, python: str) -> list[Path]:
    """Download wheels of the requirements and of all that they require, for this version of Python. Raises Skipped."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--python-version", python]
    done = subprocess.run(
        [*command, "--dest", str(folder), *requirements], capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()[-300:]]
        raise Skipped(f"no wheels of {' '.join(requirements)}: {errors[-1].removeprefix('ERROR: ')}")
    return sorted(folder.glob("*.whl"))


# ---------------------------------------------------------------- archives


def unpack_source(archive: Path, folder: Path, *, max_bytes: int = MAX_UNPACKED_BYTES) -> None:
    """Unpack a source distribution without its top folder, or copy a folder."""
    if archive.is_dir():
        shutil.copytree(archive, folder, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv", "*.pyc"))
        for link in [path for path in folder.rglob("*") if path.is_symlink()]:
            link.unlink()
        return
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                _write(_zip_files(packed), folder, max_bytes, strip=1)
        else:
            with tarfile.open(archive) as packed_tar:
                _write(_tar_files(packed_tar), folder, max_bytes, strip=1)
    except tarfile.ReadError as raised:
        raise Skipped(f"{archive.name} is not a readable tar or zip archive: is it complete?") from raised
    except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError) as raised:
        raise Skipped(f"{archive.name} cannot be unpacked: {raised}") from raised


def unpack_wheel(archive: Path, folder: Path) -> None:
    """Unpack the importable files of a wheel, without its scripts and headers."""
    with zipfile.ZipFile(archive) as packed:
        _write(_zip_files(packed), folder, MAX_UNPACKED_BYTES, strip=0)
    for data in folder.glob("*.data"):
        for kind in ("purelib", "platlib"):
            if (data / kind).is_dir():
                shutil.copytree(data / kind, folder, dirs_exist_ok=True)
        shutil.rmtree(data)


def _zip_files(packed: zipfile.ZipFile) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    for member in packed.infolist():
        if not member.is_dir() and (member.external_attr >> 28) != 0o12:
            yield PurePosixPath(member.filename), packed.open(member)


def _tar_files(packed: tarfile.TarFile) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    for member in packed:
        if member.isreg() and (opened := packed.extractfile(member)) is not None:
            yield PurePosixPath(member.name), opened


def _write(files: Iterator[tuple[PurePosixPath, IO[bytes]]], folder: Path, max_bytes: int, *, strip: int) -> None:
    num_bytes = 0
    for number, (path, opened) in enumerate(files):
        if number >= MAX_UNPACKED_FILES:
            raise Skipped(f"it has more than {MAX_UNPACKED_FILES} files")
        parts = [part for part in path.parts if part != "."][strip:]
        if path.is_absolute() or ".." in parts or not parts:
            continue
        place = folder.joinpath(*parts)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            with opened, place.open("wb") as target:
                for chunk in chunks(opened, max_bytes - num_bytes, str(path)):
                    target.write(chunk)
                    num_bytes += len(chunk)
        except TooLarge as raised:
            raise Skipped(f"it is larger than {max_bytes >> 20} MB unpacked") from raised
