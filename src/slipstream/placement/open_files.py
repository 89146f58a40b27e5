"""How many files a process of a run may have open: as many as the machine lets it, since each sandbox takes several.

Always holds: it is done once in a process, and never fails: what cannot be raised stays as it is.
"""

from __future__ import annotations

import functools
import resource
from contextlib import suppress

MOST = 65_536
MACOS_MOST = 10_240
"""There no limit may be above this, though the hard one says that there is none."""


@functools.cache
def raise_open_files() -> int:
    """Raise the soft limit. What it was before comes back: programs in sandboxes are to have that, as some of them
    close every descriptor that there might be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for most in (MOST, MACOS_MOST):
        wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
        if soft == resource.RLIM_INFINITY or wanted <= soft:
            break
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            break
    return soft
