"""Our clients against a real vLLM: tokens, logprobs, tool calls, sessions, salts."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from bridges_vllm.vllm_server import BLOCK_TOKENS, NUM_BLOCKS, WINDOW_TOKENS, Server
from slipstream.errors import ConfigError, ContextOverflow
from slipstream.model.openai import LogprobsKind, OpenAIChat, OpenAICompleter
from slipstream.recipes.demo.tasks import FOLDERS
from slipstream.render.load import open_renderer
from slipstream.types import Message, Role, SampleParams, StopReason, ToolSpec, token_ids

T = TypeVar("T")

SAME = 1e-4
"""In nats: sampled one token after the other, scored as one prompt, and computed by transformers, all in float32."""
NUM_IDS = 500
LONG = SampleParams(max_tokens=48, seed=7)


def with_client(config: object, use: Callable[[OpenAICompleter], Awaitable[T]]) -> T:
    async def main() -> T:
        client = OpenAICompleter(config)  # type: ignore[arg-type]  # an OpenAIConfig
        try:
            await client.probe()
            return await use(client)
        finally:
            await client.aclose()

    return asyncio.run(main())


def some_ids(name: str, num: int = 4 * BLOCK_TOKENS) -> list[int]:
    """A prompt that no other has a block of."""
    return random.Random(name).choices(range(3, NUM_IDS), k=num)


# ---------------------------------------------------------------- tokens


def test_a_probe_learns_the_name_and_the_window(server: Server) -> None:
    async def use(client: OpenAICompleter) -> tuple[str, int | None]:
        await client.check_sampling()
        return client.model, client.context_tokens

    assert with_client(server.config(), use) == ("walker", WINDOW_TOKENS)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampled_logprobs_are_those_of_what_was_sampled_from(server: Server, model: Path, temperature: float) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    renderer = open_renderer(model, family="auto", args={"show_tools": False})
    prompt = list(renderer.render([Message(role=Role.USER, content="Start in amber.")], []))
    params = SampleParams(max_tokens=64, temperature=temperature, seed=11, stop_ids=renderer.stop_ids)

    async def use(client: OpenAICompleter) -> tuple[list[int], list[float], list[float]]:
        sampled = await client.complete(prompt, params, session="logprobs")
        scores = await client.score([*prompt, *sampled.ids], num_top=1)
        assert sampled.stop is StopReason.STOP and sampled.ids[-1] in renderer.stop_ids
        scored = [score.logprob for score in scores[len(prompt) :] if score is not None]
        return list(sampled.ids), list(sampled.logprobs or ()), scored

    ids, logprobs, scored = with_client(server.config(), use)
    assert len(logprobs) == len(ids) == len(scored) > 5
    assert renderer.parse(token_ids(ids), token_ids(prompt), [], call_prefix="c").calls[0].name in ("bash", "finish")
    own = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        logits = own(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    for divided_by, found in ((temperature, logprobs), (1.0, scored)):
        wanted = torch.log_softmax(logits / divided_by, -1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
        assert found == pytest.approx(wanted, abs=SAME)
    if temperature == 1.0:
        assert logprobs == pytest.approx(scored, abs=SAME)
    else:
        assert logprobs != pytest.approx(scored, abs=0.01), "the temperature is in them"


def test_the_same_seed_samples_the_same(server: Server) -> None:
    async def use(client: OpenAICompleter) -> list[object]:
        return [(await client.complete(some_ids("seed"), LONG)).ids for _ in range(2)]

    first, second = with_client(server.config(), use)
    assert first == second


def test_a_prompt_without_room_is_an_overflow_by_the_servers_own_word(server: Server) -> None:
    async def use(client: OpenAICompleter) -> None:
        client.context_tokens = None  # so that the server has to say it
        with pytest.raises(ContextOverflow):
            await client.complete(some_ids("long", WINDOW_TOKENS), LONG)

    with_client(server.config(), use)


# ---------------------------------------------------------------- chat


def test_chat_with_tool_calls_through_the_servers_parser(server: Server) -> None:
    bash = ToolSpec(
        name="bash",
        description="Run a command.",
        parameters={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    )
    commands = {f"cat {folder}/note" for folder in FOLDERS}

    async def main() -> None:
        chat = OpenAIChat(server.config())
        await chat.probe()
        messages = [Message(role=Role.USER, content="Start in amber.")]
        for turn in range(4):
            reply = await chat.chat(messages, [bash], SampleParams(max_tokens=200, seed=turn), session="chat")
            (call,) = reply.message.calls
            assert call.problem is None and reply.stop is StopReason.STOP
            assert call.name == "finish" or (call.name == "bash" and call.arguments["command"] in commands)
            assert "<tool_call>" not in reply.message.content and reply.num_sampled_tokens > 3
            answer = Message(role=Role.TOOL, content="look in cedar", call_id=call.id, name=call.name)
            messages += [reply.message, answer]
        await chat.aclose()

    asyncio.run(main())


# ---------------------------------------------------------------- caches and sessions


def test_each_policy_version_has_a_cache_of_its_own(server: Server) -> None:
    prompt = some_ids("versions")

    async def use(client: OpenAICompleter) -> list[tuple[int, int | None]]:
        found = []
        for client.version in (0, 0, 1, 1, 0):
            sampled = await client.complete(prompt, SampleParams(max_tokens=1))
            assert set(sampled.versions) == {client.version}
            found.append((client.version, sampled.num_cached))
        return found

    kept = len(prompt) - BLOCK_TOKENS  # the last block is computed again, so that there is something to sample from
    before = server.count("prefix_cache_hits")
    assert with_client(server.config(), use) == [(0, 0), (0, kept), (1, 0), (1, kept), (0, kept)]
    assert server.count("prefix_cache_hits") - before == 3 * kept


def test_the_load_is_the_servers_own(server: Server) -> None:
    load = with_client(server.config(), lambda client: client.refresh_load())
    assert load is not None and load.kv_tokens == NUM_BLOCKS * BLOCK_TOKENS
    assert load.running == load.waiting == 0 and load.kv_used is not None


def test_a_server_without_logprobs_is_refused_in_a_sentence(without_logprobs: Server) -> None:
    said = r"answered 400: Requested sample logprobs of 1.* --max-logprobs 1 or more.*logprobs to none to evaluate only"
    with pytest.raises(ConfigError, match=said):
        with_client(without_logprobs.config(), lambda client: client.check_sampling())
    with_client(without_logprobs.config(logprobs=LogprobsKind.NONE), lambda client: client.check_sampling())


async def talk(client: OpenAICompleter, session: str, num_turns: int) -> list[bool]:
    """Whether each turn after the first found all blocks of what was before in the server's cache."""
    prompt, found, num_before = some_ids(session), [], 0
    for turn in range(num_turns):
        sampled = await client.complete(prompt, LONG, session=session)
        assert sampled.num_cached is not None
        if turn:
            found.append(sampled.num_cached >= (num_before - 1) // BLOCK_TOKENS * BLOCK_TOKENS)
        num_before = len(prompt) + len(sampled.ids)
        prompt = [*prompt, *sampled.ids, *some_ids(f"{session} {turn}", BLOCK_TOKENS)]
    return found


def test_a_session_stays_at_one_of_two_servers_where_its_cache_is(server: Server, without_logprobs: Server) -> None:
    async def use(client: OpenAICompleter) -> list[list[bool]]:
        return await asyncio.gather(*(talk(client, f"session {number}", 3) for number in range(6)))

    servers = (server, without_logprobs)
    before = [each.count("request_success") for each in servers]
    found = with_client(server.config(without_logprobs, logprobs=LogprobsKind.NONE), use)
    assert found == [[True, True]] * 6, "every turn found the cache of the one before"
    assert [each.count("request_success") - old for each, old in zip(servers, before, strict=True)] == [9, 9]


def test_two_servers_count_as_one_load(server: Server, without_logprobs: Server) -> None:
    load = with_client(server.config(without_logprobs), lambda client: client.refresh_load())
    assert load is not None and load.kv_tokens == 2 * NUM_BLOCKS * BLOCK_TOKENS


def test_sessions_of_a_dead_server_go_on_at_the_other(server: Server, without_logprobs: Server) -> None:
    async def use(client: OpenAICompleter) -> list[list[bool]]:
        await asyncio.gather(talk(client, "one", 1), talk(client, "two", 1))
        without_logprobs.kill()
        return [await talk(client, session, 2) for session in ("one", "two")]

    before = server.count("request_success")
    assert with_client(server.config(without_logprobs, logprobs=LogprobsKind.NONE), use) == [[True], [True]]
    assert server.count("request_success") - before == 5
