"""Replay at grading: recorded and fresh calls are made on the work in a sandbox of its own, and compared here.

Input: a verdict of the tests and the replay that the grading carries. Output: a verdict; the reward stays 1 only if the
replay matched. All recorded sessions must match; of the fresh ones that are drawn, and of the telling ones among them,
three in four: an honest rewrite may differ on odd arguments. The draw depends on the work and on the hidden sessions,
so the same work always gets the same verdict, and nobody can choose the draw.

Invariants: the sandbox holds neither tests nor a test runner nor any expected value; whatever the work makes of the
worker (it dies, hangs, talks too much or says what cannot be read) is a trusted 0. If the worker does not come to its
end without the work either, that is a GraderError.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from slipstream.errors import GraderError, SandboxBroken, SandboxError, SandboxFileError, SandboxLimitError
from slipstream.graders.base import GradeContext
from slipstream.graders.replay.compare import same_answer, shown_answer, shown_call
from slipstream.graders.spec import GraderSpec
from slipstream.graders.testing.work import Look, Refused, Work, looking_into, put
from slipstream.sandbox.base import Sandbox
from slipstream.sandbox.ready import open_sandbox
from slipstream.types import Json, Verdict

MAX_OUTPUT_BYTES = 1 << 20
MAX_DETAIL = 1_000
MIN_SHARE = 0.75
"""Of the fresh sessions that must match."""

Encoded = dict[str, Any]
"""A call or an answer as JSON: pydantic cannot check a type that holds itself."""
Answers = Sequence[Json] | None
"""What the worker said of a session, one answer for each call; None if the session did not come to its end."""


class SessionSpec(GraderSpec):
    ops: list[Encoded]
    """Calls as `worker.py` takes them. A call may use what earlier ones returned."""
    expect: list[Encoded | None]
    """What the reference answered; null for a call that only prepares another."""
    telling: bool = False
    """The task's bug answers otherwise."""


class ReplaySpec(GraderSpec):
    modules: list[str] = Field(default_factory=list)
    """Imported before the first call."""
    hide: list[str] = Field(default_factory=list)
    """Paths below the folder that are removed before the worker starts: tests, and what runs them."""
    recorded: list[SessionSpec] = Field(default_factory=list)
    fresh: list[SessionSpec] = Field(default_factory=list)
    num_drawn: int = Field(default=12, ge=0)
    """How many of the fresh sessions a grading uses."""
    timeout_s: float = Field(default=60.0, gt=0)
    cpu_s: int = Field(default=5, gt=0)
    """Processor time of one session: it ends a loop that never does."""
    is_guard: bool = False
    """Whether the telling answers are too many or too rich to be guessed, so that no work wins without solving the
    task. For those who check tasks: the grader does not look at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSite:
    """Where the calls are made."""

    interpreter: str
    folder: str
    paths: tuple[str, ...]
    """What Python searches after the standard library."""
    env: Mapping[str, str]


async def with_replay(
    verdict: Verdict,
    spec: ReplaySpec | None,
    place: CallSite,
    context: GradeContext,
    patch: bytes,
    take: Callable[[Look], Awaitable[Work]],
) -> Verdict:
    """The verdict with the replay's part in it. `take` is the part of the patch that counts, given the clean files."""
    if spec is None:
        return verdict
    if verdict.reward != 1.0:
        return replace(verdict, components={**verdict.components, "replayed": 0.0})
    sessions = [*spec.recorded, *draw(spec, patch)]
    for _ in range(2):
        try:
            answers = await _made_on_work(spec, place, context, take, sessions)
            break
        except Refused as raised:
            await _check_without_work(spec, place, context)
            problem = str(raised)
            if not isinstance(raised, _Failed):  # which may have been chance
                return _verdict(verdict, 0.0, problem)
    else:
        return _verdict(verdict, 0.0, problem)
    matched = [matches(session, one) for session, one in zip(sessions, answers, strict=True)]
    share = sum(matched) / len(matched) if matched else 1.0
    return _verdict(verdict, share, _why(sessions, answers, matched, num_recorded=len(spec.recorded)))


class _Failed(Refused):
    """The sandbox failed with the work in it: the host's doing or the work's."""


async def _made_on_work(
    spec: ReplaySpec,
    place: CallSite,
    context: GradeContext,
    take: Callable[[Look], Awaitable[Work]],
    sessions: Sequence[SessionSpec],
) -> list[Answers]:
    """Raises Refused if it is the work's doing that the calls cannot be made."""
    sandbox = await open_sandbox(context.provider, context.sandbox, timeout_s=context.start_timeout_s)
    try:
        work = await take(looking_into(sandbox, place.folder))
        await put(sandbox, place.folder, work.files)
        return await run_worker(sandbox, place, spec, sessions)
    except SandboxBroken as raised:
        raise Refused(f"the work broke the sandbox that its calls were made in: {raised}") from raised
    except (SandboxFileError, SandboxLimitError) as raised:
        raise Refused(f"the work does not fit a fresh sandbox: {raised}") from raised
    except SandboxError as raised:
        raise _Failed(f"the sandbox failed with the work in it, and not without: {raised}") from raised
    finally:
        await sandbox.aclose()


def _verdict(verdict: Verdict, share: float, problem: str) -> Verdict:
    components = {**verdict.components, "replayed": share}
    if not problem:
        return replace(verdict, components=components)
    return Verdict(reward=0.0, components=components, detail=f"replay: {problem}"[:MAX_DETAIL])


