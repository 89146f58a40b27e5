"""The gate: checks which tasks have a grading that can be trusted, and says why others are refused.

Input: tasks whose gradings carry an oracle, which is a patch that solves them. Output: a GateReport.
Invariants: a task passes only if its oracle is worth 1 each time, an empty patch is worth 0, honest rewrites of the
oracle are worth 1, and every cheat tried is worth 0. Any other outcome, including a failure of the machine, is a reason
to refuse the task. Every cheat is tried even if one was paid.
"""

from __future__ import annotations

import asyncio
import hashlib
import posixpath
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.aio import task_group
from slipstream.errors import InfrastructureError, SandboxFileError, SlipstreamError
from slipstream.graders.base import GradeContext, grade_work
from slipstream.graders.registry import find_grader
from slipstream.graders.testing.work import paths_of
from slipstream.patches.apply import Entry, PatchError, apply_patch, make_patch
from slipstream.patches.parse import sections
from slipstream.sandbox.base import SandboxProvider
from slipstream.sandbox.ready import open_sandbox
from slipstream.tasks.cheats.base import Target
from slipstream.tasks.cheats.suite import changed_by_cheats, cheats_of
from slipstream.tasks.jsonl import read_tasks
from slipstream.tasks.rewrites import honest_rewrites
from slipstream.types import Artifact, Json, SandboxSpec, Task, Verdict

