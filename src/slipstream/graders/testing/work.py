"""Turns a patch into the files that are accepted as work, or refuses it.

Invariants: no code of the patch runs, neither here nor in the sandbox; whatever decides how tests are run stays as in
the task. Changes to such files are left out and reported, so that they neither help nor harm: tests and their
configuration, environments, compiled files, what Python runs on start-up, and new modules that would shadow the
standard library or pytest.
"""

from __future__ import annotations

import configparser
import posixpath
import re
import sys
import tomllib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from slipstream.errors import SandboxError, SlipstreamError
from slipstream.graders.testing.paths import any_of
from slipstream.offload import WorkTooLarge, by_size
from slipstream.patches.apply import Entry, PatchError, apply_patch
from slipstream.patches.parse import FILE, LINK, PROGRAM, sections
from slipstream.sandbox.base import Sandbox
from slipstream.types import File

ALWAYS_DROPPED = (
    "__pycache__/**", "**/__pycache__/**", "*.pyc", "*.pyo", "**/.pytest_cache/**", "**/.hypothesis/**",
    "**/.git/**", "**/site-packages/**", "**/dist-packages/**", "**/node_modules/**", "**/.tox/**", "**/.nox/**",
    ".venv/**", ".deps/**", "venv/**", ".env/**", "**/*.dist-info/**", "**/*.egg-info/**", "**/EGG-INFO/**",
    "**/*.egg/**", "*.egg-link", "**/__editable__*/**", "*.pth", "*.start",
    "sitecustomize.py", "usercustomize.py", "**/sitecustomize/**", "**/usercustomize/**",
)  # fmt: skip
"""Compiled files, environments, and what Python or pytest load automatically. Matched case-insensitively, as
`importlib.metadata` does: it finds a plugin in `EVIL-1.DIST-INFO`."""
TEST_SETTINGS = (
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", ".coveragerc", "noxfile.py",
)  # fmt: skip
"""Files that only configure tests. `setup.cfg` and `pyproject.toml` are inspected instead."""
TEST_TOOLS = frozenset({"pytest", "_pytest", "pluggy", "iniconfig", "py", "xdist", "hypothesis", "nose", "tox"})
_SHADOWED = frozenset(sys.stdlib_module_names) | {"test"} | TEST_TOOLS
_INTO_GIT = re.compile(rb'(?:^|[ "/])\.git/')
_NUM_AT_ONCE = 400
MAX_PATH_BYTES = 1_000
"""The longest path in the work, so that a command line can hold many of them."""
MAX_SETTINGS_BYTES = 1 << 20
"""The largest `setup.cfg` or `pyproject.toml` that the work may write."""
_PRINT_KINDS = """for p do
if [ -L "$p" ]; then printf 'l%s\\0' "$(readlink "$p"; echo x)"
elif [ -d "$p" ]; then printf 'd\\0'
elif [ -f "$p" ] && [ -x "$p" ]; then printf 'x\\0'
elif [ -f "$p" ]; then printf 'f\\0'
elif [ -e "$p" ]; then printf 'o\\0'
else printf '%s\\0' -; fi
done"""


class Refused(SlipstreamError):
    """The work is worth 0, whatever the results of its tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The accepted changes of a patch."""

    files: Mapping[str, Entry | None]
    """By path; None for a deleted file."""
    left_out: tuple[str, ...] = ()
    added_modules: tuple[str, ...] = ()
    """The paths of new top-level modules."""


ReadEntries = Callable[[Iterable[str]], Awaitable[Mapping[str, Entry | None]]]
"""Reads the entries at some paths; None for a missing path or a folder."""


def entry_reader(sandbox: Sandbox, folder: str) -> ReadEntries:
    """Reads files of a sandbox in which none of the work has run yet."""

    async def read_entries(paths: Iterable[str]) -> Mapping[str, Entry | None]:
        wanted = sorted(set(paths))
        found: dict[str, Entry | None] = {}
        for start in range(0, len(wanted), _NUM_AT_ONCE):
            some = wanted[start : start + _NUM_AT_ONCE]
            places = [posixpath.join(folder, path) for path in some]
            result = await sandbox.exec(["/bin/sh", "-c", _PRINT_KINDS, "sh", *places], timeout_s=60.0)
            kinds = (result.stdout.head + result.stdout.tail).split(b"\0")[:-1]
            if result.exit_code != 0 or len(kinds) != len(some):
                raise SandboxError(f"the files of the task could not be read: {result.stderr.text()[:500]}")
            for path, place, kind in zip(some, places, kinds, strict=True):
                found[path] = await _entry(sandbox, place, kind)
        return found

    return read_entries


