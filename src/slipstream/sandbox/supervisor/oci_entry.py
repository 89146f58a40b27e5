"""A container's first program, which turns into the supervisor. Standalone (Python 3.8+, standard library only).

    oci_entry.py SOCKET WORKDIR slipstream-lease=ID LIMIT=VALUE...

Input: the path of a socket of the host. It then runs `program.py`, which lies beside it, with that socket as its
control. Invariants: the workdir exists; the one capability needed to create it is dropped before the host is called,
and no program gets it back, since there are no new privileges; the host has a descriptor of the container's root before
anything else runs here.
"""

# ruff: noqa: PTH103, PTH118, PTH120, PTH123

from __future__ import annotations

import _ctypes
import _socket
import os
import sys

CAPABILITY_VERSION = 0x20080522
HELD = ("CapPrm", "CapEff", "CapInh", "CapAmb")


def drop_capabilities() -> None:
    """Like `ctypes.CDLL(None).capset` with empty sets; checks that it worked."""
    function = _ctypes.dlsym(_ctypes.dlopen(None, 0), "capset")  # type: ignore[arg-type]
    header = CAPABILITY_VERSION.to_bytes(4, sys.byteorder) + bytes(4)
    _ctypes.call_cdeclfunction(function, (header, bytes(24)))
    with open("/proc/self/status") as file:
        if any(int(line.split()[1], 16) for line in file if line.startswith(HELD)):
            raise SystemExit("the capabilities of the container could not be dropped")


def call_host(path: str) -> int:
    """Connect and send the root; returns the descriptor of the connection."""
    control = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    control.connect(path)
    root = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    control.sendmsg([b"root"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, root.to_bytes(4, sys.byteorder))])
    os.close(root)
    return control.detach()


if __name__ == "__main__":
    os.makedirs(sys.argv[2], exist_ok=True)
    drop_capabilities()
    sys.argv[1] = str(call_host(sys.argv[1]))
    with open(os.path.join(os.path.dirname(sys.argv[0]), "program.py"), "rb") as source:
        exec(compile(source.read(), "program.py", "exec"))
