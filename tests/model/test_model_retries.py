"""What the HTTP client does when the endpoint fails."""

from __future__ import annotations

import asyncio
import json
import random
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from model_stage import PROMPT, Recorded, completing, config, decode, saying, scripted

from slipstream.errors import ContextOverflow, ModelError
from slipstream.model.http import Complaint, Refused, Retries, retry_after_s
from slipstream.model.openai import OpenAICompleter
from slipstream.model.scripted import replies
from slipstream.model.server import Drop, Fault, FixedAnswer, Hang, ModelServer, Outcome
from slipstream.types import Json, SampleParams

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def for_ever() -> None:
    await asyncio.Event().wait()


async def until(reached: asyncio.Event) -> None:
    async with asyncio.timeout(300):
        await reached.wait()


def test_calls_succeed_although_a_third_of_them_fail() -> None:
    refusals: list[Fault] = [FixedAnswer(status=500), Drop(), FixedAnswer(status=503, body=b"busy")]

    def faults(number: int) -> Fault | None:
        return refusals[number // 3 % 3] if number % 3 == 0 else None

    async def main() -> None:
        async with completing(scripted(lambda scene: scene.session), faults=faults) as (client, server):
            calls = [client.complete(PROMPT, SampleParams(), session=f"s{number}") for number in range(60)]
            for number, sampled in enumerate(await asyncio.gather(*calls)):
                assert decode(sampled.ids) == f"s{number}"
            assert server.num_requests == 90

    asyncio.run(main())


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 507, 520, 524, 529, 598])
def test_these_are_tried_again_until_the_tries_are_over(status: int) -> None:
    async def main() -> None:
        retries = Retries(max_retries=2, backoff_s=0.0)
        faults = saying({"error": {"message": "not now"}}, status)
        async with completing(scripted(replies("a")), faults=faults, retries=retries) as (client, server):
            with pytest.raises(ModelError, match=rf"/completions .* {status}: not now; gave up after 3 tries"):
                await client.complete(PROMPT, SampleParams())
            assert server.num_requests == 3

    asyncio.run(main())


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 422, 501, 505])
def test_these_are_not_tried_again(status: int) -> None:
    async def main() -> None:
        faults = saying({"error": {"message": "no such field: colour", "code": "bad_request"}}, status)
        async with completing(scripted(replies("a")), faults=faults) as (client, server):
            with pytest.raises(ModelError, match=f"/completions .* {status}: no such field: colour"):
                await client.complete(PROMPT, SampleParams())
            assert server.num_requests == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"choices": [{"finish_reason": "st',
        b"<html>one moment</html>",
        b'{"error": {"message": "upstream is overloaded", "code": 502}}',
        b'{"error": "no idea", "choices": []}',
    ],
)
def test_a_good_status_without_a_good_answer_is_tried_again(body: bytes) -> None:
    async def main() -> None:
        faults = lambda number: FixedAnswer(body=body) if number < 2 else None  # noqa: E731
        async with completing(scripted(replies("a")), faults=faults) as (client, server):
            assert decode((await client.complete(PROMPT, SampleParams())).ids) == "a"
            assert server.num_requests == 3

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "no such model", "code": 404}, Refused),
        ({"message": "pay first", "code": "insufficient_quota"}, Refused),
        ({"message": "maximum context length is 2048 tokens", "code": 400}, ContextOverflow),
    ],
)
def test_an_error_inside_a_good_status_counts_as_what_it_says(error: Json, kind: type[Exception]) -> None:
    async def main() -> None:
        async with completing(scripted(replies("a")), faults=saying({"error": error})) as (client, server):
            with pytest.raises(kind, match="answered with an error: "):
                await client.complete(PROMPT, SampleParams())
            assert server.num_requests == 1

    asyncio.run(main())


def test_an_account_without_money_is_not_asked_again() -> None:
    async def main() -> None:
        faults = saying({"error": {"message": "pay first", "code": "insufficient_quota"}}, 429)
        async with completing(scripted(replies("a")), faults=faults) as (client, server):
            with pytest.raises(ModelError, match="pay first"):
                await client.complete(PROMPT, SampleParams())
            assert server.num_requests == 1

    asyncio.run(main())


def test_a_refused_connection_is_tried_again() -> None:
    async def main() -> None:
        async with ModelServer() as server:
            pass
        pauses: list[float] = []

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)

        client = OpenAICompleter(config(server, retries=Retries(max_retries=4)), sleep=sleep)
        with pytest.raises(ModelError, match="gave up after 5 tries"):
            await client.complete(PROMPT, SampleParams())
        assert len(pauses) == 4
        await client.aclose()

    asyncio.run(main())


