"""What the clients ask for, and what they make of the answers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from model_stage import PROMPT, Recorded, chatting, completing, config, saying, scripted, user

from slipstream.errors import ConfigError, ContextOverflow, ModelError
from slipstream.model.base import TokenScore
from slipstream.model.http import MAX_ANSWER_BYTES, MAX_LOOK_BYTES, Endpoint, Refused
from slipstream.model.metrics import RUNNING, WAITING, load_from_metrics
from slipstream.model.openai import LogprobsKind, OpenAIChat, OpenAICompleter, OpenAIConfig
from slipstream.model.scripted import ScriptedChat, replies
from slipstream.model.server import Fault, FixedAnswer, ModelServer
from slipstream.model.wire import reply_from_wire, sampled_to_wire
from slipstream.types import EngineLoad, Json, Message, Role, Sampled, SampleParams, StopReason, token_ids


def choice(**fields: Json) -> Json:
    good: dict[str, Json] = {
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": [5, 6, 7],
        "logprobs": {"token_logprobs": [-0.5, -1, -0.25]},
    }
    return {"choices": [{**good, **fields}]}


def completed(body: Json, params: SampleParams | None = None, **options: Any) -> Sampled:
    async def main() -> Sampled:
        async with completing(scripted(replies("a")), faults=saying(body), **options) as (client, _):
            return await client.complete(PROMPT, params or SampleParams())

    return asyncio.run(main())


def asked(params: SampleParams, *, call: dict[str, Any] | None = None, **options: Any) -> dict[str, Json]:
    async def main() -> Json:
        async with completing(scripted(replies("a")), **options) as (client, server):
            await client.complete(PROMPT, params, **(call or {}))
            return server.log[0].body

    body = asyncio.run(main())
    assert isinstance(body, dict)
    return body


def test_the_request_is_what_vllm_serves() -> None:
    params = SampleParams(max_tokens=9, temperature=0.7, top_p=0.9, seed=3, stop_ids=(2,))
    assert asked(params, call={"priority": -4, "cache_salt": "v7"}) == {
        "model": "slipstream",
        "prompt": [104, 105],
        "max_tokens": 9,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": 3,
        "stop_token_ids": [2],
        "logprobs": 1,
        "return_token_ids": True,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
        "priority": -4,
        "cache_salt": "v7",
    }


def test_what_is_not_set_is_not_sent() -> None:
    body = asked(SampleParams(), logprobs=LogprobsKind.NONE, extra={"min_p": None, "vllm_xargs": {"a": 1}})
    assert not {"priority", "seed", "stop_token_ids", "logprobs", "min_p"} & set(body)
    assert body["vllm_xargs"] == {"a": 1}


def test_session_priority_and_salt_reach_the_model() -> None:
    async def main() -> None:
        async def act() -> Sampled:
            return Sampled.at_version([1], [0.0], version=0, stop=StopReason.LENGTH)

        model = Recorded(act)
        async with completing(model) as (client, server):
            await client.complete(PROMPT, SampleParams(), session="train/1/t/0", priority=5, cache_salt="v1")
            assert server.log[0].session == "train/1/t/0"
        params = SampleParams()
        assert model.calls == [
            {"prompt_ids": PROMPT, "params": params, "session": "train/1/t/0", "priority": 5, "cache_salt": "v1"}
        ]

    asyncio.run(main())


def test_an_answer_with_the_stop_token_inside() -> None:
    sampled = completed(choice())
    assert sampled.ids == token_ids([5, 6, 7])
    assert sampled.logprobs is not None
    assert list(sampled.logprobs) == [-0.5, -1.0, -0.25]
    assert sampled.stop is StopReason.STOP


def test_an_answer_whose_logprobs_alone_cover_the_stop_token() -> None:
    sampled = completed(choice(token_ids=[5, 6], stop_reason=7))
    assert sampled.ids == token_ids([5, 6, 7])


@pytest.mark.parametrize(
    ("usage", "num_cached"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 48}}, 48),
        ({"prompt_tokens_details": {"cached_tokens": 0}}, 0),
        ({"prompt_tokens_details": {"cached_tokens": "many"}}, None),
        ({"prompt_tokens_details": None}, None),
        ({"prompt_tokens": 9}, None),
        (None, None),
    ],
)
def test_what_the_server_had_in_its_cache_is_told_where_it_says_so(usage: Json, num_cached: int | None) -> None:
    body = choice()
    assert isinstance(body, dict)
    assert completed({**body, "usage": usage}).num_cached == num_cached
    message: Json = {"role": "assistant", "content": "hi"}
    chat: Json = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
    assert reply_from_wire(chat).num_cached == num_cached


def test_a_server_tells_what_its_model_had_in_its_cache() -> None:
    sampled = Sampled.at_version([5], [-0.5], version=0, stop=StopReason.STOP, num_cached=3)
    body = sampled_to_wire(sampled, PROMPT, model="m", text="", with_ids=True, with_logprobs=True)
    assert completed(body).num_cached == 3


def test_an_empty_answer() -> None:
    sampled = completed(choice(token_ids=[], logprobs={"token_logprobs": []}, finish_reason="length"))
    assert len(sampled.ids) == 0
    assert sampled.stop is StopReason.LENGTH


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (choice(token_ids=None), "does not return token ids.*vLLM.*chat mode"),
        (choice(logprobs=None), "lacks logprobs, which were requested"),
        (choice(logprobs={}), "lacks logprobs.token_logprobs"),
        (choice(logprobs={"token_logprobs": [-0.5, -1.0]}), "3 token ids but 2 logprobs"),
        (choice(logprobs={"token_logprobs": [-0.5, None, -1.0]}), "null among its token logprobs"),
        (choice(logprobs={"token_logprobs": [-0.5, float("nan"), -1.0]}), "NaN among its token logprobs"),
        (choice(logprobs={"token_logprobs": [-0.5, -(10**400), -1.0]}), "-10{78} among its token logprobs"),
        (choice(logprobs={"token_logprobs": [-0.5, -1e39, -1.0]}), r"-1e\+39 among its token logprobs"),
        (choice(token_ids=[1, "2", 3]), '"2" among the token ids'),
        (choice(token_ids=[1, True, 3]), "true among the token ids"),
        (choice(token_ids=[1, -1, 3]), "-1 among the token ids"),
        (choice(finish_reason=None), "finish_reason None"),
        (choice(finish_reason="content_filter"), "finish_reason 'content_filter'"),
        ({"choices": []}, r"lacks choices\[0\]"),
        ({"choices": [3]}, r"choices\[0\] should be an object"),
        ({}, "lacks choices"),
        ([], "lacks choices"),
        (None, "lacks choices"),
    ],
)
def test_an_answer_that_lacks_something_is_a_model_error(body: Json, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        completed(body)


@pytest.mark.parametrize("garbage", [b"", b"<html>", b'{"choices": [', b"\xff\xfe", b"[" * 100_000])
def test_garbage_is_a_model_error(garbage: bytes) -> None:
    async def main() -> None:
        async with completing(scripted(replies("a")), faults=lambda number: FixedAnswer(body=garbage)) as (client, _):
            with pytest.raises(ModelError, match="is not JSON"):
                await client.complete(PROMPT, SampleParams())

    asyncio.run(main())


def test_an_aborted_request_is_tried_again() -> None:
    def faults(number: int) -> Fault | None:
        return FixedAnswer(body=json.dumps(choice(finish_reason="abort")).encode()) if number < 2 else None

    async def main() -> None:
        async with completing(scripted(replies("a")), faults=faults) as (client, server):
            await client.complete(PROMPT, SampleParams())
            assert server.num_requests == 3

    asyncio.run(main())


@pytest.mark.parametrize(
    ("kind", "params", "kept"),
    [
        (LogprobsKind.PROCESSED, SampleParams(temperature=0.7), True),
        (LogprobsKind.RAW, SampleParams(), True),
        (LogprobsKind.RAW, SampleParams(temperature=0.7), False),
        (LogprobsKind.RAW, SampleParams(top_p=0.9), False),
        (LogprobsKind.NONE, SampleParams(), False),
        ("none", SampleParams(), False),
    ],
)
def test_logprobs_of_another_distribution_are_left_out(kind: LogprobsKind, params: SampleParams, kept: bool) -> None:
    assert (completed(choice(), params, logprobs=kind).logprobs is not None) == kept


# ---------------------------------------------------------------- looking at the server


def scored(body: Json, ids: Sequence[int] = (5, 6), num_top: int = 2) -> list[TokenScore | None]:
    async def main() -> list[TokenScore | None]:
        async with completing(scripted(replies("a")), faults=saying(body)) as (client, _):
            return await client.score(ids, num_top=num_top)

    return asyncio.run(main())


def place(**logprobs: float) -> Json:
    return {key.removeprefix("id"): {"logprob": logprob, "rank": 9} for key, logprob in logprobs.items()}


def test_scores_are_the_tokens_own_and_the_likeliest() -> None:
    among = place(id6=-2.0, id7=-0.5)
    beyond = place(id6=-3.0, id8=-0.25, id7=-0.5)
    assert scored({"choices": [{"prompt_logprobs": [None, among]}]}) == [
        None,
        TokenScore(logprob=-2.0, top={7: -0.5, 6: -2.0}),
    ]
    (_, score) = scored({"choices": [{"prompt_logprobs": [None, beyond]}]})
    assert score is not None
    assert (score.logprob, list(score.top.items())) == (-3.0, [(8, -0.25), (7, -0.5)])


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({}, "lacks prompt_logprobs, which were requested"),
        ({"prompt_logprobs": None}, "lacks prompt_logprobs"),
        ({"prompt_logprobs": [None]}, "prompt_logprobs of 1 tokens where 2 were sent"),
        ({"prompt_logprobs": [None, None]}, "null among its prompt_logprobs where the token 6 was sent"),
        ({"prompt_logprobs": [None, place(id7=-1.0)]}, "among its prompt_logprobs where the token 6 was sent"),
        ({"prompt_logprobs": [None, {"6": {"logprob": None}}]}, "null among its prompt_logprobs"),
        ({"prompt_logprobs": [None, {"6": {}}]}, "lacks 6.logprob"),
    ],
)
def test_scores_of_anything_else_are_refused(choice: Json, said: str) -> None:
    with pytest.raises(Refused, match=said):
        scored({"choices": [choice]})


def test_scores_are_asked_for_at_temperature_one() -> None:
    async def main() -> Json:
        async with completing(scripted(replies("a"))) as (client, server):
            with pytest.raises(Refused, match=r"400: .*does not have"):
                await client.score(PROMPT, num_top=20)
            return server.log[0].body

    body = asyncio.run(main())
    assert isinstance(body, dict)
    assert (body["prompt"], body["prompt_logprobs"]) == (PROMPT, 20)
    assert (body["max_tokens"], body["temperature"], body["top_p"]) == (1, 1.0, 1.0)


def test_an_answer_is_left_as_it_came() -> None:
    async def main() -> None:
        body: Json = {"choices": [{"token_ids": ["odd"], "finish_reason": None}], "usage": {"n": 1}}
        async with completing(scripted(replies("a")), faults=saying(body)) as (client, _):
            answer = await client.answer(PROMPT, SampleParams())
        assert answer == {"token_ids": ["odd"], "finish_reason": None, "usage": {"n": 1}}

    asyncio.run(main())


def test_an_answer_is_asked_for_as_a_completion_is() -> None:
    async def main() -> None:
        params = SampleParams(max_tokens=9, temperature=0.7, seed=3, stop_ids=(2,))
        async with completing(scripted(replies("a", "b"))) as (client, server):
            await client.complete(PROMPT, params)
            answer = await client.answer(PROMPT, params)
            assert server.log[0].body == server.log[1].body
        assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}

    asyncio.run(main())


# ---------------------------------------------------------------- probing


def probed(client: type[OpenAICompleter] | type[OpenAIChat], faults: Any = None, **options: Any) -> int | None:
    async def main() -> int | None:
        server_options = {"api_key": "right", "context_tokens": 2048, "faults": faults}
        async with ModelServer(completer=scripted(replies("a")), **server_options) as server:
            made = client(
                OpenAIConfig(**{"base_url": server.base_url, "model": "slipstream", **options}), api_key="right"
            )
            try:
                await made.probe()
            finally:
                await made.aclose()
            return made.context_tokens

    return asyncio.run(main())


both_clients = pytest.mark.parametrize("client", [OpenAICompleter, OpenAIChat])


@both_clients
def test_a_probe_learns_the_window(client: type[OpenAICompleter]) -> None:
    assert probed(client) == 2048
    assert probed(client, context_tokens=100) == 100


@both_clients
def test_a_probe_names_what_is_served(client: type[OpenAICompleter]) -> None:
    with pytest.raises(ConfigError, match=r"http://.*/models does not list the model 'gpt'; it serves slipstream"):
        probed(client, model="gpt")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (FixedAnswer(status=401), "/models answered 401; set MY_KEY to a key"),
        (FixedAnswer(status=500, body=b"Oh"), "answered 500 .*says: Oh; base_url should .*/v1"),
        (FixedAnswer(body=b"<html>"), "is not JSON; base_url should"),
        (FixedAnswer(body=b"{}"), "lacks data; base_url should"),
    ],
)
def test_a_probe_says_what_to_do(fault: Fault, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        probed(OpenAICompleter, lambda number: fault, api_key_env="MY_KEY")


def test_a_server_without_a_list_of_models_is_used_if_the_name_is_known() -> None:
    async def main() -> None:
        gone = FixedAnswer(status=404, body=b"Not Found")
        async with chatting(ScriptedChat(replies("ok")), faults=lambda number: gone if number < 1 else None) as (
            chat,
            _,
        ):
            await chat.probe()
            assert not chat.is_listed
            await chat.check_answers()
        async with chatting(ScriptedChat(replies("ok")), faults=lambda number: gone) as (chat, server):
            await chat.probe()
            with pytest.raises(ConfigError, match=r"chat/completions .*404.*correct base_url .*or model\.name"):
                await chat.check_answers()
            nameless = OpenAIChat(replace(config(server), model=""))
            with pytest.raises(ConfigError, match=r"404 with a body that lists no models: set model\.name"):
                await nameless.probe()
            await nameless.aclose()

    asyncio.run(main())


def test_what_a_server_wants_besides_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "s3cret")
    extra = {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}, "top_p": None}
    headers = {"X-Team": "evals", "api-key": "env:MY_SECRET"}

    async def main() -> None:
        complaint = saying({"error": {"message": "no s3cret here"}}, status=400)
        async with chatting(ScriptedChat(replies("ok")), faults=complaint, headers=headers) as (chat, server):
            with pytest.raises(ModelError, match=r"no \[key\] here"):
                await chat.chat([user("hi")], [], SampleParams(max_tokens=5))
            assert {name: server.log[0].headers[name] for name in headers} == {"X-Team": "evals", "api-key": "s3cret"}
        async with chatting(ScriptedChat(replies("ok")), extra=extra) as (chat, server):
            await chat.chat([user("hi")], [], SampleParams(max_tokens=5))
            body = server.log[0].body
            assert isinstance(body, dict)
            assert body["reasoning_effort"] == "low" and body["chat_template_kwargs"] == {"enable_thinking": False}
            assert "top_p" not in body

    asyncio.run(main())


def test_the_limit_of_a_reply_has_the_name_that_the_server_knows_and_thinking_goes_back_where_asked() -> None:
    said = Message(role=Role.ASSISTANT, content="yes", thinking="well")
    options: dict[str, Any] = {"max_tokens_field": "max_completion_tokens", "resend_thinking": True}

    async def body_of(**options: Any) -> dict[str, Any]:
        async with chatting(ScriptedChat(replies("ok")), **options) as (chat, server):
            await chat.chat([user("hi"), said, user("go on")], [], SampleParams(max_tokens=5))
            body = server.log[0].body
        assert isinstance(body, dict)
        return body

    plain, fitted = asyncio.run(body_of()), asyncio.run(body_of(**options))
    assert (plain.get("max_tokens"), plain.get("max_completion_tokens")) == (5, None)
    assert (fitted.get("max_tokens"), fitted.get("max_completion_tokens")) == (None, 5)
    assert "reasoning_content" not in plain["messages"][1] and fitted["messages"][1]["reasoning_content"] == "well"


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"a": "env:NOT_SET_HERE"}, "read from NOT_SET_HERE, which is not set"),
        ({"a": "x\r\nb: y"}, "no header can hold"),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused(headers: dict[str, str], said: str) -> None:
    async def main() -> None:
        async with chatting(ScriptedChat(replies("ok")), headers=headers) as (chat, _):
            with pytest.raises(ConfigError, match=said):
                await chat.probe()

    asyncio.run(main())


def test_a_probe_of_nothing_says_so() -> None:
    async def main() -> None:
        async with ModelServer() as server:
            pass
        client = OpenAICompleter(config(server))
        with pytest.raises(
            ConfigError, match=r"http://127.*/v1/models: .*onnect.*; start the server, or correct base_url"
        ):
            await client.probe()
        await client.aclose()

    asyncio.run(main())


def test_a_known_window_cuts_requests_and_refuses_prompts() -> None:
    assert asked(SampleParams(max_tokens=9000), context_tokens=100)["max_tokens"] == 98

    async def main() -> None:
        async with completing(scripted(replies("a")), context_tokens=2) as (client, server):
            with pytest.raises(ContextOverflow, match="2 prompt tokens"):
                await client.complete(PROMPT, SampleParams())
            assert server.num_requests == 0
        async with chatting(ScriptedChat(replies("a")), context_tokens=100) as (chat, server):
            await chat.chat([user("hi")], [], SampleParams(max_tokens=9000))
            body = server.log[0].body
            assert isinstance(body, dict)
            assert body["max_tokens"] == 100

    asyncio.run(main())


# ---------------------------------------------------------------- load


def loaded(faults: Any = None) -> EngineLoad | None:
    async def main() -> EngineLoad | None:
        async with completing(Recorded(lambda: None), faults=faults) as (client, _):
            assert client.load() is None
            assert await client.refresh_load() == client.load()
            return client.load()

    return asyncio.run(main())


VLLM_032 = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="smol"} 40.0
vllm:num_requests_waiting{engine="0",model_name="smol"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="smol",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="smol"} 0.11
vllm:cache_config_info{block_size="128",engine="0",kv_cache_size_tokens="46592",num_gpu_blocks="364"} 1.0
"""
TWO_OLDER_ENGINES = b"""vllm:num_requests_running{engine="0"} 3
vllm:num_requests_running{engine="1"} 4
vllm:num_requests_waiting{engine="0"} 0
vllm:num_requests_waiting{engine="1"} 1e1
vllm:gpu_cache_usage_perc{engine="0"} 0.5
vllm:gpu_cache_usage_perc{engine="1"} 0.7
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="10"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="20"} 1.0
"""


