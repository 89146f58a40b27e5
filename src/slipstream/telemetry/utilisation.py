"""Where the time of a run went: from the spans of its rollouts, a time line and figures for each resource.

Pure: the same rollouts give the same figures in any order, from a run store or from memory. A line is a step function
of time. Only time in which at least one job is under way counts, so that a run that was stopped and resumed is not
charged for the pause. Only spans and weights are read: turns need not be loaded.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from slipstream.types import Rollout, Span, SpanKind


class Resource(StrEnum):
    """What can be in use. Those named after a kind of span count the open spans of that kind."""

    JOBS = "jobs"
    """Between the start of a job's first stage and the end of its last."""
    WAIT_INIT = "wait_init"
    INIT = "init"
    WAIT_RUN = "wait_run"
    RUN = "run"
    WAIT_TURN = "wait_turn"
    MODEL = "model"
    TOOL = "tool"
    OWN = "own"
    """Inside a run, but not in a model call, a tool or a wait for a turn: rendering, and the loop itself."""
    RELEASE = "release"
    WAIT_GRADE = "wait_grade"
    GRADE = "grade"
    SANDBOXES = "sandboxes"
    """Live sandboxes, by weight: from initialisation to release, and while a grader has one."""
    PREFILL_TOKENS = "prefill_tokens"
    """Prompt tokens per second that were not in the engine's cache, those of a call spread evenly over its duration."""
    SAMPLED_TOKENS = "sampled_tokens"
    """Sampled tokens per second, spread in the same way."""


STAGES = (
    Resource.WAIT_INIT, Resource.INIT, Resource.WAIT_RUN, Resource.RUN, Resource.RELEASE, Resource.WAIT_GRADE,
    Resource.GRADE,
)  # fmt: skip
"""The stages of a job, in order."""

INSIDE_RUN = (Resource.WAIT_TURN, Resource.MODEL, Resource.TOOL, Resource.OWN)

