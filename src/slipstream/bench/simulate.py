"""Compares `slipstream simulate` with real runs: fitted on one run, it predicts others, which are then made.

Output: for each dispatch setting its makespan, predicted and measured. Every run is a `slipstream eval` in a process of
its own, with the same tasks and seed, a model of three million weights in the embedded engine on this machine's cores,
and real sandboxes. In each round run A is made first, then every B; the predictions of a round are fitted on its A. The
spread of a B over rounds is the noise of a shared machine, which no prediction can be expected to beat.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from slipstream.errors import InfrastructureError
from slipstream.record import RunStore
from slipstream.simulate.recorded_run.predict import Simulator
from slipstream.simulate.recorded_run.recorded import read_recorded
from slipstream.types import Json

OWN = ("dispatch.policy=pipeline", "dispatch.slots=8", "dispatch.limits.sandboxes=16")
"""The dispatch settings of run A."""
OTHERS: Mapping[str, tuple[str, ...]] = {
    "bounded, 4 slots": ("dispatch.policy=bounded", "dispatch.slots=4", "dispatch.limits.sandboxes=8"),
    "bounded, 16 slots": ("dispatch.policy=bounded", "dispatch.slots=16", "dispatch.limits.sandboxes=32"),
    "adaptive, 12 sandboxes": ("dispatch.policy=adaptive", "dispatch.limits.sandboxes=12"),
    "pipeline, 3 at a time": ("dispatch.policy=pipeline", "dispatch.limits.run=3", "dispatch.limits.sandboxes=8"),
}
_AGENT = ("agent.stuck.idle_turns=2", "agent.stuck.same_turns=0", "agent.stuck.alternations=0")
_MODEL = (
    "model.kind=local",
    'model.family_args={"show_tools": false}',
    "model.max_tokens=24",
    "model.context_tokens=512",
    "model.engine.device=cpu",
    "model.engine.num_threads=1",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateBenchLoad:
    tasks: int = 48
    samples: int = 4
    slots: int = 8
    """The engine's slots: fewer than the rollouts, so that they compete."""
    rounds: int = 2
    seed: int = 3
    demonstrations: int = 600
    """Demonstrations from which the model learns to call its tools first."""


