"""Resolves tool names in tasks and recipes.

Input: a name in TOOLS, an import path `package.module:attribute`, or `path/to/file.py:attribute`. Output: a Tool.
"""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.errors import ConfigError
from slipstream.names import did_you_mean, load_object
from slipstream.tools.base import Tool

TOOLS: Mapping[str, str] = {
    "bash": "slipstream.tools.bash:bash",
    "edit": "slipstream.tools.editor:edit",
    "finish": "slipstream.tools.finish:finish",
    "get_document": "slipstream.tools.search.tool:get_document",
    "open_page": "slipstream.tools.web.tool:open_page",
    "python": "slipstream.tools.python.tool:python",
    "read_file": "slipstream.tools.read_file:read_file",
    "search": "slipstream.tools.codesearch.tool:search",
    "write_file": "slipstream.tools.write_file:write_file",
}
"""The built-in tools, as import paths, so that one that needs an extra costs nothing until it is used."""


def resolve(name: str, registry: Mapping[str, str | Tool] = TOOLS) -> Tool:
    """The tool of that name in `registry`, or at that import path."""
    known = registry.get(name)
    if isinstance(known, str):
        return _load(known)
    if known is not None:
        return known
    if ":" in name:
        return _load(name)
    raise ConfigError(
        f'there is no tool "{name}"{did_you_mean(name, registry)}: '
        f"use one of {', '.join(registry)}, or package.module:attribute"
    )


def _load(path: str) -> Tool:
    found = load_object(path, "tool")
    if not isinstance(found, Tool) or isinstance(found, type):
        raise ConfigError(f'tool "{path}" is a {type(found).__name__}, not a tool: define it with @tool or class_tool')
    return found
