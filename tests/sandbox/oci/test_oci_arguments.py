"""What podman and docker are told, and what is understood of what they say. Neither has to be there."""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import sys
from pathlib import Path

import pytest

from slipstream.errors import ConfigError, SandboxError
from slipstream.sandbox.base import Capability
from slipstream.sandbox.oci import arguments
from slipstream.sandbox.oci.arguments import BuildSpec, ContainerOptions, DiskLimit, Image, Python
from slipstream.sandbox.oci.container import Container
from slipstream.sandbox.oci.engine import Engine, EngineFacts, EngineKind, explain, find_engine, read_facts
from slipstream.sandbox.oci.provider import OciProvider
from slipstream.sandbox.oci.watch import TooDeep, Watch, cgroup_folders, folder_bytes, upper_folder
from slipstream.types import SandboxLimits, SandboxSpec

FACTS = EngineFacts(
    version="4.3.1",
    runtime="runc",
    is_rootless=False,
    limits_memory=True,
    limits_processes=True,
    has_seccomp=True,
    has_quota=False,
)
WEAK = EngineFacts(
    version="4.3.1",
    runtime="runc",
    is_rootless=True,
    limits_memory=False,
    limits_processes=False,
    has_seccomp=True,
    has_quota=False,
)
IMAGE = Image(id="sha256:1234", env={"PATH": "/opt/conda/bin:/bin", "LANG": "de"})
SPEC = SandboxSpec(base="x", limits=SandboxLimits(memory_mb=100, processes=20, disk_mb=80, file_mb=7, cpu_s=9, cpus=2))


def run_args(
    *, kind: EngineKind = EngineKind.PODMAN, facts: EngineFacts = FACTS, python: Python | None = None, **chosen: object
) -> list[str]:
    return arguments.run(
        SPEC,
        IMAGE,
        name="slipstream-l-1",
        lease="l",
        folder=Path("/home/me/l:1/oci"),
        python=python or arguments.image_python(),
        options=ContainerOptions(kind=kind, **chosen),  # type: ignore[arg-type]
        facts=facts,
    )


def values(args: list[str], option: str) -> list[str]:
    return [after for before, after in itertools.pairwise(args) if before == option]


@pytest.mark.parametrize("kind", list(EngineKind))
def test_a_container_has_no_network_no_capability_to_keep_and_no_new_privileges(kind: EngineKind) -> None:
    args = run_args(kind=kind)
    assert values(args, "--network") == ["none"]
    assert values(args, "--cap-drop") == ["ALL"]
    assert values(args, "--security-opt") == ["no-new-privileges"]  # and with it the engine's own seccomp profile
    assert values(args, "--pull") == ["never"]
    assert values(args, "--label") == ["slipstream.lease=l"]
    assert not {"--privileged", "--pid", "--userns", "--device"} & set(args)


def test_the_limits_of_the_spec_hold_for_the_container() -> None:
    args = run_args()
    assert (values(args, "--memory"), values(args, "--memory-swap")) == (["100m"], ["100m"])
    assert values(args, "--pids-limit") == ["21"]  # with the supervisor
    assert values(args, "--cpu-shares") == ["2048"]
    assert values(args, "--shm-size") == [str(10 << 20)]
    assert {"RLIMIT_FSIZE=7340032", "RLIMIT_CPU=9", "RLIMIT_CORE=0"} <= set(args)
    assert not any(arg.startswith("RLIMIT_AS") for arg in args)


def test_what_the_engine_cannot_limit_is_limited_for_each_process() -> None:
    args = run_args(facts=WEAK)
    assert not {"--memory", "--pids-limit"} & set(args)
    assert {"RLIMIT_AS=104857600", "RLIMIT_NPROC=21"} <= set(args)


def test_no_limit_is_above_our_own() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    said = dict(text.split("=") for text in values(arguments.ulimits(), "--ulimit"))
    assert said["core"] == "0:0"
    assert int(said["nofile"].split(":")[1]) <= (hard if hard != resource.RLIM_INFINITY else 1 << 62)


