"""Sandboxes: where an agent's commands run. Enters a SandboxSpec, leaves an open Sandbox.

Invariants: importing this loads the standard library alone, on every system; what a machine lacks is said by
`SandboxProvider.check`.
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
