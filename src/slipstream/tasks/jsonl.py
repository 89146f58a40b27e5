"""Reads and writes tasks as JSONL: one task per line, strict keys.

    {"id": "sum", "instruction": "Write the sum of data.txt to out.", "tools": ["bash", "finish"],
     "sandbox": {"files": {"data.txt": "1\\n2\\n"}}, "artifact": ["out"],
     "grading": {"kind": "command", "command": "cmp -s out expected || exit 1", "files": {"expected": "3\\n"}}}

A sandbox's `tree` is a path relative to the file's folder. `patch_of` names a folder whose changes are the work.

Invariants: a file is read completely or not at all; the first error is one sentence with file, line and key.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slipstream.errors import ConfigError
from slipstream.graders.registry import find_grader
from slipstream.names import did_you_mean, user_code
from slipstream.tools.base import Effect
from slipstream.tools.registry import resolve
from slipstream.types import Activation, AgentLimits, Brief, File, Grading, Json, SandboxLimits, SandboxSpec, Task

DEFAULT_TOOLS = ("bash", "read_file", "write_file", "finish")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class _Limits(_Strict):
    turns: Annotated[int, Field(gt=0)] = AgentLimits().turns
    context_tokens: Annotated[int, Field(gt=0)] = AgentLimits().context_tokens
    tool_seconds: Annotated[float, Field(gt=0)] = AgentLimits().tool_seconds


class _SandboxLimits(_Strict):
    memory_mb: Annotated[int, Field(gt=0)] = SandboxLimits().memory_mb
    processes: Annotated[int, Field(gt=0)] = SandboxLimits().processes
    disk_mb: Annotated[int, Field(gt=0)] = SandboxLimits().disk_mb
    file_mb: Annotated[int, Field(gt=0)] = SandboxLimits().file_mb
    cpu_s: Annotated[int, Field(gt=0)] = SandboxLimits().cpu_s
    cpus: Annotated[float, Field(gt=0)] = SandboxLimits().cpus


class _File(_Strict):
    text: str = ""
    base64: Annotated[str, Field(pattern=r"^[A-Za-z0-9+/\s]*={0,2}\s*$")] = ""
    """Instead of `text`, for binary data."""
    mode: Annotated[int, Field(ge=0, le=0o777)] = 0o644


class _Activation(_Strict):
    path: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    script: str = ""
    python: str = ""


class _Sandbox(_Strict):
    base: str = SandboxSpec().base
    workdir: str = SandboxSpec().workdir
    tree: str = ""
    files: dict[str, str | _File] = Field(default_factory=dict)
    setup: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    limits: _SandboxLimits = _SandboxLimits()
    activation: _Activation = _Activation()


class _Grading(BaseModel):
    model_config = ConfigDict(extra="allow")  # the other keys are checked by the grader

    kind: str


class _Line(_Strict):
    id: Annotated[str, Field(min_length=1)]
    instruction: Annotated[str, Field(min_length=1)]
    system: str = ""
    tools: tuple[str, ...] = DEFAULT_TOOLS
    limits: _Limits = _Limits()
    resources: dict[str, Any] = Field(default_factory=dict)
    """What the task's tools work on."""
    sandbox: _Sandbox | None = _Sandbox()
    artifact: tuple[str, ...] = ()
    patch_of: str = ""
    grading: _Grading


def read_tasks(path: str | Path) -> tuple[Task, ...]:
    """All tasks of a file."""
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise ConfigError(f"there is no task file {path}: give the path of a JSONL file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder: give the path of a JSONL file in it") from None
    except UnicodeDecodeError as raised:
        raise ConfigError(f"the task file {path} is not UTF-8 (at byte {raised.start}): save it as UTF-8") from None
    except OSError as raised:
        raise ConfigError(f"the task file {path} cannot be read: {raised}") from raised
    tasks: dict[str, Task] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        task = _read_line(line, where, path.parent.resolve())
        if task.id in tasks:
            raise ConfigError(f'{where}: the id "{task.id}" was used before: give every task its own id')
        tasks[task.id] = task
    if not tasks:
        raise ConfigError(f"the task file {path} has no tasks: write one per line")
    return tuple(tasks.values())


def _read_line(line: str, where: str, folder: Path) -> Task:
    try:
        value: Json = json.loads(line)
    except json.JSONDecodeError as raised:
        raise ConfigError(f"{where}: not valid JSON: {raised.msg} at column {raised.colno}") from None
    except (ValueError, RecursionError) as raised:
        raise ConfigError(f"{where}: not valid JSON: {raised}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: a {type(value).__name__}: write one JSON object per line")
    try:
        read = _Line.model_validate(value)
        task = _as_task(read, folder)
        check_task(task)
    except ValidationError as raised:
        raise ConfigError(f"{where}: {_sentence(raised)}") from None
    except ConfigError as raised:
        raise ConfigError(f"{where}: {raised}") from None
    return task


