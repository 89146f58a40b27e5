"""Measures the whole training loop (rollouts, grading, updates) under several policies: its speed, and what limits it.

Input: a recipe, policies, and settings for all of them. Output: for each policy its speed, how busy the GPU, the cores
and the learner were, and the binding resource. Every policy is a real `slipstream train` in a process of its own, with
the same seed and so the same tasks. Figures cover the time from the end of the first updates, when kernels are loaded
and caches filled, to the end of the last update; they include neither the warm start nor a checkpoint.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import ConfigError, InfrastructureError
from slipstream.record import RunReader, RunStore
from slipstream.seams import LearnerWork
from slipstream.telemetry.bottleneck import MachineUse, run_usage
from slipstream.telemetry.sampler import MachineProbe
from slipstream.telemetry.utilisation import Resource
from slipstream.types import Json, SpanKind

POLICIES = ("batch", "bounded", "pipeline", "adaptive")
BAD_INPUT = 2
"""The exit code of a command with invalid arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopBenchLoad:
    recipe: str = "quickstart"
    policies: tuple[str, ...] = ("bounded", "pipeline", "adaptive")
    steps: int = 4
    skip: int = 1
    """First steps that are not counted."""
    seed: int = 0
    device: str = "auto"
    settings: tuple[str, ...] = ()
    """`key=value`, for all policies."""

    def __post_init__(self) -> None:
        for name in self.policies:
            if name not in POLICIES:
                raise ConfigError(f'--policies "{name}" is unknown: give some of {", ".join(POLICIES)}, with commas')
        if not 0 <= self.skip < self.steps:
            raise ConfigError(f"--skip {self.skip} leaves none of {self.steps} steps: lower it, or raise --steps")


def run(
    load: LoopBenchLoad, *, runs: Path | None = None, on_status: Callable[[str], None] = lambda line: None
) -> dict[str, Json]:
    """The figures. The runs are kept in `runs`, or else removed."""
    found: dict[str, Json] = {
        "recipe": load.recipe,
        "device": load.device,
        "steps": load.steps,
        "skipped": load.skip,
        "seed": load.seed,
        "sample_us": sample_us(),
    }
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        for policy in load.policies:
            on_status(f"policy {policy}")
            found[policy] = figures(RunStore.read(_train(load, policy, runs or Path(folder))), skip=load.skip)
    return found


def _train(load: LoopBenchLoad, policy: str, runs: Path) -> Path:
    """Train in a process of its own; returns the run's folder."""
    command = [sys.executable, "-m", "slipstream", "train", load.recipe, *settings_of(load, policy)]
    child = subprocess.run([*command, "--json", "--runs", str(runs)], stdout=subprocess.PIPE, text=True, check=False)
    if child.returncode == BAD_INPUT:
        raise ConfigError(f"the run with dispatch.policy={policy} was refused: fix what it reported above")
    if child.returncode:
        raise InfrastructureError(f"the run with dispatch.policy={policy} ended with {child.returncode}: see above")
    return Path(json.loads(child.stdout)["run"])


def settings_of(load: LoopBenchLoad, policy: str) -> list[str]:
    """The changes to the recipe: no evaluations, and no checkpoint before the last step."""
    changed = ["held_out.source=", "controls=false", f"checkpoint_every={load.steps}"]
    if load.device != "auto":
        changed.append(f"model.engine.device={load.device}")
    return [*changed, *load.settings, f"steps={load.steps}", f"seed={load.seed}", f"dispatch.policy={policy}"]