async def _entry(sandbox: Sandbox, place: str, kind: bytes) -> Entry | None:
    if kind.startswith(b"l"):
        return Entry(data=kind[1:].removesuffix(b"x").removesuffix(b"\n"), mode=LINK)
    if kind in (b"f", b"x"):
        return Entry(data=await sandbox.read(place, max_bytes=64 << 20), mode=PROGRAM if kind == b"x" else FILE)
    return None


def paths_of(patch: bytes) -> tuple[str, ...]:
    """The files that a patch changes. Raises PatchError."""
    return tuple(sorted({path for section in sections(patch) for path in (section.old_path, section.new_path) if path}))


async def applied(patch: bytes, read_entries: ReadEntries) -> dict[str, Entry | None]:
    """The files that a patch changes, after the change. Raises PatchError."""
    paths = paths_of(patch)
    seen = await read_entries(_with_parents(paths))
    return apply_patch(patch, seen.get)


async def accept_work(
    patch: bytes,
    read_entries: ReadEntries,
    *,
    drop: Sequence[str] = (),
    drop_paths: frozenset[str] = frozenset(),
    keep_paths: frozenset[str] = frozenset(),
    forbid: Sequence[str] = (),
) -> Work:
    """The part of a patch that counts. Raises Refused or a sandbox error."""
    rules = _PathRules(drop=tuple(drop), drop_paths=drop_paths, keep_paths=keep_paths, forbid=tuple(forbid))
    try:
        kept, left_out, paths = await by_size(_split_patch, patch, rules, num_bytes=len(patch))
        if long := next((path for path in paths if len(path.encode("utf-8", "surrogateescape")) > MAX_PATH_BYTES), ""):
            raise Refused(f"the work has a path of more than {MAX_PATH_BYTES} bytes: {long[:100]}...")
        places = _with_parents(paths)
        seen = await read_entries({*places, *(f"{place}/__init__.py" for place in places if not place.endswith(".py"))})
        num_bytes = len(kept) + sum(len(entry.data) for entry in seen.values() if entry is not None)
        return await by_size(_build_work, kept, seen, left_out, keep_paths, num_bytes=num_bytes)
    except PatchError as raised:
        raise Refused(f"the patch cannot be applied: {raised}") from raised
    except WorkTooLarge as raised:
        raise Refused(f"the patch is too large to apply: {raised}") from raised


@dataclass(frozen=True, slots=True, kw_only=True)
class _PathRules:
    """The rules by which changes of a path are accepted, left out or refused."""

    drop: tuple[str, ...]
    drop_paths: frozenset[str]
    keep_paths: frozenset[str]
    forbid: tuple[str, ...]


def _build_work(kept: bytes, seen: Mapping[str, Entry | None], left_out: list[str], keep_paths: frozenset[str]) -> Work:
    files = apply_patch(kept, seen.get)
    added: list[str] = []
    for path, entry in list(files.items()):
        _check_link(path, entry)
        if path not in keep_paths:
            _check_settings(path, seen.get(path), entry)
        if entry is None or seen.get(path) is not None:
            continue
        module = _top_level_module(path, files, seen)
        if module in _SHADOWED:
            del files[path]
            left_out.append(path)
        elif module is not None:
            added.append(path)
    return Work(files=files, left_out=tuple(sorted(left_out)), added_modules=tuple(added))


def _split_patch(patch: bytes, rules: _PathRules) -> tuple[bytes, list[str], tuple[str, ...]]:
    """The accepted part of a patch, the paths left out, and the paths accepted."""
    always = any_of((*ALWAYS_DROPPED, *TEST_SETTINGS), ignore_case=True)
    named, is_forbidden = any_of(rules.drop), any_of(rules.forbid)

    def is_dropped(path: str) -> bool:
        return path in rules.drop_paths or (path not in rules.keep_paths and (always(path) or named(path)))

    kept: list[bytes] = []
    left_out: list[str] = []
    kept_paths: set[str] = set()
    for piece in _file_patches(patch):
        header = piece.partition(b"\n")[0]
        if header.startswith(b"diff --git ") and _INTO_GIT.search(header):
            continue
        paths = paths_of(piece)
        forbidden = [path for path in paths if is_forbidden(path)]
        if any(is_dropped(path) for path in paths):
            left_out += paths
        elif forbidden:
            raise Refused(f"the work changes {forbidden[0]}, which is forbidden")
        else:
            kept.append(piece)
            kept_paths.update(paths)
    return b"".join(kept), left_out, tuple(sorted(kept_paths))


