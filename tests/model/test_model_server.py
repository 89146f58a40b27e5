"""The server as any HTTP client sees it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest
from model_stage import assistant, decode, scripted

from slipstream.model.base import TokenScore
from slipstream.model.scripted import ScriptedChat, replies
from slipstream.model.server import FixedAnswer, Hang, ModelServer, Outcome
from slipstream.types import Json


async def posted(server: ModelServer, path: str, body: Json | bytes) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with aiohttp.ClientSession() as session:
        async with session.post(server.base_url + path, data=data) as response:
            return response.status, json.loads(await response.read())


def answered(path: str, body: Json | bytes, **options: Any) -> tuple[int, Any]:
    async def main() -> tuple[int, Any]:
        settings = {"completer": scripted(replies("ok")), "chat": ScriptedChat(replies(assistant("ok"))), **options}
        async with ModelServer(decode=decode, **settings) as server:
            return await posted(server, path, body)

    return asyncio.run(main())


def test_a_completion_has_ids_logprobs_and_text() -> None:
    body: Json = {"model": "slipstream", "prompt": [1, 2], "return_token_ids": True, "logprobs": 1}
    assert answered("/completions", body) == (
        200,
        {
            "object": "text_completion",
            "model": "slipstream",
            "choices": [
                {
                    "index": 0,
                    "text": "ok",
                    "finish_reason": "stop",
                    "logprobs": {"token_logprobs": [0.0, 0.0, 0.0]},
                    "token_ids": [111, 107, 256],
                    "prompt_token_ids": [1, 2],
                }
            ],
            "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5},
        },
    )


class Scored:
    """Each token is scored by its id, and `num_top` others are as likely."""

    async def score(
        self, ids: Sequence[int], *, num_top: int, timeout_s: float | None = None
    ) -> list[TokenScore | None]:
        return [None, *(TokenScore(logprob=-float(i), top=dict.fromkeys(range(num_top), -1.0)) for i in ids[1:])]


def test_a_prompt_is_scored_as_vllm_scores_it() -> None:
    _, body = answered("/completions", {"prompt": [7, 8, 0], "prompt_logprobs": 2}, scorer=Scored())
    assert body["choices"][0]["prompt_logprobs"] == [
        None,
        {"8": {"logprob": -8.0}, "0": {"logprob": -1.0}, "1": {"logprob": -1.0}},
        {"0": {"logprob": -1.0}, "1": {"logprob": -1.0}},
    ]
    _, body = answered("/completions", {"prompt": [7, 8]}, scorer=Scored())
    assert "prompt_logprobs" not in body["choices"][0]


def test_ids_and_logprobs_come_only_when_asked_for() -> None:
    _, body = answered("/completions", {"prompt": [[1, 2]]})
    assert body["choices"][0]["logprobs"] is None
    assert "token_ids" not in body["choices"][0]
    assert body["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/completions", b"{", 400, "is not JSON"),
        ("/completions", [], 400, "not a JSON object"),
        ("/completions", {}, 400, "lacks prompt"),
        ("/completions", {"prompt": "text"}, 400, "send token ids"),
        ("/completions", {"prompt": [1, "x"]}, 400, '"x" among the token ids'),
        ("/completions", {"prompt": [1], "stream": True}, 400, "asks for a stream"),
        ("/completions", {"prompt": [1], "n": 2}, 400, "several choices"),
        ("/completions", {"prompt": [1], "temperature": "hot"}, 400, "temperature should be a number"),
        (
            "/completions",
            {"prompt": [1], "prompt_logprobs": 5},
            400,
            "prompt_logprobs, which this model does not have",
        ),
        ("/completions", {"prompt": [1], "prompt_logprobs": -1}, 400, "-1 where prompt_logprobs should be a count"),
        ("/completions", {"prompt": [1], "model": "gpt"}, 404, "'gpt' is not served; 'slipstream' is"),
        ("/chat/completions", {}, 400, "lacks messages"),
        ("/chat/completions", {"messages": [{"role": "wizard"}]}, 400, "the role 'wizard'"),
        ("/chat/completions", {"messages": [], "tools": [{}]}, 400, "lacks function"),
        ("/nothing", {}, 404, "Not Found"),
    ],
)
def test_what_is_not_served_is_refused_with_a_sentence(path: str, body: Json | bytes, status: int, said: str) -> None:
    got, answer = answered(path, body)
    assert got == status
    assert said in answer["error"]["message"]


def test_a_server_without_a_mode_says_so() -> None:
    assert answered("/completions", {"prompt": [1]}, completer=None)[0] == 404
    assert answered("/chat/completions", {"messages": []}, chat=None)[0] == 404


def test_a_wrong_key_is_refused() -> None:
    assert answered("/completions", {"prompt": [1]}, api_key="right")[0] == 401


def test_a_failing_model_ends_one_request_and_not_the_server() -> None:
    class Broken:
        async def complete(self, *args: Any, **options: Any) -> Any:
            raise RuntimeError("wires crossed")

        def load(self) -> None:
            return None

        async def aclose(self) -> None: ...

    async def main() -> None:
        async with ModelServer(completer=Broken()) as server:
            for _ in range(2):
                status, answer = await posted(server, "/completions", {"prompt": [1]})
                assert (status, answer["error"]["message"]) == (500, "RuntimeError: wires crossed")

    asyncio.run(main())


def test_the_log_remembers_the_last_requests() -> None:
    async def main() -> None:
        def faults(number: int) -> FixedAnswer | None:
            return FixedAnswer(status=503, body=b"{}") if number == 1 else None

        model = scripted(replies("a", "b", "c"))
        async with ModelServer(completer=model, faults=faults, num_logged=2) as server:
            for token in range(3):
                await posted(server, "/completions", {"prompt": [token]})
            assert [(seen.number, seen.path, seen.outcome, seen.status) for seen in server.log] == [
                (1, "/v1/completions", Outcome.FAULTY, 503),
                (2, "/v1/completions", Outcome.ANSWERED, 200),
            ]
            assert server.log[1].body == {"prompt": [2]}
            assert server.num_in_flight == 0

    asyncio.run(main())


def test_a_hanging_request_does_not_keep_the_server_open() -> None:
    async def main() -> None:
        arrived = asyncio.Event()

        def faults(number: int) -> Hang:
            arrived.set()
            return Hang()

        server = ModelServer(completer=scripted(replies("a")), faults=faults, grace_s=3600.0)
        async with server:
            request = asyncio.create_task(posted(server, "/completions", {"prompt": [1]}))
            await arrived.wait()
        await server.aclose()
        with pytest.raises(aiohttp.ClientError):
            await request

    asyncio.run(main())


@pytest.mark.parametrize(
    "fields",
    [
        '"max_tokens": NaN',
        '"max_tokens": Infinity',
        '"max_tokens": 1e999',
        '"max_tokens": 0',
        '"max_tokens": -1',
        '"max_tokens": 1.5',
        '"max_completion_tokens": NaN',
        '"temperature": NaN',
        '"top_p": -Infinity',
    ],
)
def test_a_number_that_is_none_is_refused_and_no_fault_of_the_server(fields: str) -> None:
    async def main() -> None:
        async with ModelServer(completer=scripted(replies("a"))) as server, aiohttp.ClientSession() as session:
            body = f'{{"prompt": [1], {fields}}}'
            async with session.post(f"{server.base_url}/completions", data=body) as response:
                assert response.status == 400
                message = (await response.json())["error"]["message"]
        assert message.startswith(("the request has a body that has", "the request has a body that asks for"))

    asyncio.run(main())


def test_a_client_that_never_sends_its_body_is_let_go() -> None:
    async def main() -> None:
        async with ModelServer(completer=scripted(replies("a")), read_timeout_s=0.01) as server:
            host, port = server.base_url.removeprefix("http://").removesuffix("/v1").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
            status = await reader.readline()
            assert status.split()[1] == b"408"
            writer.close()
            await writer.wait_closed()

    asyncio.run(main())