def figures(reader: RunReader, *, skip: int) -> dict[str, Json]:
    """The figures of a finished run, from the end of its first `skip` updates to the end of its last."""
    ends_s = [each.end_s for each in reader.learner_work() if each.work is LearnerWork.UPDATE]
    since_s = ends_s[skip - 1] if skip else -math.inf
    used, machine = run_usage(reader, window=(since_s, ends_s[-1]))
    num_rollouts = num_tokens = num_untrusted = num_calls = 0
    for rollout in reader.rollouts(with_turns=False):
        ended_s = max((span.end_s for span in rollout.spans), default=0.0)
        if ended_s > since_s:
            num_rollouts += 1
            num_untrusted += rollout.verdict is None
            calls = [span for span in rollout.spans if span.kind is SpanKind.MODEL]
            num_tokens += sum(span.counts.get("sampled", 0) for span in calls)
            num_calls += sum(since_s < span.end_s <= ends_s[-1] for span in calls)
    seconds = max(machine.seconds, 1e-9)
    rewards = [step.metrics["reward/mean"] for step in reader.steps() if step.metrics and "reward/mean" in step.metrics]
    return {
        "seconds": machine.seconds,
        "steps_per_min": 60 * machine.num_updates / seconds,
        "rollouts_per_s": num_rollouts / seconds,
        "sampled_tokens_per_s": num_tokens / seconds,
        "without_verdict": num_untrusted,
        "reward_mean": sum(rewards) / len(rewards) if rewards else None,
        **_machine_figures(machine),
        **_per_call(reader, machine, since_s, ends_s[-1], num_calls),
        "jobs_mean": used.uses[Resource.JOBS].mean,
        "sandboxes_mean": used.uses[Resource.SANDBOXES].mean,
        "sandboxes_peak": used.uses[Resource.SANDBOXES].peak,
    }


def _per_call(
    reader: RunReader, machine: MachineUse, since_s: float, until_s: float, num_calls: int
) -> dict[str, Json]:
    """CPU time for each model call: of all threads of the run's own process, and of the engine's thread, which may be
    one of them (`model.engine.process`)."""
    if machine.cpu is None or not num_calls:
        return {}
    engine_s = sum(
        work.cpu_s for sample in reader.hardware() if since_s < sample.at_s <= until_s for work in sample.work
    )
    return {
        "calls": num_calls,
        "own_us_per_call": machine.cpu.own_cores * machine.seconds / num_calls * 1e6,
        "engine_us_per_call": engine_s / num_calls * 1e6,
    }


def _machine_figures(machine: MachineUse) -> dict[str, Json]:
    """The figures of the machine; without a GPU, its figures are absent."""
    found: dict[str, Json] = {}
    for gpu in machine.gpus:
        name = "gpu" if len(machine.gpus) == 1 else f"gpu{gpu.gpu}"
        found[f"{name}_busy"] = gpu.busy.whole.mean
        found[f"{name}_in_use"] = gpu.busy.whole.active_share
        for part, busy in (("rollouts", gpu.busy.rollouts), ("learner", gpu.busy.learner)):
            if busy is not None:
                found[f"{name}_busy_{part}"] = busy.mean
        found[f"{name}_peak_mb"] = gpu.peak_memory_mb
    if machine.cpu is not None:
        found["cores"] = machine.cpu.cores
        found["cpu_busy"] = machine.cpu.busy.whole.mean
        for part, busy in (("rollouts", machine.cpu.busy.rollouts), ("learner", machine.cpu.busy.learner)):
            if busy is not None:
                found[f"cpu_busy_{part}"] = busy.mean
        found["own_cores"] = machine.cpu.own_cores
        found["helper_cores"] = machine.cpu.helper_cores
    return found | {
        "learner_share": machine.learner_share,
        "update_s": machine.update_s,
        "at_limit_share": machine.at_limit_share,
        "busiest": None if machine.busiest is None else machine.busiest.value,
        "busiest_share": machine.busiest_share,
        "binding": None if machine.bottleneck is None else machine.bottleneck.value,
    }


def sample_us(num: int = 200) -> float:
    """Microseconds of one sample of this machine, its GPUs included."""
    machine = MachineProbe()
    try:
        machine.read()
        start_s = time.perf_counter()
        for _ in range(num):
            machine.read()
        return (time.perf_counter() - start_s) / num * 1e6
    finally:
        machine.close()


def table(found: dict[str, Json], policies: Sequence[str]) -> list[str]:
    """The figures as lines of a table, with a column for each policy."""
    columns = {policy: _column(found[policy]) for policy in policies}
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    lines = [f"{name:<22} {_written(value)}" for name, value in found.items() if name not in columns]
    lines.append(" " * 22 + "".join(f"{policy:>12}" for policy in policies))
    for name in names:
        lines.append(f"{name:<22}" + "".join(f"{_written(column.get(name)):>12}" for column in columns.values()))
    return lines


def _column(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def _written(value: Json) -> str:
    if value is None:
        return "-"
    return f"{value:,.3f}" if isinstance(value, float) else str(value)