def _file_patches(patch: bytes) -> list[bytes]:
    """A git patch split by file. No line inside a file's part can look like a file header."""
    starts = [match.start() for match in re.finditer(rb"^diff --git ", patch, re.MULTILINE)]
    if not starts:
        return [patch] if patch.strip() else []
    if patch[: starts[0]].strip():
        raise PatchError("it does not start with a file header")
    return [patch[start:end] for start, end in zip(starts, [*starts[1:], len(patch)], strict=True)]


def _with_parents(paths: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for path in paths:
        while path:
            found.add(path)
            path = path.rpartition("/")[0]
    return found


def _check_link(path: str, entry: Entry | None) -> None:
    if entry is None or entry.mode != LINK:
        return
    target = entry.data.decode("utf-8", "surrogateescape")
    place = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    if target.startswith("/") or place == ".." or place.startswith("../"):
        raise Refused(f"the work makes {path} a link to {target}, which is outside its folder")


def _check_settings(path: str, before: Entry | None, after: Entry | None) -> None:
    if posixpath.basename(path) not in ("setup.cfg", "pyproject.toml"):  # pytest also looks beside the tests
        return
    if after is not None and len(after.data) > MAX_SETTINGS_BYTES:
        raise Refused(f"{path} in the work is larger than {MAX_SETTINGS_BYTES} bytes")
    if _test_settings(path, before) != _test_settings(path, after):
        raise Refused(f"the work changes how tests are run, in {path}")


def _test_settings(path: str, entry: Entry | None) -> object:
    """A file's test settings; a file without any equals no file."""
    if entry is None:
        return {}
    text = entry.data.decode("utf-8", "replace")
    try:
        if path.endswith(".toml"):
            return tomllib.loads(text).get("tool", {}).get("pytest", {})
        parser = configparser.RawConfigParser(strict=False)
        parser.read_string(text)
        return {name: dict(parser[name]) for name in ("tool:pytest", "pytest") if parser.has_section(name)}
    except (ValueError, AttributeError, configparser.Error, RecursionError):
        return text  # any change to an unreadable file counts as a change of its test settings


def _top_level_module(path: str, files: Mapping[str, Entry | None], seen: Mapping[str, Entry | None]) -> str | None:
    """The name by which a file can be imported as a top-level module, if its folder is not a package."""
    folder, name = posixpath.split(path)
    if name == "__init__.py":
        folder, name = posixpath.split(folder)
    elif name.endswith((".py", ".so", ".pyd")):
        name = name.partition(".")[0]
    else:
        return None
    init = posixpath.join(folder, "__init__.py")
    is_package = bool(folder) and (files.get(init) or seen.get(init)) is not None
    return None if is_package or not name else name


async def place_files(sandbox: Sandbox, folder: str, files: Mapping[str, Entry | None]) -> None:
    """Write, link and delete files in a folder."""
    gone = [posixpath.join(folder, path) for path, entry in files.items() if entry is None or entry.mode == LINK]
    for start in range(0, len(gone), _NUM_AT_ONCE):
        await _must(sandbox, ["rm", "-f", "--", *gone[start : start + _NUM_AT_ONCE]])
    await sandbox.write(
        {
            posixpath.join(folder, path): File(data=entry.data, mode=0o755 if entry.mode == PROGRAM else 0o644)
            for path, entry in files.items()
            if entry is not None and entry.mode != LINK
        }
    )
    for path, entry in files.items():
        if entry is not None and entry.mode == LINK:
            place = posixpath.join(folder, path)
            target = entry.data.decode("utf-8", "surrogateescape")
            await _must(sandbox, ["/bin/sh", "-c", 'mkdir -p -- "${2%/*}" && ln -s -- "$1" "$2"', "sh", target, place])


async def _must(sandbox: Sandbox, argv: Sequence[str]) -> None:
    result = await sandbox.exec(argv, timeout_s=60.0)
    if result.exit_code != 0:
        raise Refused(f"the patch cannot be written: {result.stderr.text()[:500].strip()}")
