"""From a name that a user wrote to the object it means. Standard library and `errors` only.

Invariants: a module is imported when it is first needed, and once; a name that leads nowhere is a ConfigError
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

LOCAL = "local"
"""Stands for the module in the name of an object that cannot be imported."""
_LOCAL: dict[str, object] = {}
"""Objects that other processes cannot find, by the name that was given to them."""
_FILE_MODULE = "slipstream_file_"


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


def name_of(thing: object, what: str, *, defined_by: object = None) -> str:
    """A name under which `load_object` finds this very object, here and where possible in other processes.

    `defined_by` is the function or class that the object was made from, if it has no name of its own. An object of a
    notebook, of the script that is being run, or of a function's body gets a name that holds in this process alone
    (`is_local_name`); that of a script names its file, so that a resumed run can look there.
    """
    origin = thing if defined_by is None else defined_by
    module = sys.modules.get(getattr(origin, "__module__", None) or "")
    attribute = _attribute_of(thing, origin, module)
    if module is not None and attribute is not None and module.__name__ != "__main__":
        if module.__name__.startswith(_FILE_MODULE) and module.__file__:
            return f"{module.__file__}:{attribute}"
        return f"{module.__name__}:{attribute}"
    file = getattr(module, "__file__", None)
    if attribute is not None and file and Path(file).is_file():
        name = f"{Path(file).resolve()}:{attribute}"
    else:
        called = getattr(origin, "__name__", type(thing).__name__).strip("<>")
        name = next((name for name, known in _LOCAL.items() if known is thing), f"{LOCAL}:{called}-{len(_LOCAL)}")
    _LOCAL[name] = thing
    return name


def is_local_name(name: str) -> bool:
    """Whether only this process can resolve a name that `name_of` gave."""
    return name in _LOCAL or name.startswith(f"{LOCAL}:")


def _attribute_of(thing: object, origin: object, module: ModuleType | None) -> str | None:
    """The attribute of its module that an object is, by its qualified name or by search; None for an inner one."""
    if module is None:
        return None
    for attribute in (getattr(origin, "__qualname__", ""), *vars(module)):
        if attribute and _attribute(module, attribute) is thing:
            return attribute
    return None


def _attribute(module: ModuleType, path: str) -> object:
    found: object = module
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def load_object(path: str, what: str) -> object:
    """The object at `package.module:attribute` or `path/to/file.py:attribute`; `what` names it in errors."""
    if path in _LOCAL:
        return _LOCAL[path]
    place, _, attribute = path.rpartition(":")
    if place == LOCAL:
        raise ConfigError(
            f'{what} "{path}" was defined in a notebook or inside a function, which this process has not run: move it '
            "to the top level of a .py file"
        )
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
    found = _attribute(module, attribute)
    if found is None:
        raise ConfigError(f'{what} "{path}": {place} has no "{attribute}"{did_you_mean(attribute, vars(module))}')
    return found


def _load_file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"there is no file {path}: give the path of a Python file")
    name = f"{_FILE_MODULE}{hashlib.blake2b(str(path).encode(), digest_size=8).hexdigest()}"
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
