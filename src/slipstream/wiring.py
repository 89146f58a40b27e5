"""From settings to live parts: the model, the sandboxes, the crew that every attempt shares.

Always holds: everything that can be checked is checked before the first rollout starts, and what is opened here is
closed when the context ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from slipstream.agent.loop import ToolAgent
from slipstream.aio import outlast, task_group
from slipstream.config import checked_arguments
from slipstream.dialogue.base import CallContext, Dialogue, TurnLog
from slipstream.dialogue.chat import ChatDialogue
from slipstream.dialogue.token import TokenDialogue
from slipstream.dispatch.adaptive import Adaptive
from slipstream.dispatch.admission import check_job
from slipstream.dispatch.base import DispatchLimits, PacingGate, Placement, SchedulingPolicy
from slipstream.dispatch.gate import OpenGate
from slipstream.dispatch.kv_gate import KvGate
from slipstream.dispatch.policies import Batch, Bounded, Pipeline
from slipstream.errors import ConfigError
from slipstream.graders.base import TimedGrader
from slipstream.graders.registry import find_grader
from slipstream.hub import default_home, find_model
from slipstream.model.base import ChatModel, Completer, WorkReporter
from slipstream.names import load_object, user_code
from slipstream.placement.inprocess import InProcess
from slipstream.placement.open_files import raise_open_files
from slipstream.placement.processes import Order, open_processes
from slipstream.render.load import check_template, open_renderer
from slipstream.render.renderer import Renderer
from slipstream.rollout.attempt import AttemptDeps, DialogueMaker, weight_of_grading
from slipstream.sandbox.base import SandboxProvider
from slipstream.sandbox.cleanup.lease import Lease, take_lease
from slipstream.sandbox.cleanup.reaper import reap
from slipstream.sandbox.local.provider import LocalProvider
from slipstream.sandbox.pool.pool import Pool
from slipstream.seams import Journal, TurnGate
from slipstream.settings import DispatchConfig, EvalConfig, ModelConfig, SandboxConfig, TrainConfig
from slipstream.settings.prompt import agent_as_trained, unlike_training
from slipstream.tools.toolset import Toolset
from slipstream.types import EngineLoad, EngineWork, Job, JobKey, SampleParams, SandboxSpec, Task, job_seed

log = logging.getLogger(__name__)

REFRESH_S = 2.0
"""How often a server is asked for its load."""


class Pacing:
    """How a run is paced: its policy, its limits, the gate of its turns, and the engine's load once there is one."""

    def __init__(self, config: DispatchConfig) -> None:
        self.policy, self.limits = make_policy(config)
        self._read_load: Callable[[], EngineLoad | None] = lambda: None
        self._take_work: Callable[[], tuple[EngineWork, ...]] = lambda: ()
        self.goes_by_load = config.policy == "adaptive"
        self.gate: PacingGate = KvGate(self.load) if self.goes_by_load else OpenGate()

    def set_engine(self, completer: Completer) -> None:
        """What samples for the run."""
        self._read_load = completer.load
        if isinstance(completer, WorkReporter):
            self._take_work = completer.take_work

    def load(self) -> EngineLoad | None:
        return self._read_load()

    def take_work(self) -> tuple[EngineWork, ...]:
        """What the engine did since this was asked last, where it tells."""
        return self._take_work()


Config: TypeAlias = EvalConfig | TrainConfig


@asynccontextmanager
async def open_placement(
    config: Config, tasks: Mapping[str, Task], *, pacing: Pacing, policy: Completer | ChatModel | None = None
) -> AsyncIterator[Callable[[Journal], Placement]]:
    """Where the attempts of a run live, with all that they share checked and open; the journal comes last.

    `policy` samples in place of what the settings of the model name, and is not closed here.
    """
    shares = _shares(config, pacing.limits.sandboxes)
    async with AsyncExitStack() as stack:
        crew_for = None
        if not config.dispatch.processes:
            crew_for = await stack.enter_async_context(_open_crew(config, tasks, shares[0]))
        if policy is None:
            model = await stack.enter_async_context(_open_model(config.model, pacing))
        else:
            if isinstance(policy, Completer):
                pacing.set_engine(policy)
            model = policy
        if crew_for is not None:
            make_dialogue = _dialogue_maker(config.model, model, pacing.gate)
            yield lambda journal: InProcess(crew_for(journal, make_dialogue), tasks)
            return
        crews = tuple((config, tasks, share) for share in shares)
        processes = await stack.enter_async_context(
            open_processes(
                Order(maker=f"{__name__}:open_helper_deps", crews=crews, rooms=tuple(share.live for share in shares)),
                model=model,
                gate=pacing.gate,
                grade_weight=lambda job, ended: weight_of_grading(
                    job, find_grader(tasks[job.key.task_id].grading.kind), ended
                ),
            )
        )

        def placed(journal: Journal) -> Placement:
            processes.journal = journal
            return processes

        yield placed


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxShare:
    """What one process may have of the run's sandboxes."""

    warm: int
    live: int | None
    sharers: int = 1
    """How many processes there are."""


