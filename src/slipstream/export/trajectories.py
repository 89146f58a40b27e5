"""A rollout as an ATIF trajectory: steps, tool calls with their observations, tokens, sub-agents.

Input: a rollout. Output: the JSON of one ATIF-v1.8 document; and back. Invariants: every message of every turn is in
exactly one step or observation, which names its turn and place under `extra.slipstream`, so that `rollout_of` gives the
rollout back; repeated messages are marked as copied context; a turn's prompt and reply tokens are in the agent's step.
A rewritten conversation continues in the same document after a system step that says so; a sub-agent, a nested call or
a parallel branch is a document within it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from slipstream.export.pieces import (
    OURS,
    is_reply_step,
    message_of_piece,
    ours_of,
    reply_step_of,
    result_of,
    step_of,
    turn_of,
)
from slipstream.export.turns import ASIDE, checked_turns, conversation, starts_over
from slipstream.messages import ReadFields
from slipstream.types import (
    Ending,
    EndReason,
    Failure,
    Job,
    JobKey,
    Message,
    Role,
    Rollout,
    Span,
    SpanKind,
    TokenIds,
    Turn,
    Verdict,
    token_ids,
)

SCHEMA_VERSION = "ATIF-v1.8"

_REWRITTEN = "The conversation was rewritten: what follows takes the place of all before."


def trajectory_of(rollout: Rollout, *, run: str, agent: ReadFields) -> dict[str, Any]:
    """The document of a rollout; `agent` is ATIF's object of that name."""
    turns = checked_turns(rollout)
    root = _Document(id=f"{run}/{rollout.job.key}#{rollout.attempt}")
    homes: dict[int, _Document] = {}
    tokens: dict[int, TokenIds] = {}
    for turn in rollout.turns:
        home = homes[turn.index] = _home(turn, turns, homes, root)
        before = token_ids() if turn.parent is None else tokens[turn.parent][: turn.num_kept]
        prompt = before + turn.added
        home.take(turn, prompt)
        tokens[turn.index] = prompt if turn.sampled is None else prompt + turn.sampled.ids
    if not root.steps:
        ending = rollout.ending
        root.steps.append(
            {"source": "system", "message": f"No model was asked: {ending.reason}. {ending.detail}".rstrip()}
        )
    root.extra = _rollout_fields(rollout, run)
    return root.as_json(session_id=root.id, agent=agent)


@dataclass(slots=True)
class _Document:
    """A trajectory that is being built."""

    id: str
    steps: list[dict[str, Any]] = field(default_factory=list)
    inner: list[_Document] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    last: int | None = None
    """The last turn so far."""
    known: list[Message] = field(default_factory=list)
    """All messages in it, or before it began."""
    context_begins: int = 0
    """The first step that the model still sees."""
    is_rewritten: bool = False
    """Whether the next turn may repeat earlier messages."""

    def rewrite(self) -> None:
        management = {"context_management": {"type": "compaction", "boundary": "replace"}}
        self.steps.append({"source": "system", "message": _REWRITTEN, "extra": management})
        self.context_begins, self.is_rewritten = len(self.steps), True

    def take(self, turn: Turn, prompt: TokenIds) -> None:
        """Add a turn: its incoming messages, then the step of the reply."""
        has_reply = bool(turn.messages) and turn.messages[-1].role is Role.ASSISTANT
        incoming = turn.messages[:-1] if has_reply else turn.messages
        for place, message in enumerate(incoming):
            is_copied = message.role is Role.ASSISTANT or (self.is_rewritten and message in self.known)
            self.say(message, {"turn": turn.index, "place": place}, is_copied=is_copied)
        reply = turn.messages[-1] if has_reply else None
        self.steps.append(reply_step_of(turn, prompt, reply))
        if reply is not None:
            self.known.append(reply)
        self.last, self.is_rewritten = turn.index, False

    def say(self, message: Message, ours: ReadFields, *, is_copied: bool) -> None:
        """Add a message that the model reads."""
        self.known.append(message)
        if message.role is Role.TOOL:
            self._observe(message, ours)
            return
        step = step_of(message, ours)
        if is_copied:
            step["is_copied_context"] = True
        self.steps.append(step)

    def refer_to(self, other: _Document, parent: Turn | None) -> None:
        """Embed a document, and point to it from the step that it began at: its parent's, or else the latest."""
        self.inner.append(other)
        replies = [step for step in self.steps if is_reply_step(step)]
        began_at = [step for step in replies if parent is not None and ours_of(step)["turn"] == parent.index] or replies
        if began_at:
            _results(began_at[-1]).append({"subagent_trajectory_ref": [{"trajectory_id": other.id}]})

    def _observe(self, message: Message, ours: ReadFields) -> None:
        """A tool's answer belongs to the latest step that made its call, or else to the agent's latest step."""
        agents = [step for step in reversed(self.steps[self.context_begins :]) if step["source"] == "agent"]
        for step in agents:
            if any(call["tool_call_id"] == message.call_id for call in step.get("tool_calls", ())):
                _results(step).append(result_of(message, ours, answers_call=True))
                return
        if not agents:
            self.steps.append({"source": "system", "message": ""})
        _results(agents[0] if agents else self.steps[-1]).append(result_of(message, ours, answers_call=False))

    def as_json(self, *, session_id: str, agent: ReadFields) -> dict[str, Any]:
        metrics = [step["metrics"] for step in self.steps if "metrics" in step]
        totals: dict[str, Any] = {"total_steps": len(self.steps)}
        if metrics:
            totals["total_prompt_tokens"] = sum(each["prompt_tokens"] for each in metrics)
            totals["total_completion_tokens"] = sum(each.get("completion_tokens", 0) for each in metrics)
        document: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "session_id": session_id,
            "trajectory_id": self.id,
            "agent": agent,
            "steps": [{"step_id": number, **step} for number, step in enumerate(self.steps, start=1)],
            "final_metrics": totals,
            "extra": {OURS: self.extra},
        }
        if self.inner:
            document["subagent_trajectories"] = [
                inner.as_json(session_id=session_id, agent=agent) for inner in self.inner
            ]
        return document


