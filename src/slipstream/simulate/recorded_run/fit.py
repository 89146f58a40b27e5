"""The engine model, fitted on the model calls of a recorded run.

Input: calls with their times and tokens, and how far the machine was shared. Output: an EngineSpec.
A call of s tokens that is let in at a and ends at e is taken to last

    call_s + s (step_s + n row_s + T token_s) + P / prefill_tokens_s + Q (1 / share - 1) / prefill_tokens_s

where n is the mean number of calls that were answered beside it and T that of their tokens, P the tokens of prompts
that were computed from a to e, and Q those until its own were done, which go slower beside replies. That is linear in
what is looked for: a least-squares fit with no number below 0, in which calls that are far off count less. When each
prompt was computed follows from the prefill speed of the fit before, so it is made several times. Where an engine has
slots, a call is let in when one is free, first come, first served: recorded ends tell when that was.

For an engine that reports its step times this is not needed: step_s, row_s, token_s and prefill_tokens_s are fitted on
its steps, and the calls tell what is left.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from slipstream.errors import ConfigError
from slipstream.simulate.machine.engine import EngineSpec
from slipstream.simulate.recorded_run.chores import Cores, Explain
from slipstream.simulate.recorded_run.cpu_use import CpuUse
from slipstream.simulate.recorded_run.mean_level import Level
from slipstream.simulate.recorded_run.recorded import Call
from slipstream.types import EngineWork

MIN_CALLS = 24
MIN_STEPS = 100
"""Of an engine that reports their times."""
MIN_OVERLAP = 1.2
"""The mean number of concurrent calls; with fewer, the cost of a second one cannot be estimated."""
MIN_VARIETY = 0.05
"""By how much the number of calls at once, or the tokens of a reply, must vary: its deviation over its mean."""
TOLERANCE = 0.1
"""A call that is off by more counts less, in proportion."""
ROUNDS = 6
PREFILL_ROUNDS = 4
PREFILL_GUESSES = (0.0, 0.3, 0.8)
"""Of the engine's time, what may have gone into prompts."""
MIN_S = 1e-6
NO_TIME_S = 0.003
"""An engine with faster calls answers from memory: there is nothing to fit."""
FASTEST_PREFILL = 1e9
RIDGE = 1e-5
"""The penalty for using a term at all."""
PRIORS = (0.0, 0.0, 1e-3, 3e-2, 0.0, 0.0)
"""What it costs besides, in their order, where the calls of a run are off by UNSURE. Where the run cannot tell, a step
takes as long however many take part in it, and however long their contexts are, which is so as long as reading the
weights is most of it."""
UNSURE, MIN_UNSURE = 0.15, 0.04
"""How far calls are off, as a share of themselves: by so much, and no less, in the median."""
MIN_SHARE = 0.3
"""Of the median length of a call: a shorter one is not held to more than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    spec: EngineSpec
    num_calls: int
    num_steps: int = 0
    """Steps whose times the engine reported."""
    error: float
    """The median of how far the fitted length of a call is off, as a share of the recorded one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What a step of an engine costs: itself, each sequence, each token in its cache, each token of a prompt, and each
    prompt, whatever its length."""

    step_s: float
    row_s: float
    token_s: float
    prefill_s: float
    prompt_s: float
    num: int
    """That it was fitted on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    seconds: float
    """The duration of the call, or of a few steps, without contention for the cores."""
    terms: tuple[float, ...]
    """What each parameter is multiplied by."""
    scale_s: float
    """The scale of errors: its duration, but at least a part of the median."""

    def of(self, parameters: Sequence[float]) -> float:
        return sum(parameter * term for parameter, term in zip(parameters, self.terms, strict=True))