def test_the_image_comes_last_before_the_program_and_a_colon_in_a_folder_does_no_harm() -> None:
    args = run_args()
    place = args.index("sha256:1234")
    assert args[place - 2 : place] == ["--entrypoint", "python3"]
    assert args[place + 1 : place + 5] == ["-I", "-S", "-B", "/run/slipstream/oci_entry.py"]
    assert args[place + 5 : place + 8] == ["/run/slipstream/control", "/work", "slipstream-lease=l"]
    assert values(args, "--mount") == ["type=bind,source=/home/me/l:1/oci,destination=/run/slipstream,readonly"]


def test_the_hosts_python_is_bound_read_only() -> None:
    args = run_args(python=arguments.host_python())
    assert f"type=bind,source={sys.base_prefix},destination=/opt/python,readonly" in values(args, "--mount")
    assert values(args, "--env") == ["LD_LIBRARY_PATH=/opt/python/lib"]
    with pytest.raises(ConfigError, match="comma"):
        run_args(python=Python(path="x", home=Path("/a,b")))


def test_each_way_to_limit_the_disk_has_its_arguments() -> None:
    assert "--storage-opt" not in run_args(disk=DiskLimit.WATCHED)
    assert values(run_args(disk=DiskLimit.QUOTA), "--storage-opt") == [f"size={80 << 20}"]
    args = run_args(disk=DiskLimit.MEMORY)
    sizes = {text.split(":")[0]: int(text.rpartition("size=")[2]) for text in values(args, "--tmpfs")}
    assert "--read-only" in args and set(sizes) == {"/tmp", "/work"}
    assert sum(sizes.values()) + int(values(args, "--shm-size")[0]) == 80 << 20


def test_only_podman_is_told_what_only_podman_knows() -> None:
    assert "--image-volume" in run_args() and "--image-volume" not in run_args(kind=EngineKind.DOCKER)
    assert "--time" in arguments.remove(EngineKind.PODMAN, "x")
    assert arguments.remove(EngineKind.DOCKER, "x") == ["rm", "--force", "--volumes", "x"]


def test_what_the_user_chose_is_passed_on() -> None:
    args = run_args(runtime="runc", user="1000:1000", network="pasta", extra=("--annotation", "a=b"))
    assert (values(args, "--runtime"), values(args, "--user")) == (["runc"], ["1000:1000"])
    assert (values(args, "--network"), values(args, "--annotation")) == (["pasta"], ["a=b"])


@pytest.mark.parametrize("workdir", ["work", "/", "/proc/x", "/a/../b", "/run/slipstream", ""])
def test_a_workdir_that_cannot_be_had_is_refused(workdir: str) -> None:
    with pytest.raises(ConfigError, match="workdir"):
        OciProvider().check_spec(SandboxSpec(base="x", workdir=workdir))


@pytest.mark.parametrize("base", ["host", "/srv/root"])
def test_a_base_that_is_no_image_is_refused(base: str) -> None:
    with pytest.raises(ConfigError, match="not an image"):
        OciProvider().check_spec(SandboxSpec(base=base))
    with pytest.raises(ConfigError, match="not an image"):
        asyncio.run(OciProvider().open(SandboxSpec(base=base)))


def test_a_dockerfile_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Dockerfile"):
        OciProvider().check_spec(SandboxSpec(base=f"dockerfile:{tmp_path}"))
    with pytest.raises(ConfigError, match="Dockerfile"):
        arguments.tag_of(BuildSpec(context=tmp_path))


def test_the_environment_is_the_images_and_the_specs_comes_over_it() -> None:
    env = arguments.environment(SandboxSpec(env={"LANG": "fr"}), IMAGE)
    assert (env["PATH"], env["LANG"], env["HOME"]) == ("/opt/conda/bin:/bin", "fr", "/work")