def _home(turn: Turn, turns: Mapping[int, Turn], homes: Mapping[int, _Document], root: _Document) -> _Document:
    """The document that a turn belongs to, ready to take it."""
    if not homes:
        return root
    parent = None if turn.parent is None else turns[turn.parent]
    outer = root if parent is None else homes[parent.index]
    is_anew = starts_over(turn, turns)
    if parent is not None and turn.fork not in ASIDE and outer.last == parent.index:
        if is_anew:
            outer.rewrite()
        return outer
    home = _Document(id=f"{root.id}/{turn.index}", extra={"fork": None if turn.fork is None else turn.fork.value})
    outer.refer_to(home, parent)
    if parent is not None and turn.fork not in ASIDE:
        home.known, home.is_rewritten = list(outer.known), True
        if not is_anew:
            for message in conversation(parent, turns):
                home.say(message, {}, is_copied=True)
    return home


def _results(step: dict[str, Any]) -> list[Any]:
    results: list[Any] = step.setdefault("observation", {"results": []})["results"]
    return results


# ---------------------------------------------------------------- rollouts


def _rollout_fields(rollout: Rollout, run: str) -> dict[str, Any]:
    """A rollout without its turns."""
    job, ending, verdict = rollout.job, rollout.ending, rollout.verdict
    return {
        "run": run,
        "job": {
            "phase": job.key.phase,
            "step": job.key.step,
            "task_id": job.key.task_id,
            "sample": job.key.sample,
            "seed": job.seed,
            "weight": job.weight,
            "group_size": job.group_size,
        },
        "attempt": rollout.attempt,
        "ending": {"reason": ending.reason.value, "answer": ending.answer, "detail": ending.detail},
        "trust": rollout.trust.value,
        "verdict": verdict
        and {"reward": verdict.reward, "components": dict(verdict.components), "detail": verdict.detail},
        "failures": [
            {"attempt": each.attempt, "stage": each.stage, "error": each.error, "message": each.message}
            for each in rollout.failures
        ],
        "spans": [
            {
                "kind": span.kind.value,
                "start_s": span.start_s,
                "end_s": span.end_s,
                "attempt": span.attempt,
                "name": span.name,
                "counts": dict(span.counts),
            }
            for span in rollout.spans
        ],
        "turns": [turn.index for turn in rollout.turns],
    }


def rollout_of(document: ReadFields) -> Rollout:
    """The inverse of `trajectory_of`. Raises LookupError, ValueError or TypeError for other documents."""
    ours = ours_of(document)
    if "job" not in ours:
        raise ValueError("it has no extra.slipstream: it was written by something else")
    job = dict(ours["job"])
    key = JobKey(**{name: job.pop(name) for name in ("phase", "step", "task_id", "sample")})
    turns = {turn.index: turn for turn in _turns(document)}
    return Rollout(
        job=Job(key=key, **job),
        attempt=ours["attempt"],
        ending=Ending(**{**ours["ending"], "reason": EndReason(ours["ending"]["reason"])}),
        turns=tuple(turns[index] for index in ours["turns"]),
        verdict=None if ours["verdict"] is None else Verdict(**ours["verdict"]),
        spans=tuple(Span(**{**span, "kind": SpanKind(span["kind"])}) for span in ours["spans"]),
        failures=tuple(Failure(**failure) for failure in ours["failures"]),
    )


def _turns(document: ReadFields) -> Iterator[Turn]:
    messages: dict[int, dict[int, Message]] = defaultdict(dict)
    replies: list[ReadFields] = []
    for piece in _pieces(document):
        ours = ours_of(piece)
        if is_reply_step(piece):
            replies.append(piece)
        if ours.get("place") is not None:
            messages[ours["turn"]][ours["place"]] = message_of_piece(piece)
    for reply in replies:
        placed = messages[ours_of(reply)["turn"]]
        yield turn_of(reply, [placed[place] for place in range(len(placed))])


def _pieces(document: ReadFields) -> Iterator[ReadFields]:
    """All steps and results of a document and its inner documents."""
    for step in document["steps"]:
        yield step
        yield from step.get("observation", {"results": ()})["results"]
    for inner in document.get("subagent_trajectories", ()):
        yield from _pieces(inner)