def fit_engine(
    calls: Sequence[Call],
    like: EngineSpec,
    cores: Cores,
    *,
    name: str,
    steps: Steps | None = None,
    use: CpuUse | None = None,
) -> Fit:
    """`like` has what is known of the engine: its cache, its slots, its cores; `steps` what fit_steps made of it; with
    `use` a call takes nothing else but what it needs of the run's own process."""
    timed = sorted(
        (call for call in calls if call.sampled and call.seconds > 0), key=lambda call: (call.start_s, call.end_s)
    )
    if len(timed) < MIN_CALLS:
        raise ConfigError(
            f"the run {name} has {len(timed)} timed model calls, but fitting an engine takes {MIN_CALLS}: "
            "record a run with more rollouts"
        )
    middle_s = statistics.median(call.seconds for call in timed)
    if middle_s < NO_TIME_S:
        spec = replace(
            like, step_s=1e-9, row_s=0.0, token_s=0.0, prefill_tokens_s=FASTEST_PREFILL, call_s=middle_s, cores=0.0
        )
        return Fit(
            spec=spec, num_calls=len(timed), error=_off([call.seconds for call in timed], [middle_s] * len(timed))
        )
    admitted = admissions(timed, like.slots)
    if steps is None:
        _check_calls(timed, admitted, name)
    shared = cores if like.cores else None
    found: tuple[float, ...]
    if steps is not None and use is not None:
        found = (0.0, steps.step_s, steps.row_s, steps.token_s, steps.prefill_s, steps.prefill_s)
        rows = _rows(timed, admitted, _computed(timed, admitted, 2 * steps.prefill_s), shared)
        error = _off([row.seconds for row in rows], [row.of(found) for row in rows])
    else:
        error, found = min(_fits(timed, admitted, shared, steps))
    call_s, step_s, row_s, token_s, prefill_s, slower_s = found
    share = 0.5 if prefill_s <= 0 else min(0.9, max(0.1, prefill_s / (prefill_s + slower_s)))
    spec = replace(
        like,
        call_s=call_s,
        step_s=max(step_s, 1e-9),
        row_s=row_s,
        token_s=token_s,
        prefill_tokens_s=1.0 / max(prefill_s, 1.0 / FASTEST_PREFILL),
        prefill_share=share,
        prompt_s=0.0 if steps is None else steps.prompt_s,
        duty=0.0 if use is None else use.duty,
    )
    return Fit(spec=spec, num_calls=len(timed), num_steps=steps.num if steps else 0, error=error)


def fit_steps(
    work: Sequence[EngineWork], *, on_cores: bool, name: str, num_prompts: int = 0, alone: float = 1.0
) -> Steps | None:
    """The cost of a step, from the times that the engine reported; None if there are too few.

    `on_cores`: it computed on the cores that the sandboxes use too, so what counts is the time in which it had one.
    `alone`: otherwise, the share of its time that it would have taken without contention."""
    num = sum(each.num_steps for each in work)
    if num < MIN_STEPS:
        return None
    _check_variety([(each.num_rows / each.num_steps, each.num_steps) for each in work if each.num_steps], name)
    rows, counts = [], []
    for each in work:
        seconds = each.cpu_s if on_cores else max(each.cpu_s, alone * each.seconds)
        if seconds > 0:
            with_prompts = each.num_steps if each.num_prompt else 0
            terms = (0, each.num_steps, each.num_rows, each.num_held, each.num_prompt, with_prompts)
            rows.append(_Row(seconds=seconds, terms=tuple(map(float, terms)), scale_s=seconds))
            counts.append(float(max(1, each.num_steps)))
    found = _solve(rows, counts=counts)
    _, step_s, row_s, token_s, prefill_s, mixed_s = found
    stepping = [row for row in rows if row.terms[1]]
    # Steps that are far off count little in the fit, but they take their time all the same.
    more = sum(row.seconds for row in stepping) / sum(row.of(found) for row in stepping)
    prompts_s = more * mixed_s * sum(row.terms[5] for row in stepping)
    prompts_s += sum(row.seconds - row.of(found) for row in rows if not row.terms[1])
    return Steps(
        step_s=more * step_s,
        row_s=more * row_s,
        token_s=more * token_s,
        prefill_s=prefill_s,
        prompt_s=max(0.0, prompts_s) / num_prompts if num_prompts else 0.0,
        num=num,
    )


def _fits(
    calls: Sequence[Call], admitted: Sequence[float], cores: Cores | None, steps: Steps | None
) -> Iterator[tuple[float, tuple[float, ...]]]:
    """What is found from several guesses of the prefill speed, each with how far it is off."""
    busy = Level(((call.start_s, call.end_s, 1.0) for call in calls), lambda level: float(level > 0))
    busy_s = sum(end_s - start_s for start_s, end_s, _ in busy.pieces())
    fresh = max(1, sum(call.fresh for call in calls))
    for guess in PREFILL_GUESSES:
        prefill_s = guess * busy_s / fresh
        for _ in range(PREFILL_ROUNDS):
            rows = _rows(calls, admitted, _computed(calls, admitted, prefill_s), cores)
            found = _solve_calls(rows, steps)
            prefill_s = found[4] + found[5]
        yield _off([row.seconds for row in rows], [row.of(found) for row in rows]), found


