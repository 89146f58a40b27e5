"""Turns a recorded run into a workload: what its rollouts would use on an idle machine, and a machine fitted to them.

Input: a Recorded, and what its settings say. Output: a Model, which makes the workload of the same run with other
numbers of samples, engines or cores. Invariants: the same arguments give the same workload; if more rollouts of a task
are requested than were recorded, they are drawn from those of the same task, with a seed; a cancelled rollout continues
like another one that got at least as far.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from slipstream.dispatch.base import Deadlines, DispatchLimits, Retries
from slipstream.simulate.machine.engine import EngineSpec
from slipstream.simulate.recorded_run.chores import Cores, Sample, engine_level, fit_cores, own_work, wanted_by_others
from slipstream.simulate.recorded_run.cpu_use import CpuUse
from slipstream.simulate.recorded_run.fit import Fit, explain, fit_engine, fit_steps
from slipstream.simulate.recorded_run.recorded import Piece, Recorded, RecordedRollout, recorded
from slipstream.simulate.run import MakePolicy, Trace, trace
from slipstream.simulate.workload import HELD_OUT, Chore, SimJob, SimMachine, SimTurn, Workload, checked
from slipstream.types import EndReason, EngineWork

CALIBRATIONS = 6
"""How often the fitted model is compared with its run, and scaled."""
NEAR = 0.02
"""The accepted total error of the sums, as a logarithm."""
FURTHEST = 3.0
"""The largest scale, up or down."""
UNKNOWN_CACHE = 1 << 50
"""The size of a cache of unknown size: everything fits."""
CACHE_TRIES = 10
DUTY_TRIES = 5
MIN_DUTY = 0.05
"""The duty of an engine that leaves the run's own process to the event loop nearly all the time."""
DUTY_NEAR = 0.1
"""The makespan error above which the engine's duty is adjusted."""
STEP = 0.7
"""The step size of the scales, since a gain of one is a loss of the other. Halved after a step in the wrong
direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the settings of a run say about its machine."""

    engine: EngineSpec
    """Its cache, slots and cores; the speeds are ignored."""
    cores: float
    processes: int = 1
    """The processes that agents run in."""
    reuses: bool = True
    """Whether the engine keeps what it computed from call to call."""
    staleness: int | None = None
    """Of a training run."""
    deadlines: Deadlines = Deadlines()
    retries: Retries = Retries()
    samples: tuple[Sample, ...] = ()
    """How busy the machine was."""
    work: tuple[EngineWork, ...] = ()
    """What the engine reported about its steps."""
    apart: bool = False
    """Whether agents live in other processes than the run's own."""
    use: CpuUse | None = None
    """The CPU time of the run's own process and of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a replay changes. None: as recorded."""

    samples: int | None = None
    """Rollouts of a task that are started."""
    keep: int | None = None
    """Of these, how many are enough."""
    staleness: int | None = None
    slots: int | None = None
    """Of the engine."""
    engines: int = 1
    cores: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A run and the machine fitted on it."""

    run: Recorded
    known: Known
    cores: Cores
    fit: Fit
    engine_scale: float = 1.0
    """The factor on the engine's fitted times that matches the recorded run as a whole."""
    chore_scale: float = 1.0
    """The same for tools, sandboxes and gradings."""
    others: float = 0.0
    """Cores that other programs used, on average."""
    use: CpuUse | None = None
    """The CPU time the run needed, if it was recorded."""

    @property
    def spec(self) -> EngineSpec:
        spec, scale = self.fit.spec, self.engine_scale
        return replace(
            spec,
            step_s=spec.step_s * scale,
            row_s=spec.row_s * scale,
            token_s=spec.token_s * scale,
            call_s=spec.call_s * scale,
            prompt_s=spec.prompt_s * scale,
            prefill_tokens_s=spec.prefill_tokens_s / scale,
        )

    def workload(self, change: Change, *, seed: int = 0) -> Workload:
        jobs = tuple(self._job(rollout) for rollout in _chosen(self.run.rollouts, change.samples, seed))
        spec = self.spec
        if change.slots is not None and spec.slots is not None and spec.contexts is not None:
            each = spec.kv_tokens // spec.contexts
            spec = replace(spec, slots=change.slots, contexts=change.slots, kv_tokens=each * change.slots)
        largest = max(tokens for job in jobs for tokens in _sizes(job))
        machine = SimMachine(
            engine=replace(spec, kv_tokens=max(spec.kv_tokens, largest)),
            cores=change.cores or self.known.cores,
            agents=1,
            sandbox_cap=1,
            slots=1,
            deadlines=self.known.deadlines,
            retries=self.known.retries,
            others=self.others,
            front_s=0.0 if self.use is None else self.use.front_s,
        )
        return checked(
            Workload(
                name=self.run.name,
                machine=machine,
                jobs=jobs,
                staleness=self.known.staleness if change.staleness is None else change.staleness,
                keep=change.keep,
                update_s=self.run.update_s,
                engines=change.engines,
            )
        )

    def _job(self, rollout: RecordedRollout) -> SimJob:
        return SimJob(
            task=rollout.key.task_id,
            sample=rollout.key.sample,
            step=rollout.key.step,
            phase=rollout.key.phase,
            prompt=rollout.calls[0].context,
            init=self._chore(rollout.init),
            start=self._chore(rollout.start),
            turns=tuple(self._turns(rollout)),
            release_s=sum(piece.seconds for piece in rollout.release),
            grade=self._chore(rollout.grade),
            shared=min(rollout.calls[0].cached or 0, rollout.calls[0].context),
            weight=rollout.weight,
            grade_weight=rollout.grade_weight,
            verdict=rollout.reason.trust.graded,
        )

    def _turns(self, rollout: RecordedRollout) -> Sequence[SimTurn]:
        turns, before = [], 0
        for call, pieces in zip(rollout.calls, rollout.between, strict=True):
            chore = self._chore(pieces)
            continues = call.kept >= min(before, call.context) and self.known.reuses
            turns.append(
                SimTurn(
                    sampled=call.sampled,
                    tool_s=chore.wait_s,
                    tool_cpu_s=chore.cpu_s,
                    context=call.context,
                    kept=None if continues else call.kept if self.known.reuses else 0,
                )
            )
            before = call.context + call.sampled
        return turns

    def _chore(self, pieces: Sequence[Piece]) -> Chore:
        chore = self.cores.alone(pieces)
        return Chore(wait_s=chore.wait_s * self.chore_scale, cpu_s=chore.cpu_s * self.chore_scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchSetup:
    """How rollouts are dispatched."""

    make: MakePolicy
    limits: DispatchLimits
    change: Change = Change()


def fit_run(run: Recorded, known: Known, own: DispatchSetup) -> Model:
    """Fit the machine of a run. `own` is the setup it was recorded with: the model is compared with it."""
    engine, others = known.engine, 0.0
    use = known.use
    steps = fit_steps(
        known.work,
        on_cores=engine.cores > 0,
        name=run.name,
        num_prompts=len(run.calls),
        alone=use.alone if use else 1.0,
    )
    if steps is None:
        use = None
    own_s = None if use is None else own_work(run, apart=known.apart)
    off = explain(run.calls, engine.slots, steps) if engine.cores else None
    cores = fit_cores(
        run, cores=known.cores, engine_cores=engine.cores, explain=off, threads=known.processes, own_s=own_s
    )
    if known.samples and engine.cores:
        level = engine_level(run, engine.cores)
        others = wanted_by_others(known.samples, cores, cores=known.cores, engine=level)
    if others:
        cores = fit_cores(
            run,
            cores=known.cores,
            engine_cores=engine.cores,
            explain=off,
            others=others,
            threads=known.processes,
            own_s=own_s,
        )
    fit = fit_engine(run.calls, known.engine, cores, name=run.name, steps=steps, use=use)
    model = Model(run=run, known=known, cores=cores, fit=fit, others=others, use=use)
    if known.engine.kv_tokens == UNKNOWN_CACHE and run.again:
        model = _with_cache(model, own)
    if use is not None:
        return _with_duty(replace(model, chore_scale=_as_measured(model, use)), own)
    return calibrated(model, lambda tried: _totals(recorded(replay(tried, own).rollouts, name=run.name)))


def _as_measured(model: Model, use: CpuUse) -> float:
    """The scale of chores under which they need the cores for no longer than all processes but the run's own had them.
    These may have been others' processes, so nothing becomes longer by it."""
    found_s = sum(model.cores.alone(rollout.pieces).cpu_s for rollout in model.run.rollouts)
    return min(1.0, use.rest_s * len(model.run.calls) / found_s) if found_s > 0 and use.rest_s > 0 else 1.0


def calibrated(model: Model, again: Callable[[Model], tuple[float, float]]) -> Model:
    """The model, its two speeds scaled until calls and chores take as long in all as they took. `again` is how long
    they take in a replay."""
    calls_s, chores_s = _totals(model.run)
    best, least, ratios, step = model, math.inf, (0.0, 0.0), STEP
    for _ in range(CALIBRATIONS):
        calls_again_s, chores_again_s = again(model)
        found = _log_ratio(calls_s, calls_again_s), _log_ratio(chores_s, chores_again_s)
        off = sum(map(abs, found))
        if off < least:
            best, least, ratios = model, off, found
        else:
            step /= 2
        if least < NEAR:
            break
        model = replace(
            best,
            engine_scale=_within(best.engine_scale * math.exp(step * ratios[0])),
            chore_scale=_within(best.chore_scale * math.exp(step * ratios[1])),
        )
    return best


def replay(model: Model, setup: DispatchSetup, *, seed: int = 0) -> Trace:
    return trace(model.workload(setup.change, seed=seed), setup.make, setup.limits)


def _with_duty(model: Model, own: DispatchSetup) -> Model:
    """The model, in which the engine leaves the run's own process to others for some of its time, if the recorded
    makespan tells so. How much of what it has a core for keeps them waiting is not on record: all of it, at most."""
    low, high = MIN_DUTY, model.fit.spec.duty
    if not high:  # the engine has a process of its own
        return model
    for tries in range(DUTY_TRIES):
        again = recorded(replay(model, own).rollouts, name=model.run.name)
        off = again.makespan_s / model.run.makespan_s - 1.0
        if abs(off) < DUTY_NEAR or (off < 0 and not tries):
            break
        duty = model.fit.spec.duty
        low, high = (low, duty) if off > 0 else (duty, high)
        spec = replace(model.fit.spec, duty=(low * high) ** 0.5)
        model = replace(model, fit=replace(model.fit, spec=spec))
    return model


def _with_cache(model: Model, own: DispatchSetup) -> Model:
    """The size of cache with which a replay computes about as many tokens again as the recorded run did."""
    sizes = [call.context + call.sampled for call in model.run.calls]
    low, high = (
        max(sizes),
        sum(max(call.context + call.sampled for call in rollout.calls) for rollout in model.run.rollouts),
    )
    for _ in range(CACHE_TRIES):
        middle = int((low * high) ** 0.5)
        tried = replace(model, fit=replace(model.fit, spec=replace(model.fit.spec, kv_tokens=middle)))
        if replay(tried, own).outcome.reprefill_tokens > (model.run.again or 0):
            low = middle
        else:
            high = middle
    return replace(model, fit=replace(model.fit, spec=replace(model.fit.spec, kv_tokens=high)))


def _totals(run: Recorded) -> tuple[float, float]:
    """Seconds of all calls, and of all chores."""
    return (
        sum(call.seconds for call in run.calls),
        sum(piece.seconds for rollout in run.rollouts for piece in rollout.pieces),
    )


def _log_ratio(recorded_s: float, again_s: float) -> float:
    """The logarithm of their ratio."""
    return math.log(recorded_s / again_s) if recorded_s > 0 and again_s > 0 else 0.0


def _within(scale: float) -> float:
    return min(FURTHEST, max(1.0 / FURTHEST, scale))


def call_error(run: Recorded, again: Trace) -> float:
    """The median of how far the length of a call is off in a replay, as a share of the recorded one."""
    recorded_s = {rollout.key: [call.seconds for call in rollout.calls] for rollout in run.rollouts}
    off = [
        abs(call.seconds / before - 1.0)
        for rollout in recorded(again.rollouts, name=run.name).rollouts
        for call, before in zip(rollout.calls, recorded_s.get(rollout.key, ()), strict=False)
        if before > 0
    ]
    return statistics.median(off) if off else 0.0


# ---------------------------------------------------------------- which rollouts


def num_drawn(rollouts: Sequence[RecordedRollout], samples: int | None) -> int:
    """How many of the rollouts to replay are beyond those on record."""
    return sum(
        max(0, _num_wanted(phase, members, samples) - len(members))
        for (phase, _, _), members in _groups(rollouts).items()
    )


def _num_wanted(phase: str, members: Sequence[RecordedRollout], samples: int | None) -> int:
    return len(members) if samples is None or phase == HELD_OUT else samples


def _groups(rollouts: Sequence[RecordedRollout]) -> dict[tuple[str, int, str], list[RecordedRollout]]:
    groups: defaultdict[tuple[str, int, str], list[RecordedRollout]] = defaultdict(list)
    for rollout in sorted(rollouts, key=lambda rollout: rollout.key):
        groups[rollout.key.phase, rollout.key.step, rollout.key.task_id].append(rollout)
    return groups


def _chosen(rollouts: Sequence[RecordedRollout], samples: int | None, seed: int) -> list[RecordedRollout]:
    """The rollouts to replay, in the order in which jobs are submitted."""
    whole: defaultdict[str, list[RecordedRollout]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.reason is not EndReason.CANCELLED:
            whole[rollout.key.task_id].append(rollout)
    found: list[tuple[float, RecordedRollout]] = []
    for (phase, step, task_id), members in _groups(rollouts).items():
        num = _num_wanted(phase, members, samples)
        last = members[-1].key
        for place in range(num):
            rng = random.Random(f"{seed} {phase} {step} {task_id} {place}")
            if place < len(members):
                rollout, key = _completed(members[place], whole[task_id], rng), members[place].key
            else:
                rollout = rng.choice(whole[task_id] or members)
                key = replace(last, sample=last.sample + 1 + place - len(members))
            at_s = members[min(place, len(members) - 1)].first_s
            found.append((at_s, replace(rollout, key=key)))
    return [rollout for _, rollout in sorted(found, key=lambda each: (each[1].key.step, each[0], each[1].key))]


def _completed(rollout: RecordedRollout, whole: Sequence[RecordedRollout], rng: random.Random) -> RecordedRollout:
    """A plausible continuation of a cancelled rollout: one of its task with at least as many turns."""
    if rollout.reason is not EndReason.CANCELLED or not whole:
        return rollout
    as_far = [other for other in whole if len(other.calls) >= len(rollout.calls)]
    return rng.choice(as_far) if as_far else max(whole, key=lambda other: len(other.calls))


def _sizes(job: SimJob) -> list[int]:
    return [context + turn.sampled for context, turn in zip(job.contexts, job.turns, strict=True)]