def _shares(config: Config, max_live: int | None) -> list[SandboxShare]:
    """Of each process. Together they are what the settings say."""
    num = max(1, config.dispatch.processes)
    if max_live is not None and max_live < num:
        raise ConfigError(
            f"dispatch.processes={num}, but dispatch.limits.sandboxes={max_live}: a process without a sandbox has "
            "nothing to do; ask for fewer processes, or more sandboxes"
        )
    warm = config.sandbox.warm
    return [
        SandboxShare(
            warm=warm // num + (place < warm % num),
            live=None if max_live is None else max_live // num + (place < max_live % num),
            sharers=num,
        )
        for place in range(num)
    ]


@asynccontextmanager
async def open_helper_deps(
    order: tuple[Config, Mapping[str, Task], SandboxShare], *, model: Any, gate: TurnGate, journal: Journal
) -> AsyncIterator[tuple[AttemptDeps, Mapping[str, Task]]]:
    """What a helper process does its part of a run with (`placement.helper`)."""
    config, tasks, share = order
    async with _open_crew(config, tasks, share) as crew_for:
        yield crew_for(journal, _dialogue_maker(config.model, model, gate)), tasks


@asynccontextmanager
async def _open_crew(
    config: Config, tasks: Mapping[str, Task], share: SandboxShare
) -> AsyncIterator[Callable[[Journal, DialogueMaker], AttemptDeps]]:
    """All that the attempts of a process share, checked and open; it becomes a crew with journal and model."""
    toolsets = {names: Toolset.named(names) for names in {task.brief.tools for task in tasks.values()}}
    agent = agent_as_trained(config.agent, _trained_folder(config.model))
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(_open_provider(config.sandbox, share))
        provider.check()
        for task in tasks.values():
            if task.sandbox is not None:
                provider.check_spec(task.sandbox)
        for toolset in toolsets.values():
            stack.push_async_callback(toolset.aclose)
        yield lambda journal, make_dialogue: AttemptDeps(
            provider=provider,
            journal=journal,
            make_dialogue=make_dialogue,
            make_runner=lambda task: ToolAgent(toolsets[task.brief.tools], agent),
            find_grader=find_grader,
            start_timeout_s=config.sandbox.start_timeout_s,
            expect=lambda spec: provider.expect_more([spec]),
        )


@asynccontextmanager
async def _open_provider(config: SandboxConfig, share: SandboxShare) -> AsyncIterator[Pool]:
    """Where the run's sandboxes come from. What runs that were killed have left is removed first."""
    home = default_home()
    left = await asyncio.to_thread(reap, home)
    for problem in left.problems:
        log.warning("what a run that was killed has left cannot be removed: %s", problem)
    lease = take_lease(home)
    pool = Pool(
        make_provider(config, lease, share.sharers, raise_open_files()),
        max_warm=share.warm,
        max_live=share.live,
        start_timeout_s=config.start_timeout_s / 2,
    )
    try:
        yield pool
    finally:
        try:
            await pool.aclose()
        finally:
            lease.release()


def make_provider(
    config: SandboxConfig, lease: Lease | None = None, sharers: int = 1, open_files: int | None = None
) -> SandboxProvider:
    """What starts sandboxes. `lease` ties them to the run, `sharers` is how many processes of the run start any;
    `open_files` is the soft limit of programs inside, where it is not this process's."""
    if config.provider == "oci":
        from slipstream.sandbox.oci.provider import OciProvider

        return OciProvider(engine=config.engine or None, lease=lease, start_timeout_s=config.start_timeout_s)
    lease_id = "" if lease is None else lease.id
    return LocalProvider(lease=lease_id, start_timeout_s=config.start_timeout_s, sharers=sharers, open_files=open_files)


