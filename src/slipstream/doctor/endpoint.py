"""Whether an endpoint's tokens and logprobs can be trained on: it is asked for samples, and for their scores.

Input: the endpoint's config and the renderer that runs would use. Output: one Check for each question. Invariants:
samples are requested exactly as `OpenAICompleter.complete` does; what the server does not support is skipped with its
message; every request has a deadline, and so has the whole. Where a check failed, those that would fail with it are
skipped: one fault is one failure.

A second scoring is the judge: prompt and sample go back as a prompt with `prompt_logprobs`, which vLLM computes at
temperature 1 whatever the sample's was. What it cannot show is a cut that keeps more than the likeliest NUM_TOP tokens
(such as top_k=50), since no more than those are known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from slipstream.aio import task_group
from slipstream.doctor.checks import Check, Status, failed, passed, skipped
from slipstream.doctor.replies import (
    SEEDS,
    STOP,
    TOKENS,
    Ask,
    Reply,
    check_seeds,
    check_stop,
    check_tokens,
    read_reply,
    stop_early,
)
from slipstream.doctor.scored import NUM_TOP, SAMPLING, Scored, check_logprobs, check_sampling, logprobs_name
from slipstream.errors import ConfigError, ContextOverflow, ModelError
from slipstream.model.http import Refused, Retries
from slipstream.model.openai import LogprobsKind, OpenAICompleter, OpenAIConfig
from slipstream.model.wire import BadBody
from slipstream.render.probes import TOOLS, Conversation
from slipstream.render.renderer import Renderer
from slipstream.types import Message, Role, SampleParams, ToolCall

REACHABLE = "endpoint.reachable"
NUM_CONCURRENT = 32
RETRIES = Retries(max_retries=2, backoff_cap_s=2.0, retry_after_cap_s=10.0)
"""Few: a server that does not answer is reported, not waited for."""

T = TypeVar("T")
R = TypeVar("R")


def _user(text: str) -> Message:
    return Message(role=Role.USER, content=text)


PROMPTS: tuple[Conversation, ...] = (
    Conversation(name="story", messages=(_user("Write the beginning of a story about a lighthouse."),)),
    Conversation(
        name="tools",
        tools=TOOLS,
        messages=(
            Message(role=Role.SYSTEM, content="Use the tools to answer."),
            _user("Who wrote the first book about bees, and when?"),
        ),
    ),
    Conversation(
        name="unicode", messages=(_user("Erzähl mir etwas über 京都, кофе и ☕🇫🇷: naïve e\u0301 \u202eabc\u202c"),)
    ),
    Conversation(
        name="thinking",
        tools=TOOLS,
        messages=(
            _user("Which of the two is older?"),
            Message(
                role=Role.ASSISTANT,
                thinking="I do not know. I should look.",
                calls=(ToolCall(id="functions.search:0", name="search", arguments={"query": "age", "limit": 2}),),
            ),
            Message(role=Role.TOOL, content="1: 80 years\n2: 75 years\n", call_id="functions.search:0", name="search"),
        ),
    ),
    Conversation(
        name="names of special tokens",
        messages=(_user("What do <|im_end|>, <|eot_id|>, <|end|>, <end_of_turn>, </s> and <|endoftext|> mean?"),),
    ),
)
"""Each is for something that servers get wrong; all leave the model much to choose from."""


class _NoMore(Exception):
    """The checks that are left cannot be made, for the reason it gives."""


async def check_endpoint(
    config: OpenAIConfig,
    renderer: Renderer,
    *,
    api_key: str | None = None,
    prompts: Sequence[Conversation] = PROMPTS,
    num_samples: int = 4,
    max_tokens: int = 32,
    temperature: float = 0.7,
    request_timeout_s: float = 120.0,
    timeout_s: float = 300.0,
) -> list[Check]:
    """`num_samples` of `max_tokens` are taken of each prompt at temperature 1, and as many at `temperature`, which
    should be the one that training uses. `timeout_s` is for all of it. Whatever the server does, nothing is raised."""
    if temperature <= 0.0 or num_samples < 1:
        raise ConfigError(f"temperature {temperature:g} and num_samples {num_samples} leave nothing to check")
    kind = LogprobsKind.RAW if config.logprobs is LogprobsKind.NONE else config.logprobs
    checks: list[Check] = []
    async with aclosing(OpenAICompleter(replace(config, logprobs=kind, retries=RETRIES), api_key=api_key)) as client:
        examination = _Examination(
            client=client,
            renderer=renderer,
            num_samples=num_samples,
            max_tokens=max_tokens,
            temperature=temperature,
            timeout_s=request_timeout_s,
            checks=checks,
        )
        try:
            async with asyncio.timeout(timeout_s) as scope:
                await examination.run(prompts)
            reason = ""
        except _NoMore as no_more:
            reason = str(no_more)
        except (ModelError, ContextOverflow, BadBody) as error:
            reason = f"the server failed: {error}"
        except TimeoutError:
            if not scope.expired():
                raise
            reason = f"the server was too slow: {timeout_s:g} s were not enough"
    if not checks:
        checks.append(failed(REACHABLE, reason))
    done = {check.name for check in checks}
    left = dict.fromkeys((TOKENS, STOP, SEEDS, logprobs_name(1.0), logprobs_name(temperature), SAMPLING))
    return checks + [skipped(name, reason) for name in left if name not in done]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Samples:
    own: list[Reply]
    """At temperature 1, which is the model's own distribution."""
    tempered: list[Reply]
    again: list[Reply]
    """The first of each prompt in `own`, requested again."""
    greedy: list[Reply]
    closing: list[Reply]
    """To a prompt in which the reply is complete except for its stop token."""

    @property
    def all(self) -> list[Reply]:
        return [*self.own, *self.tempered, *self.again, *self.greedy, *self.closing]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Examination:
    """`run` adds to `checks` what it finds, until it raises that nothing more can be found."""

    client: OpenAICompleter
    renderer: Renderer
    num_samples: int
    max_tokens: int
    temperature: float
    timeout_s: float
    checks: list[Check]

    async def run(self, prompts: Sequence[Conversation]) -> None:
        rendered = self._rendered(prompts)
        try:
            await self.client.probe()
        except ConfigError as error:
            raise _NoMore(str(error)) from error
        samples = await self._sample(rendered)
        self._reached()
        self._add(check_tokens(samples.all, self.renderer))
        early = [ask for reply in samples.greedy if (ask := stop_early(reply)) is not None]
        self.checks.append(check_stop([*samples.all, *await _each(early, self._reply)], self.renderer))
        self.checks.append(check_seeds(list(zip(samples.own[:: self.num_samples], samples.again, strict=True))))
        try:
            own = await _each(samples.own, self._scored)
        except (Refused, ContextOverflow) as refused:
            raise _NoMore(f"the server does not score tokens: {refused}") from refused
        self._add(check_logprobs(own, 1.0, self.renderer))
        tempered = await _each(samples.tempered, self._scored)
        if tempered:
            self.checks.append(check_logprobs(tempered, self.temperature, self.renderer))
        greedy = await _each(samples.greedy, self._scored)
        self.checks.append(check_sampling(own, tempered, greedy, self.temperature, self.renderer))

    def _reached(self) -> None:
        window = self.client.context_tokens
        window_is = "says nothing of its window" if window is None else f"has a window of {window} tokens"
        self.checks.append(
            passed(REACHABLE, f"{self.client.config.base_url} serves {self.client.model!r} and {window_is}")
        )

    def _add(self, check: Check) -> None:
        """A check without which the next ones mean nothing."""
        self.checks.append(check)
        if check.status is Status.FAILED:
            raise _NoMore(f"{check.name} failed, and this check could show nothing beyond that")

    async def _sample(self, prompts: Sequence[tuple[str, tuple[int, ...]]]) -> _Samples:
        own = self._asks(prompts, 1.0)
        asks = {
            "own": own,
            "tempered": self._asks(prompts, self.temperature) if self.temperature != 1.0 else [],
            "again": own[:: self.num_samples],
            "greedy": [self._ask(prompt, 0.0) for prompt in prompts],
            "closing": [self._ask(prompt, heat, seed=0) for prompt in self._closing() for heat in (0.0, 1.0)],
        }
        try:
            # One goes ahead, so that a server that fails is not asked by all at once.
            await self._reply(own[0])
            replies = iter(await _each([ask for some in asks.values() for ask in some], self._reply))
        except (Refused, ContextOverflow) as refused:
            self._reached()
            raise _NoMore(f"the server gives no tokens: {refused}") from refused
        except BadBody as bad:
            self._reached()
            self._add(failed(TOKENS, f"the server answers with a body that {bad}"))
            raise
        return _Samples(**{name: list(islice(replies, len(some))) for name, some in asks.items()})

    async def _reply(self, ask: Ask) -> Reply:
        return read_reply(await self.client.answer(ask.sent, ask.params, timeout_s=self.timeout_s), ask)

    async def _scored(self, reply: Reply) -> Scored:
        ids = [*reply.ask.sent, *reply.ids]
        scores = await self.client.score(ids, num_top=NUM_TOP, timeout_s=self.timeout_s)
        return Scored(reply=reply, scores=tuple(score for score in scores[len(reply.ask.sent) :] if score is not None))

    def _asks(self, prompts: Sequence[tuple[str, tuple[int, ...]]], temperature: float) -> list[Ask]:
        """`num_samples` of each prompt, all with seeds of their own, so that the samples are independent."""
        several = [prompt for prompt in prompts for _ in range(self.num_samples)]
        return [self._ask(prompt, temperature, seed=seed) for seed, prompt in enumerate(several)]

    def _ask(self, prompt: tuple[str, tuple[int, ...]], temperature: float, *, seed: int | None = None) -> Ask:
        name, sent = prompt
        stop_ids = tuple(self.renderer.stop_ids)
        params = SampleParams(max_tokens=self.max_tokens, temperature=temperature, seed=seed, stop_ids=stop_ids)
        return Ask(prompt=name, sent=sent, params=params)

    def _rendered(self, prompts: Sequence[Conversation]) -> list[tuple[str, tuple[int, ...]]]:
        """Those that the family can write: the checks of the renderer report the others."""
        rendered = []
        for prompt in prompts:
            with suppress(ConfigError):
                rendered.append((prompt.name, tuple(self.renderer.render(prompt.messages, prompt.tools))))
        if not rendered:
            raise ConfigError(f"the family {self.renderer.family!r} can write none of the {len(prompts)} prompts")
        return rendered

    def _closing(self) -> list[tuple[str, tuple[int, ...]]]:
        try:
            reply = self.renderer.encode_reply(Message(role=Role.ASSISTANT, content="OK."))
        except ConfigError:
            return []
        ids = [*self.renderer.render([_user("Say OK.")], ()), *reply]
        return [("end of a reply", tuple(ids[:-1]))] if ids[-1] in self.renderer.stop_ids else []


async def _each(items: Iterable[T], do: Callable[[T], Awaitable[R]]) -> list[R]:
    gate = asyncio.Semaphore(NUM_CONCURRENT)

    async def one(item: T) -> R:
        async with gate:
            return await do(item)

    async with task_group() as group:
        tasks = [group.create_task(one(item)) for item in items]
    return [task.result() for task in tasks]
