"""What a machine can isolate is judged from its settings, and from what a sandbox sees of itself."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from slipstream.errors import ConfigError, SandboxError
from slipstream.sandbox.base import Capability, Sandbox
from slipstream.sandbox.host_check.checks import (
    NAMESPACES,
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
)
from slipstream.sandbox.host_check.report import report_local, report_oci
from slipstream.types import SandboxSpec

OK, LIMITED, MISSING = CheckStatus.OK, CheckStatus.LIMITED, CheckStatus.MISSING


def machine(root: Path, **files: str) -> Path:
    """A machine whose files these are; `__` is a slash."""
    for name, text in {"proc__self__ns__user": "", **files}.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("setting", "value", "standing", "remedy"),
    [
        ("proc__sys__user__max_user_namespaces", "0", MISSING, "sudo sysctl user.max_user_namespaces=10000"),
        ("proc__sys__user__max_user_namespaces", "15000", OK, ""),
        (
            "proc__sys__kernel__unprivileged_userns_clone",
            "0",
            MISSING,
            "sudo sysctl kernel.unprivileged_userns_clone=1",
        ),
        (
            "proc__sys__kernel__apparmor_restrict_unprivileged_userns",
            "1",
            LIMITED,
            "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ("proc__sys__kernel__apparmor_restrict_unprivileged_userns", "0", OK, ""),
    ],
)
def test_settings_that_forbid_namespaces_are_named_with_their_remedy(
    tmp_path: Path, setting: str, value: str, standing: CheckStatus, remedy: str
) -> None:
    row = check_user_namespaces(machine(tmp_path, **{setting: value + "\n"}))
    assert (row.standing, row.remedy) == (standing, remedy)


def test_a_kernel_without_user_namespaces_is_told(tmp_path: Path) -> None:
    assert check_user_namespaces(tmp_path).standing is MISSING


def test_a_container_is_told_by_what_engines_leave_in_it(tmp_path: Path) -> None:
    assert check_container(tmp_path).standing is OK
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".containerenv").write_text("")
    assert check_container(tmp_path).standing is LIMITED


def test_a_filter_needs_a_kernel_that_has_it_and_a_machine_that_is_known(tmp_path: Path) -> None:
    assert check_seccomp(tmp_path, "x86_64").standing is MISSING
    root = machine(tmp_path, proc__self__status="Name:\tx\nSeccomp:\t0\n")
    assert check_seccomp(root, "x86_64").standing is OK
    row = check_seccomp(root, "s390x")
    assert row.standing is MISSING and "s390x" in row.meaning and "x86_64" in row.remedy


def test_overlay_needs_a_kernel_that_allows_it_to_users(tmp_path: Path) -> None:
    systems = "nodev\ttmpfs\nnodev\toverlay\n"
    old = machine(tmp_path / "old", proc__sys__kernel__osrelease="5.4.0-42\n", proc__filesystems=systems)
    new = machine(tmp_path / "new", proc__sys__kernel__osrelease="6.1.0\n", proc__filesystems=systems)
    bare = machine(tmp_path / "bare", proc__sys__kernel__osrelease="6.1.0\n", proc__filesystems="nodev\ttmpfs\n")
    assert [check_overlay(root).standing for root in (old, new, bare, tmp_path)] == [MISSING, OK, LIMITED, MISSING]


def test_little_memory_and_little_disk_are_told(tmp_path: Path) -> None:
    assert check_memory(machine(tmp_path, proc__meminfo="MemAvailable:  512000 kB\n")).standing is LIMITED
    row = check_memory(machine(tmp_path, proc__meminfo="MemTotal: 1 kB\nMemAvailable:  8388608 kB\n"))
    assert (row.standing, row.meaning.split()[0]) == (OK, "8192")
    assert check_disk(tmp_path, 5 << 20).standing is LIMITED
    assert check_disk(tmp_path, 5 << 40).standing is OK


def test_who_holds_the_limits_is_told_with_the_reason() -> None:
    assert check_limit_enforcement("cgroup v2", "").standing is OK
    row = check_limit_enforcement("watchdog", "cgroup v2: Permission denied")
    assert row.standing is LIMITED and "Permission denied" in row.meaning
    assert [check_openat2(has_it).standing for has_it in (True, False)] == [OK, LIMITED]


HOST = {name: f"[{4026531835 + index}]" for index, name in enumerate(NAMESPACES)}
CONFINED = "CapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\nNested: 0\n"
OPEN = "CapEff:\t00000000a80425fb\nNoNewPrivs:\t0\nSeccomp:\t0\nNested: 1\n"


def test_a_sandbox_with_everything_of_its_own_is_confined() -> None:
    said = "".join(f"{name}:[99{index}]\n" for index, name in enumerate(NAMESPACES)) + CONFINED
    rows = check_inside(said, HOST, is_ours=True)
    assert len(rows) == len(NAMESPACES) + 4
    assert {row.standing for row in rows} == {OK}


def test_what_a_sandbox_shares_with_the_host_is_named() -> None:
    said = "".join(f"{name}:{HOST[name] if name == 'net' else '[99]'}\n" for name in NAMESPACES) + OPEN
    bad = [row.name for row in check_inside(said, HOST, is_ours=True) if row.standing is MISSING]
    assert bad == [
        "net namespace",
        "nested user namespaces",
        "system call filter",
        "new privileges",
        "capabilities",
    ]
    assert MISSING not in {row.standing for row in check_inside(said, HOST, is_ours=False)}


def test_what_cannot_be_seen_from_inside_is_not_called_good() -> None:
    assert {row.standing for row in check_inside("", HOST, is_ours=True)} == {LIMITED}


MOUNTS = """overlay / overlay ro,nosuid,nodev,relatime,lowerdir=/slipstream/layers/1 0 0
{kind} /usr {kind} ro,nosuid,nodev,relatime 0 0
devtmpfs /dev/null devtmpfs rw,nosuid 0 0
tmpfs /run/endpoints tmpfs ro,nosuid,nodev,relatime 0 0
tmpfs /work tmpfs rw,nosuid,nodev,relatime 0 0
"""


def test_shared_files_without_an_overlay_are_told() -> None:
    assert check_shared_files(CONFINED + MOUNTS.format(kind="overlay")).standing is OK
    row = check_shared_files(CONFINED + MOUNTS.format(kind="ext4"))
    assert row.standing is LIMITED and "files in /usr reach other sandboxes" in row.meaning and "overlay" in row.remedy
    assert check_shared_files(CONFINED).standing is LIMITED


class Refusing:
    """A provider that does not work here."""

    capabilities: frozenset[Capability] = frozenset()

    def __init__(self, *, at_check: bool) -> None:
        self._at_check = at_check

    def check(self) -> None:
        if self._at_check:
            raise ConfigError("nothing works here: buy another machine")

    def check_spec(self, spec: SandboxSpec) -> None:
        """Takes any."""

    async def open(self, spec: SandboxSpec) -> Sandbox:
        raise SandboxError("it did not\ncome up")

    async def aclose(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize("at_check", [True, False])
def test_a_provider_that_does_not_work_is_told_and_raises_nothing(tmp_path: Path, at_check: bool) -> None:
    for survey in (
        asyncio.run(report_local(Refusing(at_check=at_check), home=tmp_path)),
        asyncio.run(report_oci(Refusing(at_check=at_check), home=tmp_path, image="x")),
    ):
        (row,) = [row for row in survey.rows if row.name == "sandbox"]
        assert (survey.usable, row.standing) == (False, MISSING)
        assert ("buy another machine" if at_check else "it did not come up") in row.remedy


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")
def test_this_machine_is_surveyed_with_a_real_sandbox(tmp_path: Path) -> None:
    from slipstream.sandbox.local.provider import LocalProvider

    async def main() -> dict[str, Row]:
        provider = LocalProvider()
        try:
            survey = await report_local(provider, home=tmp_path / "not" / "there")
        finally:
            await provider.aclose()
        assert survey.usable
        assert survey.as_json()["usable"] is True
        return {row.name: row for row in survey.rows}

    rows = asyncio.run(main())
    for name in (
        "bubblewrap",
        "sandbox",
        "net namespace",
        "pid namespace",
        "capabilities",
        "new privileges",
        "shared files",
    ):
        assert rows[name].standing is OK, rows[name]
    assert {"limits", "openat2", "podman", "docker", "disk", "memory", "sandbox over a folder"} <= set(rows)
