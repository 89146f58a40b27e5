"""Whether a model's renderer can be trusted, with no model running.

Input: the renderer as runs use it, the same one as its family's template writes, the folder's own chat template.
Output: one Check for each question; a failure shows the first place that differs, as text.
"""

from __future__ import annotations

from collections.abc import Iterable
from unicodedata import normalize

from slipstream.doctor.checks import Check, failed, passed, skipped
from slipstream.errors import ConfigError
from slipstream.render.agreement import compare, difference
from slipstream.render.base import Traits, same_reply
from slipstream.render.probes import CONVERSATIONS, NUM_LONG_TURNS, Conversation
from slipstream.render.renderer import Renderer
from slipstream.render.template import ChatTemplate
from slipstream.types import Message, Role, TokenIds, token_ids


def check_rendering(renderer: Renderer, faithful: Renderer, template: ChatTemplate | None) -> list[Check]:
    """`faithful` renders as the family's template does, thinking left out and all."""
    traits = renderer.traits
    return [
        _text_returns(renderer),
        *_keeps_what_it_can(renderer),
        *_follows_template(faithful, template),
        *_grows_as_rendered(renderer, faithful, traits),
        *_reads_what_it_writes(renderer, traits),
        _keeps_what_was_sampled(renderer),
        _text_stays_text(renderer),
        _encodes_only_what_is_new(renderer),
    ]


def _text_returns(renderer: Renderer) -> Check:
    name = "tokenizer.round_trip"
    is_normalised = False
    for conversation in CONVERSATIONS:
        for message in conversation.messages:
            back = renderer.decode(renderer.encode_text(message.content))
            if back != message.content:
                if back != normalize("NFC", message.content):
                    return failed(name, f"{message.content!r} is encoded and decoded to {back!r}")
                is_normalised = True
    note = ", in Unicode's composed form (NFC), as the tokenizer has it" if is_normalised else ""
    return passed(name, f"every text of the suite is decoded as it was encoded{note}")


def _keeps_what_it_can(renderer: Renderer) -> Iterable[Check]:
    for number, limit in enumerate(renderer.limits, start=1):
        yield skipped(f"limits: {number}", limit)


def _follows_template(faithful: Renderer, template: ChatTemplate | None) -> Iterable[Check]:
    if template is None:
        yield skipped("template", "the folder has no chat template to compare with")
        return
    for one in compare(faithful, template):
        name = f"template: {one.conversation}"
        if one.skipped:
            yield skipped(name, one.skipped)
        elif one.differs:
            yield failed(name, one.differs)
        else:
            yield passed(name, f"{one.num_tokens} tokens, all as the template writes them")


def _grows_as_rendered(renderer: Renderer, faithful: Renderer, traits: Traits) -> Iterable[Check]:
    for conversation in CONVERSATIONS:
        name = f"incremental: {conversation.name}"
        if lacking := conversation.lacks(traits):
            yield skipped(name, f"the format has no {lacking}")
            continue
        try:
            grown = _grown(renderer, conversation)
            whole = faithful.render(conversation.messages, conversation.tools)
        except ConfigError as refused:
            yield failed(name, str(refused))
            continue
        if grown is None:
            yield skipped(
                name, "the format cannot continue from such a reply: the conversation is rendered again, and forks"
            )
        elif rewrites := _rewrites(faithful, conversation):
            kept = difference(renderer, renderer.render(conversation.messages, conversation.tools), grown)
            says = f"the template itself does not keep what was sampled: {rewrites}"
            yield failed(name, kept) if kept else skipped(name, says)
        elif differs := difference(renderer, whole, grown):
            yield failed(name, differs)
        else:
            yield passed(name, f"{len(grown)} tokens turn by turn are those of the whole")


def _grown(renderer: Renderer, conversation: Conversation) -> TokenIds | None:
    """The conversation turn by turn, as a rollout would."""
    ids = tail = renderer.render(conversation.opening, conversation.tools)
    for reply, following in conversation.rounds():
        reply_ids = renderer.encode_reply(reply)
        extension = renderer.extend(tail, reply_ids, following, conversation.tools)
        if extension is None or extension.num_dropped:
            return None
        ids, tail = ids + reply_ids + extension.added, extension.added
    return ids


def _rewrites(faithful: Renderer, conversation: Conversation) -> str:
    """How the template writes the past differently from what was prompted or sampled; empty if it never does."""
    places = [place for place, message in enumerate(conversation.messages) if message.role is Role.ASSISTANT]
    prompts = [
        faithful.render(conversation.messages[:place], conversation.tools)
        for place in (*places, len(conversation.messages))
    ]
    whole = prompts[-1]
    for prompt, place in zip(prompts, places, strict=False):
        if whole[: len(prompt)] != prompt:
            return difference(faithful, prompt, whole[: len(prompt)])
        reply = conversation.messages[place]
        reply_ids = faithful.encode_reply(reply)
        written = whole[len(prompt) : len(prompt) + len(reply_ids)]
        if written == reply_ids:
            continue
        ended = next((at for at, index in enumerate(written) if index in faithful.stop_ids), len(written) - 1)
        parsed = faithful.parse(written[: ended + 1], prompt, conversation.tools, call_prefix="c")
        if not same_reply(parsed, reply) or written[:-1] == reply_ids[:-1]:
            return difference(faithful, reply_ids, written)
    return ""


