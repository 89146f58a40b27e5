"""A makespan that no policy can beat on a workload's machine. `docs/dispatch.md` derives it.

Enters: a workload. Leaves: the bound, and what it comes from. Faults are left out: they only add.
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
    """Alone: every token by itself, every context computed once."""
    spec = workload.machine.engine
    seconds, cached = 0.0, 0
    for turn, context in zip(job.turns, job.contexts, strict=True):
        seconds += (context - cached) / spec.prefill_tokens_s
        seconds += turn.sampled * (spec.step_s + spec.row_s + context * spec.token_s)
        seconds += turn.tool_s + turn.tool_cpu_s
        cached = context + turn.sampled
    return seconds


def _engine_s(workload: Workload) -> float:
    """The engine's own time. For each token its row and the reading of its context; for each step, the reading of the
    weights; for each prompt, its prefill.

    How few steps can there be? Let S be the sum over all tokens of the context that is held while they are sampled. A
    step samples for contexts that fit into the cache, beside those that wait for a tool. Those take up H token-seconds
    in all, so on average K - H / T of the cache is left in a run of T seconds, and at least S / (K - H / T) steps are
    needed. (A step with more contexts takes longer, so the average by time is no less than the average by steps.) An
    agent may also be pushed out while it waits for its tool, and be computed again: that is worth the most where the
    wait is longest. The bound is the least T over how many of the longest waits are bought off so.
    """
    spec = workload.machine.engine
    rows = held = fresh = 0.0
    waits: list[tuple[float, int]] = []
    for job in workload.jobs:
        cached = 0
        for turn, context in zip(job.turns, job.contexts, strict=True):
            there = context + turn.sampled
            fresh += context - cached
            rows += turn.sampled * (spec.row_s + there * spec.token_s)
            held += turn.sampled * there
            waits.append((turn.tool_s + turn.tool_cpu_s, there))
            cached = there
    waits.sort()
    kept = sum(seconds * tokens for seconds, tokens in waits)
    best = _solve(rows + fresh / spec.prefill_tokens_s, held * spec.step_s, kept, spec.kv_tokens)
    for seconds, tokens in reversed(waits):
        kept -= seconds * tokens
        fresh += tokens
        best = min(best, _solve(rows + fresh / spec.prefill_tokens_s, held * spec.step_s, kept, spec.kv_tokens))
    return best


def _solve(fixed_s: float, held_s: float, kept: float, cache: float) -> float:
    """The T for which T = fixed + held / (cache - kept / T): the larger root of a quadratic."""
    # cache T^2 - (kept + fixed cache + held) T + fixed kept = 0
    middle = kept + fixed_s * cache + held_s
    return (middle + math.sqrt(max(0.0, middle * middle - 4 * cache * fixed_s * kept))) / (2 * cache)