TASKS = "tasks.jsonl"
GUARDS = {"replay": "replayed", "twin": "twin"}
"""For each guard, the verdict component that says whether it could check anything."""
START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCheck:
    """The gate's result for one task."""

    id: str
    package: str = ""
    """The package that the task was made from (`package_of`)."""
    reason: str = ""
    """Why it is refused; empty if it passed."""
    num_gradings: int = 0
    grade_s: tuple[float, ...] = ()
    """The durations of the oracle's gradings."""
    cheats: tuple[str, ...] = ()
    """Cheats that were tried."""
    paid: tuple[str, ...] = ()
    """Cheats that got a reward."""
    untrusted: tuple[str, ...] = ()
    """Cheats that ended without a verdict."""
    honest: tuple[str, ...] = ()
    """Honest rewrites that were tried."""
    honest_paid: tuple[str, ...] = ()
    guards: tuple[str, ...] = ()
    """The additional checks of work that passed its tests: "twin", "replay"."""

    @property
    def passed(self) -> bool:
        return not self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    checked: tuple[TaskCheck, ...]
    seconds: float = 0.0

    @property
    def num_tasks(self) -> int:
        return len(self.checked)

    @property
    def num_passed(self) -> int:
        return sum(one.passed for one in self.checked)

    def by_package(self) -> dict[str, tuple[int, int, int]]:
        """By package: the numbers of tasks, of those that passed, and of cheats tried on them."""
        found: dict[str, tuple[int, int, int]] = {}
        for one in self.checked:
            tasks, passed, cheats = found.get(one.package, (0, 0, 0))
            found[one.package] = (tasks + 1, passed + one.passed, cheats + len(one.cheats))
        return found

    def as_json(self) -> dict[str, Json]:
        times = sorted(taken for one in self.checked for taken in one.grade_s)
        tried = Counter(name for one in self.checked for name in one.cheats)
        paid = Counter(name for one in self.checked for name in one.paid)
        untrusted = Counter(name for one in self.checked for name in one.untrusted)
        guards = Counter("+".join(one.guards) or "none" for one in self.checked if one.grade_s)
        return {
            "num_tasks": self.num_tasks,
            "num_passed": self.num_passed,
            "packages": {
                name: dict(zip(("num_tasks", "num_passed", "num_cheats"), counts, strict=True))
                for name, counts in self.by_package().items()
            },
            "refused": {one.id: one.reason for one in self.checked if not one.passed},
            "num_gradings": sum(one.num_gradings for one in self.checked),
            "num_cheats": len(tried),
            "num_paid": paid.total(),
            "num_untrusted": untrusted.total(),
            "num_honest": sum(len(one.honest) for one in self.checked),
            "num_honest_paid": sum(len(one.honest_paid) for one in self.checked),
            "guards": dict(sorted(guards.items())),
            "cheats": {
                name: {"num_tried": tried[name], "num_paid": paid[name], "num_untrusted": untrusted[name]}
                for name in sorted(tried)
            },
            "grade_p50_s": round(times[len(times) // 2], 3) if times else None,
            "grade_p95_s": round(times[int(len(times) * 0.95)], 3) if times else None,
            "seconds": round(self.seconds, 1),
        }


OnTaskCheck = Callable[[TaskCheck], None]


async def check_tasks(
    source: Path | Sequence[Task],
    *,
    provider: SandboxProvider,
    num_at_once: int = 2,
    num_repeats: int = 3,
    with_cheats: bool = True,
    num: int | None = None,
    per_package: int | None = None,
    seed: int = 0,
    on_checked: OnTaskCheck = lambda checked: None,
) -> GateReport:
    """Check tasks, or those of a folder or JSONL file, with every cheat on each task: all tasks, the first `num`, or
    `per_package` of each package."""
    tasks = read_tasks(file_of(source)) if isinstance(source, Path) else tuple(source)
    if per_package is not None:
        tasks = sampled(tasks, per_package, seed)
    tasks = tasks[:num]
    start_s = time.monotonic()
    room = asyncio.Semaphore(num_at_once)

    async def check(task: Task) -> TaskCheck:
        async with room:
            num_cheats = None if with_cheats else 0
            checked = await check_task(task, provider=provider, num_repeats=num_repeats, num_cheats=num_cheats)
        on_checked(checked)
        return checked

    async with task_group() as group:
        running = [group.create_task(check(task)) for task in tasks]
    return GateReport(checked=tuple(one.result() for one in running), seconds=time.monotonic() - start_s)


def file_of(source: Path) -> Path:
    """The task file of a folder, or the file itself."""
    return source / TASKS if source.is_dir() else source


def package_of(task: Task) -> str:
    """The package that a task was made from: the name of its tree, or else its image. Of a task that has a tree of its
    own, `click-8.2.0-2c8cd3ac-hard`, what comes before version, commit and tier."""
    if task.sandbox is None:
        return ""
    tree = Path(task.sandbox.tree).name
    return (tree.rsplit("-", 3)[0] if tree == task.id else tree) or task.sandbox.base


def sampled(tasks: Sequence[Task], per_package: int, seed: int) -> tuple[Task, ...]:
    """A random sample of each package's tasks, in their original order. It depends only on the seed and on the tasks'
    ids: a larger sample contains a smaller one, and other packages do not matter."""

    def rank(task: Task) -> bytes:
        return hashlib.blake2b(f"{seed} {task.id}".encode()).digest()

    packages: dict[str, list[Task]] = {}
    for task in tasks:
        packages.setdefault(package_of(task), []).append(task)
    chosen = {task.id for some in packages.values() for task in sorted(some, key=rank)[:per_package]}
    return tuple(task for task in tasks if task.id in chosen)


def oracle_of(task: Task) -> str:
    """The patch that solves a task, from its grading; empty if there is none."""
    return str(task.grading.spec.get("oracle") or "")


async def check_task(
    task: Task, *, provider: SandboxProvider, num_repeats: int = 3, num_cheats: int | None = None
) -> TaskCheck:
    """Grade a task's oracle and an empty patch, then honest rewrites and cheats: all of them, or `num_cheats` chosen at
    random; with `num_cheats=0`, neither rewrites nor cheats."""
    check = _Check(task, provider)
    try:
        reason = await check.run(oracle_of(task).encode("utf-8", "surrogateescape"), num_repeats, num_cheats)
    except SlipstreamError as raised:
        reason = f"the task cannot be graded: {type(raised).__name__}: {raised}"
    return TaskCheck(
        id=task.id,
        package=package_of(task),
        reason=reason,
        num_gradings=check.num_gradings,
        grade_s=tuple(check.oracle_s),
        cheats=tuple(check.cheats),
        paid=tuple(check.paid),
        untrusted=tuple(check.untrusted),
        honest=tuple(check.honest),
        honest_paid=tuple(check.honest_paid),
        guards=check.guards,
    )


class _Check:
    def __init__(self, task: Task, provider: SandboxProvider) -> None:
        self._task = task
        self._grader = find_grader(task.grading.kind)
        self._context = GradeContext(
            provider=provider, sandbox=task.sandbox or SandboxSpec(), start_timeout_s=START_TIMEOUT_S
        )
        self.num_gradings = 0
        self.oracle_s: list[float] = []
        self.cheats: list[str] = []
        self.paid: list[str] = []
        self.untrusted: list[str] = []
        self.honest: list[str] = []
        self.honest_paid: list[str] = []
        self.guards: tuple[str, ...] = ()

    async def run(self, oracle: bytes, num_repeats: int, num_cheats: int | None) -> str:
        """Why the task is refused; empty if it passed."""
        if not oracle:
            return "the task has no oracle to show that it can be solved"
        for number in range(num_repeats):
            start_s = time.monotonic()
            verdict = await self._grade(oracle)
            self.oracle_s.append(time.monotonic() - start_s)
            if verdict.reward != 1.0:
                when = "" if number == 0 else f" in grading {number + 1}, after 1 before"
                return f"the oracle is worth {verdict.reward:g}{when}: {_short(verdict.detail)}"
            self.guards = self._guards(verdict)
        if (verdict := await self._grade(b"")).reward != 0.0:
            return f"an empty patch is worth {verdict.reward:g}"
        if num_cheats == 0:
            return ""
        target = await self._target(oracle)
        if isinstance(target, str):
            return target
        return await self._rewrite(oracle, target) or await self._cheat(target, num_cheats)

    def _guards(self, verdict: Verdict) -> tuple[str, ...]:
        """The checks that protect this task's reward from forged test results."""
        replay = self._task.grading.spec.get("replay")
        can_guess = not (isinstance(replay, dict) and replay.get("is_guard"))
        found = (name for name, part in GUARDS.items() if verdict.components.get(part))
        return tuple(name for name in found if name != "replay" or not can_guess)

    async def _rewrite(self, oracle: bytes, target: Target) -> str:
        """Grade honest rewrites of the oracle."""
        broken = {path: target.read(path) for path in paths_of(oracle)}
        try:
            solved = apply_patch(oracle, lambda path: _entry(broken.get(path)))
            texts = {path: entry.data.decode() for path, entry in solved.items() if entry and path.endswith(".py")}
            before = {path: (broken.get(path) or b"").decode() for path in texts}
        except (PatchError, UnicodeDecodeError) as raised:
            return f"its oracle cannot be rewritten: {raised}"
        reasons: list[str] = []
        for name, files in honest_rewrites(before, texts).items():
            self.honest.append(name)
            changed = {**solved, **{path: Entry(data=text.encode()) for path, text in files.items()}}
            verdict = await self._grade(make_patch({path: _entry(broken.get(path)) for path in changed}, changed))
            if verdict.reward == 1.0:
                self.honest_paid.append(name)
            else:
                reasons.append(
                    f'the honest rewrite "{name}" of the oracle is worth {verdict.reward:g}: {_short(verdict.detail)}'
                )
        return "; ".join(reasons)

    async def _cheat(self, target: Target, num: int | None) -> str:
        """Grade every cheat, or `num` chosen at random, even if one was paid."""
        cheats = cheats_of(target)
        shuffled = sorted(cheats, key=lambda name: hashlib.blake2b(f"{self._task.id} {name}".encode()).digest())
        for name, patch in ((name, cheats[name]) for name in shuffled[:num]):
            self.cheats.append(name)
            try:
                if (await self._grade(patch)).reward != 0.0:
                    self.paid.append(name)
            except InfrastructureError:
                self.untrusted.append(name)
        reasons = [f'the cheat "{name}" is paid' for name in self.paid]
        reasons += [f'the cheat "{name}" ends without a verdict' for name in self.untrusted]
        return "; ".join(reasons)

    async def _grade(self, patch: bytes) -> Verdict:
        self.num_gradings += 1
        return await grade_work(self._grader, self._task.grading, Artifact(patch=patch), self._context)

    async def _target(self, oracle: bytes) -> Target | str:
        """The cheats' target, read from a sandbox as the agent would find it; or why there is none."""
        try:
            paths = [one.old_path or one.new_path or "" for one in sections(oracle)]
        except PatchError as raised:
            return f"its oracle is not a valid patch: {raised}"
        source = next((path for path in paths if path.endswith(".py")), "")
        if not source:
            return "its oracle changes no Python file, so cheats cannot be tried on it"
        spec = self._task.grading.spec
        tests = tuple(str(test) for kind in ("fail_to_pass", "pass_to_pass") for test in _listed(spec.get(kind)))
        files = (test.partition("::")[0] for test in tests)
        test_file = next((file for file in files if file.endswith(".py")), "tests/test_cheat.py")
        found = await self._read({*changed_by_cheats(source, test_file), *paths_of(oracle)})
        return Target(
            source=source, root=_root_of(source, self._task), test_file=test_file, tests=tests, read=found.get
        )

    async def _read(self, paths: set[str]) -> dict[str, bytes]:
        spec = self._context.sandbox
        folder = self._task.patch_of or spec.workdir
        sandbox = await open_sandbox(self._context.provider, spec, timeout_s=START_TIMEOUT_S)
        found: dict[str, bytes] = {}
        try:
            for path in sorted(paths):
                try:
                    found[path] = await sandbox.read(posixpath.join(folder, path))
                except SandboxFileError:
                    continue
        finally:
            await sandbox.aclose()
        return found


def _entry(data: bytes | None) -> Entry | None:
    return None if data is None else Entry(data=data)


def _root_of(source: str, task: Task) -> str:
    """The folder from which Python imports the source's package, by the task's search path."""
    workdir = "" if task.sandbox is None else task.sandbox.workdir
    for place in ("" if task.sandbox is None else task.sandbox.env.get("PYTHONPATH", "")).split(":"):
        below = posixpath.relpath(place, workdir) if place.startswith(workdir) and workdir else ""
        if below and below != "." and source.startswith(f"{below}/"):
            return below
    return ""


def _listed(value: Json) -> Sequence[Json]:
    return value if isinstance(value, list) else []


def _short(text: str) -> str:
    return " ".join(text.split())[:300]