def test_pauses_grow_up_to_a_cap_and_are_drawn_from_zero() -> None:
    retries = Retries(backoff_s=1.0, backoff_cap_s=8.0)
    for num_tries, longest_s in [(1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 8.0), (1000, 8.0)]:
        drawn = [retries.pause_s(num_tries, None, random.Random(seed)) for seed in range(200)]
        assert 0.0 <= min(drawn) < 0.1 * longest_s
        assert 0.9 * longest_s < max(drawn) <= longest_s


def test_the_same_seed_draws_the_same_pauses() -> None:
    first, second = random.Random(7), random.Random(7)
    retries = Retries()
    assert [retries.pause_s(n, None, first) for n in range(1, 9)] == [
        retries.pause_s(n, None, second) for n in range(1, 9)
    ]


def test_retry_after_is_waited_for() -> None:
    async def main() -> None:
        pauses: list[float] = []

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)

        def faults(number: int) -> Fault | None:
            return FixedAnswer(status=429, retry_after=["7", "9999"][number]) if number < 2 else None

        retries = Retries(backoff_s=0.0, retry_after_cap_s=60.0)
        async with completing(scripted(replies("a")), faults=faults, sleep=sleep, retries=retries) as (client, _):
            await client.complete(PROMPT, SampleParams())
        assert pauses == [7.0, 60.0]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("3", 3.0),
        ("1.5", 1.5),
        ("-3", 0.0),
        ("nan", None),
        ("soon", None),
        ("", None),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", None),
        ("Mon, 01 Jan 2026 00:00:00 +99999999999999999999", None),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90.0),
        (format_datetime(NOW - timedelta(seconds=90), usegmt=True), 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header, NOW) == seconds


def test_the_deadline_covers_a_hanging_server() -> None:
    async def main() -> None:
        async with completing(scripted(replies("a")), faults=lambda number: Hang()) as (client, _):
            with pytest.raises(ModelError, match=r"took longer than 0\.05 s"):
                await client.complete(PROMPT, SampleParams(), timeout_s=0.05)

    asyncio.run(main())


def test_a_pause_that_would_pass_the_deadline_ends_the_call_at_once() -> None:
    async def main() -> None:
        async def sleep(seconds: float) -> None:
            raise AssertionError(f"slept {seconds} s")

        faults = saying({"message": "overloaded"}, 503)
        retries = Retries(backoff_s=1e6, backoff_cap_s=1e6)
        async with completing(scripted(replies("a")), faults=faults, sleep=sleep, retries=retries) as (client, _):
            with pytest.raises(ModelError, match=r"503: overloaded; .* after the deadline of 60 s"):
                await client.complete(PROMPT, SampleParams(), timeout_s=60.0)

    asyncio.run(main())


def test_cancelling_reaches_the_model_behind_the_server() -> None:
    async def main() -> None:
        arrived, cancelled = asyncio.Event(), asyncio.Event()

        async def act() -> None:
            arrived.set()
            try:
                await for_ever()
            finally:
                cancelled.set()

        model = Recorded(act)
        async with completing(model) as (client, server):
            call = asyncio.create_task(client.complete(PROMPT, SampleParams()))
            await until(arrived)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until(cancelled)
            assert model.num_cancelled == 1
            assert server.log[0].outcome is Outcome.DISCONNECTED

    asyncio.run(main())


def test_cancelling_a_pause_ends_the_call() -> None:
    async def main() -> None:
        pausing = asyncio.Event()

        async def sleep(seconds: float) -> None:
            pausing.set()
            await for_ever()

        faults = saying({}, 503)
        async with completing(scripted(replies("a")), faults=faults, sleep=sleep) as (client, server):
            call = asyncio.create_task(client.complete(PROMPT, SampleParams()))
            await until(pausing)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert server.num_requests == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"message": "This model's maximum context length is 2048 tokens. However, your prompt contains 3000"}),
        (400, {"message": "The decoder prompt (length 9) is longer than the maximum model length of 8."}),
        (400, {"message": "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"}),
        (400, {"message": "The input (9 tokens) is longer than the model's context length (8 tokens)."}),
        (400, {"message": "the request exceeds the available context size", "type": "exceed_context_size_error"}),
        (400, {"message": "please shorten it", "code": "context_length_exceeded"}),
        (400, {"message": "please shorten it", "type": "context_length_exceeded", "code": "400"}),
        (413, {"message": "Your input exceeds the context window of this model."}),
        (422, {"message": "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000"}),
    ],
)
def test_a_prompt_that_does_not_fit_is_a_context_overflow(status: int, error: dict[str, str]) -> None:
    async def main() -> None:
        async with completing(scripted(replies("a")), faults=saying({"error": {**error}}, status)) as (client, server):
            with pytest.raises(ContextOverflow, match=str(status)):
                await client.complete(PROMPT, SampleParams())
            assert server.num_requests == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "one"}}, "one"),
        ({"error": "two"}, "two"),
        ({"object": "error", "message": "three"}, "three"),
        ({"detail": "four"}, "four"),
        ({"detail": [{"loc": ["body"], "msg": "five"}]}, '[{"loc": ["body"], "msg": "five"}]'),
        ("six", "six"),
        ({}, "{}"),
    ],
)
def test_complaints_come_in_many_shapes(body: object, message: str) -> None:
    assert Complaint.read(json.dumps(body).encode()).message == message


