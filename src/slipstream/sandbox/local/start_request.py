"""Starts one sandbox through the keeper: what it consists of, the descriptors it inherits, its limits.

Input: where the sandbox can write, its view, the keeper and the meter. Output: the running sandbox, the layer it writes
to, and the channel to the supervisor, which has not replied yet. Invariants: the sandbox inherits only what it was
given; if it is not started, no descriptor stays open.
"""

from __future__ import annotations

import contextlib
import os
import socket

from slipstream.sandbox.local import bwrap, seccomp
from slipstream.sandbox.local.keeper_client import KeeperClient, KeptLayer, SpawnRequest
from slipstream.sandbox.local.lower_folders import LowerFolders
from slipstream.sandbox.local.process import SandboxProcess
from slipstream.sandbox.metering import watchdog
from slipstream.sandbox.metering.meter import Meter
from slipstream.sandbox.supervisor.channel import Channel, memory_file


async def launch(
    keeper: KeeperClient, lower: LowerFolders, view: KeptLayer, meter: Meter, *, open_files: int | None
) -> tuple[SandboxProcess, KeptLayer, Channel]:
    """Start a sandbox. Raises SandboxError if the keeper cannot, also if it cannot join the meter."""
    request = spawn_request(lower, view=view.name, memory_is_metered=meter.kind != watchdog.KIND, open_files=open_files)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as inherited:
        undo.callback(ours.close)
        inherited.callback(theirs.close)
        stderr = memory_file()
        undo.callback(os.close, stderr)
        join_fds = meter.open_join_fds()
        for join_file in join_fds:
            inherited.callback(os.close, join_file)
        spawned = await keeper.spawn(request, control=theirs.fileno(), stderr=stderr, join_fds=join_fds)
        undo.pop_all()
    channel = Channel(ours)
    process = SandboxProcess(
        pid=spawned.pid,
        pidfd=spawned.pidfd,
        stderr_fd=stderr,
        on_end=lambda: channel.lose("the sandbox is gone: its process 1 has ended"),
    )
    return process, spawned.layer, channel


def spawn_request(
    lower: LowerFolders, *, view: str, memory_is_metered: bool, open_files: int | None = None
) -> SpawnRequest:
    spec, areas = lower.spec, lower.areas
    workdir = bwrap.workdir_of(spec)
    added = bwrap.added_files(spec)
    return SpawnRequest(
        num_bytes=spec.limits.disk_mb * bwrap.MB,
        folders=bwrap.folders_of(areas, workdir),
        files=bwrap.contents_of(added),
        terminals="pts",
        view=view,
        root="root-overlay" if spec.base != "host" else "",
        overlays=bwrap.overlays_of(areas),
        binds=bwrap.binds_of(areas, added),
        workdir=workdir,
        limits=bwrap.rlimits(spec, memory_is_metered=memory_is_metered),
        filter=seccomp.program(memory_is_metered=memory_is_metered) or b"",
        open_files=open_files,
    )
