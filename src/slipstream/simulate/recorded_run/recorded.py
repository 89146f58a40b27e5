"""A recorded run, as far as a replay needs it: what each rollout asked of the engine and of the machine, and when.

Input: the rollouts of a run store, with their spans. Output: a Recorded. Nothing is guessed here: times are those that
were measured, and `chores` and `fit` make of them what would have been without the others.
Invariants: the last attempt at a job stands for it; a rollout that was cancelled is known as far as it went.
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
    """What a stretch of a rollout's time went into, besides the engine and waiting."""

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
    """Of these, what stood in the call before it."""
    cached: int | None
    """Of these, what the engine had in its cache; None where it does not say."""
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
    """What a replay does not do as it was, by number."""

    cancelled: int = 0
    """Rollouts that were cancelled: how they would have gone on is drawn from others of their task."""
    untrusted: int = 0
    """Rollouts without a verdict: they are replayed as far as they went."""
    without_calls: int = 0
    """Rollouts of which no model call is on record, as of one that was resumed when its agent had ended: where there
    are others of their group, these are drawn from them."""
    attempts: int = 0
    """Attempts that failed and were tried again."""
    overlapping: int = 0
    """Model calls of one rollout beside each other: they are replayed one after the other."""
    drawn: int = 0
    """Rollouts beyond those that are on record of their group: each is one of its task again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    name: str
    lives: tuple[RecordedRollout, ...]
    makespan_s: float
    """From the first submission to the end of the last rollout, without the pauses before it was resumed."""
    usage: Utilisation
    again: int | None
    """Tokens of prompts that stood in the call before and were computed again; None where the engine does not say."""
    update_s: tuple[float, ...]
    """Of a training run: what the learner took after each step, its checkpoint included."""
    left_out: LeftOut

    @property
    def calls(self) -> list[Call]:
        return [call for life in self.lives for call in life.calls]


def read_recorded(reader: RunReader) -> Recorded:
    """The run, or the reason why it cannot be replayed."""
    name, counts = reader.folder.name, reader.counts()
    if not counts.rollouts:
        raise ConfigError(f"the run {name} has no rollouts, so there is nothing to replay: name a run that ended")
    if counts.jobs > counts.rollouts:
        raise ConfigError(
            f"the run {name} is unfinished, {counts.jobs - counts.rollouts} of its {counts.jobs} jobs have no rollout: "
            "go on with it (--resume) to its end, then simulate it"
        )
    return recorded(reader.rollouts(with_turns=False), name=name, work=reader.learner_work())


def recorded(rollouts: Iterable[Rollout], *, name: str, work: Iterable[LearnerWorked] = ()) -> Recorded:
    """The same of rollouts in memory, and of the learner's work in order of start, where it is on record."""
    # A resumed run makes the updates again that its checkpoint has not seen: the last of them counts.
    worked = list({(each.work, each.step): each for each in work}.values())
    known = list(rollouts)
    lives = [life for rollout in known if (life := _life(rollout)) is not None]
    if not lives:
        raise ConfigError(f"the run {name} has no rollout that called a model, so there is nothing to replay")
    _check_tokens(lives, name)
    told = [call for life in lives for call in life.calls if call.cached is not None]
    return Recorded(
        name=name,
        lives=tuple(lives),
        makespan_s=_makespan_s(lives, worked),
        usage=utilisation(known),
        again=sum(max(0, call.kept - (call.cached or 0)) for call in told) if told else None,
        update_s=_update_s(lives, worked),
        left_out=LeftOut(
            cancelled=sum(rollout.ending.reason is EndReason.CANCELLED for rollout in known),
            untrusted=sum(rollout.trust is Trust.UNTRUSTED for rollout in known),
            without_calls=len(known) - len(lives),
            attempts=sum(max(0, len({span.attempt for span in rollout.spans}) - 1) for rollout in known),
            overlapping=sum(
                after.start_s < before.end_s
                for life in lives
                for before, after in zip(life.calls, life.calls[1:], strict=False)
            ),
        ),
    )


def _check_tokens(lives: Sequence[RecordedRollout], name: str) -> None:
    calls = [call for life in lives for call in life.calls]
    silent = sum(not call.sampled or not call.context for call in calls)
    if silent > len(calls) // 2:
        raise ConfigError(
            f"{silent} of the {len(calls)} model calls of the run {name} have no token counts, and without them an "
            "engine cannot be modelled: record a run with model.kind=tokens, or with a server that reports usage"
        )


# ---------------------------------------------------------------- one rollout


def _life(rollout: Rollout) -> RecordedRollout | None:
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
    """What lies between two calls: tools, the gate's waits, which are left out, and the harness's own time."""
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


def _is_training(lives: Sequence[RecordedRollout]) -> bool:
    return any(life.key.phase == "train" for life in lives)


def _makespan_s(lives: Sequence[RecordedRollout], worked: Sequence[LearnerWorked]) -> float:
    """Time in which no rollout was under way and no learner at work is a pause before a run was resumed, and does not
    count. Where the learner's work is not on record, the two cannot be told apart, and all of it counts."""
    first_s, last_s = min(life.first_s for life in lives), max(life.last_s for life in lives)
    if _is_training(lives) and not worked:
        return last_s - first_s
    stretches = [(life.first_s, life.last_s, 1.0) for life in lives]
    stretches += [
        (max(each.start_s, first_s), min(each.end_s, last_s), 1.0)
        for each in worked
        if each.start_s < last_s and each.end_s > first_s
    ]
    line = Level(stretches, lambda level: float(level > 0))
    return sum(end_s - start_s for start_s, end_s, _ in line.pieces())


def _update_s(lives: Sequence[RecordedRollout], worked: Sequence[LearnerWorked]) -> tuple[float, ...]:
    """What the learner's work after each step took; where it is not on record, from the last rollout of the step to
    the first submission that it made way for."""
    if not _is_training(lives):
        return ()
    if worked:
        found: defaultdict[int, float] = defaultdict(float)
        for each in worked:
            # A checkpoint carries the version that an update led to.
            found[each.step - (each.work is LearnerWork.CHECKPOINT)] += each.end_s - each.start_s
        return tuple(found[step] for step in sorted({life.key.step for life in lives if life.key.phase == "train"}))
    began: dict[int, float] = {}
    ended: dict[int, float] = {}
    for life in lives:
        step = life.key.step
        began[step] = min(began.get(step, life.first_s), life.first_s)
        if life.key.phase == "train":
            ended[step] = max(ended.get(step, life.last_s), life.last_s)
    return tuple(max(0.0, began.get(step + 1, ended[step]) - ended[step]) for step in sorted(ended))