def test_an_unchanged_context_has_the_same_tag_and_any_change_another(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM x\n")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a").write_text("one")
    (tmp_path / "link").symlink_to("below")
    spec = arguments.build_of(f"dockerfile:{tmp_path}")
    assert spec == BuildSpec(context=tmp_path.resolve()) == arguments.build_of(f"dockerfile:{tmp_path}/Dockerfile")
    assert spec is not None
    tags = [arguments.tag_of(spec), arguments.tag_of(spec)]
    assert tags[0] == tags[1] and tags[0].startswith("localhost/slipstream-build:")
    (tmp_path / "below" / "a").write_text("two")
    tags.append(arguments.tag_of(spec))
    (tmp_path / "below" / "a").chmod(0o755)
    tags.append(arguments.tag_of(spec))
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("Dockerfile")
    tags.append(arguments.tag_of(spec))
    tags.append(arguments.tag_of(BuildSpec(context=tmp_path, args={"A": "1"})))
    assert len(set(tags)) == len(tags) - 1


def test_what_the_engines_say_of_themselves_is_understood() -> None:
    podman: dict[str, object] = {
        "host": {
            "cgroupControllers": ["cpu", "memory", "pids"],
            "ociRuntime": {"name": "crun"},
            "security": {"rootless": True, "seccompEnabled": True},
        },
        "store": {"graphDriverName": "overlay", "graphStatus": {"Backing Filesystem": "extfs"}},
        "version": {"Version": "5.0"},
    }
    facts = read_facts(EngineKind.PODMAN, podman)
    assert (facts.version, facts.runtime, facts.is_rootless, facts.has_quota) == ("5.0", "crun", True, False)
    assert facts.limits_memory and facts.limits_processes
    docker: dict[str, object] = {
        "ServerVersion": "28",
        "DefaultRuntime": "runc",
        "SecurityOptions": ["name=seccomp,profile=builtin"],
        "MemoryLimit": True,
        "PidsLimit": False,
        "Driver": "overlay2",
        "DriverStatus": [["Backing Filesystem", "xfs"]],
    }
    facts = read_facts(EngineKind.DOCKER, docker)
    assert (facts.has_quota, facts.limits_processes, facts.has_seccomp, facts.is_rootless) == (True, False, True, False)


def test_an_image_is_read_from_what_inspect_says() -> None:
    assert arguments.read_image('[{"Id": "sha256:1", "Config": {"Env": ["A=b=c", "odd"]}}]') == Image(
        id="sha256:1", env={"A": "b=c"}
    )
    assert arguments.read_image('[{"Id": "1", "Config": null}]') == Image(id="1")


def test_an_engine_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="'podman' or 'docker'"):
        find_engine("rkt")


def test_a_complaint_comes_with_what_to_do() -> None:
    assert "ulimit -Hn" in explain("error setting rlimit type 7: operation not permitted")
    assert "start docker's daemon" in explain("Cannot connect to the Docker daemon at unix:///x")
    assert "python3 (3.8 or later)" in explain('exec: "python3": executable file not found in $PATH')
    assert "podman run" in explain("something else")


def test_a_read_only_provider_names_only_what_it_can() -> None:
    assert OciProvider().capabilities == frozenset(Capability) - {Capability.ROOT}
    assert OciProvider(read_only=True).capabilities == {Capability.ENDPOINTS}


# ---------------------------------------------------------------- calls of the engine


def fake_engine(tmp_path: Path, script: str) -> Engine:
    program = tmp_path / "engine"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Engine(kind=EngineKind.PODMAN, path=str(program))


def test_a_failing_call_says_what_the_engine_complained_about(tmp_path: Path) -> None:
    engine = fake_engine(tmp_path, "echo it is broken >&2; exit 3")
    with pytest.raises(SandboxError, match="`podman run x` failed with exit code 3: it is broken"):
        asyncio.run(engine.must(["run", "x"]))


def test_a_call_that_hangs_is_ended_at_its_deadline(tmp_path: Path) -> None:
    engine = fake_engine(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    with pytest.raises(SandboxError, match="did not finish within"):
        asyncio.run(engine.call(["run"], timeout_s=0.5))
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_cancelled_call_is_ended_before_the_cancellation_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "began")
    engine = fake_engine(tmp_path, f"echo $$ > {tmp_path}/pid; echo > {tmp_path}/began; exec sleep 1000")

    async def main() -> None:
        call = asyncio.ensure_future(engine.call(["run"]))
        await asyncio.to_thread((tmp_path / "began").read_text)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(main())
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_an_engine_that_cannot_be_run_is_a_fault_of_the_host() -> None:
    engine = Engine(kind=EngineKind.PODMAN, path="/no/such/program")
    with pytest.raises(SandboxError, match="could not be run"):
        asyncio.run(engine.call(["ps"]))


