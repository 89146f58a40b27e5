"""Leases: who holds one is alive, and what is left of the dead can be taken over by one."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from lease_stage import dead_lease, killed_lease

from slipstream.errors import ConfigError
from slipstream.sandbox.cleanup.lease import (
    FACTS,
    LEASES,
    LOCK,
    NEW,
    LeaseOwner,
    is_of_another_machine,
    lease_folders,
    own_facts,
    read_facts,
    take_dead,
    take_lease,
)


def test_a_lease_has_a_private_folder_that_tells_who_holds_it(tmp_path: Path) -> None:
    lease = take_lease(tmp_path / "home")
    assert lease.folder == tmp_path / "home" / LEASES / lease.id
    assert stat.S_IMODE(lease.folder.stat().st_mode) == stat.S_IMODE(lease.folder.parent.stat().st_mode) == 0o700
    assert read_facts(lease.folder) == own_facts()
    assert own_facts().pid == os.getpid()
    lease.release()
    assert lease_folders(tmp_path / "home") == []
    lease.release()


def test_every_lease_has_a_name_of_its_own(tmp_path: Path) -> None:
    leases = [take_lease(tmp_path) for _ in range(20)]
    assert len({lease.id for lease in leases}) == 20
    assert lease_folders(tmp_path) == sorted(lease.folder for lease in leases)
    for lease in leases:
        lease.release()


def test_a_live_lease_cannot_be_taken_over_and_a_killed_one_can_by_one_alone(tmp_path: Path) -> None:
    own = take_lease(tmp_path)
    assert take_dead(own.folder) is None
    folder = killed_lease(tmp_path)
    taken = take_dead(folder)
    assert taken is not None and taken.id == folder.name
    assert take_dead(folder) is None, "another reaper has it"
    taken.unlock()
    again = take_dead(folder)
    assert again is not None
    (folder / "sub" / "deeper").mkdir(parents=True)
    again.release()
    assert lease_folders(tmp_path) == [own.folder]
    own.release()


def test_a_lease_that_is_being_made_survives_those_who_look_for_dead_ones(tmp_path: Path) -> None:
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            for folder in lease_folders(tmp_path):
                if (dead := take_dead(folder)) is not None:
                    dead.release()

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        leases = [take_lease(tmp_path) for _ in range(200)]
    finally:
        stop.set()
        for looker in lookers:
            looker.join()
    assert all((lease.folder / FACTS).is_file() and (lease.folder / LOCK).is_file() for lease in leases)
    for lease in leases:
        lease.release()
    assert lease_folders(tmp_path) == []


def test_another_who_clears_away_the_folder_first_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = take_dead(dead_lease(tmp_path))
    assert taken is not None
    rmdir = Path.rmdir

    def late(folder: Path) -> None:
        monkeypatch.undo()
        assert take_dead(folder) is None and not folder.exists(), "it has no lock any more: another removes it"
        rmdir(folder)

    monkeypatch.setattr(Path, "rmdir", late)
    taken.release()
    assert lease_folders(tmp_path) == []


def test_what_is_left_of_an_unfinished_lease_is_cleared_away(tmp_path: Path) -> None:
    unlocked = tmp_path / LEASES / f"{NEW}00112233445566aa"
    unlocked.mkdir(parents=True)
    half = tmp_path / LEASES / "00112233445566bb"
    half.mkdir()
    assert take_dead(unlocked) is None and take_dead(half) is None
    assert not unlocked.exists() and not half.exists()


def test_other_things_in_the_folder_are_no_leases(tmp_path: Path) -> None:
    (tmp_path / LEASES / "notes").mkdir(parents=True)
    (tmp_path / LEASES / "00112233445566AA").mkdir()
    assert lease_folders(tmp_path) == []
    assert lease_folders(tmp_path / "nowhere") == []


def test_a_link_with_the_name_of_a_lease_is_left_alone(tmp_path: Path) -> None:
    folder = dead_lease(tmp_path / "one")
    (tmp_path / "two" / LEASES).mkdir(parents=True)
    link = tmp_path / "two" / LEASES / folder.name
    link.symlink_to(folder)
    assert take_dead(link) is None
    assert (folder / LOCK).is_file()


def test_a_home_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="SLIPSTREAM_HOME"):
        take_lease(tmp_path / "file")


def test_only_a_holder_of_another_host_and_another_boot_may_be_unseen_from_here() -> None:
    here = own_facts()
    elsewhere = LeaseOwner(pid=1, start_ticks=0, boot_id="other", host="other")
    assert is_of_another_machine(elsewhere)
    assert not is_of_another_machine(LeaseOwner(pid=1, start_ticks=0, boot_id="earlier", host=here.host))
    assert not is_of_another_machine(LeaseOwner(pid=1, start_ticks=0, boot_id=here.boot_id, host="a container"))
    assert not is_of_another_machine(None)


REMOVER = """
import os, sys
sys.path[:0] = sys.argv[2].split(os.pathsep)
from pathlib import Path
from slipstream.sandbox.cleanup.lease import remove_tree
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
remove_tree(Path(sys.argv[1]))
"""


def test_a_tree_is_removed_with_folders_nobody_may_enter_and_links_are_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("stays")
    tree = tmp_path / "tree"
    (tree / "closed" / "inner").mkdir(parents=True)
    (tree / "closed" / "inner" / "file").write_text("goes")
    (tree / "link").symlink_to(kept)
    (tree / "closed" / "inner").chmod(0)
    (tree / "closed").chmod(0)
    if os.geteuid() == 0:  # modes do not bind root
        for path in (tmp_path, tree, tree / "closed", tree / "closed/inner", tree / "closed/inner/file"):
            os.chown(path, 65534, 65534)
        for folder in tmp_path.parents:
            if folder.stat().st_mode & 0o055 != 0o055:  # pytest's own, of which there is one more under xdist
                folder.chmod(0o755)
    subprocess.run([sys.executable, "-c", REMOVER, str(tree), os.pathsep.join(sys.path)], check=True, timeout=60)
    assert not tree.exists() and (kept / "file").read_text() == "stays"
