"""What local sandboxes stand on: trees, bases that are folders, snapshots; and what holds them to their disk."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
from asyncio import StreamReader, StreamWriter
from pathlib import Path

import pytest
from local_stage import provided

from slipstream.errors import ConfigError, SandboxBroken, SandboxError, SandboxFileError, SandboxLimitError
from slipstream.patches.apply import Entry, apply_patch
from slipstream.sandbox import LocalProvider, Sandbox, open_sandbox
from slipstream.sandbox.local.bwrap import can_be_reached
from slipstream.sandbox.local.sandbox import LocalSandbox
from slipstream.sandbox.pool.pool import Pool
from slipstream.types import File, SandboxLimits, SandboxSpec

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")
needs_root = pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root becomes someone else")

SMALL = SandboxLimits(memory_mb=256, processes=64, disk_mb=32, file_mb=32)


async def sh(sandbox: Sandbox, script: str) -> str:
    """What a script that must succeed writes."""
    result = await sandbox.exec(["/bin/sh", "-c", script], timeout_s=30)
    assert result.exit_code == 0, result.stdout.text() + result.stderr.text()
    return result.stdout.text()


def open_to_all(folder: Path) -> Path:
    """Whoever runs a sandbox of root owns nothing: he must be able to come here."""
    for place in (folder, *folder.parents):
        if place.stat().st_uid == os.geteuid() and place != Path("/tmp"):
            place.chmod(place.stat().st_mode | 0o055)
    return folder


def make_tree(folder: Path) -> Path:
    tree = folder / "tree"
    (tree / "sub" / "deep").mkdir(parents=True)
    (tree / "kept").write_text("kept\n")
    (tree / "changed").write_text("one\ntwo\n")
    (tree / "deleted").write_text("gone soon\n")
    (tree / "sub" / "moved").write_text("moved\n")
    (tree / "sub" / "deep" / "file").write_text("deep\n")
    (tree / "program").write_text("#!/bin/sh\necho ran\n")
    (tree / "program").chmod(0o755)
    (tree / "link").symlink_to("kept")
    return open_to_all(tree)


def digest(folder: Path) -> str:
    """All that there is below a folder: names, modes, owners, times and contents."""
    told = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        facts = path.lstat()
        told.update(repr((str(path.relative_to(folder)), facts.st_mode, facts.st_uid, facts.st_mtime_ns)).encode())
        if path.is_symlink():
            told.update(os.fsencode(path.readlink()))
        elif path.is_file():
            told.update(path.read_bytes())
    return told.hexdigest()


# ---------------------------------------------------------------- trees


WORK = """
set -e
test "$(cat kept changed sub/moved link | tr '\\n' ' ')" = "kept one two moved kept "
test "$(./program)" = ran
echo three >> changed; rm deleted; mv sub/moved sub/there; rm -r sub/deep; mkdir sub/deep; echo new > sub/deep/new
chmod 644 program; ln -sf changed link; echo added > added
"""


async def work_on(tree: Path) -> None:
    """Change all of a tree in one sandbox, and see that no other sees any of it."""
    spec = SandboxSpec(tree=str(tree), limits=SMALL)
    async with provided() as provider:
        one, other = await asyncio.gather(provider.open(spec), provider.open(spec))
        assert (await one.changes()).paths == ()
        await sh(one, WORK)
        changed = await one.changes()
        assert changed.paths == (
            "added",
            "changed",
            "deleted",
            "link",
            "program",
            "sub/deep/file",
            "sub/deep/new",
            "sub/moved",
            "sub/there",
        )
        assert changed.left_out == {}
        assert (await one.changes("sub/deep")).paths == ("file", "new")
        later = await provider.open(spec)
        for sandbox in (other, later):
            assert (await sandbox.changes()).paths == ()
            assert await sh(sandbox, "cat changed deleted sub/moved sub/deep/file link; ls") == (
                "one\ntwo\ngone soon\nmoved\ndeep\nkept\nchanged\ndeleted\nkept\nlink\nprogram\nsub\n"
            )

        def before(path: str) -> Entry | None:
            place = tree / path
            if place.is_symlink():
                return Entry(data=os.fsencode(place.readlink()), mode=0o120000)
            return Entry(data=place.read_bytes(), mode=_git_mode(place)) if place.is_file() else None

        after = apply_patch(changed.patch, before)
        assert after["changed"] == Entry(data=b"one\ntwo\nthree\n")
        assert after["deleted"] is None and after["sub/moved"] is None and after["sub/deep/file"] is None
        assert after["sub/there"] == Entry(data=b"moved\n")


def _git_mode(path: Path) -> int:
    return 0o100755 if path.stat().st_mode & stat.S_IXUSR else 0o100644


def test_a_tree_is_shared_and_never_changed(tmp_path: Path) -> None:
    tree = make_tree(tmp_path)
    before = digest(tree)
    asyncio.run(work_on(tree))
    assert digest(tree) == before


UNPRIVILEGED = """
import asyncio, sys
from pathlib import Path
sys.path += sys.argv[2:]
import test_local_layers as layers
tree = layers.make_tree(Path(sys.argv[1]))
before = layers.digest(tree)
asyncio.run(layers.work_on(tree))
assert layers.digest(tree) == before
"""


def python_for_all() -> str | None:
    """One that an ordinary user can run, and that can run us."""
    for python in (sys.executable, "/usr/bin/python3"):
        if Path(python).exists() and can_be_reached(Path(python)):
            recent = subprocess.run([python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"])
            if recent.returncode == 0:
                return python
    return None


@needs_root
def test_a_tree_is_shared_and_never_changed_where_an_ordinary_user_runs(tmp_path: Path) -> None:
    setpriv, python = shutil.which("setpriv"), python_for_all()
    if setpriv is None or python is None or not can_be_reached(Path(__file__).parent):
        pytest.skip("an ordinary user cannot run a Python and these tests here")
    os.chown(tmp_path, 12345, 12345)
    open_to_all(tmp_path)
    command = [setpriv, "--reuid=12345", "--regid=12345", "--clear-groups", python, "-c", UNPRIVILEGED, str(tmp_path)]
    places = [str(Path(__file__).parent), *(place for place in sys.path if "site-packages" in place or "src" in place)]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([*command, *places], check=True, timeout=60, env=env, cwd="/")


def test_files_and_setup_are_no_changes_of_the_agents(tmp_path: Path) -> None:
    tree = make_tree(tmp_path)

    async def main() -> None:
        async with provided() as provider:
            spec = SandboxSpec(
                tree=str(tree), files={"changed": File(data=b"given\n")}, setup=("rm deleted",), limits=SMALL
            )
            sandbox = await open_sandbox(provider, spec, timeout_s=30)
            assert isinstance(sandbox, LocalSandbox)
            assert (await sandbox.changes()).paths == ()
            await sandbox.write({"changed": File(data=b"mine\n")})
            changed = await sandbox.changes()
            assert changed.paths == ("changed",)
            assert b"-given\n+mine\n" in changed.patch

    asyncio.run(main())


def test_a_sandbox_of_the_pool_tells_no_given_file_as_a_change() -> None:
    async def main() -> None:
        async with provided() as provider:
            sandbox = await Pool(provider, max_warm=0).open(SandboxSpec(files={"given": File(data=b"x")}, limits=SMALL))
            assert (await sandbox.changes()).paths == ()  # type: ignore[attr-defined]
            await sandbox.write({"made": File(data=b"y")})
            assert (await sandbox.changes()).paths == ("made",)  # type: ignore[attr-defined]

    asyncio.run(main())


# ---------------------------------------------------------------- bases


def libraries(program: Path) -> list[Path]:
    said = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return [Path(place) for place in re.findall(r"(/\S+) \(0x", said)]


def python_libraries() -> set[Path]:
    """Of this system, what the Python that runs now needs."""
    home = Path(sys.base_prefix).resolve()
    parts = [Path(sys.executable).resolve(), *home.glob("lib/python3*/lib-dynload/*.so")]
    return {place for part in parts for place in libraries(part) if not place.is_relative_to(home)}


def make_base(folder: Path) -> Path:
    """The root of a tiny system: a shell, a few programs, and the libraries of these and of our Python, which it does
    not have itself."""
    base = folder / "base"
    for place in python_libraries():
        (base / place.parent.relative_to("/")).mkdir(parents=True, exist_ok=True)
        shutil.copy(place, base / place.relative_to("/"))
    for name in ("sh", "cat", "ls", "rm", "mv", "mkdir", "id", "env", "sleep"):
        program = Path(shutil.which(name) or "/nowhere").resolve()
        for place in (program, *libraries(program)):
            target = base / place.relative_to("/") if place is not program else base / "bin" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                shutil.copy(place, target)
    for name in ("proc", "dev", "tmp", "run", "work", "data"):
        (base / name).mkdir()
    for name in ("work", "data"):
        (base / name).chmod(0o755)
    (base / "etc").mkdir()
    (base / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (base / "data" / "given").write_text("of the base\n")
    if os.geteuid() == 0:  # whoever runs the sandbox is to be able to change what is there
        for path in (base, *base.rglob("*")):
            os.chown(path, 65534, 65534, follow_symlinks=False)
    return open_to_all(base)


def test_a_folder_is_a_base_even_without_a_python(tmp_path: Path) -> None:
    base = make_base(tmp_path)
    before = digest(base)

    async def main() -> None:
        async with provided() as provider:
            spec = SandboxSpec(base=str(base), files={"given": File(data=b"given\n")}, limits=SMALL)
            one, other = await asyncio.gather(provider.open(spec), provider.open(spec))
            assert (await sh(one, "cat /data/given given; id -u; pwd; ls /bin")).split() == [
                *("of", "the", "base", "given", "1000", "/work"),
                *("cat", "env", "id", "ls", "mkdir", "mv", "rm", "sh", "sleep"),
            ]
            assert await sh(one, "cat /etc/passwd") == (
                "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/work:/bin/sh\n"
            )
            assert (await one.exec(["python3", "-V"], timeout_s=30)).exit_code == 127
            assert (await one.changes("/")).paths == ()
            await sh(one, "echo mine > /data/given; rm given; mv /bin/sleep /bin/nap; mkdir /new; echo x > /new/x")
            assert (await one.changes("/data")).paths == ("given",)
            assert (await one.changes()).paths == ("given",)
            assert (await one.changes("/")).paths == (*("bin/nap", "bin/sleep", "data/given", "new/x", "work/given"),)
            assert await sh(other, "cat /data/given given; ls /bin/sleep") == "of the base\ngiven\n/bin/sleep\n"

    asyncio.run(main())
    assert digest(base) == before


@needs_root
def test_a_base_that_belongs_to_root_starts_and_its_workdir_can_be_written(tmp_path: Path) -> None:
    """As an image that root has unpacked: what is in it stays as it is, all else is the agent's."""
    base = make_base(tmp_path)
    (base / "work" / "given").write_text("of the base\n")
    for path in (base, *base.rglob("*")):
        os.chown(path, 0, 0, follow_symlinks=False)

    async def main() -> None:
        async with provided() as provider:
            sandbox = await provider.open(SandboxSpec(base=str(base), limits=SMALL))
            await sh(sandbox, "echo x > made; echo x > /new; mkdir /run/mine; rm given")
            assert (await sandbox.changes("/")).paths == ("new", "work/given", "work/made")
            for attempt in (
                "echo x > /data/given",
                "rm /bin/sleep",
                "echo x > /run/endpoints/x",
            ):
                assert (await sandbox.exec(["sh", "-c", attempt], timeout_s=30)).exit_code != 0, attempt
            fork = await (await sandbox.snapshot()).open()
            assert await sh(fork, "cat made /new; ls; echo more > /run/more") == "x\nx\nmade\n"

    asyncio.run(main())
    assert (base / "work" / "given").read_text() == "of the base\n"


