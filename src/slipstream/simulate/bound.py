"""A lower bound on the makespan of a workload, for any policy. `docs/dispatch.md` derives it.

Input: a workload. Output: the bound, by resource. Faults are ignored, since they can only add time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slipstream.simulate.workload import SimJob, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    engine_s: float
    cores_s: float
    sandboxes_s: float
    path_s: float
    """The longest job, alone on the machine."""

    @property
    def lower_bound_s(self) -> float:
        return max(self.engine_s, self.cores_s, self.sandboxes_s, self.path_s)


def bound(workload: Workload) -> Bound:
    machine, jobs = workload.machine, workload.jobs
    first_s = min(_init_s(job) for job in jobs)
    last_s = min(_grade_s(job) for job in jobs)
    lives_s = [_init_s(job) + _run_s(workload, job) + _grade_s(job) for job in jobs]
    cpu_s = sum(job.init.cpu_s + job.grade.cpu_s + sum(turn.tool_cpu_s for turn in job.turns) for job in jobs)
    return Bound(
        engine_s=first_s + _engine_s(workload) + last_s,
        cores_s=cpu_s / machine.cores,
        sandboxes_s=sum(lives_s) / machine.sandbox_cap,
        path_s=max(lives_s),
    )


def _init_s(job: SimJob) -> float:
    return job.init.wait_s + job.init.cpu_s


def _grade_s(job: SimJob) -> float:
    return job.grade.wait_s + job.grade.cpu_s


def _run_s(workload: Workload, job: SimJob) -> float:
    """The job alone on the machine: one token per step, every context computed once."""
    spec = workload.machine.engine
    seconds, cached = 0.0, 0
    for turn, context in zip(job.turns, job.contexts, strict=True):
        seconds += max(0, context - cached) / spec.prefill_tokens_s
        seconds += turn.sampled * (spec.step_s + spec.row_s + context * spec.token_s)
        seconds += turn.tool_s + turn.tool_cpu_s
        cached = context + turn.sampled
    return seconds


def _engine_s(workload: Workload) -> float:
    """The shortest time in which the engine can do its work, if it never has to wait.

    Each token that is sampled takes its row and the reading of its context, each step the reading of the weights, each
    prompt its prefill; the engine does one thing at a time. So T >= rows + prefill + N step, where N is the number of
    steps. All the while the cache, of K tokens, holds contexts: those that are sampled for, those that are computed,
    and those that wait for a tool. So K T >= the sum of all three over time. For one that waits and one that is
    computed that is known. A context that is sampled for is held for as long as its steps take, and a step takes longer
    the more others take part in it. With D tokens of n contexts in a step, the sum over all steps of
    D (step_s + n row_s + D token_s) is at least S step_s + (S^2 token_s + Q^2 row_s) / N, where S is the sum over all
    sampled tokens of the context held for them, and Q that of its square root (Cauchy's inequality: n D is at least the
    square of the sum of the n roots).

    More steps make the first larger and the second smaller: the least T is where they meet. But N is at least S / K.

    An agent's context may also be evicted while it waits, and be computed again: that saves the most where the wait is
    longest. The bound is the smallest T over the number of longest waits that are avoided so, with the next one always
    free, since a part of it might be avoided. After its last turn no context needs to be kept.
    """
    spec = workload.machine.engine
    cache = spec.kv_tokens
    rows_s = held = roots = fresh = prefilled = 0.0
    waits: list[tuple[float, int]] = []
    for job in workload.jobs:
        cached = 0
        for turn, context in zip(job.turns, job.contexts, strict=True):
            there = context + turn.sampled
            fresh += max(0, context - cached)
            prefilled += there * max(0, context - cached)
            rows_s += turn.sampled * (spec.row_s + there * spec.token_s)
            held += turn.sampled * there
            roots += turn.sampled * math.sqrt(there)
            waits.append((turn.tool_s + turn.tool_cpu_s, there))
            cached = there
        waits.pop()
    waits.sort(reverse=True)
    kept = sum(seconds * tokens for seconds, tokens in waits)
    crowd = spec.step_s * (held * held * spec.token_s + roots * roots * spec.row_s)
    best_s = math.inf
    for seconds, tokens in [*waits, (0.0, 0)]:
        kept -= seconds * tokens
        own_s = rows_s + fresh / spec.prefill_tokens_s
        token_seconds = max(0.0, kept) + prefilled / spec.prefill_tokens_s + held * spec.step_s
        meet_s = _solve(own_s, token_seconds, crowd, cache)
        best_s = min(best_s, max(own_s + spec.step_s * held / cache, meet_s))
        fresh += tokens
    return best_s


def _solve(own_s: float, token_seconds: float, crowd: float, cache: float) -> float:
    """The T with cache T = token_seconds + crowd / (T - own): the larger root of a quadratic equation."""
    apart = cache * own_s - token_seconds
    return (cache * own_s + token_seconds + math.sqrt(apart * apart + 4 * cache * crowd)) / (2 * cache)
