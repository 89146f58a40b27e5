"""Finds and removes containers and snapshot images that a killed run left behind.

Input: the id of a lease. Invariants: only what has the label of that lease is touched. Everything here blocks.
"""

from __future__ import annotations

from slipstream.errors import SandboxError
from slipstream.sandbox.cleanup.lease import LABEL
from slipstream.sandbox.oci import arguments
from slipstream.sandbox.oci.engine import Engine, EngineKind, installed

ROUNDS = 5
"""How often to retry: an image can be removed only after the images that were made from it."""


def leftovers(lease: str) -> list[str]:
    """The containers and images with this lease, as `podman container ID`."""
    found = []
    for engine in installed():
        found += [f"{engine.kind} container {name}" for name in _containers(engine, lease)]
        found += [f"{engine.kind} image {name}" for name in _image_ids(engine, lease)]
    return found


def remove(lease: str) -> None:
    """Remove them. Raises SandboxError if something cannot be removed."""
    for engine in installed():
        for name in _containers(engine, lease):
            result = engine.call_blocking(arguments.remove(engine.kind, name))
            if result.exit_code != 0 and name in _containers(engine, lease):
                raise SandboxError(f"the container {name} cannot be removed: {result.stderr}")
        remove_images(engine, lease)


def remove_images(engine: Engine, lease: str) -> None:
    stderr = ""
    for _ in range(ROUNDS):
        there = _image_ids(engine, lease)
        if not there:
            return
        for name in there:
            stderr = engine.call_blocking(["rmi", "--force", name]).stderr
    if there := _image_ids(engine, lease):
        raise SandboxError(f"the images {there} cannot be removed: {stderr}")


def _containers(engine: Engine, lease: str) -> list[str]:
    return _listed(engine, ["ps", "--all", "--filter", f"label={LABEL}={lease}", "--format", "{{.ID}}"])


def _image_ids(engine: Engine, lease: str) -> list[str]:
    return _listed(engine, ["images", "--filter", f"label={LABEL}={lease}", "--format", "{{.ID}}"])


def _listed(engine: Engine, args: list[str]) -> list[str]:
    result = engine.call_blocking(args)
    if result.exit_code != 0:
        if engine.kind is EngineKind.DOCKER:  # its daemon is not running, so neither are containers
            return []
        raise SandboxError(f"`{engine.kind} {args[0]}` failed: {result.stderr}")
    return list(dict.fromkeys(result.stdout.split()))
