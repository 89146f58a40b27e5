"""What a server answered to one request for tokens, and what can be concluded from it alone.

Input: choices as they came. Output: Replies, and Checks of their ids, their ends and their seeds.
Invariants: the ids and logprobs of a Reply are those that the client would train on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.doctor.checks import Check, failed, passed, skipped
from slipstream.model.http import Refused
from slipstream.model.wire import BadBody, dig_ids, dig_object, is_int, logprobs_from_wire, text_of
from slipstream.render.renderer import Renderer
from slipstream.types import Json, SampleParams

TOKENS, STOP, SEEDS = "endpoint.tokens", "endpoint.stop", "endpoint.seeds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request: what is sent, and the name of the prompt it comes from."""

    prompt: str
    sent: tuple[int, ...]
    params: SampleParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    ask: Ask
    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    text: str
    stopped: bool
    """By a stop token, and not by its length."""
    returned: tuple[int, ...] | None
    """The prompt as the server says it was; None if it does not say."""
    num_prompt_tokens: int | None
    num_sampled_tokens: int | None


def read_reply(choice: Mapping[str, Json], ask: Ask) -> Reply:
    """Raises Refused if the server gives no ids, and BadBody for what is not an answer."""
    body = dict(choice)
    if body.get("token_ids") is None:
        raise Refused(
            "it takes the prompt and returns no token_ids, without which nothing can be trained on; "
            "serve the model with vLLM 0.11 or newer, or use it for evaluation in chat mode"
        )
    finish = text_of(body.get("finish_reason"))
    if finish not in ("stop", "length"):
        raise BadBody(f"ended by the finish_reason {finish or None!r}, which is neither stop nor length")
    ids = dig_ids(body, "token_ids")
    logprobs = None if body.get("logprobs") is None else logprobs_from_wire(body)
    stop_id = body.get("stop_reason")
    # As the client does: some versions of vLLM leave the stop token out of the ids and name it here.
    if logprobs is not None and len(logprobs) == len(ids) + 1 and finish == "stop" and is_int(stop_id):
        ids.append(stop_id)
    usage = dig_object(body, "usage") if body.get("usage") is not None else {}
    num_prompt_tokens, num_sampled_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return Reply(
        ask=ask,
        ids=tuple(ids),
        logprobs=None if logprobs is None else tuple(logprobs),
        text=text_of(body.get("text")),
        stopped=finish == "stop",
        returned=tuple(dig_ids(body, "prompt_token_ids")) if body.get("prompt_token_ids") is not None else None,
        num_prompt_tokens=num_prompt_tokens if is_int(num_prompt_tokens) else None,
        num_sampled_tokens=num_sampled_tokens if is_int(num_sampled_tokens) else None,
    )


# ---------------------------------------------------------------- ids


def check_tokens(replies: Sequence[Reply], renderer: Renderer) -> Check:
    for reply in replies:
        problem = _prompt_problem(reply, renderer) or _count_problem(reply) or _text_problem(reply, renderer)
        if problem:
            return failed(TOKENS, f"prompt {reply.ask.prompt!r}: {problem}")
    if any(reply.returned is None for reply in replies):
        return skipped(
            TOKENS,
            "it returns the ids it sampled but no prompt_token_ids, so whether it kept the prompt as sent is not known",
        )
    num_tokens = sum(len(reply.ids) for reply in replies)
    text = "and their text agrees" if any(reply.text for reply in replies) else "without text to compare with"
    return passed(TOKENS, f"{len(replies)} prompts came back as sent; {num_tokens} sampled ids are all counted {text}")


def _prompt_problem(reply: Reply, renderer: Renderer) -> str:
    sent, returned = reply.ask.sent, reply.returned
    if returned is not None and returned != sent:
        if returned[1:] == sent:
            return (
                f"the server puts {shown(renderer, returned[:1])} in front of the {len(sent)} tokens that were sent; "
                "make it add no beginning-of-text token to prompts of token ids"
            )
        pairs = enumerate(zip(sent, returned, strict=False))
        place = next((place for place, (one, other) in pairs if one != other), min(len(sent), len(returned)))
        return (
            f"{len(sent)} tokens were sent and {len(returned)} came back; the first to differ is number {place}, sent "
            f"as {shown(renderer, sent[place : place + 1])}, used as {shown(renderer, returned[place : place + 1])}; "
            "make the server take token ids as they are, without decoding and encoding them again"
        )
    if reply.num_prompt_tokens not in (None, len(sent)):
        return f"{len(sent)} tokens were sent, but usage.prompt_tokens is {reply.num_prompt_tokens}"
    return ""


