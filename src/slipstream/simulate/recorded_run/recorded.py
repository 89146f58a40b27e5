"""A recorded run, as far as a replay needs it: what each rollout used of the engine and of the machine, and when.

Input: the rollouts of a run store, with their spans. Output: a Recorded, with measured times only; `chores` and `fit`
estimate from them what the times would be without contention.
Invariants: the last attempt at a job represents it; a cancelled rollout is known as far as it went.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from slipstream.errors import ConfigError
from slipstream.record.reader import RunReader
from slipstream.seams import LearnerWork, LearnerWorked
from slipstream.simulate.recorded_run.mean_level import Level
from slipstream.telemetry.utilisation import Utilisation, prompt_tokens, utilisation
from slipstream.types import EndReason, JobKey, Rollout, Span, SpanKind, Trust


class TimeKind(StrEnum):
    """What a rollout spent time on, besides the engine and waiting."""

    INIT = "init"
    TOOL = "tool"
    OWN = "own"
    """The harness's: rendering, flushes of the run store, the artifact."""
    RELEASE = "release"
    GRADE = "grade"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of time of one kind."""

    kind: TimeKind
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One model call."""

    start_s: float
    end_s: float
    context: int
    """Tokens of the prompt."""
    kept: int
    """Of these, the tokens that were in the previous call."""
    cached: int | None
    """Of these, the tokens in the engine's cache; None if it does not report them."""
    sampled: int

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    @property
    def fresh(self) -> int:
        """Tokens of the prompt that had to be computed."""
        return max(0, self.context - (self.kept if self.cached is None else self.cached))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRollout:
    """One rollout: what it did, in order."""

    key: JobKey
    weight: int
    grade_weight: int
    reason: EndReason
    init: tuple[Piece, ...]
    start: tuple[Piece, ...]
    """Of the run, before its first call."""
    calls: tuple[Call, ...]
    between: tuple[tuple[Piece, ...], ...]
    """After each call, before the next one or the end of the run."""
    release: tuple[Piece, ...]
    grade: tuple[Piece, ...]
    first_s: float
    """When it was submitted."""
    last_s: float

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return (
            *self.init,
            *self.start,
            *(piece for some in self.between for piece in some),
            *self.release,
            *self.grade,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """How often a replay differs from the recorded run."""

    cancelled: int = 0
    """Cancelled rollouts: their continuation is drawn from others of their task."""
    untrusted: int = 0
    """Rollouts without a verdict: they are replayed as far as they went."""
    without_calls: int = 0
    """Rollouts without a recorded model call, such as one resumed after its agent had ended: they are drawn from others
    of their group, if there are any."""
    attempts: int = 0
    """Failed attempts that were retried."""
    overlapping: int = 0
    """Concurrent model calls of one rollout: they are replayed one after the other."""
    drawn: int = 0
    """Rollouts beyond the recorded ones of their group: each repeats one of its task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    name: str
    rollouts: tuple[RecordedRollout, ...]
    makespan_s: float
    """From the first submission to the end of the last rollout, without the pauses before it was resumed."""
    usage: Utilisation
    again: int | None
    """Prompt tokens of the previous call that were computed again; None if the engine does not report them."""
    update_s: tuple[float, ...]
    """For a training run: the learner's time after each step, checkpoints included."""
    left_out: LeftOut

    @property
    def calls(self) -> list[Call]:
        return [call for rollout in self.rollouts for call in rollout.calls]


def read_recorded(reader: RunReader) -> Recorded:
    """The run, or the reason why it cannot be replayed."""
    name, counts = reader.folder.name, reader.counts()
    if not counts.rollouts:
        raise ConfigError(f"the run {name} has no rollouts, so there is nothing to replay: name a finished run")
    if counts.jobs > counts.rollouts:
        raise ConfigError(
            f"the run {name} is unfinished, {counts.jobs - counts.rollouts} of its {counts.jobs} jobs have no rollout: "
            "finish it with --resume, then simulate it"
        )
    return recorded(reader.rollouts(with_turns=False), name=name, work=reader.learner_work())


def recorded(rollouts: Iterable[Rollout], *, name: str, work: Iterable[LearnerWorked] = ()) -> Recorded:
    """The same of rollouts in memory, and of the learner's work in order of start, where it is on record."""
    # A resumed run makes the updates again that its checkpoint has not seen: the last of them counts.
    worked = list({(done.work, done.step): done for done in work}.values())
    known = list(rollouts)
    found = [each for rollout in known if (each := _recorded_rollout(rollout)) is not None]
    if not found:
        raise ConfigError(f"the run {name} has no rollout that called a model, so there is nothing to replay")
    _check_tokens(found, name)
    reported = [call for each in found for call in each.calls if call.cached is not None]
    return Recorded(
        name=name,
        rollouts=tuple(found),
        makespan_s=_makespan_s(found, worked),
        usage=utilisation(known),
        again=sum(max(0, call.kept - (call.cached or 0)) for call in reported) if reported else None,
        update_s=_update_s(found, worked),
        left_out=LeftOut(
            cancelled=sum(rollout.ending.reason is EndReason.CANCELLED for rollout in known),
            untrusted=sum(rollout.trust is Trust.UNTRUSTED for rollout in known),
            without_calls=len(known) - len(found),
            attempts=sum(max(0, len({span.attempt for span in rollout.spans}) - 1) for rollout in known),
            overlapping=sum(
                after.start_s < before.end_s
                for each in found
                for before, after in zip(each.calls, each.calls[1:], strict=False)
            ),
        ),
    )


def _check_tokens(rollouts: Sequence[RecordedRollout], name: str) -> None:
    calls = [call for rollout in rollouts for call in rollout.calls]
    silent = sum(not call.sampled or not call.context for call in calls)
    if silent > len(calls) // 2:
        raise ConfigError(
            f"{silent} of the {len(calls)} model calls of the run {name} have no token counts, which a model of "
            "the engine needs: record a run with model.kind=tokens, or with a server that reports usage"
        )


# ---------------------------------------------------------------- one rollout


def _recorded_rollout(rollout: Rollout) -> RecordedRollout | None:
    """None for one that never called the model."""
    spans = [span for span in rollout.spans if span.attempt == rollout.attempt]
    by_kind: defaultdict[SpanKind, list[Span]] = defaultdict(list)
    for span in spans:
        by_kind[span.kind].append(span)
    found = sorted(by_kind[SpanKind.MODEL], key=lambda span: span.start_s)
    calls = [span for span in found if "failed" not in span.counts] or found
    if not calls or not by_kind[SpanKind.RUN]:
        return None
    run_start_s, run_end_s = by_kind[SpanKind.RUN][0].start_s, by_kind[SpanKind.RUN][-1].end_s
    tools = Level(((span.start_s, span.end_s, 1.0) for span in by_kind[SpanKind.TOOL]), lambda level: min(1.0, level))
    waits = [(span.start_s, span.end_s) for span in by_kind[SpanKind.WAIT_TURN]]
    between = []
    ended_s = calls[0].end_s
    for place, call in enumerate(calls):
        ended_s = max(ended_s, call.end_s)
        until_s = calls[place + 1].start_s if place + 1 < len(calls) else run_end_s
        between.append(_pieces(ended_s, until_s, tools, waits))
    return RecordedRollout(
        key=rollout.job.key,
        weight=rollout.job.weight,
        grade_weight=max((span.counts.get("sandboxes", 1) for span in by_kind[SpanKind.GRADE]), default=1),
        reason=rollout.ending.reason,
        init=_whole(TimeKind.INIT, by_kind[SpanKind.INIT]),
        start=_pieces(run_start_s, calls[0].start_s, tools, waits),
        calls=tuple(_calls(calls)),
        between=tuple(between),
        release=_whole(TimeKind.RELEASE, by_kind[SpanKind.RELEASE]),
        grade=_whole(TimeKind.GRADE, by_kind[SpanKind.GRADE][-1:]),
        first_s=min(span.start_s for span in rollout.spans),
        last_s=max(span.end_s for span in rollout.spans),
    )


def _whole(kind: TimeKind, spans: Sequence[Span]) -> tuple[Piece, ...]:
    return tuple(Piece(kind=kind, start_s=span.start_s, end_s=span.end_s) for span in spans)


def _calls(spans: Sequence[Span]) -> Iterable[Call]:
    before = 0
    for span in spans:
        counts: Mapping[str, int] = span.counts
        context, sampled = prompt_tokens(span), counts.get("sampled", 0)
        yield Call(
            start_s=span.start_s,
            end_s=span.end_s,
            context=context,
            kept=min(context, counts.get("kept", before)),
            cached=counts.get("cached"),
            sampled=sampled,
        )
        before = context + sampled


def _pieces(start_s: float, end_s: float, tools: Level, waits: Sequence[tuple[float, float]]) -> tuple[Piece, ...]:
    """What happens between two calls: tools, waits at the gate (left out), and the harness's own time."""
    found, free_s = [], start_s
    inside: list[tuple[float, float, TimeKind | None]] = [
        (from_s, to_s, TimeKind.TOOL) for from_s, to_s, _ in tools.pieces()
    ]
    inside += [(from_s, to_s, None) for from_s, to_s in waits]
    for from_s, to_s, kind in sorted(inside, key=lambda part: part[:2]):
        from_s, to_s = max(from_s, free_s), min(to_s, end_s)
        if to_s <= from_s:
            continue
        if from_s > free_s:
            found.append(Piece(kind=TimeKind.OWN, start_s=free_s, end_s=from_s))
        if kind is not None:
            found.append(Piece(kind=kind, start_s=from_s, end_s=to_s))
        free_s = to_s
    if end_s > free_s:
        found.append(Piece(kind=TimeKind.OWN, start_s=free_s, end_s=end_s))
    return tuple(found)


# ---------------------------------------------------------------- the run


def _is_training(rollouts: Sequence[RecordedRollout]) -> bool:
    return any(rollout.key.phase == "train" for rollout in rollouts)


def _makespan_s(rollouts: Sequence[RecordedRollout], worked: Sequence[LearnerWorked]) -> float:
    """Time in which no rollout was under way and no learner at work is a pause before a run was resumed, and does not
    count. Where the learner's work is not on record, the two cannot be told apart, and all of it counts."""
    first_s, last_s = min(rollout.first_s for rollout in rollouts), max(rollout.last_s for rollout in rollouts)
    if _is_training(rollouts) and not worked:
        return last_s - first_s
    stretches = [(rollout.first_s, rollout.last_s, 1.0) for rollout in rollouts]
    stretches += [
        (max(each.start_s, first_s), min(each.end_s, last_s), 1.0)
        for each in worked
        if each.start_s < last_s and each.end_s > first_s
    ]
    line = Level(stretches, lambda level: float(level > 0))
    return sum(end_s - start_s for start_s, end_s, _ in line.pieces())


def _update_s(rollouts: Sequence[RecordedRollout], worked: Sequence[LearnerWorked]) -> tuple[float, ...]:
    """What the learner's work after each step took; where it is not on record, from the last rollout of the step to
    the first submission that it made way for."""
    if not _is_training(rollouts):
        return ()
    if worked:
        found: defaultdict[int, float] = defaultdict(float)
        for each in worked:
            # A checkpoint carries the version that an update led to.
            found[each.step - (each.work is LearnerWork.CHECKPOINT)] += each.end_s - each.start_s
        return tuple(
            found[step] for step in sorted({rollout.key.step for rollout in rollouts if rollout.key.phase == "train"})
        )
    began: dict[int, float] = {}
    ended: dict[int, float] = {}
    for rollout in rollouts:
        step = rollout.key.step
        began[step] = min(began.get(step, rollout.first_s), rollout.first_s)
        if rollout.key.phase == "train":
            ended[step] = max(ended.get(step, rollout.last_s), rollout.last_s)
    return tuple(max(0.0, began.get(step + 1, ended[step]) - ended[step]) for step in sorted(ended))
