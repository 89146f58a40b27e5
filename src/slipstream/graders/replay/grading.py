"""Replay in grading: recorded and fresh calls are made on the work in a sandbox of its own, and compared here.

Input: the verdict of the tests and the grading's replay. Output: a verdict, whose reward stays 1 only if the replay
matched. All recorded sessions must match; of the fresh sessions drawn, and of the telling ones among them, three in
four: an honest rewrite may differ on odd arguments. The draw depends on the work and on the hidden sessions, so the
same work always gets the same verdict, and nobody can choose the draw.

Invariants: the sandbox holds no tests, no test runner and no expected values. If the work makes the worker die, hang,
write too much or write something unreadable, that is a trusted 0. If the worker also fails without the work, that is a
GraderError.
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
from slipstream.graders.testing.work import ReadEntries, Refused, Work, entry_reader, place_files
from slipstream.sandbox.base import Sandbox
from slipstream.sandbox.ready import open_sandbox
from slipstream.types import Json, Verdict

MAX_OUTPUT_BYTES = 1 << 20
MAX_DETAIL = 1_000
MIN_SHARE = 0.75
"""The share of fresh sessions that must match."""

Encoded = dict[str, Any]
"""A call or an answer as JSON: pydantic cannot check a recursive type."""
Answers = Sequence[Json] | None
"""The worker's answers to a session, one for each call; None if the session did not complete."""


class SessionSpec(GraderSpec):
    ops: list[Encoded]
    """Calls, encoded for `worker.py`. A call may use what earlier ones returned."""
    expect: list[Encoded | None]
    """The reference's answers; null for a call that only prepares another."""
    telling: bool = False
    """Whether the code with the task's bug answers differently."""


class ReplaySpec(GraderSpec):
    modules: list[str] = Field(default_factory=list)
    """Imported before the first call."""
    hide: list[str] = Field(default_factory=list)
    """Paths in the folder that are removed before the worker starts: tests, and what runs them."""
    recorded: list[SessionSpec] = Field(default_factory=list)
    fresh: list[SessionSpec] = Field(default_factory=list)
    num_drawn: int = Field(default=12, ge=0)
    """How many fresh sessions a grading uses."""
    timeout_s: float = Field(default=60.0, gt=0)
    cpu_s: int = Field(default=5, gt=0)
    """CPU time limit of one session, against endless loops."""
    is_guard: bool = False
    """Whether the telling answers are too many or too rich to be guessed, so that only work that solves the task
    passes. Read by the gate, not by the grader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSite:
    """Where and how the calls are made."""

    interpreter: str
    folder: str
    paths: tuple[str, ...]
    """Python's search path after the standard library."""
    env: Mapping[str, str]


async def check_replay(
    verdict: Verdict,
    spec: ReplaySpec | None,
    site: CallSite,
    context: GradeContext,
    patch: bytes,
    accept: Callable[[ReadEntries], Awaitable[Work]],
) -> Verdict:
    """The verdict after the replay. `accept` returns the part of the patch that counts, given the clean files."""
    if spec is None:
        return verdict
    if verdict.reward != 1.0:
        return replace(verdict, components={**verdict.components, "replayed": 0.0})
    sessions = [*spec.recorded, *draw_sessions(spec, patch)]
    for _ in range(2):
        try:
            answers = await _answers_of_work(spec, site, context, accept, sessions)
            break
        except Refused as raised:
            await _check_without_work(spec, site, context)
            problem = str(raised)
            if not isinstance(raised, _SandboxFailed):  # which may have been chance
                return _with_share(verdict, 0.0, problem)
    else:
        return _with_share(verdict, 0.0, problem)
    matched = [matches(session, one) for session, one in zip(sessions, answers, strict=True)]
    share = sum(matched) / len(matched) if matched else 1.0
    return _with_share(verdict, share, _problem_of(sessions, answers, matched, num_recorded=len(spec.recorded)))


class _SandboxFailed(Refused):
    """The sandbox failed with the work in it: because of the host or of the work."""


async def _answers_of_work(
    spec: ReplaySpec,
    site: CallSite,
    context: GradeContext,
    accept: Callable[[ReadEntries], Awaitable[Work]],
    sessions: Sequence[SessionSpec],
) -> list[Answers]:
    """Raises Refused if the work makes the calls impossible."""
    sandbox = await open_sandbox(context.provider, context.sandbox, timeout_s=context.start_timeout_s)
    try:
        work = await accept(entry_reader(sandbox, site.folder))
        await place_files(sandbox, site.folder, work.files)
        return await run_worker(sandbox, site, spec, sessions)
    except SandboxBroken as raised:
        raise Refused(f"the work broke the sandbox of the replay: {raised}") from raised
    except (SandboxFileError, SandboxLimitError) as raised:
        raise Refused(f"the work does not fit a fresh sandbox: {raised}") from raised
    except SandboxError as raised:
        raise _SandboxFailed(f"the sandbox failed with the work, and not without it: {raised}") from raised
    finally:
        await sandbox.aclose()


def _with_share(verdict: Verdict, share: float, problem: str) -> Verdict:
    components = {**verdict.components, "replayed": share}
    if not problem:
        return replace(verdict, components=components)
    return Verdict(reward=0.0, components=components, detail=f"replay: {problem}"[:MAX_DETAIL])