def explain(calls: Sequence[Call], slots: int | None, steps: Steps | None = None) -> Explain:
    """How far a rough fit is off, by how the machine is thought to have been shared."""
    timed = sorted((call for call in calls if call.sampled and call.seconds > 0), key=lambda call: call.start_s)
    admitted = admissions(timed, slots)
    rows = _rows(timed, admitted, _computed(timed, admitted, 0.0), None)
    kept = [(call, at_s) for call, at_s in zip(timed, admitted, strict=True) if call.end_s > at_s]

    def off(stretch: Level) -> float:
        alone = [
            replace(row, seconds=row.seconds / max(1.0, stretch.mean(at_s, call.end_s)))
            for row, (call, at_s) in zip(rows, kept, strict=True)
        ]
        found = _solve_calls(alone, steps, rounds=3)
        return _off([row.seconds for row in alone], [row.of(found) for row in alone])

    return off


def admissions(calls: Sequence[Call], slots: int | None) -> list[float]:
    """When each call, in order of arrival, was admitted."""
    if slots is None:
        return [call.start_s for call in calls]
    ends: list[float] = []
    found = []
    for call in calls:
        free_s = heapq.heappop(ends) if len(ends) >= slots else call.start_s
        found.append(min(max(call.start_s, free_s), call.end_s))
        heapq.heappush(ends, call.end_s)
    return found


def _check_calls(calls: Sequence[Call], admitted: Sequence[float], name: str) -> None:
    open_calls = Level((at_s, call.end_s, 1.0) for call, at_s in zip(calls, admitted, strict=True))
    at_once = [open_calls.mean(at_s, call.end_s) for call, at_s in zip(calls, admitted, strict=True)]
    _check_variety([(each, 1) for each in at_once], name)


def _check_variety(at_once: Sequence[tuple[float, int]], name: str) -> None:
    """Refuse a run that cannot tell what one more costs. `at_once`: so many calls, so often."""
    times = sum(often for _, often in at_once)
    mean = sum(num * often for num, often in at_once) / times
    deviation = (sum((num - mean) ** 2 * often for num, often in at_once) / times) ** 0.5
    if mean < MIN_OVERLAP:
        raise ConfigError(
            f"the model calls of the run {name} hardly overlapped ({mean:.2f} at once), so the cost of one more call "
            "is unknown: record a run with more rollouts in flight (dispatch.slots, or more samples)"
        )
    if deviation < MIN_VARIETY * mean:
        raise ConfigError(
            f"the run {name} always had about {mean:.1f} model calls at once, so the cost of one more is unknown: "
            "record a run whose load varies (more rollouts than dispatch.slots, or other dispatch.slots)"
        )


def _rows(
    calls: Sequence[Call], admitted: Sequence[float], computed: Sequence[tuple[float, float]], cores: Cores | None
) -> list[_Row]:
    """`computed`: from when to when the prompt of each call was, as far as that is known."""
    whole = list(zip(calls, admitted, computed, strict=True))
    decoding = Level((until_s, call.end_s, 1.0) for call, _, (_, until_s) in whole)
    tokens = Level((at_s, call.end_s, float(call.context + call.sampled)) for call, at_s, _ in whole)
    prefill = Level(
        (from_s, until_s, call.fresh / (until_s - from_s)) for call, _, (from_s, until_s) in whole if until_s > from_s
    )
    rows = []
    least_s = MIN_SHARE * statistics.median(call.seconds for call in calls)
    for call, at_s, (_, until_s) in whole:
        if call.end_s <= at_s:
            continue
        meanwhile = prefill.mean(at_s, call.end_s) * (call.end_s - at_s)
        before = prefill.mean(at_s, until_s) * (until_s - at_s) * min(1.0, decoding.mean(at_s, until_s))
        num, held = decoding.mean(until_s, call.end_s), tokens.mean(until_s, call.end_s)
        seconds = (call.end_s - at_s) / (1.0 if cores is None else cores.stretch_of(at_s, call.end_s))
        terms = (1.0, call.sampled, call.sampled * num, call.sampled * held, meanwhile, before)
        rows.append(_Row(seconds=seconds, terms=tuple(map(float, terms)), scale_s=max(seconds, least_s)))
    return rows