def make_policy(config: DispatchConfig) -> tuple[SchedulingPolicy[Any], DispatchLimits]:
    """The policy, and the limits it runs under."""
    match config.policy:
        case "batch":
            return Batch(), DispatchLimits()
        case "bounded":
            return Bounded(slots=config.slots), config.limits
        case "pipeline":
            return Pipeline(init=config.slots, run=config.slots, grade=config.slots), config.limits
        case "adaptive":
            return Adaptive(), config.limits


def make_job(task: Task, key: JobKey, *, run_seed: int, group_size: int) -> Job:
    """A job for this task, with what its sandbox, or its grader's, takes of the limits."""
    has_any = task.sandbox is not None or find_grader(task.grading.kind).needs_sandbox
    takes = (task.sandbox or SandboxSpec()).limits if has_any else None
    return Job(
        key=key,
        seed=job_seed(run_seed, key),
        weight=0 if task.sandbox is None else 1,
        group_size=group_size,
        memory_mb=0 if takes is None else takes.memory_mb,
        cpus=0.0 if takes is None else takes.cpus,
    )


def check_weights(config: DispatchConfig, jobs: Iterable[Job]) -> None:
    """Refuse a job that is above a limit by itself, before anything starts."""
    _, limits = make_policy(config)
    for job in jobs:
        check_job(job, limits)


def check_gradings(config: Config, tasks: Iterable[Task]) -> None:
    """Refuse a deadline that ends a grading before its own limit does: work that hangs would have no verdict, not 0."""
    deadline_s, start_s = config.dispatch.deadlines.grade_s, config.sandbox.start_timeout_s
    for task in tasks:
        grader = find_grader(task.grading.kind)
        with user_code(f"grader {task.grading.kind}: its limit_s for task {task.id}"):
            limit_s = grader.limit_s(task.grading.spec) if isinstance(grader, TimedGrader) else 0.0
        if limit_s + start_s > deadline_s:
            raise ConfigError(
                f"the grading of task {task.id} may take {limit_s:g} s, and {start_s:g} s to start a sandbox, but "
                f"dispatch.deadlines.grade_s={deadline_s:g}: set that to {limit_s + start_s:g} or more"
            )


@asynccontextmanager
async def _open_model(config: ModelConfig, pacing: Pacing) -> AsyncIterator[Completer | ChatModel]:
    if config.kind == "chat":
        from slipstream.model.openai import OpenAIChat

        chat = OpenAIChat(_endpoint(config))
        try:
            await chat.probe()
            if not chat.is_listed:
                await chat.check_answers()
            async with _watched(chat.watch):
                yield chat
        finally:
            await chat.aclose()
        return
    renderer = make_renderer(config)
    completer = await _completer(config, renderer)
    pacing.set_engine(completer)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(completer.aclose)
        if pacing.goes_by_load and (refresh := getattr(completer, "refresh_load", None)):
            asking = asyncio.create_task(_ask_often(refresh), name="asking the server for its load")
            stack.push_async_callback(_end, asking)
        if watch := getattr(completer, "watch", None):
            await stack.enter_async_context(_watched(watch))
        yield completer


