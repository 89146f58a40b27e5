"""Right and wrong servers: the wrong ones are refused by the check that is there for them, and by no other."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from bigram_stage import (
    CERTAIN,
    RENDERER,
    TOKENIZER,
    BigramModel,
    another,
    bigram,
    examined,
    own_logprobs,
    raw,
    shunning,
    top_k,
    top_p,
    with_status,
)

from slipstream.doctor.checks import Check, Status
from slipstream.doctor.endpoint import PROMPTS, check_endpoint
from slipstream.errors import ConfigError
from slipstream.model.openai import OpenAIConfig
from slipstream.model.server import Faults, FixedAnswer, Hang, ModelServer
from slipstream.render.probes import Conversation
from slipstream.types import Image, Json, Message, Role, Sampled, StopReason

ALL = (
    "endpoint.reachable",
    "endpoint.tokens",
    "endpoint.stop",
    "endpoint.seeds",
    "endpoint.logprobs@1",
    "endpoint.logprobs@0.7",
    "endpoint.sampling",
)


def test_a_right_server_passes_everything() -> None:
    checks = examined(prompts=PROMPTS, num_samples=4, max_tokens=32)
    assert tuple(checks) == ALL
    assert with_status(checks, Status.PASSED) == set(ALL)


# ---------------------------------------------------------------- wrong servers


def shifted(sampled: Sampled) -> Sampled:
    """Each logprob is that of the token before it."""
    assert sampled.logprobs is not None
    return replace(sampled, logprobs=sampled.logprobs[-1:] + sampled.logprobs[:-1])


def without_stop(sampled: Sampled) -> Sampled:
    if sampled.stop is not StopReason.STOP or sampled.logprobs is None:
        return sampled
    return replace(sampled, ids=sampled.ids[:-1], logprobs=sampled.logprobs[:-1], versions=sampled.versions[:-1])


def ids_at(body: dict[str, Json], key: str) -> list[int]:
    found = body[key]
    assert isinstance(found, list)
    return [index for index in found if isinstance(index, int)]


def with_bos(body: dict[str, Json]) -> dict[str, Json]:
    return {**body, "prompt": [256, *ids_at(body, "prompt")]}


def encoded_anew(body: dict[str, Json]) -> dict[str, Json]:
    return {**body, "prompt": [*TOKENIZER.encode(TOKENIZER.decode(ids_at(body, "prompt")))]}


def sample_encoded_anew(choice: dict[str, Json]) -> dict[str, Json]:
    return {**choice, "token_ids": [*TOKENIZER.encode(TOKENIZER.decode(ids_at(choice, "token_ids")))]}


def other_text(choice: dict[str, Json]) -> dict[str, Json]:
    return {**choice, "text": f"{choice['text']}!"}


def bos_kept_secret(choice: dict[str, Json]) -> dict[str, Json]:
    usage = choice["usage"]
    assert isinstance(usage, dict)
    return {**choice, "usage": {**usage, "prompt_tokens": len(ids_at(choice, "prompt_token_ids")) + 1}}


def logits(choice: dict[str, Json]) -> dict[str, Json]:
    places: Any = choice.get("prompt_logprobs")
    if places is None:
        return choice
    raised = [place and {key: {"logprob": entry["logprob"] + 3.0} for key, entry in place.items()} for place in places]
    return {**choice, "prompt_logprobs": raised}


def warm_where_zero_was_asked(body: dict[str, Json]) -> dict[str, Json]:
    return {**body, "temperature": body["temperature"] or 1.0}


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "raw logprobs": (
        {"model": BigramModel(reported=raw)},
        "endpoint.logprobs@0.7",
        "raw logprobs.*--logprobs-mode processed_logprobs .*model.logprobs=processed, or sample at temperature 1",
    ),
    "shifted logprobs": ({"model": BigramModel(finish=shifted)}, "endpoint.logprobs@1", "shifted by one"),
    "another model's logprobs": (
        {"model": BigramModel(reported=another)},
        "endpoint.logprobs@1",
        r"off by .*tolerance.*the worst is token \d+, \d+ \('.*'\), of a reply to '(plain|names)'",
    ),
    "another model's scores": ({"model": BigramModel(scored=1)}, "endpoint.logprobs@1", "off by"),
    "logits for scores": ({"on_choice": logits}, "endpoint.logprobs@1", "are not logprobs.*add up to"),
    "processed logprobs of a cut": ({"model": BigramModel(sampled=top_k(5))}, "endpoint.logprobs@1", "off by"),
    "a token in front": ({"on_request": with_bos}, "endpoint.tokens", r"puts 256 \('<\|endoftext\|>'\) in front of"),
    "a token in front, kept secret": ({"on_choice": bos_kept_secret}, "endpoint.tokens", "usage.prompt_tokens is"),
    "prompts encoded anew": (
        {"on_request": encoded_anew},
        "endpoint.tokens",
        r"'names'.*sent as 60 \('<'\), used as 258 \('<\|im_end\|>'\)",
    ),
    "samples encoded anew": ({"on_choice": sample_encoded_anew}, "endpoint.tokens", "counts .* differ: .* token_ids"),
    "another tokenizer": ({"on_choice": other_text}, "endpoint.tokens", "server's text is .*model.folder"),
    "no JSON of ours": ({"on_choice": lambda choice: {**choice, "token_ids": "x"}}, "endpoint.tokens", "body that has"),
    "no stop token": ({"model": BigramModel(finish=without_stop)}, "endpoint.stop", "stopped, but its last id is"),
    "no stopping": ({"model": BigramModel(heed_stops=False)}, "endpoint.stop", "continued after"),
    "hidden top_k": (
        {"model": BigramModel(sampled=top_k(20), reported=bigram), "num_samples": 24},
        "endpoint.sampling",
        "look like top_k=20, by 10.*--generation-config vllm",
    ),
    "hidden top_p": (
        {"model": BigramModel(sampled=top_p(0.8), reported=bigram), "num_samples": 16},
        "endpoint.sampling",
        "look like (top_p=0.8|min_p=0.05|top_k=20)",
    ),
    "hidden penalty": (
        {"model": BigramModel(sampled=shunning, reported=bigram), "num_samples": 48},
        "endpoint.sampling",
        "look like a penalty on repeats",
    ),
    "greedy at every temperature": (
        {"model": BigramModel(sampled=top_k(1), reported=bigram)},
        "endpoint.sampling",
        "look like greedy",
    ),
    "temperature ignored": (
        {"model": BigramModel(sampled=raw, reported=bigram)},
        "endpoint.sampling",
        "look like temperature=1 in place of 0.7",
    ),
    "temperature 0 ignored": (
        {"on_request": warm_where_zero_was_asked},
        "endpoint.sampling",
        "does not obey temperature 0",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_server_is_refused_by_the_right_check_and_by_no_other(wrong: str) -> None:
    options, name, said = WRONG[wrong]
    checks = examined(**options)
    assert tuple(checks) == ALL
    assert with_status(checks, Status.FAILED) == {name}
    assert_says(checks[name], said)


def assert_says(check: Check, said: str) -> None:
    assert re.search(said, check.detail), check.detail


# ---------------------------------------------------------------- what cannot be checked


def without(key: str) -> dict[str, Any]:
    return {"on_choice": lambda choice: {name: value for name, value in choice.items() if name != key}}


def certain(ids: Sequence[int], temperature: float) -> Sequence[float]:
    return own_logprobs(ids[-1], temperature, CERTAIN)


def unending(ids: Sequence[int], temperature: float) -> Sequence[float]:
    return [
        -math.inf if index in RENDERER.stop_ids else logprob for index, logprob in enumerate(bigram(ids, temperature))
    ]


SCORED = {"endpoint.logprobs@1", "endpoint.logprobs@0.7", "endpoint.sampling"}
UNCHECKED: dict[str, tuple[dict[str, Any], set[str], str]] = {
    "no scorer": ({"server_options": {"scorer": None}}, SCORED, "answered 400: .*asks for prompt_logprobs, which"),
    "scores that never come": (without("prompt_logprobs"), SCORED, "lacks prompt_logprobs"),
    "no ids": (without("token_ids"), set(ALL[1:]), "returns no token_ids.*vLLM 0.11"),
    "chat only": ({"server_options": {"completer": None}}, set(ALL[1:]), "404: .*use /v1/chat/completions"),
    "no prompt ids": (without("prompt_token_ids"), {"endpoint.tokens"}, "no prompt_token_ids"),
    "no logprobs": (
        without("logprobs"),
        {"endpoint.logprobs@1", "endpoint.logprobs@0.7"},
        "returns no logprobs with its samples",
    ),
    "no seeds": ({"model": BigramModel(heed_seeds=False)}, {"endpoint.seeds"}, "ignores seeds"),
    "no end": (
        {"model": BigramModel(sampled=unending, reported=bigram)},
        {"endpoint.stop"},
        r"sampled none of its stop tokens 258 \('<\|im_end\|>'\).* replies stopped at other tokens",
    ),
    "nothing left to chance": (
        {"model": BigramModel(sampled=certain, scored=CERTAIN)},
        {"endpoint.logprobs@0.7", "endpoint.sampling", "endpoint.stop"},
        "too alike to be told apart|too little to chance|sampled none of its stop",
    ),
    "a small window": ({"server_options": {"context_tokens": 8}}, set(ALL[1:]), "leave no room in 8"),
}


@pytest.mark.parametrize("unchecked", UNCHECKED)
def test_what_a_server_does_not_take_part_in_is_skipped_with_the_reason(unchecked: str) -> None:
    options, names, said = UNCHECKED[unchecked]
    checks = examined(**options)
    assert with_status(checks, Status.SKIPPED) == names
    assert with_status(checks, Status.PASSED) == set(ALL) - names
    for name in names:
        assert_says(checks[name], said)


@pytest.mark.parametrize("prompt", ["text", []])
def test_a_server_that_fails_half_way_has_its_other_checks_skipped(prompt: Json) -> None:
    def on_request(body: dict[str, Json]) -> dict[str, Json]:
        told_more = ids_at(body, "stop_token_ids")[len(RENDERER.stop_ids) :] if "stop_token_ids" in body else []
        return {**body, "prompt": prompt} if told_more else body

    checks = examined(on_request=on_request)
    assert with_status(checks, Status.SKIPPED) == set(ALL[2:])
    assert with_status(checks, Status.FAILED) == set()
    assert_says(checks["endpoint.stop"], "the server failed: ")


def test_an_answer_that_turns_bad_half_way_is_no_crash() -> None:
    def on_choice(choice: dict[str, Json]) -> dict[str, Json]:
        late = ids_at(choice, "token_ids")[-1] not in RENDERER.stop_ids and choice["finish_reason"] == "stop"
        return {**choice, "finish_reason": "odd"} if late else choice

    checks = examined(on_choice=on_choice)
    assert with_status(checks, Status.SKIPPED) == set(ALL[2:])
    assert_says(checks["endpoint.stop"], "the server failed: .*finish_reason 'odd'")


def test_above_temperature_one_there_is_no_measure() -> None:
    checks = examined(temperature=1.2)
    assert with_status(checks, Status.SKIPPED) == {"endpoint.logprobs@1.2"}
    assert_says(checks["endpoint.logprobs@1.2"], "above temperature 1")


def test_temperature_one_alone_is_checked_once() -> None:
    checks = examined(temperature=1.0)
    assert set(checks) == with_status(checks, Status.PASSED) == set(ALL) - {"endpoint.logprobs@0.7"}


def test_a_prompt_that_the_family_cannot_write_is_left_out() -> None:
    picture = Message(role=Role.USER, images=(Image(data=b"x", media_type="image/png"),))
    prompts = [Conversation(name="picture", messages=(picture,)), PROMPTS[0]]
    assert with_status(examined(prompts=prompts), Status.FAILED) == set()
    with pytest.raises(ConfigError, match="'chatml' can write none of the 1 prompts"):
        examined(prompts=prompts[:1])


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"num_samples": 0}])
def test_an_empty_examination_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="leave nothing to check"):
        examined(**options)


# ---------------------------------------------------------------- servers that do not answer


def faulty(faults: Faults, **options: Any) -> dict[str, Check]:
    async def main() -> list[Check]:
        async with ModelServer(completer=BigramModel(), faults=faults) as server:
            return await check_endpoint(OpenAIConfig(base_url=server.base_url, model=""), RENDERER, **options)

    return {check.name: check for check in asyncio.run(main())}


def hanging(number: int) -> Hang | None:
    """All but the first, which asks for the models."""
    return Hang() if number else None


@pytest.mark.parametrize(
    ("faults", "options", "said"),
    [
        (lambda number: FixedAnswer(status=401), {}, "answered 401; set OPENAI_API_KEY"),
        (lambda number: FixedAnswer(body=b"<html>"), {}, "is not JSON"),
        (hanging, {"request_timeout_s": 0.05}, "took longer than 0.05 s"),
        (hanging, {"timeout_s": 0.05}, "too slow: 0.05 s"),
    ],
)
def test_a_server_that_does_not_answer_is_not_reachable(faults: Faults, options: dict[str, Any], said: str) -> None:
    checks = faulty(faults, **options)
    assert tuple(checks) == ALL
    assert with_status(checks, Status.FAILED) == {"endpoint.reachable"}
    assert with_status(checks, Status.SKIPPED) == set(ALL[1:])
    assert_says(checks["endpoint.reachable"], said)


def test_a_server_that_is_down_is_not_reachable() -> None:
    async def main() -> list[Check]:
        async with ModelServer() as server:
            pass
        return await check_endpoint(OpenAIConfig(base_url=server.base_url, model=""), RENDERER)

    checks = asyncio.run(main())
    assert [check.status for check in checks] == [Status.FAILED] + [Status.SKIPPED] * 6
    assert_says(checks[0], "start the server, or correct base_url")


def test_an_api_key_is_sent() -> None:
    async def main() -> list[Check]:
        model = BigramModel()
        async with ModelServer(completer=model, scorer=model, api_key="right") as server:
            config = OpenAIConfig(base_url=server.base_url, model="")
            return await check_endpoint(config, RENDERER, api_key="right", num_samples=1, max_tokens=2)

    assert asyncio.run(main())[0].status is Status.PASSED
