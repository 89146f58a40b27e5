"""From a name that a person wrote to the thing meant. Standard library and `errors` only.

Always holds: a module is imported when it is first asked for, and once; a name that leads nowhere is a ConfigError
that says what was probably meant.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

from slipstream.errors import ConfigError, SlipstreamError, described


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is abbreviated (`lr`: learning_rate) or else the most similar one, upper and lower case
    alike; None if none is similar."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    if len(name) > 1 and (spelled := next((each for each in by_lower if _initials(each) == name.lower()), None)):
        return by_lower[spelled]
    found = get_close_matches(name[:200].lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[found[0]] if found else None


def _initials(name: str) -> str:
    return "".join(word[:1] for word in name.split("_"))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean "bash"?)`, or nothing."""
    found = nearest(name, known)
    return f' (did you mean "{found}"?)' if found else ""


@contextmanager
def user_code(what: str) -> Iterator[None]:
    """Around a call of user code before a run starts: whatever it raises becomes a ConfigError that says where."""
    try:
        yield
    except SlipstreamError:
        raise
    except SystemExit as raised:
        raise ConfigError(f"{what} called sys.exit({raised.code!r}): return instead") from raised
    except Exception as raised:  # user code may raise anything
        raise ConfigError(f"{what} failed: {described(raised)}") from raised


def load_object(path: str, what: str) -> object:
    """What stands at `package.module:attribute` or `path/to/file.py:attribute`; `what` names it in errors."""
    place, _, attribute = path.rpartition(":")
    if not place or not attribute:
        raise ConfigError(f'{what} "{path}": write package.module:attribute or path/to/file.py:attribute')
    try:
        with user_code(f'{what} "{path}": importing {place}'):
            module = _load_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except ConfigError as raised:
        missing = raised.__cause__
        if not isinstance(missing, ModuleNotFoundError):
            raise
        remedy = "install it, or give a path/to/file.py" if missing.name == place.split(".")[0] else "install it"
        raise ConfigError(f'{what} "{path}": there is no module {missing.name}: {remedy}') from missing
    found: object = getattr(module, attribute, None)
    if found is None:
        raise ConfigError(f'{what} "{path}": {place} has no "{attribute}"{did_you_mean(attribute, vars(module))}')
    return found


def _load_file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"there is no file {path}: give the path of a Python file")
    name = f"slipstream_file_{hashlib.blake2b(str(path).encode(), digest_size=8).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