def test_a_complaint_may_be_a_page() -> None:
    assert Complaint.read(b"<html>\xff bad gateway</html>").message == "<html>� bad gateway</html>"


def test_a_long_complaint_is_shortened_to_one_line() -> None:
    async def main() -> None:
        async with completing(scripted(replies("a")), faults=saying({"message": "x\n" * 10_000}, 400)) as (client, _):
            with pytest.raises(ModelError) as caught:
                await client.complete(PROMPT, SampleParams())
            assert len(str(caught.value)) < 600
            assert "\n" not in str(caught.value)

    asyncio.run(main())


def test_the_key_is_sent_and_is_in_no_error() -> None:
    key = "sk-very-secret"

    def faults(number: int) -> Fault | None:
        body = json.dumps({"error": {"message": f"Incorrect API key provided: {key}."}}).encode()
        return [None, FixedAnswer(status=401, body=body), FixedAnswer(status=500, body=body), Drop()][number]

    async def main() -> None:
        model = scripted(replies("a"))
        async with ModelServer(completer=model, api_key=key, faults=faults) as server:
            retries = Retries(max_retries=0)
            client = OpenAICompleter(config(server, retries=retries, api_key_env="SOME_KEY"), api_key=f" {key}\n")
            await client.complete(PROMPT, SampleParams())
            for _ in range(3):
                with pytest.raises(ModelError) as caught:
                    await client.complete(PROMPT, SampleParams())
                error: BaseException | None = caught.value
                while error is not None:
                    assert key not in str(error) + repr(error) + repr(vars(error))
                    error = error.__cause__ or error.__context__
            await client.aclose()

    asyncio.run(main())


def test_the_key_is_read_from_the_named_variable_when_the_client_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with ModelServer(completer=scripted(replies("a")), api_key="later") as server:
            client = OpenAICompleter(config(server, api_key_env="SLIPSTREAM_TEST_KEY"))
            monkeypatch.setenv("SLIPSTREAM_TEST_KEY", "later")
            await client.complete(PROMPT, SampleParams())
            await client.aclose()
            keyless = OpenAICompleter(config(server, api_key_env="SLIPSTREAM_TEST_NO_KEY"))
            with pytest.raises(ModelError, match=r"401.*set SLIPSTREAM_TEST_NO_KEY"):
                await keyless.complete(PROMPT, SampleParams())
            await keyless.aclose()

    asyncio.run(main())


def test_a_closed_client_says_so() -> None:
    async def main() -> None:
        async with completing(scripted(replies("a"))) as (client, _):
            await client.aclose()
            with pytest.raises(ModelError, match="closed"):
                await client.complete(PROMPT, SampleParams())

    asyncio.run(main())


def test_three_hundred_requests_are_in_flight_at_once() -> None:
    async def main() -> None:
        together = asyncio.Barrier(300)

        async def act() -> object:
            await together.wait()
            return await scripted(replies("a")).complete(PROMPT, SampleParams())

        async with completing(Recorded(act)) as (client, server):
            async with asyncio.timeout(300):
                await asyncio.gather(*(client.complete(PROMPT, SampleParams()) for _ in range(300)))
            assert server.max_in_flight == 300

    asyncio.run(main())


def test_the_server_can_be_looked_at_while_all_connections_are_in_use() -> None:
    async def main() -> None:
        arrived = asyncio.Event()

        async def act() -> None:
            arrived.set()
            await for_ever()

        async with asyncio.timeout(300), completing(Recorded(act), concurrency=1) as (client, _):
            calls = [asyncio.create_task(client.complete(PROMPT, SampleParams())) for _ in range(2)]
            await arrived.wait()
            load, _probed = await asyncio.gather(client.refresh_load(), client.probe())
            assert load is not None
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)

    asyncio.run(main())


def test_concurrency_bounds_what_is_in_flight() -> None:
    async def main() -> None:
        async with completing(scripted(lambda scene: "a"), concurrency=4) as (client, server):
            await asyncio.gather(*(client.complete(PROMPT, SampleParams()) for _ in range(40)))
            assert server.num_requests == 40
            assert server.max_in_flight <= 4

    asyncio.run(main())