def test_the_load_is_read_from_the_metrics() -> None:
    assert loaded() == EngineLoad(running=3, waiting=4, kv_used=0.25, kv_tokens=1000)
    assert loaded(lambda number: FixedAnswer(body=VLLM_032)) == EngineLoad(
        running=40, waiting=2, kv_used=0.11, kv_tokens=46592
    )
    assert loaded(lambda number: FixedAnswer(body=TWO_OLDER_ENGINES)) == EngineLoad(
        running=7, waiting=10, kv_used=0.6, kv_tokens=480
    )


def test_the_speed_of_prompts_is_that_of_what_was_not_in_the_cache() -> None:
    gauges = f"{RUNNING} 1\n{WAITING} 0\n"
    counts = "vllm:prompt_tokens_total 9000\nvllm:prefix_cache_hits_total 6000\n"
    times = "vllm:request_prefill_time_seconds_sum 2.0\n"
    load, both = load_from_metrics(gauges + counts + times), load_from_metrics(gauges + 2 * (counts + times))
    assert load is not None and load.prefill_tokens_s == 1500
    assert both is not None and both.prefill_tokens_s == 3000, "two engines"
    for part in (gauges, gauges + counts, gauges + times):
        unknown = load_from_metrics(part)
        assert unknown is not None and unknown.prefill_tokens_s is None