def _count_problem(reply: Reply) -> str:
    counts = {"token_ids": len(reply.ids)}
    if reply.num_sampled_tokens is not None:
        counts["usage.completion_tokens"] = reply.num_sampled_tokens
    if reply.logprobs is not None:
        counts["logprobs"] = len(reply.logprobs)
    if len(set(counts.values())) > 1:
        counts_differ = ", ".join(f"{number} {what}" for what, number in counts.items())
        return f"the counts of what was sampled differ: {counts_differ}"
    if len(reply.ids) > reply.ask.params.max_tokens:
        return f"{len(reply.ids)} tokens were sampled where {reply.ask.params.max_tokens} were allowed"
    return ""


def _text_problem(reply: Reply, renderer: Renderer) -> str:
    if not reply.text:
        return ""
    try:
        decoded = renderer.decode(reply.ids)
    except (ValueError, LookupError, OverflowError) as raised:
        return f"the renderer's tokenizer cannot decode the sampled ids ({raised}): it is not the server's"
    if _comparable(decoded) == _comparable(reply.text):
        return ""
    return (
        f"the sampled ids are {_cut(decoded)} to the renderer's tokenizer, but the server's text is "
        f"{_cut(reply.text)}; point model.folder at the folder that is served"
    )


def _comparable(text: str) -> str:
    """Without what depends on where decoding starts and ends: halves of characters and blanks at the ends."""
    return text.replace("\N{REPLACEMENT CHARACTER}", "").strip()


def _cut(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:76] + " ...")


def shown(renderer: Renderer, ids: Sequence[int]) -> str:
    """`51 ('C')`"""
    if not ids:
        return "nothing"
    try:
        return f"{ids[0]} ({renderer.decode(ids[:1])!r})"
    except (ValueError, LookupError, OverflowError):
        return f"{ids[0]} (not in the renderer's vocabulary)"


# ---------------------------------------------------------------- ends


def stop_early(reply: Reply) -> Ask | None:
    """The same request, with a stop at a token that it sampled only once it was under way."""
    stop_ids = reply.ask.params.stop_ids
    for place in range(2, len(reply.ids) - 1):
        index = reply.ids[place]
        if index not in reply.ids[:place] and index not in stop_ids:
            params = SampleParams(
                max_tokens=reply.ask.params.max_tokens,
                temperature=reply.ask.params.temperature,
                stop_ids=(*stop_ids, index),
            )
            return Ask(prompt=reply.ask.prompt, sent=reply.ask.sent, params=params)
    return None


def check_stop(replies: Sequence[Reply], renderer: Renderer) -> Check:
    """Of replies that were all given the renderer's stop ids, and some of them more."""
    for reply in replies:
        if problem := _stop_problem(reply, renderer):
            return failed(STOP, f"prompt {reply.ask.prompt!r}: {problem}")
    names = ", ".join(shown(renderer, [index]) for index in renderer.stop_ids)
    num_stopped = sum(reply.stopped for reply in replies)
    num_by_renderer = sum(reply.stopped and reply.ids[-1] in renderer.stop_ids for reply in replies)
    if not num_by_renderer:
        return skipped(
            STOP,
            f"the model sampled none of its stop tokens {names} in {sum(len(reply.ids) for reply in replies)} tokens, "
            f"so it was not seen to stop there; {num_stopped} replies stopped at other tokens that they were given",
        )
    return passed(
        STOP,
        f"{num_by_renderer} replies ended on a stop token of the renderer ({names}) and "
        f"{num_stopped - num_by_renderer} on another that was requested; each has it as its last id",
    )


def _stop_problem(reply: Reply, renderer: Renderer) -> str:
    stop_ids = reply.ask.params.stop_ids
    early = next((index for index in reply.ids[:-1] if index in stop_ids), None)
    if early is not None:
        return f"the reply continued after {shown(renderer, [early])}; the server does not obey stop_token_ids"
    if reply.stopped and (not reply.ids or reply.ids[-1] not in stop_ids):
        return (
            f"the reply stopped, but its last id is {shown(renderer, reply.ids[-1:])}, none of the stop tokens "
            f"{', '.join(shown(renderer, [index]) for index in stop_ids)}; the server keeps the stop token to itself, "
            "or stops at one that the renderer does not know (see eos_token_id in the model's generation_config.json)"
        )
    return ""


# ---------------------------------------------------------------- seeds


def check_seeds(pairs: Sequence[tuple[Reply, Reply]]) -> Check:
    """Of the same request made twice. A server without seeds is no fault of the data, so it is not refused."""
    num_same = sum(first.ids == second.ids for first, second in pairs)
    if num_same == len(pairs):
        return passed(SEEDS, f"{len(pairs)} requests gave the same ids twice")
    return skipped(
        SEEDS,
        f"{len(pairs) - num_same} of {len(pairs)} requests gave other ids with the same seed: the server ignores "
        "seeds, or computes differently in another batch; a run cannot be repeated token by token, its data is as good",
    )