def check_task(task: Task) -> None:
    """Raises ConfigError unless the task's tools and grader exist and accept its settings."""
    tools = [resolve(name) for name in task.brief.tools]
    if task.sandbox is None:
        need_sandbox = [tool.spec.name for tool in tools if tool.effect is Effect.SANDBOX]
        if need_sandbox:
            raise ConfigError(
                f"the task {task.id} has no sandbox, but its tool {need_sandbox[0]} needs one: give it one"
            )
        if task.artifact or task.patch_of:
            wanted = (*task.artifact, task.patch_of)[0]
            raise ConfigError(f"the task {task.id} has no sandbox to take {wanted} from: give it one")
    grader = find_grader(task.grading.kind)
    with user_code(f"grader {task.grading.kind}: its check of task {task.id}"):
        grader.check(task.grading.spec)


def _as_sandbox(read: _Sandbox, folder: Path) -> SandboxSpec:
    files = {
        path: File(data=file.encode()) if isinstance(file, str) else File(data=_data_of(file), mode=file.mode)
        for path, file in read.files.items()
    }
    return SandboxSpec(
        base=read.base,
        workdir=read.workdir,
        tree=str(folder / read.tree) if read.tree else "",
        files=files,
        setup=read.setup,
        env=read.env,
        limits=SandboxLimits(**read.limits.model_dump()),
        activation=Activation(**read.activation.model_dump()),
    )


def _data_of(file: _File) -> bytes:
    return base64.b64decode(file.base64) if file.base64 else file.text.encode()


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Write tasks so that `read_tasks` returns them unchanged."""
    path.write_text("".join(json.dumps(_as_line(task)) + "\n" for task in tasks), encoding="utf-8")


def _as_line(task: Task) -> dict[str, Json]:
    brief, sandbox = task.brief, task.sandbox
    return {
        "id": task.id,
        "instruction": brief.instruction,
        "system": brief.system,
        "tools": list(brief.tools),
        "limits": asdict(brief.limits),
        **({"resources": dict(brief.resources)} if brief.resources else {}),
        "sandbox": None if sandbox is None else _sandbox_line(sandbox),
        "artifact": list(task.artifact),
        "patch_of": task.patch_of,
        "grading": {"kind": task.grading.kind, **task.grading.spec},
    }


def _sandbox_line(sandbox: SandboxSpec) -> dict[str, Json]:
    return {
        "base": sandbox.base,
        "workdir": sandbox.workdir,
        "tree": sandbox.tree,
        "files": {path: _file_line(file) for path, file in sandbox.files.items()},
        "setup": list(sandbox.setup),
        "env": dict(sandbox.env),
        "limits": asdict(sandbox.limits),
        **({} if sandbox.activation == Activation() else {"activation": asdict(sandbox.activation)}),
    }


def _file_line(file: File) -> dict[str, Json]:
    try:
        return {"text": file.data.decode(), "mode": file.mode}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(file.data).decode(), "mode": file.mode}


def _as_task(line: _Line, folder: Path) -> Task:
    return Task(
        id=line.id,
        brief=Brief(
            instruction=line.instruction,
            system=line.system,
            tools=line.tools,
            limits=AgentLimits(**line.limits.model_dump()),
            resources=line.resources,
        ),
        grading=Grading(kind=line.grading.kind, spec=line.grading.model_extra or {}),
        sandbox=None if line.sandbox is None else _as_sandbox(line.sandbox, folder),
        artifact=line.artifact,
        patch_of=line.patch_of,
    )


def _sentence(raised: ValidationError) -> str:
    """The first problem as a sentence."""
    problem = raised.errors()[0]
    location = [str(part) for part in problem["loc"]]
    if problem["type"] == "extra_forbidden":
        known = list(_known_keys(_Line, location[:-1]))
        return f'unknown key "{".".join(location)}"{did_you_mean(location[-1], known)}; known are {", ".join(known)}'
    if problem["type"] == "missing":
        return f'the key "{".".join(location)}" is missing'
    where = f'key "{".".join(location)}": ' if location else ""
    return f"{where}{problem['msg']}"


def _known_keys(model: type[BaseModel], path: list[str]) -> Iterator[str]:
    """The keys of the model that `path` leads to."""
    for part in path:
        field = model.model_fields.get(part)
        kinds: list[Any] = [] if field is None else [field.annotation, *get_args(field.annotation)]
        inner = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if inner is None:
            return
        model = inner
    yield from model.model_fields