@asynccontextmanager
async def _watched(watch: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """If the model's server is gone, whatever goes on inside is cancelled, and ModelError comes out."""
    async with task_group() as group:
        watching = group.create_task(watch(), name="watching the model's server")
        try:
            yield
        finally:
            watching.cancel()


async def _ask_often(refresh: Callable[[], Awaitable[object]]) -> None:
    while True:
        await refresh()
        await asyncio.sleep(REFRESH_S)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await outlast([task])


async def _completer(config: ModelConfig, renderer: Renderer) -> Completer:
    if config.kind == "local":
        return open_engine(config)
    if config.kind == "scripted":
        from slipstream.model.scripted import ScriptedModel

        return ScriptedModel(
            _script(config), decode=renderer.decode, encode=renderer.encode_reply, encode_text=renderer.encode_text
        )
    from slipstream.model.openai import OpenAICompleter

    client = OpenAICompleter(_endpoint(config))
    try:
        await client.probe()
        await client.check_sampling()
    except BaseException:
        await client.aclose()
        raise
    return client


def open_engine(config: ModelConfig) -> Completer:
    """The embedded engine over the model in a folder."""
    from slipstream.engine.inference.load import open_engine as from_folder

    asked = config.engine.context_tokens or config.context_tokens
    return from_folder(model_folder(config), replace(config.engine, context_tokens=asked))


def model_folder(config: ModelConfig) -> Path:
    if config.folder == "bytes":
        raise ConfigError(f"model.kind={config.kind} needs a model: set model.folder to its folder, or its name")
    return find_model(config.folder)


def _script(config: ModelConfig) -> Any:
    make: Any = load_object(config.script, "model.script")
    arguments = checked_arguments(make, config.script_args, "model.script_args") if callable(make) else {}
    with user_code(f"model.script {config.script}"):
        script = make(**arguments)
    if not callable(script):
        raise ConfigError(
            f"model.script {config.script} gave a {type(script).__name__}: return a function of a ScriptedCall"
        )
    return script


def _endpoint(config: ModelConfig) -> Any:
    from slipstream.model.http import Retries
    from slipstream.model.openai import LogprobsKind, OpenAIConfig

    return OpenAIConfig(
        base_url=config.base_url,
        model=config.name,
        api_key_env=config.api_key_env,
        extra=config.extra_body,
        headers=config.extra_headers,
        max_tokens_field=config.max_tokens_field,
        resend_thinking=config.resend_thinking,
        logprobs=LogprobsKind(config.logprobs),
        context_tokens=config.context_tokens,
        retries=Retries(max_retries=config.max_retries),
    )


def make_renderer(config: ModelConfig) -> Renderer:
    has_own = config.folder != "bytes" or config.kind in ("tokens", "local")
    return open_renderer(
        model_folder(config) if has_own else None,
        family=config.family,
        thinking=None if config.thinking == "auto" else config.thinking,
        args=config.family_args,
    )


def check_prompts(config: Config) -> None:
    """Refuse a chat format that is not the model's, and warn of settings that let a trained model see something else
    than it was trained on."""
    folder = _trained_folder(config.model)
    if folder is None:
        return
    for sentence in unlike_training(config, folder):
        log.warning("%s", sentence)
    model = config.model
    if mismatch := check_template(folder, family=model.family, args=model.family_args):
        if model.template_mismatch == "stop":
            raise ConfigError(mismatch)
        log.warning("%s", mismatch)
    renderer = make_renderer(model)
    if renderer.limits:
        log.warning("%s as %s: %s", folder, renderer.family, "; ".join(renderer.limits))


def _trained_folder(config: ModelConfig) -> Path | None:
    """The model's folder, if there is one already."""
    has_folder = config.kind in ("local", "tokens") and config.folder != "bytes"
    return find_model(config.folder) if has_folder else None


def _params(config: ModelConfig) -> SampleParams:
    return SampleParams(max_tokens=config.max_tokens, temperature=config.temperature, top_p=config.top_p)


def _window(config: ModelConfig, task: Task) -> int:
    asked = task.brief.limits.context_tokens
    return asked if config.context_tokens is None else min(asked, config.context_tokens)


def _terms(config: ModelConfig, job: Job, attempt: int, task: Task, gate: TurnGate) -> CallContext:
    return CallContext(
        params=_params(config),
        max_context_tokens=_window(config, task),
        gate=gate,
        key=job.key,
        attempt=attempt,
        timeout_s=config.timeout_s,
    )


def _dialogue_maker(config: ModelConfig, model: Any, gate: TurnGate) -> DialogueMaker:
    """`model`: a ChatModel if the settings say so, else a Completer."""
    if config.kind == "chat":
        return _chat_maker(config, model, gate)
    return _token_maker(config, model, make_renderer(config), gate)


def _token_maker(config: ModelConfig, completer: Completer, renderer: Renderer, gate: TurnGate) -> DialogueMaker:
    def make(job: Job, attempt: int, task: Task, log: TurnLog) -> Dialogue:
        return TokenDialogue(renderer, completer, _terms(config, job, attempt, task, gate), log)

    return make


def _chat_maker(config: ModelConfig, chat: ChatModel, gate: TurnGate) -> DialogueMaker:
    def make(job: Job, attempt: int, task: Task, log: TurnLog) -> Dialogue:
        return ChatDialogue(chat, _terms(config, job, attempt, task, gate), log)

    return make
