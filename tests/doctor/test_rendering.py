"""What the doctor says of renderers: the right ones pass, and each wrong one is refused for what is wrong with it."""

import json
from collections.abc import Sequence
from pathlib import Path
from unicodedata import normalize

import pytest
from bpe_surrogates import bpe

from slipstream.doctor.checks import Check, Status
from slipstream.doctor.rendering import check_rendering
from slipstream.doctor.report import DoctorReport, examine_model
from slipstream.render.base import Tokenizer
from slipstream.render.families import FAMILY_TOKENS
from slipstream.render.formats.chatml import ChatMLFormat
from slipstream.render.probes import CONVERSATIONS
from slipstream.render.renderer import Renderer
from slipstream.render.template import ChatTemplate
from slipstream.types import Message, ToolSpec

FOLDER_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are small.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NO_TEMPLATE = {"template"}
PAST_THINKING = "incremental: thinking before a user message"
THINKING = {
    f"{kind}: thinking {where}"
    for kind in ("incremental", "parse")
    for where in ("in a tool cycle", "before a user message")
}
WITHOUT_CALLS = {"incremental: plain", "incremental: no system message", "incremental: unicode", PAST_THINKING}
CALLS = {
    f"incremental: {name}"
    for name in ("one call", "text beside a call", "several calls", "text beside several calls", "100 turns")
}
SEVERAL = {
    f"{kind}: {name}" for kind in ("incremental", "parse") for name in ("several calls", "text beside several calls")
}
SKIPPED = {
    "chatml": set(),
    "qwen3": {PAST_THINKING},
    "qwen3.5": WITHOUT_CALLS | CALLS,
    "llama-3": THINKING
    | {
        f"{kind}: {name}"
        for kind in ("incremental", "parse")
        for name in ("text beside a call", "several calls", "text beside several calls")
    },
    "gpt-oss": WITHOUT_CALLS | SEVERAL,
    "deepseek-v3": THINKING,
    "deepseek-v4": THINKING | {"incremental: several calls", "incremental: text beside several calls"},
    "glm-4.5": {PAST_THINKING},
    "glm-5": WITHOUT_CALLS | CALLS,
    "glm-5.1": WITHOUT_CALLS,
    "kimi-k2": THINKING,
    "kimi-k2.5": {PAST_THINKING},
}


def by_status(checks: Sequence[Check], status: Status) -> dict[str, str]:
    return {check.name: check.detail for check in checks if check.status is status}


