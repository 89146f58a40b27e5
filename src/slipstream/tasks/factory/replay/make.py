"""Makes the replay of a task: the calls that its tests make, the reference's answers, and fresh arguments.

Input: a package, its steady tests and a bug. Output: the `replay` of the task's grading (`graders.replay.grading`).
Invariants: every answer that is compared in grading was the same in two processes over the clean tree, without tests
and with different hash seeds, and read no clock; a session is telling only if the buggy tree answered differently.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from slipstream.graders.replay.compare import same_answer
from slipstream.graders.replay.grading import Answers, CallSite, Encoded, ReplaySpec, SessionSpec, differing, run_worker
from slipstream.graders.replay.grading import program as worker_program
from slipstream.graders.testing.work import TEST_TOOLS, Refused
from slipstream.sandbox.base import Sandbox, SandboxProvider
from slipstream.sandbox.ready import open_sandbox
from slipstream.tasks.factory.package.fetch import Package
from slipstream.tasks.factory.package.layout import test_folder
from slipstream.tasks.factory.package.runner import DEPS, RECORDER, START_TIMEOUT_S, WORKDIR, Workers, environment
from slipstream.tasks.factory.replay.fresh import varied_session
from slipstream.tasks.factory.replay.shorten import session_of, shortened
from slipstream.types import File, Json

MAX_CALLS = 40
"""The maximum number of recorded calls that are compared."""
MAX_RECORDED_BYTES = 20_000
MAX_FRESH_BYTES = 12_000
NUM_VARIED = 90
"""The number of sessions with fresh arguments that are tried."""
MAX_FRESH_TELLING, MAX_FRESH_OTHERS = 16, 8
MAX_OUTPUT_BYTES = 64 << 20
MAKE_TIMEOUT_S = 240.0
GRADE_TIMEOUT_S = 30.0
MIN_GUESSES = 4
"""This many telling sessions suffice even if each could be guessed."""
WEAK = ("_operator:eq", "_operator:ne")
"""Operators with an answer of one bit that an object can always give: compared, but never telling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The replay of a task's grading, and its figures for the report."""

    spec: ReplaySpec
    num_calls: int
    num_telling: int
    num_fresh: int
    num_fresh_telling: int
    has_rich_answer: bool
    """Whether some telling call returns more than a guessable bit or exception type."""

    @property
    def is_telling(self) -> bool:
        num_telling = self.num_telling + self.num_fresh_telling
        return num_telling >= MIN_GUESSES or (num_telling > 0 and self.has_rich_answer)

    def as_json(self) -> dict[str, Json]:
        """The `replay` entry of the grading."""
        spec = self.spec.model_copy(update={"is_guard": self.is_telling})
        written: dict[str, Json] = spec.model_dump(mode="json", exclude_defaults=True)
        return written

    def facts(self) -> dict[str, Json]:
        return {
            "num_calls": self.num_calls,
            "num_telling": self.num_telling,
            "num_fresh": self.num_fresh,
            "num_fresh_telling": self.num_fresh_telling,
        }


class Replays:
    """The recorded calls of a package's tests. Made by `open_replays`."""

    def __init__(
        self, package: Package, provider: SandboxProvider, reference: Sandbox, sessions: Mapping[str, SessionSpec]
    ) -> None:
        self._package = package
        self._provider = provider
        self._reference = reference
        self.sessions = sessions
        """By test, with the reference's answers."""

    async def make(
        self, changed: Mapping[str, str], failing: Sequence[str], passing: Sequence[str], *, seed: str
    ) -> Replay | None:
        """The replay of a task whose bug changes these files; None if nothing can be replayed."""
        sessions = [self.sessions[test] for test in (*failing, *passing) if test in self.sessions]
        base = _spec(self._package)
        files = {path: File(data=text.encode("utf-8", "surrogateescape")) for path, text in changed.items()}
        spec = replace(self._package.spec, files=files)
        buggy = await open_sandbox(self._provider, spec, timeout_s=START_TIMEOUT_S)
        try:
            buggy_answers = await _answers(buggy, self._package, base, sessions)
            fresh = _fresh_sessions(sessions, buggy_answers, random.Random(seed))
            recorded = _chosen_calls(sessions, buggy_answers)
            recorded = await self._expected(base, recorded)
            fresh = await self._fresh(base, fresh)
            buggy_answers = await _answers(buggy, self._package, base, [*recorded, *fresh])
        except Refused:
            return None
        finally:
            await buggy.aclose()
        sessions = [*recorded, *fresh]
        places = [_wrong_calls(one, answers) for one, answers in zip(sessions, buggy_answers, strict=True)]
        pairs = list(zip(sessions, places, strict=True))
        marked = [session.model_copy(update={"telling": bool(wrong)}) for session, wrong in pairs]
        recorded, fresh = marked[: len(recorded)], _limited(marked[len(recorded) :])
        if not recorded and not fresh:
            return None
        return Replay(
            spec=base.model_copy(update={"recorded": recorded, "fresh": fresh, "timeout_s": GRADE_TIMEOUT_S}),
            num_calls=sum(one is not None for session in recorded for one in session.expect),
            num_telling=sum(session.telling for session in recorded),
            num_fresh=len(fresh),
            num_fresh_telling=sum(session.telling for session in fresh),
            has_rich_answer=any(_is_rich(session.expect[place]) for session, wrong in pairs for place in wrong),
        )

    async def _expected(self, base: ReplaySpec, sessions: Sequence[SessionSpec]) -> list[SessionSpec]:
        """The shortened sessions, expecting only answers that are the same as in the complete ones."""
        runs = await _twice(self._reference, self._package, base, sessions)
        found = [_agreed(session, answers) for session, answers in zip(sessions, runs, strict=True)]
        return [session for session in found if any(one is not None for one in session.expect)]

    async def _fresh(self, base: ReplaySpec, sessions: Sequence[SessionSpec]) -> list[SessionSpec]:
        """The sessions whose last call returns something comparable, expecting that."""
        found = []
        for session, answers in zip(
            sessions, await _twice(self._reference, self._package, base, sessions), strict=True
        ):
            last = None if answers is None else answers[-1]
            if isinstance(last, dict) and "r" in last and not _is_vague(last["r"]):
                expect: list[Encoded | None] = [None] * (len(session.ops) - 1) + [dict(last)]
                found.append(session.model_copy(update={"expect": expect}))
        return found


