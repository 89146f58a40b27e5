"""Sandboxes: where an agent's commands run. A provider turns a SandboxSpec into an open Sandbox.

Invariants: importing this loads only the standard library, on every system; `SandboxProvider.check` says what a machine
lacks.
"""

from slipstream.sandbox.base import Captured, ExecResult, Sandbox, SandboxProvider, Shell, ShellResult
from slipstream.sandbox.fake import FakeProvider, FakeSandbox
from slipstream.sandbox.local.provider import LocalProvider
from slipstream.sandbox.ready import open_sandbox

__all__ = [
    "Captured",
    "ExecResult",
    "FakeProvider",
    "FakeSandbox",
    "LocalProvider",
    "Sandbox",
    "SandboxProvider",
    "Shell",
    "ShellResult",
    "open_sandbox",
]
