"""The grader `judge`: a model compares the answer with the reference, in one or several votes.

    {"kind": "judge", "expected": "Paris", "base_url": "http://localhost:8000/v1", "model": "Qwen/Qwen3-8B", "votes": 3}

Output: 1 if most votes say correct, else 0. Invariants: an answer that is the reference after normalisation is right
and a missing one is wrong, without a call; a judge that cannot be reached, that does not keep to the form after
`tries`, or whose votes disagree more than `agreement` allows gives no verdict (GraderError), and never 0. Only replies
of an endpoint are cached: the run's own model changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from weakref import WeakKeyDictionary

from pydantic import Field

from slipstream.aio import task_group
from slipstream.disk_cache import DiskCache, key_of
from slipstream.errors import AgentError, ConfigError, GraderError, ModelError
from slipstream.graders.base import GradeContext
from slipstream.graders.judge.forms import FORMS, Case, Form, FormName, Judgement, Malformed, prompt
from slipstream.graders.spec import read_spec
from slipstream.graders.text import AnswerSpec, is_right
from slipstream.types import Artifact, Grading, Json, Message, Role, SampleParams, Verdict

MAX_CACHE_BYTES = 256 << 20

_places: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, int], asyncio.Semaphore]] = WeakKeyDictionary()


class JudgeSpec(AnswerSpec):
    question: str = ""
    """Empty: the task's instruction."""
    criteria: str = ""
    """What a correct answer is, if not one that says the same as the reference."""
    base_url: str = ""
    """Of an OpenAI-compatible server. Empty: the run's own model judges."""
    model: str = ""
    """Its name on that server; empty if it serves just one."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the key."""
    form: FormName = FormName.PLAIN
    """The form of its reply: `plain`, or `browsecomp`."""
    votes: int = Field(default=1, ge=1, le=99)
    """Judgements of the same answer."""
    agreement: float = Field(default=0.5, ge=0.5, le=1.0)
    """At least this share of the votes has to agree, and more than half; else there is no verdict."""
    tries: int = Field(default=3, ge=1, le=20)
    """Attempts at each vote, if replies do not keep to the form."""
    temperature: float | None = Field(default=None, ge=0.0)
    """None: 0 for a single vote, 0.7 for several."""
    max_tokens: int = Field(default=1_024, ge=1)
    max_answer_chars: int = Field(default=20_000, ge=100)
    """Of a longer answer the judge sees the beginning and the end."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Of one call, its retries included."""
    max_retries: int = Field(default=5, ge=0)
    """Of a call that failed."""
    concurrency: int = Field(default=16, ge=1)
    """Calls of this process to that server at once."""
    cache: str = ""
    """A file that keeps the judge's replies, so that the same case is not asked again; empty: none."""
    exact_first: bool = True
    """An answer that is the reference is right without a call."""


Asker = Callable[[Sequence[Message], int], Awaitable[str]]
"""From a conversation and a seed to the judge's reply."""


class JudgeGrader:
    needs_sandbox = False

    def check(self, spec: Mapping[str, Json]) -> None:
        read = read_spec("judge", JudgeSpec, spec)
        if not all(answer.strip() for answer in read.answers):
            raise ConfigError('grading "judge", key "expected": a reference is blank: give one to compare with')

    async def grade(self, grading: Grading, artifact: Artifact, context: GradeContext) -> Verdict:
        spec = read_spec("judge", JudgeSpec, grading.spec)
        answer = artifact.answer or ""
        if not answer.strip():
            return Verdict(reward=0.0, detail="there is no answer")
        if spec.exact_first and len(answer) <= spec.max_answer_chars and is_right(answer, spec):
            return Verdict(reward=1.0, components={"correct": 1.0}, detail="the answer is the reference")
        question = spec.question or (context.task.brief.instruction if context.task is not None else "")
        case = Case(
            question=question,
            expected=tuple(spec.answers),
            answer=_shortened(answer, spec.max_answer_chars),
            criteria=spec.criteria,
        )
        try:
            async with AsyncExitStack() as stack:
                ask = await _asker(spec, context, stack)
                async with task_group() as group:
                    votes = [group.create_task(_vote(spec, case, ask, number)) for number in range(spec.votes)]
        except (ModelError, ConfigError, AgentError) as raised:
            raise GraderError(f"the judge is unavailable: {raised}") from raised
        return _counted([vote.result() for vote in votes], spec)