def _reads_what_it_writes(renderer: Renderer, traits: Traits) -> Iterable[Check]:
    for conversation in CONVERSATIONS:
        name = f"parse: {conversation.name}"
        if lacking := conversation.lacks(traits):
            yield skipped(name, f"the format has no {lacking}")
            continue
        yield _read_back(renderer, conversation, name)


def _read_back(renderer: Renderer, conversation: Conversation, name: str) -> Check:
    tail = renderer.render(conversation.opening, conversation.tools)
    num_replies = 0
    for reply, following in conversation.rounds():
        try:
            reply_ids = renderer.encode_reply(reply)
        except ConfigError as refused:
            return failed(name, str(refused))
        parsed = renderer.parse(reply_ids, tail, conversation.tools, call_prefix="c")
        if not same_reply(parsed, reply):
            return failed(name, f"{renderer.decode(reply_ids)!r} was to say {reply}, and is read as {parsed}")
        if not reply_ids or reply_ids[-1] not in renderer.stop_ids:
            return failed(name, f"{renderer.decode(reply_ids)!r} does not end in a token that stops the model")
        extension = renderer.extend(tail, reply_ids, following, conversation.tools)
        tail = renderer.render(conversation.messages, conversation.tools) if extension is None else extension.added
        num_replies += 1
    return passed(name, f"{num_replies} replies are read as they were written, and each ends in a stop token")


def _keeps_what_was_sampled(renderer: Renderer) -> Check:
    """A word spelt letter by letter, as no encoder would: encoding it again would show."""
    name = "incremental.verbatim"
    word = "Hello there, friend"
    spelt = [index for letter in word for index in renderer.encode_text(letter)]
    canonical = renderer.encode_reply(Message(role=Role.ASSISTANT, content=word))
    usual = renderer.encode_text(word)
    place = next((at for at in range(len(canonical)) if canonical[at : at + len(usual)] == usual), None)
    if place is None:
        return skipped(name, f"{word!r} is not written as it is encoded, so it cannot be spelt another way")
    sampled = canonical[:place] + token_ids(spelt) + canonical[place + len(usual) :]
    prompt = renderer.render([Message(role=Role.USER, content="Say hello.")], ())
    extension = renderer.extend(prompt, sampled, [Message(role=Role.USER, content="Again.")], ())
    if extension is None:
        return failed(name, f"the format cannot continue from {renderer.decode(sampled)!r}")
    if extension.num_dropped:
        return failed(name, f"{extension.num_dropped} of {len(sampled)} sampled tokens were changed")
    return passed(name, f"{len(sampled)} oddly spelt tokens stand as they were sampled")


def _text_stays_text(renderer: Renderer) -> Check:
    """A tool's output that spells special tokens must not become them."""
    name = "text.shielded"
    marks = [mark for mark in renderer.special_tokens if mark.strip()]
    if not marks:
        return skipped(name, "the tokenizer has no special tokens")
    spelt_marks = " ".join(marks)
    plain, spelt = (
        renderer.render([Message(role=Role.USER, content=f"Read: {text} end")], ()) for text in ("nothing", spelt_marks)
    )
    special = {renderer.encode_text(mark)[0] for mark in marks if len(renderer.encode_text(mark)) == 1}
    added = sum(index in special for index in spelt) - sum(index in special for index in plain)
    if added:
        return failed(name, f"{added} special tokens were made of the plain text {spelt_marks[:200]!r}")
    if spelt_marks not in renderer.decode(spelt):
        return failed(name, f"{spelt_marks[:200]!r} is not decoded as it was encoded")
    return passed(name, f"the names of all {len(marks)} special tokens stay text")


def _encodes_only_what_is_new(renderer: Renderer) -> Check:
    name = "incremental.flat"
    (conversation,) = (one for one in CONVERSATIONS if one.name == f"{NUM_LONG_TURNS} turns")
    tail = renderer.render(conversation.opening, conversation.tools)
    encoded: list[int] = []
    for reply, following in conversation.rounds():
        extension = renderer.extend(tail, renderer.encode_reply(reply), following, conversation.tools)
        if extension is None:
            return failed(name, f"turn {len(encoded) + 1} has to be rendered whole")
        encoded.append(len(extension.added))
        tail = extension.added
    first, last = sum(encoded[:10]) / 10, sum(encoded[-10:]) / 10
    if last > 1.5 * first:
        return failed(
            name, f"{first:.0f} tokens are encoded at each of the first ten turns, {last:.0f} at the last ten"
        )
    return passed(name, f"{first:.0f} tokens are encoded at each of the first ten turns, {last:.0f} at the last ten")