_LIVE = frozenset(
    {SpanKind.INIT, SpanKind.WAIT_RUN, SpanKind.RUN, SpanKind.RELEASE, SpanKind.WAIT_GRADE, SpanKind.GRADE}
)
_IN_RUN = frozenset({SpanKind.WAIT_TURN, SpanKind.MODEL, SpanKind.TOOL})


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLine:
    """A level over time: `levels[i]` from `times_s[i]` to the next time, and 0 outside."""

    times_s: Sequence[float]
    levels: Sequence[float]

    @property
    def peak(self) -> float:
        return max(self.levels, default=0.0)

    @property
    def total(self) -> float:
        """The integral over time: of agents, agent-seconds; of tokens per second, tokens."""
        return sum(level * seconds for level, seconds in self._steps())

    @property
    def busy_s(self) -> float:
        """Seconds in which it is above 0."""
        return sum(seconds for level, seconds in self._steps() if level > 0)

    def stretches(self, min_level: float) -> Iterator[tuple[float, float]]:
        """Start and end of each step whose level is at least `min_level`."""
        for place, (level, seconds) in enumerate(self._steps()):
            if level >= min_level and seconds > 0:
                yield self.times_s[place], self.times_s[place + 1]

    def resampled(self, num: int) -> TimeLine:
        """The mean level of each of `num` equal intervals; the line itself if it has no more steps than that."""
        if len(self.times_s) <= num:
            return self
        first_s = self.times_s[0]
        width_s = (self.times_s[-1] - first_s) / num
        sums = array("d", bytes(8 * num))
        for place, (level, seconds) in enumerate(self._steps()):
            start = (self.times_s[place] - first_s) / width_s
            end = start + seconds / width_s
            for bucket in range(min(int(start), num - 1), min(int(end), num - 1) + 1):
                sums[bucket] += level * max(0.0, min(end, bucket + 1) - max(start, bucket))
        return TimeLine(times_s=[first_s + place * width_s for place in range(num + 1)], levels=[*sums, 0.0])

    def _steps(self) -> Iterator[tuple[float, float]]:
        for place in range(len(self.times_s) - 1):
            yield self.levels[place], self.times_s[place + 1] - self.times_s[place]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUse:
    """How one resource was used."""

    mean: float
    """Mean level over the run's time."""
    peak: float
    busy_share: float
    """Share of the run's time in which the level was above 0."""
    total: float
    """Integral of the level over the run, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    seconds: float
    """In which at least one job was under way."""
    num_rollouts: int
    num_attempts: int
    num_failed_stages: int
    """Stages that failed, including those that a retry fixed."""
    num_model_calls: int
    num_prompt_tokens: int
    num_cached_tokens: int | None
    """Of these, what the engine had in its cache; None if it never reported that."""
    num_sampled_tokens: int
    uses: Mapping[Resource, ResourceUse]


def utilisation(rollouts: Iterable[Rollout]) -> Utilisation:
    """The figures of a run."""
    return utilisation_and_lines(rollouts)[0]


def utilisation_and_lines(rollouts: Iterable[Rollout]) -> tuple[Utilisation, dict[Resource, TimeLine]]:
    """The figures of a run, and the lines that they are made of."""
    changes = _Changes()
    num_rollouts = num_attempts = num_failed = num_calls = num_prompt = num_cached = num_sampled = 0
    says_cached = False
    for rollout in rollouts:
        num_rollouts += 1
        # One that was resumed may have left its initialisation behind, so anything but a wait for it counts.
        num_attempts += len({span.attempt for span in rollout.spans if span.kind is not SpanKind.WAIT_INIT})
        num_failed += len(rollout.failures)
        changes.add_rollout(rollout)
        for span in rollout.spans:
            if span.kind is SpanKind.MODEL:
                num_calls += 1
                num_prompt += prompt_tokens(span)
                num_sampled += span.counts.get("sampled", 0)
                num_cached += span.counts.get("cached", 0)
                says_cached |= "cached" in span.counts
    lines = {resource: changes.line(resource) for resource in Resource}
    seconds = lines[Resource.JOBS].busy_s
    found = Utilisation(
        seconds=seconds,
        num_rollouts=num_rollouts,
        num_attempts=num_attempts,
        num_failed_stages=num_failed,
        num_model_calls=num_calls,
        num_prompt_tokens=num_prompt,
        num_cached_tokens=num_cached if says_cached else None,
        num_sampled_tokens=num_sampled,
        uses={resource: _use(line, seconds) for resource, line in lines.items()},
    )
    return found, lines


def time_lines(rollouts: Iterable[Rollout]) -> dict[Resource, TimeLine]:
    """The level of every resource over time."""
    changes = _Changes()
    for rollout in rollouts:
        changes.add_rollout(rollout)
    return {resource: changes.line(resource) for resource in Resource}


def prompt_tokens(span: Span) -> int:
    """Of a model call: all tokens of its prompt, as far as they are known."""
    counts = span.counts
    return counts["prompt"] if "prompt" in counts else counts.get("new", 0) + counts.get("kept", 0)


def _use(line: TimeLine, seconds: float) -> ResourceUse:
    total = line.total
    return ResourceUse(
        mean=total / seconds if seconds else 0.0,
        peak=line.peak,
        busy_share=min(1.0, line.busy_s / seconds) if seconds else 0.0,
        total=total,
    )


class _Changes:
    """Per resource, by how much its level changes at which time."""

    def __init__(self) -> None:
        self._times_s = {resource: array("d") for resource in Resource}
        self._by = {resource: array("d") for resource in Resource}

    def add_rollout(self, rollout: Rollout) -> None:
        for number in sorted({span.attempt for span in rollout.spans}):
            self._add_attempt([span for span in rollout.spans if span.attempt == number], rollout.job.weight)
        live = [span for span in rollout.spans if span.kind in _LIVE]
        if live:
            self._add(Resource.JOBS, min(span.start_s for span in live), max(span.end_s for span in live))

    def line(self, resource: Resource) -> TimeLine:
        times_s, levels = array("d"), array("d")
        level = 0.0
        for time_s, by in sorted(zip(self._times_s[resource], self._by[resource], strict=True)):
            level += by
            if times_s and times_s[-1] == time_s:
                levels[-1] = level
            else:
                times_s.append(time_s)
                levels.append(level)
        return TimeLine(times_s=times_s, levels=_settled(levels))

    def _add_attempt(self, spans: Sequence[Span], weight: int) -> None:
        for span in spans:
            self._add(Resource(span.kind.value), span.start_s, span.end_s)
            if span.kind is SpanKind.MODEL:
                prefill = max(0, prompt_tokens(span) - span.counts.get("cached", span.counts.get("kept", 0)))
                self._spread(Resource.PREFILL_TOKENS, span, prefill)
                self._spread(Resource.SAMPLED_TOKENS, span, span.counts.get("sampled", 0))
            elif span.kind is SpanKind.GRADE:
                self._add(Resource.SANDBOXES, span.start_s, span.end_s, span.counts.get("sandboxes", 0))
            elif span.kind is SpanKind.RUN:
                inside = [(child.start_s, child.end_s) for child in spans if child.kind in _IN_RUN]
                for start_s, end_s in _gaps(span.start_s, span.end_s, inside):
                    self._add(Resource.OWN, start_s, end_s)
        opened = [span.start_s for span in spans if span.kind is SpanKind.INIT]
        closed = [span.end_s for span in spans if span.kind in (SpanKind.INIT, SpanKind.RUN, SpanKind.RELEASE)]
        if opened:
            self._add(Resource.SANDBOXES, min(opened), max(closed), weight)

    def _spread(self, resource: Resource, span: Span, number: int) -> None:
        if span.seconds > 0:
            self._add(resource, span.start_s, span.end_s, number / span.seconds)

    def _add(self, resource: Resource, start_s: float, end_s: float, level: float = 1.0) -> None:
        if level and end_s > start_s:
            self._times_s[resource].extend((start_s, end_s))
            self._by[resource].extend((level, -level))


def _settled(levels: array[float]) -> array[float]:
    """Token rates do not add up to exactly 0 again: what is left of them is rounding."""
    rounding = 1e-9 * max(levels, default=0.0)
    return array("d", (0.0 if level <= rounding else level for level in levels))


def _gaps(start_s: float, end_s: float, inside: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """The parts of the interval from `start_s` to `end_s` that none of `inside` covers."""
    for child_start_s, child_end_s in sorted(inside):
        if child_start_s > start_s:
            yield start_s, min(child_start_s, end_s)
        start_s = max(start_s, child_end_s)
    if start_s < end_s:
        yield start_s, end_s
