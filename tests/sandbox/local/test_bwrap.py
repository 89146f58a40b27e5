"""Why a machine is refused, and that importing the room asks nothing of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.sandbox.local.bwrap import explain_refusal


@pytest.mark.parametrize(
    ("path", "text", "remedy"),
    [
        ("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n", "AppArmor"),
        ("proc/sys/kernel/unprivileged_userns_clone", "0\n", "kernel.unprivileged_userns_clone=1"),
        ("proc/sys/user/max_user_namespaces", "0\n", "user.max_user_namespaces=10000"),
        (".dockerenv", "", "seccomp=unconfined"),
        ("run/.containerenv", "", "seccomp=unconfined"),
        ("proc/sys/user/max_user_namespaces", "100\n", "unshare --user"),
    ],
)
def test_the_remedy_follows_what_the_machine_says(tmp_path: Path, path: str, text: str, remedy: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    said = explain_refusal("bwrap: No permissions\nbwrap: No permissions\n", tmp_path)
    assert remedy in said and "(bwrap: No permissions; bwrap: No permissions)" in said and "\n" not in said
    for refused in ("spawn: starting process 1: Operation not permitted", "process 1: OSError: making namespaces: No"):
        assert remedy in explain_refusal(refused, tmp_path)


@pytest.mark.parametrize(
    "complaint", ["bwrap: execvp /usr/bin/python3: No such file or directory", "ModuleNotFoundError: ctypes", ""]
)
def test_a_python_that_cannot_run_the_keeper_is_named(tmp_path: Path, complaint: str) -> None:
    (tmp_path / ".dockerenv").touch()
    assert "install Python 3.8 or later as /usr/bin/python3" in explain_refusal(complaint, tmp_path)


def test_importing_loads_the_standard_library_alone() -> None:
    script = "import sys; before = set(sys.modules); import slipstream.sandbox; print(*(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names) == {"slipstream"}