def test_a_snapshot_keeps_what_was_done_to_the_base_and_the_tree(tmp_path: Path) -> None:
    base, tree = make_base(tmp_path), make_tree(tmp_path)

    async def main() -> None:
        async with provided() as provider:
            sandbox = await provider.open(SandboxSpec(base=str(base), tree=str(tree), limits=SMALL))
            await sh(sandbox, "rm deleted /bin/sleep; echo mine > /data/given; echo mine > changed; echo mine > /tmp/x")
            snapshot = await sandbox.snapshot()
            await sandbox.aclose()
            fork = await snapshot.open()
            look = "cat /data/given changed /tmp/x kept; ls /bin/sleep deleted 2>/dev/null || true"
            assert await sh(fork, look) == "mine\nmine\nmine\nkept\n"
            assert (await fork.changes()).paths == (await fork.changes("/data")).paths == ()
            await sh(fork, "echo again > changed")
            assert b"-mine\n+again\n" in (await fork.changes()).patch

    asyncio.run(main())


def test_a_fork_of_a_fork_stands_on_both_and_outlives_their_snapshots() -> None:
    async def main() -> None:
        async with provided() as provider:
            first = await provider.open(SandboxSpec(files={"a": File(data=b"a"), "gone": File(data=b"")}, limits=SMALL))
            one = await first.snapshot()
            second = await one.open()
            await sh(second, "rm gone; echo -n b > b; mkdir d; echo -n x > d/x")
            two = await second.snapshot()
            for closing in (first, second, one):
                await closing.aclose()
            third, third_too = await asyncio.gather(two.open(), two.open())
            await two.aclose()
            with pytest.raises(SandboxError, match="closed"):
                await two.open()
            await sh(third, "rm -r d; echo -n c > a")
            assert await sh(third, "cat a b; ls") == "cba\nb\n"
            assert await sh(third_too, "cat a b d/x; ls") == "abxa\nb\nd\n"
            assert (await third.changes()).paths == ("a", "d/x")
            assert (await third_too.changes()).paths == ()
            await third.aclose()
            assert await sh(third_too, "cat a") == "a"

    asyncio.run(main())


