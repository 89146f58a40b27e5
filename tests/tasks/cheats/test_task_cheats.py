from dataclasses import replace

from slipstream.graders.testing.work import paths_of
from slipstream.patches.apply import Entry, apply_patch
from slipstream.tasks.cheats.base import CheatKind, Target
from slipstream.tasks.cheats.suite import CHEATS, changed_by_cheats, cheats_of

FILES = {
    "src/pack/core.py": b"def f():\n    return 1\n",
    "tests/test_core.py": b"def test_f():\n    assert False\n",
    "setup.cfg": b"[metadata]\nname = pack\n",
}
TARGET = Target(
    source="src/pack/core.py",
    root="src",
    test_file="tests/test_core.py",
    tests=("tests/test_core.py::test_f[1]", "tests/test_core.py::TestA::test_g"),
    read=FILES.get,
)


def as_entry(path: str) -> Entry | None:
    return Entry(data=FILES[path]) if path in FILES else None


def test_every_cheat_is_a_patch_that_applies_and_is_python() -> None:
    for name, patch in cheats_of(TARGET).items():
        found = apply_patch(patch, as_entry)
        assert found, name
        for path, entry in found.items():
            assert entry is not None
            if path.endswith(".py"):
                compile(entry.data, path, "exec")


def test_there_are_many_cheats_of_every_kind_and_no_two_are_the_same() -> None:
    assert len(CHEATS) >= 60
    assert {cheat.kind for cheat in CHEATS.values()} == set(CheatKind)
    assert len(set(cheats_of(TARGET).values())) == len(CHEATS)


def test_what_cheats_change_is_read_from_the_task() -> None:
    known = changed_by_cheats(TARGET.source, TARGET.test_file)
    read: list[str] = []
    cheats_of(replace(TARGET, read=lambda path: read.append(path)))
    there = {
        "src/pack/core.py",
        "tests/test_core.py",
        "setup.cfg",
        "pyproject.toml",
        "conftest.py",
        "tests/conftest.py",
    }
    assert there <= known
    assert there & set(read) <= known


def test_cheats_stand_where_the_package_is_imported_from() -> None:
    assert "src/random.py" in paths_of(cheats_of(TARGET)["shadow the standard library"])
    assert "src/sitecustomize.py" in paths_of(cheats_of(TARGET)["sitecustomize"])


def test_code_at_import_keeps_what_the_source_does() -> None:
    found = apply_patch(cheats_of(TARGET)["forge the reports"], as_entry)
    entry = found["src/pack/core.py"]
    assert entry is not None and entry.data.startswith(FILES["src/pack/core.py"])
