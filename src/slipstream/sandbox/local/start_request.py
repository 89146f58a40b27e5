"""Having the keeper start the bwrap of one sandbox: its arguments, the descriptors that it is lent, its limits.

Input: a Launching, the keeper, the meter, and the lease that is written on every process. Output: the bwrap that runs,
the layer that it writes to and the channel to the supervisor, which has not answered yet.
Invariants: bwrap has what it was lent and nothing else of ours; if it is not started, no descriptor of ours is left.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass

from slipstream.sandbox.local import bwrap, seccomp
from slipstream.sandbox.local.keeper_client import OWN_LAYER, OWN_VIEW, KeeperClient, KeptLayer, LayerRequest
from slipstream.sandbox.local.lower_folders import LowerFolders
from slipstream.sandbox.local.process import BwrapProcess, Passed, visible_home
from slipstream.sandbox.metering import watchdog
from slipstream.sandbox.metering.meter import Meter
from slipstream.sandbox.supervisor.channel import Channel, memory_file


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """What bwrap is to be started with."""

    ground: LowerFolders
    interpreter: bwrap.Interpreter
    program: tuple[str, bytes]
    """The supervisor: its path inside, and its bytes."""
    view: KeptLayer


async def launch(
    keeper: KeeperClient, what: StartRequest, meter: Meter, lease: str
) -> tuple[BwrapProcess, KeptLayer, Channel]:
    """Start it. Raises SandboxError if the keeper cannot, and OSError if the meter cannot let it in."""
    spec, interpreter, program = what.ground.spec, what.interpreter, what.program
    passed = Passed(renumbered=True)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as lent:
        undo.callback(ours.close)
        lent.callback(theirs.close)
        stderr = memory_file()
        undo.callback(os.close, stderr)
        info, info_write = os.pipe2(os.O_CLOEXEC)
        undo.callback(os.close, info)
        lent.callback(os.close, info_write)

        def lend(fd: int) -> int:
            lent.callback(os.close, fd)
            return passed.add(fd)

        data = {path: lend(memory_file(content)) for path, content in bwrap.files_in_base(spec, program).items()}
        is_metered = meter.kind != watchdog.KIND
        rules = seccomp.program(memory_is_metered=is_metered)
        args = ["--info-fd", str(passed.add(info_write))]
        passed.add(info)  # so that it can write even if we are dead by then
        args += bwrap.arguments(
            spec,
            home=visible_home(interpreter),
            data=data,
            view=OWN_VIEW,
            layer=OWN_LAYER,
            areas=what.ground.areas,
            seccomp_fd=None if rules is None else lend(memory_file(rules)),
        )
        args += ["--", interpreter.path, "-I", "-S", "-B", program[0], str(passed.add(theirs.fileno()))]
        args += [bwrap.workdir_of(spec), f"slipstream-lease={lease}"]
        limits = bwrap.rlimits(spec, memory_is_metered=is_metered)
        args += [f"{name}={value}" for name, value in limits.items()]
        doors = meter.open_doors()
        for door in doors:
            lent.callback(os.close, door)
        room = LayerRequest(
            num_bytes=spec.limits.disk_mb * bwrap.MB,
            folders=bwrap.folders_of(what.ground.areas, bwrap.workdir_of(spec)),
            terminals="pts",
            view=what.view.name,
        )
        spawned = await keeper.spawn(args, passed, stderr=stderr, doors=doors, room=room)
        undo.pop_all()
    channel = Channel(ours)
    launched = BwrapProcess(
        pid=spawned.pid,
        pidfd=spawned.pidfd,
        info_fd=info,
        stderr_fd=stderr,
        on_end=lambda: channel.lose("the sandbox is gone: bwrap has ended"),
    )
    return launched, spawned.layer, channel
