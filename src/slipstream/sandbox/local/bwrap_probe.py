"""Which bubblewrap and which Python this machine can run local sandboxes with, found by opening one.

Input: how a provider is made with them. Output: the two, or a ConfigError that says what to do.
Invariants: they were seen to work; the sandbox of the trial and its provider are closed; what works is tried once in
a process, what does not is tried again.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable

from slipstream.errors import ConfigError, SlipstreamError
from slipstream.sandbox.base import SandboxProvider
from slipstream.sandbox.local import bwrap
from slipstream.types import SandboxSpec

MakeProvider = Callable[[bwrap.Program, bwrap.Interpreter], SandboxProvider]


@functools.cache
def tools(make: MakeProvider, use_base_python: bool) -> tuple[bwrap.Program, bwrap.Interpreter]:
    """What this machine runs sandboxes with, tried out once. Raises ConfigError, each time, if it cannot."""
    program = bwrap.find_bwrap()
    interpreters = [bwrap.own_interpreter()]
    if use_base_python:
        interpreters.insert(0, bwrap.base_interpreter())
    complaints = []
    for interpreter in interpreters:
        complaint = try_out(make(program, interpreter))
        if not complaint:
            return program, interpreter
        complaints.append(complaint)
    raise ConfigError(bwrap.explain_refusal("\n".join(complaints)))


def try_out(provider: SandboxProvider) -> str:
    """Open a sandbox, then close the provider with it. Empty if that works, else what was complained about."""
    said = [""]

    async def try_it() -> None:
        try:
            await provider.open(SandboxSpec())
        except SlipstreamError as error:
            said[0] = str(error)
        finally:
            await provider.aclose()

    thread = threading.Thread(target=lambda: asyncio.run(try_it()))  # there may be an event loop in this one
    thread.start()
    thread.join()
    return said[0]
