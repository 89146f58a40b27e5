"""Tasks and graders as a user writes them: objects in, plain data out.

    Task(id="strawberry", instruction="How many r are in strawberry?", tools=[count, finish], grader=exact("3"))

Tools and graders become names (`names.name_of`), so that a task can be written to a run's folder, sent to a helper
process and read back when the run is resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, cast

from slipstream import types
from slipstream.errors import ConfigError
from slipstream.names import name_of
from slipstream.tasks.jsonl import check_task
from slipstream.tasks.source import load_tasks as source_tasks
from slipstream.tools.base import Effect, Tool
from slipstream.tools.define import TypedTool
from slipstream.tools.registry import TOOLS, resolve
from slipstream.types import AgentLimits, Brief, File, Grading, Json, SandboxSpec

GraderLike: TypeAlias = Grading | Callable[..., Any] | str | Sequence["GraderLike"]
"""A grading such as `exact("3")`, a function, the name of one, or several that count alike."""


class Task(types.Task):
    """A task: what the agent is told, the tools it has, and how its work is graded.

    `extra` reaches the grader alone, `resources` the tools alone, as `ctx.resources`. `files` are there when the agent
    starts; `artifact` names those that are the work, and `patch_of` a folder whose changes are. A task has a sandbox
    if one is given, if it has files, or if one of its tools needs one.
    """

    __slots__ = ()

    def __new__(
        cls,
        *,
        id: str,
        instruction: str,
        grader: GraderLike,
        tools: Iterable[Tool | type | str] = ("finish",),
        system: str = "",
        limits: AgentLimits | None = None,
        sandbox: SandboxSpec | None = None,
        files: Mapping[str, str | bytes | File] | None = None,
        artifact: Iterable[str] = (),
        patch_of: str = "",
        extra: Mapping[str, Json] | None = None,
        resources: Mapping[str, Json] | None = None,
    ) -> Task:
        names = tuple(tool_name(tool) for tool in tools)
        needs_one = any(resolve(name).effect is Effect.SANDBOX for name in names)
        if sandbox is None and (files or needs_one or artifact or patch_of):
            sandbox = SandboxSpec()
        if sandbox is not None and files:
            sandbox = replace(sandbox, files={**sandbox.files, **{path: _file(data) for path, data in files.items()}})
        task = types.Task(
            id=id,
            brief=Brief(
                instruction=instruction,
                system=system,
                tools=names,
                limits=limits or AgentLimits(),
                resources=dict(resources or {}),
            ),
            grading=_with_extra(as_grading(grader), extra),
            sandbox=sandbox,
            artifact=tuple(artifact),
            patch_of=patch_of,
        )
        check_task(task)
        return cast("Task", task)  # the plain value that all of Slipstream uses


def load_tasks(
    source: str | Path, *, num: int | None = None, args: Mapping[str, Json] | None = None
) -> tuple[Task, ...]:
    """The tasks of a source as the command line names it: a JSONL file, the folder of a task set,
    `package.module:function` with these arguments, or a public format. The first `num` of them, or all."""
    return cast("tuple[Task, ...]", source_tasks(str(source), num=num, args=args or {}))


def tool_name(tool: Tool | type | str) -> str:
    """The name of a tool that `resolve` takes back. A class decorated with `@tool` is a tool, whatever type checkers
    take it for."""
    if isinstance(tool, str):
        return tool
    if isinstance(tool, type) or not isinstance(tool, Tool):
        raise ConfigError(
            f"{getattr(tool, '__name__', tool)!r} is not a tool: put @slipstream.tool above its definition"
        )
    builtin = next((name for name in TOOLS if name == tool.spec.name and resolve(name) is tool), None)
    if builtin is not None:
        return builtin
    made_from = (tool.make or tool.function) if isinstance(tool, TypedTool) else type(tool)
    return name_of(tool, "tool", defined_by=made_from)


def exact(*answers: str, normalise: bool = True) -> Grading:
    """1 if the answer is one of these, else 0; without case, punctuation and articles unless `normalise` is off."""
    return Grading(kind="exact", spec={"expected": list(answers), "normalise": normalise})


def f1(*answers: str, normalise: bool = True) -> Grading:
    """The share of words that the answer has in common with the best of these."""
    return Grading(kind="f1", spec={"expected": list(answers), "normalise": normalise})


def command(line: str, *, files: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> Grading:
    """The result of a shell command on the work, in a fresh sandbox that the agent never saw."""
    hidden: dict[str, Json] = {"files": dict(files)} if files else {}
    return Grading(kind="command", spec={"command": line, **hidden, "timeout_s": timeout_s})


def math(*answers: str, symbolic: bool = True) -> Grading:
    r"""1 if the answer, or the last \boxed{...} in it, equals one of these as mathematics: as text, as a number, or by
    math-verify (`pip install 'slipstream[math]'`), unless `symbolic` is off."""
    return Grading(kind="math", spec={"expected": list(answers), **({} if symbolic else {"symbolic": False})})


def prints(
    cases: Iterable[tuple[str, str]], *, path: str = "solution.py", tolerance: float = 0.0, timeout_s: float = 10.0
) -> Grading:
    """1 if the program that the agent wrote prints the right text for each input: `prints([("3 4", "7")])`. The work is
    the file `path`, if the task names it as an artifact, or else the last code block of the answer."""
    listed: list[Json] = [{"input": given, "output": output} for given, output in cases]
    return Grading(
        kind="programs", spec={"path": path, "cases": listed, "tolerance": tolerance, "timeout_s": timeout_s}
    )


def returns(
    entry: str,
    calls: Iterable[tuple[Sequence[Json], Json]],
    *,
    path: str = "solution.py",
    preamble: str = "",
    tolerance: float = 0.0,
    timeout_s: float = 10.0,
) -> Grading:
    """1 if the function `entry` that the agent wrote, or that method of its class `Solution`, returns what it should
    for each list of arguments: `returns("add", [([3, 4], 7)])`."""
    listed: list[Json] = [{"args": list(args), "expected": expected} for args, expected in calls]
    spec: dict[str, Json] = {"path": path, "entry": entry, "calls": listed, "preamble": preamble}
    return Grading(kind="programs", spec={**spec, "tolerance": tolerance, "timeout_s": timeout_s})


def passes(
    tests: str,
    *,
    entry: str,
    reference: str,
    path: str = "solution.py",
    preamble: str = "",
    timeout_s: float = 10.0,
) -> Grading:
    """1 if the function `entry` that the agent wrote passes test code: assertions, or a function `check(candidate)`.
    The tests run in a sandbox of their own, on the values that the function returned; `reference`, a solution that
    passes them, tells which calls they make."""
    spec: dict[str, Json] = {"path": path, "entry": entry, "tests": tests, "reference": reference}
    return Grading(kind="programs", spec={**spec, "preamble": preamble, "timeout_s": timeout_s})


def judge(
    *answers: str,
    question: str = "",
    criteria: str = "",
    base_url: str = "",
    model: str = "",
    votes: int = 1,
    agreement: float = 0.5,
    form: str = "plain",
    cache: str = "",
    **settings: Json,
) -> Grading:
    """1 if a model says that the answer agrees with one of these, else 0.

    `base_url` and `model` name an OpenAI-compatible server; without them the run's own model judges. Of several votes
    the majority counts, if at least the share `agreement` agrees. `cache` names a file that keeps replies. A judge that
    is unavailable, or whose replies are malformed, gives no verdict. `settings` are the other keys of the grading."""
    spec: dict[str, Json] = {
        "expected": list(answers),
        "question": question,
        "criteria": criteria,
        "base_url": base_url,
        "model": model,
        "votes": votes,
        "agreement": agreement,
        "form": form,
        "cache": cache,
        **settings,
    }
    return Grading(kind="judge", spec=spec)


def rubric(**parts: GraderLike | tuple[float, GraderLike]) -> Grading:
    """Several graders, each with a weight: `rubric(right=(3, exact("3")), short=brevity)`. The reward is the weighted
    mean, and each part's is kept as a component under its name."""
    listed: list[Json] = []
    for name, part in parts.items():
        weight, grader = (1.0, part) if not isinstance(part, tuple) else part
        own = as_grading(grader)
        listed.append({"name": name, "weight": float(weight), "grading": {"kind": own.kind, **own.spec}})
    return Grading(kind="rubric", spec={"parts": listed})


def as_grading(grader: GraderLike) -> Grading:
    if isinstance(grader, Grading):
        return grader
    if isinstance(grader, str):
        return Grading(kind="function", spec={"function": grader})
    if isinstance(grader, Sequence):
        return rubric(**{f"{getattr(one, '__name__', 'part')}-{place}": one for place, one in enumerate(grader)})
    if not callable(grader):
        raise ConfigError(
            f"the grader is a {type(grader).__name__}: give a function, or one of exact, f1, judge, command"
        )
    return Grading(kind="function", spec={"function": name_of(grader, "grader")})


def _with_extra(grading: Grading, extra: Mapping[str, Json] | None) -> Grading:
    if not extra:
        return grading
    if grading.kind not in ("function", "rubric"):
        raise ConfigError(f"extra is for graders that are functions, and this one is {grading.kind}: leave it out")
    return replace(grading, spec={**grading.spec, "extra": dict(extra)})


def _file(data: str | bytes | File) -> File:
    if isinstance(data, File):
        return data
    return File(data=data.encode() if isinstance(data, str) else data)
