"""Predicts how a recorded run would go under other settings.

Input: a run store, and settings to change. Output: a Prediction: the recorded figures, a replay of them (which shows
how far the model can be trusted), the figures after the change, and the bottleneck: the resource of which twice as much
would shorten the run the most.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slipstream.config import apply_overrides, from_json
from slipstream.dispatch.base import DispatchLimits
from slipstream.dispatch.gate import OpenGate
from slipstream.dispatch.kv_gate import KvGate
from slipstream.errors import ConfigError
from slipstream.record.hardware import HardwareSample
from slipstream.record.reader import RunReader
from slipstream.settings import DispatchConfig, EvalConfig, TrainConfig, check_settings
from slipstream.simulate.machine.engine import EngineSpec
from slipstream.simulate.recorded_run.chores import Sample
from slipstream.simulate.recorded_run.cpu_use import cpu_use
from slipstream.simulate.recorded_run.fit import Fit
from slipstream.simulate.recorded_run.recorded import LeftOut, Recorded, read_recorded, recorded
from slipstream.simulate.recorded_run.replay import (
    UNKNOWN_CACHE,
    Change,
    DispatchSetup,
    Known,
    Model,
    call_error,
    fit_run,
    num_drawn,
    replay,
)
from slipstream.simulate.run import Trace
from slipstream.telemetry.utilisation import Resource
from slipstream.types import Json
from slipstream.wiring.pacing import make_policy

Settings = EvalConfig | TrainConfig

OWN_KEYS = ("engines", "cores", "engine.kv_tokens")
"""What can be changed besides the run's settings: the number of engines and cores, and the size of the cache."""
CHANGEABLE = ("dispatch.", "samples", "oversample", "staleness", "model.engine.num_slots")
MATTERS = 0.02
"""A smaller gain counts as none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    makespan_s: float
    num_rollouts: int
    rollouts_per_s: float
    engine_use: float
    """Share of the makespan in which a model call was open."""
    call_s: float
    """Mean length of a model call."""
    peak_sandboxes: int
    again_tokens: int | None
    """Prompt tokens that were computed again; None if the engine did not report them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    run: str
    changes: tuple[str, ...]
    recorded: Predicted
    replayed: Predicted
    """Under the run's own settings."""
    predicted: Predicted | None
    """None if nothing is changed."""
    fit: Fit
    spec: EngineSpec
    """The scaled fit, as used."""
    engine_scale: float
    chore_scale: float
    call_error: float
    """The median error of call durations in the replay."""
    cpu_shares: Mapping[str, float]
    others: float
    """Cores that other programs used, on average."""
    front_s: float
    """CPU time of the run's own process per call; 0 if it was not recorded."""
    gains: Mapping[str, float]
    """The share of its makespan that the predicted run would save with twice as much of each resource."""
    left_out: LeftOut
    notes: tuple[str, ...]

    @property
    def makespan_error(self) -> float:
        """Of the replay, as a share of the recorded makespan."""
        return self.replayed.makespan_s / self.recorded.makespan_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulator:
    """A recorded run, the machine fitted to it, and its replay: fitted once, for any number of predictions."""

    settings: Settings
    model: Model
    again: Trace
    """Under the run's own settings."""
    notes: tuple[str, ...]

    @staticmethod
    def of(reader: RunReader, *, kv_tokens: int | None = None) -> Simulator:
        """`kv_tokens`: the size of the engine's cache, if it is known but was not recorded."""
        settings = run_settings(reader)
        run = read_recorded(reader)
        known, notes = known_of(reader, settings, run, kv_tokens)
        model = fit_run(run, known, setup_of(settings))
        return Simulator(settings=settings, model=model, again=replay(model, setup_of(settings)), notes=notes)

    def predict(self, pairs: Sequence[str], *, seed: int = 0, gains: bool = True) -> Prediction:
        """`pairs`: `key=value`, of the run's own settings or of OWN_KEYS."""
        changed, own = changed_settings(self.settings, pairs)
        setup = setup_of(changed, self.settings, engines=int(own.get("engines", 1)), cores=own.get("cores"))
        return self.under(changed, setup, pairs, seed=seed, gains=gains)

    def under(
        self, changed: Settings, setup: DispatchSetup, pairs: Sequence[str], *, seed: int, gains: bool
    ) -> Prediction:
        model, run = self.model, self.model.run
        traced = replay(model, setup, seed=seed) if pairs else self.again
        return Prediction(
            run=run.name,
            changes=tuple(pairs),
            recorded=figures(run),
            replayed=figures(_as_recorded(self.again, run.name)),
            predicted=figures(_as_recorded(traced, run.name)) if pairs else None,
            fit=model.fit,
            spec=model.spec,
            engine_scale=model.engine_scale,
            chore_scale=model.chore_scale,
            call_error=call_error(run, self.again),
            cpu_shares={kind.value: share for kind, share in model.cores.shares.items()},
            others=model.others,
            front_s=0.0 if model.use is None else model.use.front_s,
            gains=_gains(model, changed, setup, traced.outcome.makespan_s, seed) if gains else {},
            left_out=replace(run.left_out, drawn=num_drawn(run.rollouts, setup.change.samples)),
            notes=(*self.notes, *_limits_left_out(changed.dispatch.limits)),
        )