@asynccontextmanager
async def open_replays(
    package: Package, tests: Sequence[str], workers: Workers, provider: SandboxProvider, *, timeout_s: float
) -> AsyncIterator[Replays]:
    """Record the calls of the tests, and the reference's answer to each."""
    recorded = await _record(package, tests, workers, timeout_s)
    reference = await open_sandbox(provider, package.spec, timeout_s=START_TIMEOUT_S)
    try:
        base = _spec(package)
        try:
            runs = await _twice(reference, package, base, list(recorded.values()))
        except Refused:  # nothing can be replayed without the tests: they alone grade the tasks
            runs = [None] * len(recorded)
        pairs = zip(recorded.items(), runs, strict=True)
        sessions = {test: _agreed(session, answers) for (test, session), answers in pairs}
        yield Replays(
            package,
            provider,
            reference,
            {test: one for test, one in sessions.items() if any(answer is not None for answer in one.expect)},
        )
    finally:
        await reference.aclose()


async def _record(package: Package, tests: Sequence[str], workers: Workers, timeout_s: float) -> dict[str, SessionSpec]:
    job = {
        "id": 0,
        "tests": list(tests),
        "paths": sorted({test.partition("::")[0] for test in tests}),
        "timeout_s": timeout_s,
        "recorder": RECORDER,
        "worker": worker_program(),
        "instrument": Path(__file__).with_name("instrument.py").read_text(encoding="utf-8"),
        "modules": list(package.layout.modules),
        "sources": list(package.layout.sources),
    }
    (answer,) = await workers.run("suite", [job], timeout_s=timeout_s + 30.0)
    recording = answer.get("recorded") or {"prelude": [], "tests": {}}
    sessions = {test: session_of(recording["prelude"], ops) for test, ops in sorted(recording["tests"].items())}
    return {test: session for test, session in sessions.items() if session.ops}


# ---------------------------------------------------------------- sessions


def _agreed(session: SessionSpec, answers: Answers) -> SessionSpec:
    """The session, expecting the reference's answers where they agree with the recorded ones."""
    if answers is None or len(answers) != len(session.ops):
        return session.model_copy(update={"expect": [None] * len(session.ops)})
    expect = [
        dict(got) if one is not None and isinstance(got, dict) and _is_outcome(one, got) else None
        for one, got in zip(session.expect, answers, strict=True)
    ]
    return session.model_copy(update={"expect": expect})


def _is_outcome(recorded: Mapping[str, Json], got: Mapping[str, Json]) -> bool:
    """Whether a replay agrees with a recording, which lacks changes to arguments and printed output."""
    buggy_answers: Json = {key: value for key, value in got.items() if key != "m" or "m" in recorded}
    return same_answer(dict(recorded), buggy_answers)


def _wrong_calls(session: SessionSpec, answers: Answers) -> set[int]:
    """The calls that the buggy tree answers differently, without weak ones; none if the session died."""
    places = [] if answers is None else differing(session, answers)
    return {place for place in places if session.expect[place] is not None and not _is_weak(session.ops[place])}


