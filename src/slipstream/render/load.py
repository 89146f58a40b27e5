"""A model's renderer, from its folder.

Input: a folder, or `bytes`, and the settings of the family. Output: a Renderer with the model's own tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import ConfigError
from slipstream.render.agreement import disagreement, hidden_parts
from slipstream.render.base import Tokenizer
from slipstream.render.families import FAMILY_TOKENS, candidates, guess_family, surrogate
from slipstream.render.renderer import Renderer, Thinking
from slipstream.render.template import DATE, ChatTemplate
from slipstream.render.tokenizers import ByteTokenizer, FileTokenizer, read_object
from slipstream.types import Json

BYTES_FAMILY = "qwen3"
"""The format of scripted models, unless they set another."""
TEMPLATE_FAMILY = "template"
"""The family that renders through the folder's own chat template."""
_BY_CHOICE = ("default_system", "show_tools", "bare_calls")
"""Family arguments that differ from its template on purpose."""


def open_renderer(
    folder: Path | None,
    *,
    family: str = "auto",
    thinking: Thinking | None = None,
    args: Mapping[str, Json] | None = None,
) -> Renderer:
    """The renderer of the model in `folder`, or of a script's bytes if that is None. Settings that are not given are
    those that the model was trained with, according to the folder."""
    carried = _carried(folder)
    args = {**carried.args, **(args or {})}
    thinking = thinking or carried.thinking
    if folder is None:
        family = BYTES_FAMILY if family == "auto" else family
        if family == TEMPLATE_FAMILY:
            raise ConfigError("model.family=template needs a model folder with a chat template: set model.folder")
        return Renderer(
            family, surrogate(family) if family in FAMILY_TOKENS else ByteTokenizer(), thinking=thinking, args=args
        )
    tokenizer = FileTokenizer.load(folder)
    if family == "auto":
        family = find_family(folder, tokenizer)
    return _open(family, tokenizer, _template(folder), thinking, args)


def check_template(folder: Path, *, family: str = "auto", args: Mapping[str, Json] | None = None) -> str:
    """A warning if the family differs from the folder's own chat template; empty if it does not, or if there is no
    template."""
    given = {name: value for name, value in {**_carried(folder).args, **(args or {})}.items() if name not in _BY_CHOICE}
    template = ChatTemplate.load(folder, args=given, today=str(given.get("date", DATE))) if folder.is_dir() else None
    if template is None or ":" in family:
        return ""
    tokenizer = FileTokenizer.load(folder)
    asked = find_family(folder, tokenizer) if family == "auto" else family
    differs = disagreement(_open(asked, tokenizer, template, "template", given), template)
    if not differs:
        return ""
    fitting = _fitting_family(folder, tokenizer, template)
    return (
        f"the family {asked!r} does not write what the chat template of {folder} writes: {differs}; set "
        f"model.family={fitting}, or model.template_mismatch=allow to continue anyway"
    )


def find_family(folder: Path, tokenizer: Tokenizer) -> str:
    """The family that the folder names in its slipstream.json; else the first that agrees with its chat template, or
    `template`, which renders through it.

    For a folder without a template, its config.json and its special tokens decide.
    """
    named = read_object(folder / "slipstream.json").get("family")
    if isinstance(named, str):
        return named
    template = _template(folder)
    if template is None:
        return guess_family(tokenizer, _model_type(folder))
    return _fitting_family(folder, tokenizer, template)


def _fitting_family(folder: Path, tokenizer: Tokenizer, template: ChatTemplate) -> str:
    families = candidates(tokenizer, _model_type(folder))
    if "chatml" in families and "tools" in hidden_parts(template):
        # Every ChatML family agrees with such a template, but the model knows none of their tool prompts.
        families = ("chatml", *families)
    return next((family for family in families if _agrees(family, tokenizer, template)), TEMPLATE_FAMILY)


def _model_type(folder: Path) -> str | None:
    model_type = read_object(folder / "config.json").get("model_type")
    return model_type if isinstance(model_type, str) else None


def _agrees(family: str, tokenizer: Tokenizer, template: ChatTemplate) -> bool:
    try:
        return not disagreement(_open(family, tokenizer, template, "template", {}), template)
    except ConfigError:  # the tokenizer lacks what the family needs
        return False


def _open(
    family: str, tokenizer: Tokenizer, template: ChatTemplate | None, thinking: Thinking, args: dict[str, Json]
) -> Renderer:
    if family == TEMPLATE_FAMILY and "source" not in args:
        if template is None:
            raise ConfigError(
                f"model.family=template, but {tokenizer.name_or_path!r} has no chat template: it is read from "
                "chat_template.jinja or tokenizer_config.json in the model's folder; name a family instead"
            )
        args = {"source": template.source, "special_tokens": dict(template.special_tokens), **args}
    if family in ("chatml", "qwen2.5") and template is not None:
        args = {"default_system": template.default_system(), **args}
    return Renderer(family, tokenizer, thinking=thinking, args=args)


def _template(folder: Path) -> ChatTemplate | None:
    return ChatTemplate.load(folder) if folder.is_dir() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Carried:
    """What a trained model's folder says about the prompts it was trained with."""

    args: Mapping[str, Json]
    thinking: Thinking


def _carried(folder: Path | None) -> _Carried:
    found = {} if folder is None else read_object(folder / "slipstream.json")
    args, thinking = found.get("family_args"), found.get("thinking")
    return _Carried(
        args=args if isinstance(args, dict) else {}, thinking="template" if thinking == "template" else "keep"
    )