def _computed(calls: Sequence[Call], admitted: Sequence[float], token_s: float) -> list[tuple[float, float]]:
    """When each prompt was computed, one after the other, each token of it in so much time; but within its call."""
    found, free_s = [], 0.0
    for call, at_s in zip(calls, admitted, strict=True):
        until_s = min(max(at_s, free_s) + max(call.fresh * token_s, MIN_S), call.end_s - MIN_S)
        from_s = max(at_s, min(free_s, until_s - MIN_S))
        found.append((from_s, max(until_s, from_s)))
        free_s = max(free_s, until_s)
    return found


# ---------------------------------------------------------------- least squares


def _solve_calls(rows: Sequence[_Row], steps: Steps | None, rounds: int = ROUNDS) -> tuple[float, ...]:
    """All parameters; those that are known from the engine's steps are not fitted."""
    if steps is None:
        return _solve(rows, rounds=rounds)
    known = (0.0, steps.step_s, steps.row_s, steps.token_s, steps.prefill_s, 0.0)
    rest = [
        replace(row, seconds=row.seconds - row.of(known), terms=(row.terms[0], 0.0, 0.0, 0.0, 0.0, row.terms[5]))
        for row in rows
    ]
    return tuple(step_cost + found for step_cost, found in zip(known, _solve(rest, rounds=rounds), strict=True))


def _solve(rows: Sequence[_Row], *, counts: Sequence[float] = (), rounds: int = ROUNDS) -> tuple[float, ...]:
    """Parameters, none below 0, for which lengths come out best: each counts by its share of itself, and `counts`
    times."""
    times = counts or [1.0] * len(rows)
    weights = list(times)
    unsure = UNSURE
    found: tuple[float, ...] = ()
    for _ in range(rounds):
        ridges = [RIDGE + prior * (unsure / UNSURE) ** 2 for prior in PRIORS]
        found = _not_negative(rows, weights, ridges)
        offs = [abs(row.of(found) - row.seconds) / row.scale_s for row in rows]
        weights = [each * (1.0 if off <= TOLERANCE else TOLERANCE / off) for each, off in zip(times, offs, strict=True)]
        unsure = max(MIN_UNSURE, min(unsure, statistics.median(offs)))
    return found


def _not_negative(rows: Sequence[_Row], weights: Sequence[float], ridges: Sequence[float]) -> tuple[float, ...]:
    """Least squares without negative parameters: drops the most negative term until none is left."""
    num = len(rows[0].terms)
    scales = [max(abs(row.terms[place]) / row.scale_s for row in rows) or 1.0 for place in range(num)]
    square = [[0.0] * num for _ in range(num)]
    right = [0.0] * num
    for row, weight in zip(rows, weights, strict=True):
        scaled = [term / row.scale_s / scale for term, scale in zip(row.terms, scales, strict=True)]
        for i in range(num):
            right[i] += weight * scaled[i] * row.seconds / row.scale_s
            for j in range(i + 1):
                square[i][j] += weight * scaled[i] * scaled[j]
    for i in range(num):
        for j in range(i):
            square[j][i] = square[i][j]
    used = list(range(num))
    while used:
        largest = max(square[i][i] for i in used)
        matrix = [[square[i][j] + (ridges[i] * largest if i == j else 0.0) for j in used] for i in used]
        solved = _gauss(matrix, [right[i] for i in used])
        worst = min(range(len(used)), key=lambda place: solved[place])
        if solved[worst] >= 0:
            by_place = dict(zip(used, solved, strict=True))
            return tuple(by_place.get(place, 0.0) / scales[place] for place in range(num))
        del used[worst]
    return (0.0,) * num


def _gauss(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solve linear equations by Gaussian elimination."""
    num = len(right)
    rows = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    for i in range(num):
        pivot = max(range(i, num), key=lambda k: abs(rows[k][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        if rows[i][i] == 0:
            continue
        for k in range(i + 1, num):
            factor = rows[k][i] / rows[i][i]
            for j in range(i, num + 1):
                rows[k][j] -= factor * rows[i][j]
    found = [0.0] * num
    for i in reversed(range(num)):
        rest = rows[i][num] - sum(rows[i][j] * found[j] for j in range(i + 1, num))
        found[i] = rest / rows[i][i] if rows[i][i] else 0.0
    return found


def _off(recorded: Sequence[float], predicted: Sequence[float]) -> float:
    return statistics.median(abs(b / a - 1.0) for a, b in zip(recorded, predicted, strict=True))