def draw(spec: ReplaySpec, patch: bytes) -> list[SessionSpec]:
    """The fresh sessions of one grading, half of them telling where there are so many."""
    chance = random.Random(hashlib.sha256(patch + json.dumps(spec.model_dump()).encode()).digest())
    shuffled = chance.sample(spec.fresh, len(spec.fresh))
    telling = [one for one in shuffled if one.telling]
    others = [one for one in shuffled if not one.telling]
    num_telling = min(len(telling), max(spec.num_drawn // 2, spec.num_drawn - len(others)))
    return [*telling[:num_telling], *others[: spec.num_drawn - num_telling]]


def matches(session: SessionSpec, answers: Answers) -> bool:
    return answers is not None and not differing(session, answers)


def differing(session: SessionSpec, answers: Sequence[Json]) -> list[int]:
    """The calls that came out otherwise."""
    if len(answers) != len(session.ops):
        return list(range(len(session.ops)))
    compared = zip(session.expect, answers, strict=True)
    return [place for place, (one, got) in enumerate(compared) if one is not None and not same_answer(one, got)]


def _why(
    sessions: Sequence[SessionSpec], answers: Sequence[Answers], matched: Sequence[bool], *, num_recorded: int
) -> str:
    """Why the work is worth 0; empty if it is not."""
    fresh, right = sessions[num_recorded:], matched[num_recorded:]
    telling = [one for one, session in zip(right, fresh, strict=True) if session.telling]
    if all(matched[:num_recorded]) and _enough(right) and _enough(telling):
        return ""
    first = next(place for place, one in enumerate(matched) if not one)
    which = "a recorded call" if first < num_recorded else f"{right.count(False)} of {len(right)} fresh calls, such as"
    session, said = sessions[first], answers[first]
    place = 0 if said is None else differing(session, said)[0]
    got = None if said is None or place >= len(said) else said[place]
    expected = session.expect[place]
    wanted = "" if expected is None else f", where the reference {shown_answer(expected)}"
    return f"{which} {shown_call(session.ops[place])} {shown_answer(got)}{wanted}"


def _enough(matched: Sequence[bool]) -> bool:
    return sum(matched) >= MIN_SHARE * len(matched)


# ---------------------------------------------------------------- the worker


def program() -> str:
    return Path(__file__).with_name("worker.py").read_text(encoding="utf-8")


async def run_worker(
    sandbox: Sandbox,
    place: CallSite,
    spec: ReplaySpec,
    sessions: Sequence[SessionSpec],
    *,
    hash_seed: int = 0,
    watch: bool = False,
    max_output_bytes: int = MAX_OUTPUT_BYTES,
) -> list[Answers]:
    """Make the calls of the sessions. Raises Refused if the worker did not come to its end as it must."""
    if spec.hide:
        hidden = [posixpath.join(place.folder, path) for path in spec.hide]
        removed = await sandbox.exec(["rm", "-rf", "--", *hidden], timeout_s=60.0)
        if removed.exit_code != 0:
            raise SandboxError(f"the tests could not be removed: {removed.stderr.text()[:300].strip()}")
    asked = {
        "paths": list(place.paths),
        "modules": spec.modules,
        "sessions": [session.ops for session in sessions],
        "cpu_s": spec.cpu_s,
        "watch": watch,
    }
    result = await sandbox.exec(
        [place.interpreter, "-s", "-B", "-c", program()],
        stdin=json.dumps(asked).encode(),
        env={**place.env, "PYTHONPATH": "", "PYTHONSAFEPATH": "1", "PYTHONHASHSEED": str(hash_seed)},
        cwd=place.folder,
        timeout_s=spec.timeout_s,
        max_output_bytes=max_output_bytes,
    )
    if result.timed_out:
        raise Refused(f"the calls passed their limit of {spec.timeout_s:g} s")
    if result.stdout.num_left_out:
        raise Refused(f"the worker said more than {max_output_bytes} bytes")
    return read_answers(result.stdout.head + result.stdout.tail, len(sessions))


def read_answers(data: bytes, num_sessions: int) -> list[Answers]:
    """One line for each session, in their order, and nothing else. Raises Refused."""
    lines = data.split(b"\n")
    if len(lines) != num_sessions + 1 or lines[-1]:
        raise Refused(f"the worker answered {len(lines) - 1} of {num_sessions} sessions")
    found: list[Answers] = []
    for number, line in enumerate(lines[:-1]):
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict) or said.get("id") != number or not isinstance(said.get("answers"), list | None):
            raise Refused("the worker said what cannot be read")
        found.append(said.get("answers"))
    return found


async def _check_without_work(spec: ReplaySpec, place: CallSite, context: GradeContext) -> None:
    """Raises GraderError if the worker does not come to its end without the work either."""
    sandbox = await open_sandbox(context.provider, context.sandbox, timeout_s=context.start_timeout_s)
    try:
        await run_worker(sandbox, place, spec, [*spec.recorded, *spec.fresh])
    except (Refused, SandboxBroken, SandboxFileError, SandboxLimitError) as raised:
        raise GraderError(
            f"without the work too the recorded calls cannot be made: {raised}: make the task again"
        ) from None
    finally:
        await sandbox.aclose()
