"""Which files are indexed, and their language, judging by name."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from slipstream.errors import ConfigError

SUFFIXES = {
    "py": "python",
    "pyi": "python",
    "js": "javascript",
    "jsx": "javascript",
    "mjs": "javascript",
    "cjs": "javascript",
    "ts": "typescript",
    "mts": "typescript",
    "cts": "typescript",
    "tsx": "tsx",
    "go": "go",
    "rs": "rust",
    "java": "java",
    "c": "c",
    "h": "c",
    "cc": "cpp",
    "cpp": "cpp",
    "cxx": "cpp",
    "hh": "cpp",
    "hpp": "cpp",
    "hxx": "cpp",
}
GRAMMARS = {
    "javascript": "tree_sitter_javascript",
    "typescript": "tree_sitter_typescript",
    "tsx": "tree_sitter_typescript",
    "go": "tree_sitter_go",
    "rust": "tree_sitter_rust",
    "java": "tree_sitter_java",
    "c": "tree_sitter_c",
    "cpp": "tree_sitter_cpp",
}
"""Language -> the package of its grammar, from the extra `code`."""

SKIPPED_FOLDERS = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        "__pycache__",
        "node_modules",
        ".venv",
        ".tox",
        ".nox",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".hypothesis",
        "LC_MESSAGES",
    }
)
BINARY_SUFFIXES = frozenset(
    [
        "7z",
        "a",
        "avif",
        "bin",
        "bmp",
        "bz2",
        "class",
        "dll",
        "dylib",
        "eot",
        "exe",
        "gif",
        "gz",
        "ico",
        "jar",
        "jpeg",
        "jpg",
        "mo",
        "mp3",
        "mp4",
        "npy",
        "npz",
        "o",
        "odt",
        "otf",
        "parquet",
        "pdf",
        "png",
        "pyc",
        "pyd",
        "pyo",
        "so",
        "sqlite",
        "sqlite3",
        "tar",
        "tgz",
        "tif",
        "tiff",
        "ttf",
        "wasm",
        "wav",
        "webm",
        "webp",
        "whl",
        "woff",
        "woff2",
        "xls",
        "xlsx",
        "xz",
        "zip",
        "zst",
    ]
)


def language_of(path: str) -> str:
    """The language of a file; empty if it is not known."""
    name = path.rpartition("/")[2]
    return SUFFIXES.get(name.rpartition(".")[2].lower(), "") if "." in name else ""


def is_binary_name(name: str) -> bool:
    return name.rpartition(".")[2].lower() in BINARY_SUFFIXES


def installed_grammars() -> tuple[str, ...]:
    """The languages beside Python that can be parsed on this machine."""
    if importlib.util.find_spec("tree_sitter") is None:
        return ()
    return tuple(name for name, package in GRAMMARS.items() if importlib.util.find_spec(package) is not None)


def need_grammars(languages: Iterable[str]) -> None:
    """Raise ConfigError if one of these cannot be parsed here."""
    installed = {"python", *installed_grammars()}
    if missing := [name for name in languages if name not in installed]:
        raise ConfigError(f"no grammar for {', '.join(missing)} is installed: pip install 'slipstream[code]'")
