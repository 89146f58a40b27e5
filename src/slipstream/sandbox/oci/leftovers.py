"""Containers, and images of snapshots, that a killed run left.

Input: the id of a lease. Output: what carries it, or nothing once it is removed. Invariants: nothing is touched that
does not carry the label of that lease. All of it blocks.
"""

from __future__ import annotations

from slipstream.errors import SandboxError
from slipstream.sandbox.cleanup.lease import LABEL
from slipstream.sandbox.oci import arguments
from slipstream.sandbox.oci.engine import Engine, EngineKind, installed

ROUNDS = 5
"""How often what was left is looked through: an image goes only after the images that were made from it."""


def leftovers(lease: str) -> list[str]:
    """The containers and images that carry a lease, as `podman container ID`."""
    found = []
    for engine in installed():
        found += [f"{engine.kind} container {name}" for name in _containers(engine, lease)]
        found += [f"{engine.kind} image {name}" for name in _image_ids(engine, lease)]
    return found


def remove(lease: str) -> None:
    """Remove them. Raises SandboxError if something does not go away."""
    for engine in installed():
        for name in _containers(engine, lease):
            said = engine.call_blocking(arguments.remove(engine.kind, name))
            if said.code != 0 and name in _containers(engine, lease):
                raise SandboxError(f"the container {name} cannot be removed: {said.complaint}")
        remove_images(engine, lease)


def remove_images(engine: Engine, lease: str) -> None:
    said = ""
    for _ in range(ROUNDS):
        there = _image_ids(engine, lease)
        if not there:
            return
        for name in there:
            said = engine.call_blocking(["rmi", "--force", name]).complaint
    if there := _image_ids(engine, lease):
        raise SandboxError(f"the images {there} cannot be removed: {said}")


def _containers(engine: Engine, lease: str) -> list[str]:
    return _listed(engine, ["ps", "--all", "--filter", f"label={LABEL}={lease}", "--format", "{{.ID}}"])


def _image_ids(engine: Engine, lease: str) -> list[str]:
    return _listed(engine, ["images", "--filter", f"label={LABEL}={lease}", "--format", "{{.ID}}"])


def _listed(engine: Engine, args: list[str]) -> list[str]:
    said = engine.call_blocking(args)
    if said.code != 0:
        if engine.kind is EngineKind.DOCKER:  # its daemon does not run: then nothing of its runs
            return []
        raise SandboxError(f"`{engine.kind} {args[0]}` failed: {said.complaint}")
    return list(dict.fromkeys(said.out.split()))
