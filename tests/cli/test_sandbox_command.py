"""`slipstream sandbox` and `slipstream bench sandbox`, as a user types them."""

import os
import sys
from pathlib import Path

import pytest
from cli_stage import refused, slipstream

from slipstream.sandbox.cleanup.lease import LEASES

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")


def test_check_says_what_the_machine_can_isolate_for_programs_and_for_people(tmp_path: Path) -> None:
    ended = slipstream("sandbox", "check", "--json", cwd=tmp_path)
    told = ended.json
    assert (ended.code, told["provider"], told["usable"]) == (0, "local", True)
    assert all(set(check) == {"name", "standing", "meaning", "remedy"} for check in told["checks"])
    assert {check["standing"] for check in told["checks"]} <= {"ok", "limited", "missing"}
    ended = slipstream("sandbox", "check", "local", cwd=tmp_path)
    assert ended.code == 0
    assert "local sandboxes can be used here" in ended.out
    assert "net namespace" in ended.out


def test_reap_clears_away_a_dead_lease_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "home"))
    ended = slipstream("sandbox", "reap", "--json", cwd=tmp_path)
    assert (ended.code, ended.json["leases"]) == (0, [])
    dead = tmp_path / "home" / LEASES / "00112233445566ff"
    dead.mkdir(parents=True)
    (dead / "lock").write_text("")
    assert ended.json["num_folders"] == 0
    ended = slipstream("sandbox", "reap", cwd=tmp_path)
    assert ended.code == 0 and "1 cleared away" in ended.out
    assert os.listdir(dead.parent) == []  # noqa: PTH208


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    assert "name one of local, oci" in refused("sandbox", "check", "docker", cwd=tmp_path)
    assert "--image" in refused("sandbox", "check", "local", "--image", "x", cwd=tmp_path)
    assert "--image" in refused("bench", "sandbox", "--provider", "oci", cwd=tmp_path)
    assert "local or oci" in refused("bench", "sandbox", "--provider", "cloud", cwd=tmp_path)