# ---------------------------------------------------------------- endpoints


CLIENT = """
import socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
s.sendall(b"hello"); s.shutdown(1); print(s.recv(99).decode())
"""


def test_an_endpoint_is_of_one_sandbox_and_cannot_be_replaced_from_inside() -> None:
    async def answer(reader: StreamReader, writer: StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        await writer.drain()
        writer.close()

    async def main() -> None:
        async with provided() as provider:
            one, other = await asyncio.gather(*(provider.open(SandboxSpec(limits=SMALL)) for _ in range(2)))
            path = await one.serve("service", answer)
            assert path == "/run/endpoints/service"
            for attempt in (f"rm {path}", f"mv {path} /tmp/x", "echo > /run/endpoints/more", f"chmod 0 {path}"):
                assert (await one.exec(["sh", "-c", attempt], timeout_s=30)).exit_code != 0, attempt
            said = await one.exec(["python3", "-c", CLIENT, path], timeout_s=30)
            assert said.stdout.text() == "HELLO\n"
            assert await sh(other, "ls /run/endpoints") == ""
            for name in ("service", "../up", "a/b", "", "."):
                with pytest.raises(SandboxFileError):
                    await one.serve(name, answer)
            fork = await (await one.snapshot()).open()
            assert await sh(fork, "ls /run/endpoints") == "", "a service is of one sandbox, and no file"

    asyncio.run(main())


# ---------------------------------------------------------------- the disk


def test_the_workdir_tmp_and_shared_memory_have_one_disk_limit_together() -> None:
    async def main() -> None:
        async with provided() as provider:
            sandbox = await provider.open(SandboxSpec(limits=SMALL))
            for place in ("/work/x", "/tmp/x", "/dev/shm/x"):
                await sh(sandbox, f"head -c 9M /dev/zero > {place}")
            for place in ("/work", "/tmp", "/dev/shm"):
                result = await sandbox.exec(["sh", "-c", f"head -c 9M /dev/zero > {place}/y"], timeout_s=30)
                assert result.exit_code == 1 and "No space left" in result.stderr.text()
                await sh(sandbox, f"rm {place}/y")
            with pytest.raises(SandboxLimitError):
                await sandbox.write({"more": File(data=bytes(9 << 20))})
            await sh(sandbox, "rm /tmp/x /work/more; head -c 9M /dev/zero > /work/y")

    asyncio.run(main())


def test_what_a_sandbox_writes_over_a_tree_counts_and_what_is_below_does_not(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "large").write_bytes(bytes(48 << 20))
    open_to_all(tree)

    async def main() -> None:
        async with provided() as provider:
            sandbox = await provider.open(SandboxSpec(tree=str(tree), limits=SMALL))
            assert (await sh(sandbox, "wc -c < large")).strip() == str(48 << 20)
            result = await sandbox.exec(["sh", "-c", "echo >> large"], timeout_s=30)
            assert result.exit_code != 0, "it would be copied, and does not fit"
            await sh(sandbox, "rm large; head -c 9M /dev/zero > small")

    asyncio.run(main())


# ---------------------------------------------------------------- what is refused before anything starts


def refusal(spec: SandboxSpec) -> str:
    provider = LocalProvider()
    with pytest.raises(ConfigError) as checked:
        provider.check_spec(spec)

    async def main() -> None:
        with pytest.raises(ConfigError, match=re.escape(str(checked.value))):
            await provider.open(spec)
        await provider.aclose()

    asyncio.run(main())
    return str(checked.value)


@pytest.mark.parametrize("base", ["debian", "base", "./base", "/nowhere/at/all", "/etc/passwd", ""])
def test_a_base_that_is_no_folder_is_refused(base: str) -> None:
    assert repr(base) in refusal(SandboxSpec(base=base))


def test_a_base_without_programs_is_refused(tmp_path: Path) -> None:
    assert "no programs" in refusal(SandboxSpec(base=str(tmp_path)))


@needs_root
def test_a_base_that_nobody_may_read_is_refused_where_root_runs(tmp_path: Path) -> None:
    base = make_base(tmp_path)
    base.chmod(0o700)
    assert "chmod a+rx" in refusal(SandboxSpec(base=str(base)))
    base.chmod(0o755)
    tmp_path.chmod(0o700)
    assert "chmod a+rx" in refusal(SandboxSpec(base=str(base)))


def test_a_tree_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for tree in (str(tmp_path / "file"), str(tmp_path / "nowhere"), "relative", "../up"):
        assert repr(tree) in refusal(SandboxSpec(tree=tree))


@pytest.mark.parametrize("name", ["memory_mb", "processes", "disk_mb", "file_mb", "cpu_s", "cpus"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_of_nothing_is_refused(name: str, value: int) -> None:
    assert name in refusal(SandboxSpec(limits=SandboxLimits(**{name: value})))


def test_a_base_that_cannot_start_says_what_was_complained_about(tmp_path: Path) -> None:
    base = tmp_path / "base"
    (base / "usr" / "bin").mkdir(parents=True)
    (base / "tmp").touch()
    open_to_all(base)

    async def main() -> None:
        async with provided() as provider:
            with pytest.raises(SandboxError, match=r"process 1.*/tmp") as raised:
                await provider.open(SandboxSpec(base=str(base), limits=SMALL))
            assert not isinstance(raised.value, SandboxBroken)
            assert (await provider.open(SandboxSpec(limits=SMALL))).id, "others start all the same"

    asyncio.run(main())


def test_a_base_needs_no_python(tmp_path: Path) -> None:
    base = tmp_path / "base"
    (base / "usr" / "bin").mkdir(parents=True)
    open_to_all(base)

    async def main() -> None:
        async with provided() as provider:
            spec = SandboxSpec(base=str(base), files={"given": File(data=b"x")}, limits=SMALL)
            sandbox = await provider.open(spec)
            await sandbox.write({"made": File(data=b"made")})
            assert await sandbox.read("given") == b"x"
            assert (await sandbox.changes()).paths == ("made",)

    asyncio.run(main())
