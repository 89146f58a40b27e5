"""Finds the bubblewrap and the Python that local sandboxes can run with here, by opening one.

Input: a way to make a provider with them. Output: the two, or a ConfigError that says what to do. Invariants: they were
tested; the test's sandbox and provider are closed; a success is cached for the process, a failure is not.
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
def find_tools(make: MakeProvider, use_system_python: bool) -> tuple[bwrap.Program, bwrap.Interpreter]:
    """The bubblewrap and Python that work here, tested once. Raises ConfigError, each time, if none do."""
    program = bwrap.find_bwrap()
    interpreters = [bwrap.own_interpreter()]
    if use_system_python:
        interpreters.insert(0, bwrap.system_interpreter())
    complaints = []
    for interpreter in interpreters:
        complaint = try_open(make(program, interpreter))
        if not complaint:
            return program, interpreter
        complaints.append(complaint)
    raise ConfigError(bwrap.explain_refusal("\n".join(complaints)))


def try_open(provider: SandboxProvider) -> str:
    """Open a sandbox, then close the provider. Returns the error, or "" if it worked."""
    said = [""]

    async def try_it() -> None:
        try:
            await provider.open(SandboxSpec())
        except SlipstreamError as error:
            said[0] = str(error)
        finally:
            await provider.aclose()

    thread = threading.Thread(target=lambda: asyncio.run(try_it()))  # the current thread may have an event loop
    thread.start()
    thread.join()
    return said[0]