def _chosen_calls(sessions: Sequence[SessionSpec], buggy_answers: Sequence[Answers]) -> list[SessionSpec]:
    """As many calls as there is room for, first those that the bug gets wrong."""
    wrong = [_wrong_calls(session, answers) for session, answers in zip(sessions, buggy_answers, strict=True)]
    ranked = sorted(
        (place not in wrong[number], number, place)
        for number, session in enumerate(sessions)
        for place, one in enumerate(session.expect)
        if one is not None
    )
    wanted: dict[int, set[int]] = {}
    sizes: dict[int, int] = {}
    for _, number, place in ranked:
        places = {*wanted.get(number, ()), place}
        size = _size(shortened(sessions[number], places))
        if sum(sizes.values()) - sizes.get(number, 0) + size <= MAX_RECORDED_BYTES:
            wanted[number], sizes[number] = places, size
        if sum(map(len, wanted.values())) >= MAX_CALLS:
            break
    return [shortened(sessions[number], places) for number, places in sorted(wanted.items())]


def _fresh_sessions(
    sessions: Sequence[SessionSpec], buggy_answers: Sequence[Answers], rng: random.Random
) -> list[SessionSpec]:
    """Single calls with other arguments: if possible, two in three of calls that the bug gets wrong."""
    kinds: dict[bool, list[SessionSpec]] = {True: [], False: []}
    for session, answers in zip(sessions, buggy_answers, strict=True):
        wrong = _wrong_calls(session, answers)
        for place, one in enumerate(session.expect):
            if one is not None and not _is_weak(session.ops[place]):
                kinds[place in wrong].append(shortened(session, {place}))
    seen = {json.dumps(single.ops) for singles in kinds.values() for single in singles}
    found: list[SessionSpec] = []
    for number in range(3 * NUM_VARIED):
        singles = kinds[number % 3 > 0] or kinds[number % 3 == 0]
        if not singles or len(found) >= NUM_VARIED:
            break
        single = rng.choice(singles)
        ops = varied_session(single.ops, rng)
        if ops is not None and (text := json.dumps(ops)) not in seen:
            seen.add(text)
            found.append(single.model_copy(update={"ops": ops}))
    return found


def _limited(fresh: Sequence[SessionSpec]) -> list[SessionSpec]:
    kept: list[SessionSpec] = []
    num_bytes = 0
    telling = [session for session in fresh if session.telling][:MAX_FRESH_TELLING]
    for session in (*telling, *[one for one in fresh if not one.telling][:MAX_FRESH_OTHERS]):
        num_bytes += _size(session)
        if num_bytes <= MAX_FRESH_BYTES:
            kept.append(session)
    return kept


def _size(session: SessionSpec) -> int:
    return len(json.dumps(session.model_dump()))


def _is_weak(op: Mapping[str, object]) -> bool:
    function = op["f"]
    return isinstance(function, list) and function[0] == "ref" and function[1] in WEAK


def _is_rich(answer: Encoded | None) -> bool:
    if answer is None or "r" not in answer:
        return False
    return "p" in answer or "m" in answer or not (isinstance(answer["r"], bool | None) or _is_vague(answer["r"]))


def _is_vague(result: Json) -> bool:
    """Whether two different results could look like this."""
    return isinstance(result, list) and result[0] == "o" and result[2] is None


# ---------------------------------------------------------------- runs


def _spec(package: Package) -> ReplaySpec:
    return ReplaySpec(modules=list(package.layout.modules), hide=_hidden(package), timeout_s=MAKE_TIMEOUT_S)


def _hidden(package: Package) -> list[str]:
    """The paths of tests and of test tools."""
    paths = {"conftest.py", *(f"{DEPS}/{name}" for name in TEST_TOOLS), *(f"{DEPS}/{name}.py" for name in TEST_TOOLS)}
    return sorted(paths | {test_folder(test) or test for test in package.layout.tests})


def call_site(package: Package) -> CallSite:
    env = environment(package.layout.root)
    return CallSite(interpreter="python3", folder=WORKDIR, paths=tuple(env["PYTHONPATH"].split(":")), env=env)


async def _answers(
    sandbox: Sandbox,
    package: Package,
    spec: ReplaySpec,
    sessions: Sequence[SessionSpec],
    *,
    hash_seed: int = 0,
    watch: bool = False,
) -> list[Answers]:
    return await run_worker(
        sandbox,
        call_site(package),
        spec,
        sessions,
        hash_seed=hash_seed,
        watch=watch,
        max_output_bytes=MAX_OUTPUT_BYTES,
    )


async def _twice(
    sandbox: Sandbox, package: Package, spec: ReplaySpec, sessions: Sequence[SessionSpec]
) -> list[Answers]:
    """The answers on which two processes agree; null where they differ or read a clock."""
    first = await _answers(sandbox, package, spec, sessions)
    second = await _answers(sandbox, package, spec, sessions, hash_seed=1, watch=True)
    return [_same_answers(one, other) for one, other in zip(first, second, strict=True)]


def _same_answers(one: Answers, other: Answers) -> Answers:
    if one is None or other is None or len(one) != len(other):
        return None
    found: list[Json] = []
    for a, b in zip(one, other, strict=True):
        is_steady = isinstance(a, dict) and isinstance(b, dict) and a | {"c": False} == b
        found.append(a if is_steady else None)
    return found
