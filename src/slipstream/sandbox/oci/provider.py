"""The `oci` provider: sandboxes that are podman or docker containers.

Input: a SandboxSpec whose base is the name of an image, or `dockerfile:PATH`. Output: a Sandbox whose process 1 is our
supervisor, reached through a socket in a folder mounted into the container, so that a command needs no call of the
engine. Invariants: when `aclose` returns, or `open` raises or is cancelled, the container is gone; containers and
snapshot images have the label of their lease, and `remove` deletes what a killed run left of them.

The container runs as the image's own user unless another is configured: an image's files mostly belong to root, who has
no capabilities here and sees nothing of the host except a read-only folder with the supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slipstream.errors import ConfigError, SandboxError, boundary
from slipstream.sandbox.base import Capability
from slipstream.sandbox.blame import Probe
from slipstream.sandbox.cleanup.lease import Lease
from slipstream.sandbox.limits import check_limits
from slipstream.sandbox.oci import arguments
from slipstream.sandbox.oci.arguments import BuildSpec, ContainerOptions, DiskLimit, Image, Python
from slipstream.sandbox.oci.container import Container, remove_container
from slipstream.sandbox.oci.engine import Engine, EngineFacts, ask_facts, explain, find_engine, finish
from slipstream.sandbox.oci.leftovers import leftovers, remove, remove_images
from slipstream.sandbox.oci.sandbox import LayeredOciSandbox, OciSandbox
from slipstream.types import SandboxSpec

__all__ = ["BuildSpec", "OciProvider", "leftovers", "remove"]

log = logging.getLogger(__name__)

PULL_TIMEOUT_S = 1800.0
BUILD_TIMEOUT_S = 3600.0
WATCH_INTERVAL_S = 1.0
NO_SUCH_IMAGE = re.compile("short-name|manifest unknown|not found|invalid reference|access.*denied", re.IGNORECASE)
"""Matches an engine's error for an image that no retry will find."""


_launch_options_by_image: dict[tuple[str, str, bool, ContainerOptions], tuple[Python, ContainerOptions]] = {}
"""The Python and options that containers of an image run with, cached for this process once they worked."""