def predict(reader: RunReader, pairs: Sequence[str], *, seed: int = 0, gains: bool = True) -> Prediction:
    """Predict a run with these changes."""
    _, own = changed_settings(run_settings(reader), pairs)
    kv_tokens = int(own["engine.kv_tokens"]) if "engine.kv_tokens" in own else None
    return Simulator.of(reader, kv_tokens=kv_tokens).predict(pairs, seed=seed, gains=gains)


def figures(run: Recorded) -> Predicted:
    calls, uses = run.calls, run.usage.uses
    return Predicted(
        makespan_s=run.makespan_s,
        num_rollouts=len(run.rollouts),
        rollouts_per_s=len(run.rollouts) / run.makespan_s,
        engine_use=min(1.0, uses[Resource.MODEL].busy_share * run.usage.seconds / run.makespan_s),
        call_s=sum(call.seconds for call in calls) / len(calls),
        peak_sandboxes=round(uses[Resource.SANDBOXES].peak),
        again_tokens=run.again,
    )


def _as_recorded(traced: Trace, name: str) -> Recorded:
    return recorded(traced.rollouts, name=name)


# ---------------------------------------------------------------- settings


def run_settings(reader: RunReader) -> Settings:
    """What the run was started with."""
    config = reader.config()
    found: Json = config.get("settings") if isinstance(config, dict) else None
    if not isinstance(found, dict):
        raise ConfigError(f"the run {reader.folder.name} has no recorded settings: name a run of `eval` or `train`")
    try:
        return from_json(TrainConfig, found) if "learner" in found else from_json(EvalConfig, found)
    except ConfigError as raised:
        raise ConfigError(
            f"the run {reader.folder.name} has settings of another version ({raised}): record a new one"
        ) from raised


def changed_settings(settings: Settings, pairs: Sequence[str]) -> tuple[Settings, dict[str, float]]:
    """The settings with these changes, and those changes that are of the simulation's own."""
    own: dict[str, float] = {}
    rest = []
    for pair in pairs:
        key, _, text = pair.partition("=")
        if key in OWN_KEYS:
            own[key] = _number(key, text)
        elif key.startswith("dispatch.") or key in CHANGEABLE:
            rest.append(pair)
        else:
            raise ConfigError(
                f'"{pair}": a recorded run can be replayed under another dispatch.*, samples, oversample, staleness, '
                f"model.engine.num_slots, {', '.join(OWN_KEYS)}; for anything else, run it"
            )
    changed = apply_overrides(settings, rest)
    check_settings(changed)
    if isinstance(changed, TrainConfig) and changed.carry:
        raise ConfigError("carry=true: a run that carries rollouts over to the next step cannot be replayed yet")
    return changed, own