def draw_sessions(spec: ReplaySpec, patch: bytes) -> list[SessionSpec]:
    """The fresh sessions of one grading, half of them telling if there are enough."""
    rng = random.Random(hashlib.sha256(patch + json.dumps(spec.model_dump()).encode()).digest())
    shuffled = rng.sample(spec.fresh, len(spec.fresh))
    telling = [one for one in shuffled if one.telling]
    others = [one for one in shuffled if not one.telling]
    num_telling = min(len(telling), max(spec.num_drawn // 2, spec.num_drawn - len(others)))
    return [*telling[:num_telling], *others[: spec.num_drawn - num_telling]]


def matches(session: SessionSpec, answers: Answers) -> bool:
    return answers is not None and not differing(session, answers)


def differing(session: SessionSpec, answers: Sequence[Json]) -> list[int]:
    """The indices of the calls with another outcome."""
    if len(answers) != len(session.ops):
        return list(range(len(session.ops)))
    compared = zip(session.expect, answers, strict=True)
    return [place for place, (one, got) in enumerate(compared) if one is not None and not same_answer(one, got)]


def _problem_of(
    sessions: Sequence[SessionSpec], answers: Sequence[Answers], matched: Sequence[bool], *, num_recorded: int
) -> str:
    """Why the work is worth 0; empty if the replay matched."""
    fresh, right = sessions[num_recorded:], matched[num_recorded:]
    telling = [one for one, session in zip(right, fresh, strict=True) if session.telling]
    if all(matched[:num_recorded]) and _enough_match(right) and _enough_match(telling):
        return ""
    first = next(place for place, one in enumerate(matched) if not one)
    which = "a recorded call" if first < num_recorded else f"{right.count(False)} of {len(right)} fresh calls, such as"
    session, sent = sessions[first], answers[first]
    place = 0 if sent is None else differing(session, sent)[0]
    got = None if sent is None or place >= len(sent) else sent[place]
    expected = session.expect[place]
    wanted = "" if expected is None else f", where the reference {shown_answer(expected)}"
    return f"{which} {shown_call(session.ops[place])} {shown_answer(got)}{wanted}"


def _enough_match(matched: Sequence[bool]) -> bool:
    return sum(matched) >= MIN_SHARE * len(matched)


# ---------------------------------------------------------------- the worker


def program() -> str:
    return Path(__file__).with_name("worker.py").read_text(encoding="utf-8")


async def run_worker(
    sandbox: Sandbox,
    site: CallSite,
    spec: ReplaySpec,
    sessions: Sequence[SessionSpec],
    *,
    hash_seed: int = 0,
    watch: bool = False,
    max_output_bytes: int = MAX_OUTPUT_BYTES,
) -> list[Answers]:
    """Make the calls of the sessions. Raises Refused if the worker did not complete."""
    if spec.hide:
        hidden = [posixpath.join(site.folder, path) for path in spec.hide]
        removed = await sandbox.exec(["rm", "-rf", "--", *hidden], timeout_s=60.0)
        if removed.exit_code != 0:
            raise SandboxError(f"the tests could not be removed: {removed.stderr.text()[:300].strip()}")
    request = {
        "paths": list(site.paths),
        "modules": spec.modules,
        "sessions": [session.ops for session in sessions],
        "cpu_s": spec.cpu_s,
        "watch": watch,
    }
    result = await sandbox.exec(
        [site.interpreter, "-s", "-B", "-c", program()],
        stdin=json.dumps(request).encode(),
        env={**site.env, "PYTHONPATH": "", "PYTHONSAFEPATH": "1", "PYTHONHASHSEED": str(hash_seed)},
        cwd=site.folder,
        timeout_s=spec.timeout_s,
        max_output_bytes=max_output_bytes,
    )
    if result.timed_out:
        raise Refused(f"the calls exceeded their limit of {spec.timeout_s:g} s")
    if result.stdout.num_left_out:
        raise Refused(f"the worker wrote more than {max_output_bytes} bytes")
    return read_answers(result.stdout.head + result.stdout.tail, len(sessions))


def read_answers(data: bytes, num_sessions: int) -> list[Answers]:
    """Parse one line for each session, in order, and nothing else. Raises Refused."""
    lines = data.split(b"\n")
    if len(lines) != num_sessions + 1 or lines[-1]:
        raise Refused(f"the worker answered {len(lines) - 1} of {num_sessions} sessions")
    found: list[Answers] = []
    for number, line in enumerate(lines[:-1]):
        try:
            sent = json.loads(line)
        except (ValueError, RecursionError):
            sent = None
        if not isinstance(sent, dict) or sent.get("id") != number or not isinstance(sent.get("answers"), list | None):
            raise Refused("the worker wrote something unreadable")
        found.append(sent.get("answers"))
    return found


async def _check_without_work(spec: ReplaySpec, site: CallSite, context: GradeContext) -> None:
    """Raises GraderError if the worker fails without the work too."""
    sandbox = await open_sandbox(context.provider, context.sandbox, timeout_s=context.start_timeout_s)
    try:
        await run_worker(sandbox, site, spec, [*spec.recorded, *spec.fresh])
    except (Refused, SandboxBroken, SandboxFileError, SandboxLimitError) as raised:
        raise GraderError(
            f"even without the work the recorded calls cannot be made: {raised}; make the task again"
        ) from None
    finally:
        await sandbox.aclose()