class OciProvider:
    """Containers on this machine.

    `engine` is podman or docker, by default the first that responds. `runtime` is the engine's, by default its own
    choice, or else crun or runc, whichever works. `user` runs the programs, by default the image's own user. With
    `read_only` the image is read-only, and the workdir and /tmp are in memory, so that the disk limit is hard; then
    there are no Changes and no Snapshots. `extra_args` are added to every `run`, `build_args` to every `build`.
    """

    def __init__(
        self,
        *,
        engine: str | None = None,
        runtime: str | None = None,
        lease: Lease | None = None,
        network: str = "none",
        user: str | None = None,
        read_only: bool = False,
        use_image_python: bool = True,
        start_timeout_s: float = 60.0,
        num_starting: int = 4,
        extra_args: Sequence[str] = (),
        build_args: Sequence[str] = (),
    ) -> None:
        self._engine_name = engine
        self._runtime = runtime
        self._lease = lease
        self._lease_id = lease.id if lease is not None else secrets.token_hex(8)
        self._network = network
        self._user = user
        self._read_only = read_only
        self._use_image_python = use_image_python
        self._start_timeout_s = start_timeout_s
        self._extra_args = tuple(extra_args)
        self._build_args = tuple(build_args)
        self._engine: Engine | None = None
        self._facts: EngineFacts | None = None
        self._home: Path | None = None
        self._images: dict[str, Image] = {}
        self._holders: Counter[str] = Counter()
        self._has_snapshots = False
        self._open: set[OciSandbox] = set()
        self._numbers = itertools.count(1)
        self._starting = asyncio.Semaphore(num_starting)
        self._preparing = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        self.probe = Probe(lambda spec: self.open(spec))

    @property
    def capabilities(self) -> frozenset[Capability]:
        if self._read_only:
            return frozenset({Capability.ENDPOINTS})
        return frozenset({Capability.CHANGES, Capability.SNAPSHOTS, Capability.ENDPOINTS})

    @property
    def lease_id(self) -> str:
        """The value of its containers' label `slipstream.lease`."""
        return self._lease_id

    # ---------------------------------------------------------------- what is here

    def check(self) -> None:
        self._find()

    def check_spec(self, spec: SandboxSpec) -> None:
        arguments.workdir_of(spec)
        check_limits(spec.limits)
        if spec.tree:
            raise ConfigError(f"containers do not support a tree ({spec.tree!r}): put its files into the image")
        if spec.base == "host" or spec.base.startswith("/"):
            raise ConfigError(
                f"the base {spec.base!r} is not an image: name one, such as 'docker.io/library/python:3.12'"
            )
        build = arguments.build_of(spec.base)
        if build is None and spec.base not in self._images:
            self._look(spec.base)

    def _look(self, name: str) -> None:
        """Raise ConfigError for a local image that does not exist."""
        if not name.startswith("localhost/"):
            return
        engine = self._find()
        if engine.call_blocking(["image", "inspect", name]).exit_code != 0:
            raise ConfigError(
                f"there is no local image {name!r}: build or import it; `{engine.kind} images` lists those there are"
            )

    def _find(self) -> Engine:
        if self._engine is None:
            self._engine = find_engine(self._engine_name)
        return self._engine

    async def facts(self) -> dict[str, str]:
        """How sandboxes are confined here, for display."""
        engine, facts = await self._prepare()
        return {
            "engine": f"{engine.kind} {facts.version}",
            "runtime": self._runtime or facts.runtime,
            "user": "your own" if facts.is_rootless else "root of this machine, without capabilities",
            "memory": "the container" if facts.limits_memory else "each process",
            "processes": "the container" if facts.limits_processes else "each user",
            "disk": str(self._disk(facts)),
            "seccomp": "the engine's profile" if facts.has_seccomp else "none",
            "network": self._network,
        }

    def _disk(self, facts: EngineFacts) -> DiskLimit:
        if self._read_only:
            return DiskLimit.MEMORY
        return DiskLimit.QUOTA if facts.has_quota else DiskLimit.WATCHED

    async def _prepare(self) -> tuple[Engine, EngineFacts]:
        engine = await asyncio.to_thread(self._find) if self._engine is None else self._engine
        if self._facts is None:
            self._facts = await ask_facts(engine)
        return engine, self._facts

    # ---------------------------------------------------------------- images

    async def build(self, spec: BuildSpec) -> str:
        """Build an image unless one was built from the same context; returns its name, to use as a base."""
        engine, _ = await self._prepare()
        tag = await asyncio.to_thread(arguments.tag_of, spec)
        async with self._preparing:
            if (await engine.call(["image", "inspect", tag])).exit_code != 0:
                options = ContainerOptions(kind=engine.kind, runtime=self._runtime)
                args = arguments.build(spec, tag=tag, options=options, extra=self._build_args)
                await engine.must(args, timeout_s=BUILD_TIMEOUT_S)
        return tag

    async def _image(self, base: str) -> Image:
        """The image for a base, pulled or built if necessary."""
        if (build := arguments.build_of(base)) is not None:
            base = await self.build(build)  # each time, since the context may have changed
        if (known := self._images.get(base)) is not None:
            return known
        engine, _ = await self._prepare()
        async with self._preparing:
            result = await engine.call(["image", "inspect", base])
            if result.exit_code != 0:
                if base.startswith("localhost/"):
                    raise ConfigError(f"there is no local image {base!r}: build or import it")
                pulled = await engine.call(["pull", "--quiet", base], timeout_s=PULL_TIMEOUT_S)
                if pulled.exit_code != 0:
                    kind = ConfigError if NO_SUCH_IMAGE.search(pulled.stderr) else SandboxError
                    raise kind(f"the image {base!r} is not local and cannot be pulled: {pulled.stderr}")
                result = await engine.call(["image", "inspect", base])
            try:
                self._images[base] = arguments.read_image(result.stdout)
            except (ValueError, LookupError, TypeError) as error:
                raise SandboxError(
                    f"the output of `{engine.kind} image inspect {base}` could not be parsed: {error!r}"
                ) from error
        return self._images[base]

    async def _launch_options(self, image: Image) -> tuple[Python, ContainerOptions]:
        """The Python and options for containers of an image, tested once per process. Raises ConfigError if none
        work."""
        engine, facts = await self._prepare()
        asked = self._choices(engine, facts)
        key = (engine.path, image.id, self._use_image_python, asked)
        if (known := _launch_options_by_image.get(key)) is not None:
            return known
        async with self._preparing:
            if (known := _launch_options_by_image.get(key)) is not None:
                return known
            complaints = []
            for runtime in self._runtimes(facts):
                for python in self._pythons():
                    options = replace(asked, runtime=runtime)
                    complaint = await self._trial_run(image, python, options)
                    if not complaint:
                        _launch_options_by_image[key] = (python, options)
                        return _launch_options_by_image[key]
                    complaints.append(complaint)
            raise ConfigError(explain("; ".join(dict.fromkeys(complaints))))

    def _choices(self, engine: Engine, facts: EngineFacts) -> ContainerOptions:
        return ContainerOptions(
            kind=engine.kind,
            runtime=self._runtime,
            network=self._network,
            user=self._user,
            disk=self._disk(facts),
            extra=self._extra_args,
        )

    def _runtimes(self, facts: EngineFacts) -> list[str | None]:
        if self._runtime is not None:
            return [self._runtime]
        others = [name for name in ("crun", "runc") if name != facts.runtime and shutil.which(name)]
        return [None, *others]

    def _pythons(self) -> list[Python]:
        return [arguments.image_python(), arguments.host_python()][0 if self._use_image_python else 1 :]

    async def _trial_run(self, image: Image, python: Python, options: ContainerOptions) -> str:
        """Run a container that only tests whether the supervisor could run. Returns the error, or "" if it worked."""
        engine, facts = await self._prepare()
        name = self._new_name()
        args = arguments.trial_run(image, name=name, lease=self._lease_id, python=python, options=options, facts=facts)
        try:
            result = await engine.call(args, timeout_s=self._start_timeout_s, cwd=self._private_folder())
        finally:
            await finish(asyncio.ensure_future(remove_container(engine, name)))
        return "" if result.exit_code == 0 else result.stderr or f"{python.path} exited with {result.exit_code}"

    def _new_name(self) -> str:
        return f"slipstream-{self._lease_id}-{next(self._numbers)}"

    # ---------------------------------------------------------------- sandboxes

    async def open(self, spec: SandboxSpec) -> OciSandbox:
        arguments.workdir_of(spec)
        if spec.base == "host" or spec.base.startswith("/"):
            self.check_spec(spec)
        with boundary(SandboxError, "the host could not start a container"):
            image = await self._image(spec.base)
            return await self.start(spec, image, base_image=image, write_files=True)

    async def start(self, spec: SandboxSpec, image: Image, *, base_image: Image, write_files: bool) -> OciSandbox:
        """A container of `image`, which was made from `base_image` and runs like it."""
        engine, facts = await self._prepare()
        python, options = await self._launch_options(base_image)
        name = self._new_name()
        container = Container(engine, name, self._make_folder(name), self._starting)
        args = arguments.run(
            spec,
            image,
            name=name,
            lease=self._lease_id,
            folder=container.folder,
            python=python,
            options=options,
            facts=facts,
        )
        try:
            channel = await container.start(args, timeout_s=self._start_timeout_s)
        except BaseException:
            await finish(asyncio.ensure_future(container.end()))
            raise
        sandbox = (OciSandbox if self._read_only else LayeredOciSandbox)(
            self, container, channel, spec=spec, image=image, base_image=base_image, write_files=write_files
        )
        self._open.add(sandbox)
        self._watch()
        try:
            await sandbox.ready(timeout_s=self._start_timeout_s)
        except BaseException:
            await finish(asyncio.ensure_future(sandbox.aclose()))
            raise
        return sandbox

    def forget(self, sandbox: OciSandbox) -> None:
        self._open.discard(sandbox)

    def _make_folder(self, name: str) -> Path:
        """The host folder to mount into a container: readable by all, inside a folder that only we can enter."""
        folder = self._private_folder() / name
        folder.mkdir()
        folder.chmod(0o755)
        return folder

    def _private_folder(self) -> Path:
        if self._home is None:
            if self._lease is not None:
                self._home = self._lease.folder / "oci"
                self._home.mkdir(mode=0o700, exist_ok=True)
            else:
                self._home = Path(tempfile.mkdtemp(prefix="slipstream-oci-"))
        return self._home

    # ---------------------------------------------------------------- snapshots

    async def commit(self, container: Container, image: Image) -> Image:
        """Save the container's files as an image with one reference. It is removed when the last reference is
        dropped."""
        engine, _ = await self._prepare()
        self._has_snapshots = True
        committing = asyncio.ensure_future(engine.must(arguments.commit(container.name, self._lease_id)))
        try:
            stdout = await asyncio.shield(committing)
        except asyncio.CancelledError:
            with contextlib.suppress(SandboxError):
                await self._remove_image((await committing).strip().splitlines()[-1])
            raise
        committed = replace(image, id=stdout.strip().splitlines()[-1])
        self._holders[committed.id] = 1
        return committed

    def hold(self, image: Image) -> None:
        if self._holders[image.id]:
            self._holders[image.id] += 1

    async def release(self, image: Image) -> None:
        """Drop a reference. Only images made by `commit` are counted."""
        if self._holders[image.id]:
            self._holders[image.id] -= 1
            if not self._holders[image.id]:
                del self._holders[image.id]
                await self._remove_image(image.id)

    async def _remove_image(self, image_id: str) -> None:
        result = await self._find().call(["rmi", image_id])
        if result.exit_code != 0:  # other images depend on it: it is removed with the provider
            log.debug("the image %s stays for now: %s", image_id, result.stderr)

    # ---------------------------------------------------------------- limits, and the end

    def _watch(self) -> None:
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch_all())

    async def _watch_all(self) -> None:
        """Enforce, for every open sandbox, the limits that the engine does not."""
        while self._open:
            await asyncio.sleep(WATCH_INTERVAL_S)
            for sandbox in list(self._open):
                try:
                    await sandbox.look_at_limits()
                except Exception as error:  # one failure must not stop the checks of the others
                    log.warning("the limits of %s could not be checked: %s", sandbox.id, error)

    async def aclose(self) -> None:
        await self.probe.aclose()
        ended = await asyncio.gather(*(sandbox.aclose() for sandbox in self._open), return_exceptions=True)
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
            self._watching = None
        if self._engine is not None and self._has_snapshots:
            self._holders.clear()
            self._has_snapshots = False
            await asyncio.to_thread(remove_images, self._engine, self._lease_id)
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None
        for error in ended:
            if error is not None:
                raise error