def _number(key: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e15 or (key != "cores" and number != int(number)):
        raise ConfigError(f"{key}={text}: give a {'number' if key == 'cores' else 'whole number'} above 0")
    return number


def setup_of(
    settings: Settings, before: Settings | None = None, *, engines: int = 1, cores: float | None = None
) -> DispatchSetup:
    """How a run with these settings is dispatched; `before`: those of the recorded run, where they are others."""
    started = settings.samples + (settings.oversample if isinstance(settings, TrainConfig) else 0)
    oversamples = isinstance(settings, TrainConfig) and settings.oversample > 0
    slots = None
    if before is not None and settings.model.engine.num_slots != before.model.engine.num_slots:
        slots = settings.model.engine.num_slots
    dispatch = settings.dispatch
    policy, limits = make_policy(dispatch)
    return DispatchSetup(
        make=lambda load: (policy, KvGate(load) if dispatch.policy == "adaptive" else OpenGate()),
        limits=DispatchLimits(sandboxes=limits.sandboxes, init=limits.init, run=limits.run, grade=limits.grade),
        change=Change(
            samples=started,
            keep=settings.samples if oversamples else None,
            staleness=settings.staleness if isinstance(settings, TrainConfig) else None,
            slots=slots,
            engines=engines,
            cores=cores,
        ),
    )


def known_of(
    reader: RunReader, settings: Settings, run: Recorded, told_tokens: int | None
) -> tuple[Known, tuple[str, ...]]:
    """What is on record of the machine, and what had to be assumed."""
    notes: list[str] = []
    samples = list(reader.hardware())
    cores = next((sample.cpu.cores for sample in samples if sample.cpu is not None), 0.0)
    if not cores:
        cores = float(os.cpu_count() or 1)
        notes.append(
            f"the run does not record the number of cores of its machine: assuming {cores:g}, as on this machine"
        )
    engine = settings.model.engine
    largest = max(call.context + call.sampled for call in run.calls)
    kv_tokens = told_tokens or UNKNOWN_CACHE
    slots = None
    engine_cores = 0.0
    engine_apart = settings.model.kind == "local" and engine.process == "own"
    if settings.model.kind == "local":
        slots = engine.num_slots
        each = engine.context_tokens or settings.model.context_tokens or max(largest, 4_096)
        kv_tokens = max(each, largest) * slots
        on_gpu = engine.device != "cpu" if engine.device != "auto" else any(sample.gpus for sample in samples)
        engine_cores = 0.0 if on_gpu else float(engine.num_threads or cores)
    elif kv_tokens == UNKNOWN_CACHE:
        what = (
            "estimated from the tokens computed again"
            if run.again
            else "assumed to be unlimited, as nothing was evicted"
        )
        notes.append(
            f"the run does not record the size of the engine's cache: {what}; set engine.kv_tokens=N if you know it"
        )
    known = Known(
        engine=EngineSpec(kv_tokens=kv_tokens, slots=slots, contexts=slots, cores=engine_cores),
        cores=cores,
        processes=max(1, settings.dispatch.processes),
        reuses=not (settings.model.kind == "local" and engine.deterministic),
        staleness=settings.staleness if isinstance(settings, TrainConfig) else None,
        deadlines=settings.dispatch.deadlines,
        retries=settings.dispatch.retries,
        samples=tuple(
            Sample(
                start_s=sample.at_s - sample.seconds,
                end_s=sample.at_s,
                percent=sample.cpu.percent,
                own_cores=sample.cpu.own_cores + (_engine_cores(sample, engine_cores) if engine_apart else 0.0),
            )
            for sample in samples
            if sample.cpu is not None
        ),
        work=tuple(each for sample in samples for each in sample.work),
        apart=settings.dispatch.processes > 0,
        use=cpu_use(
            run,
            samples,
            engine_cores=engine_cores,
            engine_apart=engine_apart,
            learning=[] if engine_apart else _learning_here(reader, settings, bool(engine_cores)),
        ),
    )
    return known, tuple(notes)


def _engine_cores(sample: HardwareSample, cores: float) -> float:
    """What the engine had of the machine's cores."""
    return sum(each.cpu_s for each in sample.work) * max(1.0, cores) / sample.seconds


def _learning_here(reader: RunReader, settings: Settings, on_cpu: bool) -> list[tuple[float, float]]:
    """When a learner was running in the run's own process."""
    if isinstance(settings, TrainConfig) and settings.learner.has_own_process_on("cpu" if on_cpu else "cuda"):
        return []
    return [(each.start_s, each.end_s) for each in reader.learner_work()]


def _limits_left_out(limits: DispatchLimits) -> tuple[str, ...]:
    if limits.memory_mb is None and limits.cpus is None:
        return ()
    return ("the limits memory_mb and cpus are ignored: the use of each sandbox was not recorded",)


# ---------------------------------------------------------------- what holds it up


def _gains(model: Model, settings: Settings, setup: DispatchSetup, makespan_s: float, seed: int) -> dict[str, float]:
    """What twice as much of each resource would save."""
    wider: dict[str, DispatchSetup] = {
        "engines": replace(setup, change=replace(setup.change, engines=2 * setup.change.engines)),
        "cores": replace(setup, change=replace(setup.change, cores=2 * (setup.change.cores or model.known.cores))),
    }
    dispatch, limits = settings.dispatch, setup.limits
    if dispatch.policy in ("bounded", "pipeline"):
        wider["dispatch.slots"] = _dispatched(setup, replace(dispatch, slots=2 * dispatch.slots))
    if dispatch.policy != "batch":
        for name in ("sandboxes", "init", "run", "grade"):
            value = getattr(limits, name)
            if value is not None:
                more = replace(setup, limits=replace(limits, **{name: 2 * value}))
                wider[f"dispatch.limits.{name}"] = more
    return {
        name: 1.0 - replay(model, other, seed=seed).outcome.makespan_s / makespan_s for name, other in wider.items()
    }


def _dispatched(setup: DispatchSetup, dispatch: DispatchConfig) -> DispatchSetup:
    policy, _ = make_policy(dispatch)
    return replace(setup, make=lambda load: (policy, OpenGate()))


def sentence(found: Prediction) -> str:
    """What would change, and what holds it up."""
    if found.predicted is None:
        text = f"Replayed under its own settings the run takes {found.replayed.makespan_s:.1f} s"
    else:
        before, after = found.replayed.makespan_s, found.predicted.makespan_s
        by = after / before - 1.0
        how = "as long" if abs(by) < MATTERS / 2 else f"{abs(by):.0%} {'longer' if by > 0 else 'shorter'}"
        text = f"With {', '.join(found.changes)} the run would take {after:.1f} s instead of {before:.1f} s, {how}"
        if found.predicted.num_rollouts != found.replayed.num_rollouts:
            rate = found.predicted.rollouts_per_s / found.replayed.rollouts_per_s - 1.0
            text += f", with {rate:+.0%} rollouts a second"
    if not found.gains:
        return f"{text}."
    best = max(found.gains, key=lambda name: found.gains[name])
    if found.gains[best] < MATTERS:
        return f"{text}. No resource is the bottleneck: it takes as long as its longest rollouts."
    also = [name for name in found.gains if name != best and found.gains[name] > max(MATTERS, found.gains[best] / 2)]
    more = f"; {', '.join(f'{name} {found.gains[name]:.0%}' for name in also)}" if also else ""
    saved = f"twice as much would save {found.gains[best]:.0%}{more}"
    return f"{text}. The bottleneck is {_CALLED.get(best, best)}: {saved}."


_CALLED = {"engines": "the engine", "cores": "the cores"}
