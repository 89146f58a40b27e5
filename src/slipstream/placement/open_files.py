"""How many files a process of a run may have open: as many as the machine allows, since each sandbox takes several.

Invariants: done once per process, and never fails: what cannot be raised stays as it is.
"""

from __future__ import annotations

import functools
import resource
from contextlib import suppress

MAX_OPEN_FILES = 65_536
MACOS_MAX_OPEN_FILES = 10_240
"""macOS allows no more, though its hard limit says unlimited."""


@functools.cache
def raise_open_files() -> int:
    """Raise the soft limit. Returns the old one, which programs in sandboxes keep: some close every descriptor there
    might be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (MAX_OPEN_FILES, MACOS_MAX_OPEN_FILES):
        wanted = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        if soft == resource.RLIM_INFINITY or wanted <= soft:
            break
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            break
    return soft