@pytest.mark.parametrize(
    "fault", [FixedAnswer(status=404), FixedAnswer(body=b""), FixedAnswer(body=b"\xff{"), FixedAnswer(status=500)]
)
def test_no_metrics_is_no_load(fault: Fault) -> None:
    assert loaded(lambda number: fault) is None


def test_a_gauge_that_is_no_finite_number_is_left_out() -> None:
    assert load_from_metrics(
        f"{RUNNING} -Inf\n{RUNNING} 2\n{WAITING} +Inf\n{WAITING} NaN\n{WAITING} 1\n"
    ) == EngineLoad(running=2, waiting=1)
    assert load_from_metrics(f"{RUNNING} -Inf\n{WAITING} 1\n") is None


# ---------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"base_url": "localhost:8000"}, "'localhost:8000' is not a URL; write it like http://"),
        ({"base_url": ""}, "is not a URL"),
        ({"base_url": "http://me:secret@x/v1"}, "contains a user name or password"),
        ({"concurrency": 0}, "concurrency 0"),
        ({"logprobs": "some"}, "logprobs 'some' is not one of processed, raw, none"),
    ],
)
def test_a_bad_setting_is_refused_when_it_is_made(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        OpenAIConfig(**{"base_url": "http://x/v1", "model": "m", **options})
    assert "secret" not in str(caught.value)


def test_a_key_that_no_header_carries_is_refused_without_showing_it() -> None:
    async def main() -> None:
        async with ModelServer(completer=scripted(replies("a"))) as server:
            client = OpenAICompleter(config(server), api_key="sec\nret")
            with pytest.raises(ConfigError, match="characters that no header can hold") as caught:
                await client.complete(PROMPT, SampleParams())
            assert "ret" not in str(caught.value)

    asyncio.run(main())


def test_importing_the_room_loads_no_http_library() -> None:
    program = "import sys, slipstream.model; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_answer_that_unpacks_to_too_much_is_refused_with_the_limit() -> None:
    """Some kilobytes of gzip, which would become more than is ever read."""
    packing = zlib.compressobj(9, zlib.DEFLATED, 31)
    pieces = [packing.compress(b" " * (1 << 20)) for _ in range((MAX_ANSWER_BYTES >> 20) + 1)]
    body = b"".join([*pieces, packing.flush()])
    assert len(body) < 100_000

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        endpoint = Endpoint([f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"])
        try:
            with pytest.raises(Refused, match=f"the answer is larger than the {MAX_ANSWER_BYTES} bytes that are read"):
                await endpoint.post("/completions", {}, lambda answer: answer)
            with pytest.raises(ModelError, match=f"the answer is larger than the {MAX_LOOK_BYTES} bytes"):
                await endpoint.get(f"{endpoint.base_urls[0]}/metrics", timeout_s=60)
        finally:
            await endpoint.aclose()
            server.close()

    asyncio.run(main())