# ---------------------------------------------------------------- watching


def test_cgroups_of_both_versions_are_found(tmp_path: Path) -> None:
    found = cgroup_folders("5:cpu,cpuacct:/a/b\n4:memory:/c\n0::/d\nnonsense\n", tmp_path)
    assert found["cpuacct"] == tmp_path / "cpu,cpuacct" / "a" / "b"
    assert (found["memory"], found[""]) == (tmp_path / "memory" / "c", tmp_path / "d")


def test_the_counters_are_read(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "7").mkdir(parents=True)
    (proc / "7" / "cgroup").write_text("0::/box\n")
    (groups / "box").mkdir(parents=True)
    (groups / "box" / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (groups / "box" / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
    watch = Watch(7, proc=proc, cgroups=groups)
    assert (watch.cpu_s(), watch.num_killed(), watch.disk_bytes()) == (2.5, 2, None)
    (groups / "box" / "memory.events").write_text("oom 0\noom_kill 2\n")  # killed by the machine, not by its limit
    assert watch.num_killed() == 0


def test_the_counters_of_the_first_version_are_read_too(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "7").mkdir(parents=True)
    (proc / "7" / "cgroup").write_text("4:memory:/box\n2:cpuacct:/box\n0::/\n")
    for name, text in {
        "cpuacct/box/cpuacct.usage": "1500000000\n",
        "memory/box/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
        "memory/box/memory.max_usage_in_bytes": "1000\n",
        "memory/box/memory.limit_in_bytes": "1000\n",
    }.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(text)
    watch = Watch(7, proc=proc, cgroups=groups)
    assert (watch.cpu_s(), watch.num_killed()) == (1.5, 3)
    (groups / "memory/box/memory.max_usage_in_bytes").write_text("500\n")
    assert watch.num_killed() == 0


def test_a_container_that_is_gone_has_no_counters(tmp_path: Path) -> None:
    watch = Watch(7, proc=tmp_path, cgroups=tmp_path)
    assert (watch.cpu_s(), watch.num_killed(), watch.disk_bytes()) == (None, 0, None)


def test_the_writable_layer_is_found_in_the_mounts(tmp_path: Path) -> None:
    line = f"1 2 0:5 / / rw,relatime - overlay overlay rw,lowerdir=/l,upperdir={tmp_path},workdir=/w\n"
    assert upper_folder("9 9 0:1 / /proc rw - proc proc rw\n" + line) == tmp_path
    assert upper_folder(line.replace(str(tmp_path), "/no/such/folder")) is None
    assert upper_folder("1 2 0:5 / / rw - ext4 /dev/x rw\n") is None


def test_space_is_counted_once_per_file_and_not_through_links(tmp_path: Path) -> None:
    big, layer = tmp_path / "big", tmp_path / "layer"
    big.write_bytes(b"x" * 1_000_000)
    layer.mkdir()
    (layer / "a").write_bytes(b"x" * 100_000)
    (layer / "b").hardlink_to(layer / "a")
    (layer / "link").symlink_to(big)
    os.mkfifo(layer / "fifo")
    used = folder_bytes(layer)
    assert used is not None and 100_000 <= used < 200_000
    place = layer
    for _ in range(300):
        place = place / "d"
    place.mkdir(parents=True)
    with pytest.raises(TooDeep):
        folder_bytes(layer)


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("echo false 137", "the container was killed from outside"),
        ("echo false 1", None),
        ("echo true 0", None),
        (
            "echo no such container >&2; exit 1",
            "the engine no longer knows the container x: no such container",
        ),
    ],
)
def test_a_container_that_was_killed_from_outside_is_the_hosts_fault(
    tmp_path: Path, script: str, fault: str | None
) -> None:
    container = Container(fake_engine(tmp_path, script), "x", tmp_path, asyncio.Semaphore(1))
    assert asyncio.run(container.host_fault()) == fault