def _shortened(answer: str, max_chars: int) -> str:
    if len(answer) <= max_chars:
        return answer
    half = max_chars // 2
    return f"{answer[:half]}\n[... {len(answer) - 2 * half} characters left out ...]\n{answer[-half:]}"


def _counted(votes: Sequence[Judgement], spec: JudgeSpec) -> Verdict:
    num_correct = sum(vote.is_correct for vote in votes)
    most = max(num_correct, len(votes) - num_correct)
    share = most / len(votes)
    counted = f"{num_correct} of {len(votes)} votes say correct"
    if share <= 0.5 or share < spec.agreement:
        raise GraderError(f"the judge disagrees with itself: {counted}")
    correct = float(num_correct == most)
    components = {"correct": correct, "agreement": share}
    confidences = [vote.confidence for vote in votes if vote.confidence is not None]
    if confidences:
        components["confidence"] = sum(confidences) / len(confidences)
    extracted = next((f"; read as {vote.extracted[:200]!r}" for vote in votes if vote.extracted), "")
    return Verdict(reward=correct, components=components, detail=f"{counted}{extracted}")


async def _vote(spec: JudgeSpec, case: Case, ask: Asker, number: int) -> Judgement:
    """One judgement; a reply that is not of the form is shown back to the judge, with what is wrong."""
    form: Form = FORMS[spec.form]
    messages = [Message(role=Role.USER, content=prompt(case, form))]
    problem = ""
    for attempt in range(spec.tries):
        reply = await ask(messages, number * spec.tries + attempt)
        try:
            return form.read(reply, case.code)
        except Malformed as raised:
            problem = str(raised)
            told = f"Your reply is not of the form: {problem}. Write it again, in the form."
            messages = [
                messages[0],
                Message(role=Role.ASSISTANT, content=reply),
                Message(role=Role.USER, content=told),
            ]
    raise GraderError(f"the judge did not keep to its form in {spec.tries} tries: {problem}")


async def _asker(spec: JudgeSpec, context: GradeContext, stack: AsyncExitStack) -> Asker:
    if not spec.base_url:
        judge = context.judge
        if judge is None:
            raise GraderError("there is no model to judge with: set base_url in the grading")
        return lambda messages, seed: judge.ask(messages, max_tokens=spec.max_tokens)

    from slipstream.model.http import Retries
    from slipstream.model.openai import OpenAIChat, OpenAIConfig

    config = OpenAIConfig(
        base_url=spec.base_url,
        model=spec.model,
        api_key_env=spec.api_key_env,
        retries=Retries(max_retries=spec.max_retries),
        timeout_s=spec.timeout_s,
    )
    chat = OpenAIChat(config)
    stack.push_async_callback(chat.aclose)
    if not spec.model:
        await chat.probe()
    temperature = spec.temperature
    if temperature is None:
        temperature = 0.0 if spec.votes == 1 else 0.7
    place = _place(spec)
    cache = _cache(spec)

    async def ask(messages: Sequence[Message], seed: int) -> str:
        contents = [message.content for message in messages]
        key = key_of(spec.base_url, spec.model, contents, seed, temperature, spec.max_tokens)
        if cache is not None and (kept := await cache.get(key)) is not None:
            return kept.decode()
        params = SampleParams(max_tokens=spec.max_tokens, temperature=temperature, seed=seed)
        async with place:
            reply = (await chat.chat(messages, [], params)).message.content
        if cache is not None:
            await cache.put(key, reply.encode("utf-8", "replace"))
        return reply

    return ask


def _place(spec: JudgeSpec) -> asyncio.Semaphore:
    places = _places.setdefault(asyncio.get_running_loop(), {})
    return places.setdefault((spec.base_url, spec.concurrency), asyncio.Semaphore(spec.concurrency))


def _cache(spec: JudgeSpec) -> DiskCache | None:
    return DiskCache(Path(spec.cache).expanduser(), max_bytes=MAX_CACHE_BYTES) if spec.cache else None