def run(
    load: SimulateBenchLoad,
    *,
    model: Path | None = None,
    runs: Path | None = None,
    on_status: Callable[[str], None] = lambda line: None,
) -> dict[str, Json]:
    """The figures. `model` is the folder of a model that calls the demo's tools; without it one is made and trained,
    which takes a minute. The runs are kept in `runs`, or else removed."""
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as scratch:
        if model is None:
            on_status("making a model and training it to call tools")
            model = teach(Path(scratch), load.demonstrations)
        folder = runs or Path(scratch) / "runs"
        rounds = [_round(load, model, folder / f"round-{number}", on_status) for number in range(1, load.rounds + 1)]
    return {"tasks": load.tasks, "samples": load.samples, "engine_slots": load.slots, **summary(rounds)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Makespans in seconds: of run A, and of the others by name."""

    own_s: float
    replayed_s: float
    call_error: float
    predicted_s: Mapping[str, float]
    measured_s: Mapping[str, float]


def summary(rounds: Sequence[Round]) -> dict[str, Json]:
    """The figures over all rounds. Errors are relative: the mean prediction against the mean measurement. The noise is
    the largest deviation of a run from its mean over rounds."""
    others: dict[str, Json] = {}
    for name in rounds[0].measured_s:
        errors = [one.predicted_s[name] / one.measured_s[name] - 1.0 for one in rounds]
        measured = [one.measured_s[name] for one in rounds]
        predicted = [one.predicted_s[name] for one in rounds]
        others[name] = {
            "predicted_s": [round(value, 2) for value in predicted],
            "measured_s": [round(value, 2) for value in measured],
            "errors": [round(error, 4) for error in errors],
            "error": round(fmean(predicted) / fmean(measured) - 1.0, 4),
            "noise": round(noise(measured), 4),
        }
    own = [one.own_s for one in rounds]
    return {
        "own": {
            "measured_s": [round(value, 2) for value in own],
            "replayed_s": [round(one.replayed_s, 2) for one in rounds],
            "call_error": [round(one.call_error, 3) for one in rounds],
            "noise": round(noise(own), 4),
        },
        "others": others,
        "worst_error": max(abs(one["error"]) for one in others.values()),  # type: ignore[index,arg-type,call-overload]
    }


def noise(values: Sequence[float]) -> float:
    """The largest relative deviation from the mean."""
    mean = fmean(values)
    return max(abs(value / mean - 1.0) for value in values)


def table(found: Mapping[str, Json]) -> list[str]:
    others, own = found["others"], found["own"]
    assert isinstance(others, dict) and isinstance(own, dict)

    def seconds(values: Json) -> str:
        assert isinstance(values, list)
        return " / ".join(f"{value:.1f}" for value in values)

    lines = ["| run | predicted, s | measured, s | error | noise |", "|---|---|---|---|---|"]
    lines.append(
        f"| A: {_shown_settings(OWN)} | {seconds(own['replayed_s'])} (replayed) | {seconds(own['measured_s'])} | - "
        f"| {own['noise']:.1%} |"
    )
    for name, one in others.items():
        assert isinstance(one, dict)
        lines.append(
            f"| B: {name} | {seconds(one['predicted_s'])} | {seconds(one['measured_s'])} "
            f"| {one['error']:+.1%} | {one['noise']:.1%} |"
        )
    return lines


def _shown_settings(settings: Sequence[str]) -> str:
    return ", ".join(setting.removeprefix("dispatch.") for setting in settings)


# ---------------------------------------------------------------- real runs


def _round(load: SimulateBenchLoad, model: Path, folder: Path, on_status: Callable[[str], None]) -> Round:
    own = _evaluate(load, model, folder / "a", OWN, on_status)
    simulator = Simulator.of(RunStore.read(own))
    itself = simulator.predict([], gains=False)
    predicted: dict[str, float] = {}
    measured: dict[str, float] = {}
    for number, (name, settings) in enumerate(OTHERS.items()):
        found = simulator.predict(settings, gains=False).predicted
        assert found is not None
        predicted[name] = found.makespan_s
        other = _evaluate(load, model, folder / f"b{number}", settings, on_status)
        measured[name] = read_recorded(RunStore.read(other)).makespan_s
        on_status(f"{name}: predicted {predicted[name]:.1f} s, took {measured[name]:.1f} s")
    return Round(
        own_s=itself.recorded.makespan_s,
        replayed_s=itself.replayed.makespan_s,
        call_error=itself.call_error,
        predicted_s=predicted,
        measured_s=measured,
    )


def _evaluate(
    load: SimulateBenchLoad, model: Path, runs: Path, settings: Sequence[str], on_status: Callable[[str], None]
) -> Path:
    """Make a real run; returns its folder."""
    on_status(f"running with {_shown_settings(settings)}")
    arguments = [
        *(
            "eval",
            "demo",
            f"tasks.num={load.tasks}",
            "tasks.args.seed=1",
            f"samples={load.samples}",
            f"seed={load.seed}",
        ),
        *(*_AGENT, *_MODEL, f"model.folder={model}", f"model.engine.num_slots={load.slots}"),
        *(*settings, "--json", "--runs", str(runs)),
    ]
    done = subprocess.run([sys.executable, "-m", "slipstream", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InfrastructureError(f"a run of the benchmark failed: {done.stderr.strip() or done.stdout.strip()}")
    return next(folder for folder in runs.iterdir() if folder.is_dir())


def teach(scratch: Path, num: int) -> Path:
    """A model folder: random weights trained on `num` rollouts of a teacher."""
    import torch

    from slipstream.engine.training.config import LearnerConfig, WarmStartConfig
    from slipstream.engine.training.learner import TorchLearner
    from slipstream.hub.tiny import TinyShape
    from slipstream.recipes.quickstart.demonstrations import demonstrations
    from slipstream.recipes.quickstart.model import make_model

    shape = TinyShape(hidden=256, layers=4, heads=8, kv_heads=4, head=32, inner=1_024)
    folder = make_model(scratch / "model", seed=1, shape=shape)
    torch.set_num_threads(1)
    learner = TorchLearner(folder, LearnerConfig(), seed=1)
    learner.warm_start(
        demonstrations(folder, num=num, seed=1, quality=0.9),
        WarmStartConfig(num_epochs=4, tokens_per_step=1_300, learning_rate=3e-3, betas=(0.9, 0.98), seed=1),
        should_stop=lambda: False,
    )
    taught = scratch / "taught"
    learner.export_folder(taught)
    return taught
