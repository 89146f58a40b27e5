"""Leases whose holders are gone."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from slipstream.sandbox.cleanup.lease import LEASES, take_dead, take_lease

HOLDER = """
import sys
from pathlib import Path
from slipstream.sandbox.cleanup.lease import take_lease
lease = take_lease(Path(sys.argv[1]))
print(lease.id, flush=True)
sys.stdin.read()
"""


def dead_lease(home: Path) -> Path:
    """The folder of a lease that nobody holds any more."""
    lease = take_lease(home)
    lease.unlock()
    return lease.folder


def killed_lease(home: Path) -> Path:
    """The folder of a lease whose holder was killed."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        name = holder.stdout.readline().strip()
        assert take_dead(home / LEASES / name) is None, "it is alive"
        holder.send_signal(signal.SIGKILL)
    return home / LEASES / name