class Composes:
    """A tokenizer that brings text into Unicode's composed form, as Qwen's does."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.name_or_path, self.special_tokens = tokenizer.name_or_path, tokenizer.special_tokens
        self.unk_token_id, self.eos_token_id = tokenizer.unk_token_id, tokenizer.eos_token_id
        self.decode, self.convert_tokens_to_ids = tokenizer.decode, tokenizer.convert_tokens_to_ids

    def encode(self, text: str, *args: object, **kwargs: object) -> list[int]:
        return self._tokenizer.encode(normalize("NFC", text))


def test_a_tokenizer_that_composes_characters_is_not_refused_for_it() -> None:
    renderer = Renderer("qwen2.5", Composes(bpe("qwen2.5")))
    (check,) = (one for one in check_rendering(renderer, renderer, None) if one.name == "tokenizer.round_trip")
    assert check.status is Status.PASSED and "NFC" in check.detail


def checked(family: str) -> list[Check]:
    tokenizer = bpe(family)
    return check_rendering(Renderer(family, tokenizer), Renderer(family, tokenizer, thinking="template"), None)


@pytest.mark.parametrize("family", sorted(FAMILY_TOKENS))
def test_every_family_passes_and_only_what_its_template_cannot_is_skipped(family: str) -> None:
    checks = checked(family)
    assert by_status(checks, Status.FAILED) == {}
    if family in SKIPPED:
        skipped = {name for name in by_status(checks, Status.SKIPPED) if not name.startswith("limits: ")}
        assert skipped == SKIPPED[family] | NO_TEMPLATE


class ReEncodes(ChatMLFormat):
    """Decodes what was sampled and encodes it again, as most frameworks do."""

    def extend(
        self, tail: list[int], sampled: list[int], new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> list[int] | None:
        again = self._tokenizer.encode(self._tokenizer.decode(sampled))
        return super().extend(tail, again, new, tools)


class ForgetsTheNewline(ChatMLFormat):
    def extend(
        self, tail: list[int], sampled: list[int], new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> list[int] | None:
        extended = super().extend(tail, sampled, new, tools)
        assert extended is not None
        before = len(tail) + len(sampled)
        return extended[:before] + extended[before + len(self._newline) :]


class LosesCalls(ChatMLFormat):
    def parse(self, sampled: list[int], tail: list[int], tools: Sequence[ToolSpec]) -> Message:
        heard = super().parse(sampled, tail, tools)
        return Message(role=heard.role, content=heard.content, thinking=heard.thinking, calls=heard.calls[:1])


class NeverGoesOn(ChatMLFormat):
    def extend(
        self, tail: list[int], sampled: list[int], new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> list[int] | None:
        return None


class ForgetsToStop(ChatMLFormat):
    def encode_reply(self, message: Message) -> list[int]:
        return super().encode_reply(message)[:-1]


def refused(wrong: type[ChatMLFormat]) -> dict[str, str]:
    tokenizer = bpe("chatml")
    renderer = Renderer(f"{wrong.__module__}:{wrong.__name__}", tokenizer)
    return by_status(check_rendering(renderer, Renderer("chatml", tokenizer), None), Status.FAILED)


def test_encoding_what_was_sampled_again_is_refused() -> None:
    assert refused(ReEncodes).keys() == {"incremental.verbatim"}


def test_a_missing_newline_is_refused_with_its_place_as_text() -> None:
    told = refused(ForgetsTheNewline)
    assert told.keys() == {f"incremental: {conversation.name}" for conversation in CONVERSATIONS}
    assert told["incremental: plain"] == (
        "token 21, after 'user\\nHi.<|im_end|>\\n<|im_start|>assistant\\nHello.<|im_end|>': "
        "expected '\\n<|im_start|>user\\nAnd you?<|im_end|>\\n<|im_start|>assistant\\n', "
        "got '<|im_start|>user\\nAnd you?<|im_end|>\\n<|im_start|>assistant\\n'"
    )


def test_a_lost_call_is_refused() -> None:
    assert refused(LosesCalls).keys() == SEVERAL


def test_a_format_that_renders_every_turn_anew_is_refused() -> None:
    assert refused(NeverGoesOn).keys() == {"incremental.flat", "incremental.verbatim"}


def test_a_reply_that_does_not_stop_is_refused() -> None:
    assert "parse: plain" in refused(ForgetsToStop)


def folder(path: Path, template: str) -> Path:
    path.mkdir()
    bpe("chatml").save(path / "tokenizer.json")
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return path


def test_a_folder_whose_template_agrees_is_certified(tmp_path: Path) -> None:
    renderer, checks = examine_model(folder(tmp_path / "model", FOLDER_TEMPLATE))
    report = DoctorReport(model="model", family=renderer.family, checks=tuple(checks))
    assert report.certified
    told = report.as_json()
    assert told["certified"] is True
    assert {"template: plain", "template: no system message", "template: unicode"} <= by_status(
        checks, Status.PASSED
    ).keys()
    assert by_status(checks, Status.SKIPPED)["template: one call"] == (
        "the model's own template does not show tools and calls"
    )


def test_a_broken_template_is_refused_with_the_first_difference_as_text(tmp_path: Path) -> None:
    broken = FOLDER_TEMPLATE.replace("'<|im_end|>\n' }}{% endfor", "'<|im_end|>' }}{% endfor")
    assert broken != FOLDER_TEMPLATE
    renderer, checks = examine_model(folder(tmp_path / "model", broken), family="chatml")
    told = by_status(checks, Status.FAILED)
    assert told.keys() == {"template: plain", "template: no system message", "template: unicode"}
    assert told["template: plain"].startswith(
        "token 7, after '<|im_start|>system\\nBe brief.<|im_end|>': expected '<|im_start|>user"
    )
    assert not DoctorReport(model="model", family=renderer.family, checks=tuple(checks)).certified


def test_what_was_never_checked_does_not_certify() -> None:
    only_skipped = (Check(name="x", status=Status.SKIPPED, detail="no endpoint"),)
    assert not DoctorReport(model="m", family="f", checks=only_skipped).certified
    assert not DoctorReport(model="m", family="f", checks=()).certified


def test_the_suite_covers_what_it_promises() -> None:
    names = {conversation.name for conversation in CONVERSATIONS}
    assert {"unicode", "several calls", "thinking in a tool cycle", "100 turns"} <= names
    assert ChatTemplate("{{ messages | length }}").render(CONVERSATIONS[-1].messages) == "202"
