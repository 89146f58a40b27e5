"""Starts the bwrap of one sandbox through the keeper: its arguments, the descriptors it inherits, its limits.

Input: a StartRequest, the keeper, the meter, and the lease that marks every process. Output: the running bwrap, the
layer it writes to, and the channel to the supervisor, which has not replied yet. Invariants: bwrap inherits only what
it was given; if it is not started, no descriptor stays open.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass

from slipstream.sandbox.local import bwrap, seccomp
from slipstream.sandbox.local.keeper_client import OWN_LAYER, OWN_VIEW, KeeperClient, KeptLayer, LayerRequest
from slipstream.sandbox.local.lower_folders import LowerFolders
from slipstream.sandbox.local.process import BwrapProcess, PassedFds, visible_home
from slipstream.sandbox.metering import watchdog
from slipstream.sandbox.metering.meter import Meter
from slipstream.sandbox.supervisor.channel import Channel, memory_file


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """What to start bwrap with."""

    lower: LowerFolders
    interpreter: bwrap.Interpreter
    program: tuple[str, bytes]
    """The supervisor: its path inside, and its content."""
    view: KeptLayer


async def launch(
    keeper: KeeperClient, what: StartRequest, meter: Meter, lease: str
) -> tuple[BwrapProcess, KeptLayer, Channel]:
    """Start bwrap. Raises SandboxError if the keeper cannot, and OSError if it cannot join the meter."""
    spec, interpreter, program = what.lower.spec, what.interpreter, what.program
    passed = PassedFds(renumbered=True)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as inherited:
        undo.callback(ours.close)
        inherited.callback(theirs.close)
        stderr = memory_file()
        undo.callback(os.close, stderr)
        info, info_write = os.pipe2(os.O_CLOEXEC)
        undo.callback(os.close, info)
        inherited.callback(os.close, info_write)

        def inherit(fd: int) -> int:
            inherited.callback(os.close, fd)
            return passed.add(fd)

        data = {path: inherit(memory_file(content)) for path, content in bwrap.files_in_base(spec, program).items()}
        is_metered = meter.kind != watchdog.KIND
        rules = seccomp.program(memory_is_metered=is_metered)
        args = ["--info-fd", str(passed.add(info_write))]
        passed.add(info)  # so that it can write even if this process is dead by then
        args += bwrap.arguments(
            spec,
            home=visible_home(interpreter),
            data=data,
            view=OWN_VIEW,
            layer=OWN_LAYER,
            areas=what.lower.areas,
            seccomp_fd=None if rules is None else inherit(memory_file(rules)),
        )
        args += ["--", interpreter.path, "-I", "-S", "-B", program[0], str(passed.add(theirs.fileno()))]
        args += [bwrap.workdir_of(spec), f"slipstream-lease={lease}"]
        limits = bwrap.rlimits(spec, memory_is_metered=is_metered)
        args += [f"{name}={value}" for name, value in limits.items()]
        join_fds = meter.open_join_fds()
        for join_file in join_fds:
            inherited.callback(os.close, join_file)
        room = LayerRequest(
            num_bytes=spec.limits.disk_mb * bwrap.MB,
            folders=bwrap.folders_of(what.lower.areas, bwrap.workdir_of(spec)),
            terminals="pts",
            view=what.view.name,
        )
        spawned = await keeper.spawn(args, passed, stderr=stderr, join_fds=join_fds, room=room)
        undo.pop_all()
    channel = Channel(ours)
    process = BwrapProcess(
        pid=spawned.pid,
        pidfd=spawned.pidfd,
        info_fd=info,
        stderr_fd=stderr,
        on_end=lambda: channel.lose("the sandbox is gone: bwrap exited"),
    )
    return process, spawned.layer, channel
