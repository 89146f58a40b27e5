"""Tool specs as the TypeScript-like text in which GPT-OSS sees its tools.

Invariants: the text is exactly what OpenAI's encoder writes for the same schema, including its oddities, since the
models were trained on that: a union by `anyOf` and a `$ref` are `any`, an enum shows only its strings, and a nested
object has its description twice. The one difference: a schema without properties is a function without an argument.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal

from slipstream.types import Json, ToolSpec


def namespace_text(name: str, tools: Sequence[ToolSpec]) -> str:
    """All tools of a namespace, with its heading."""
    lines = [f"## {name}\n", f"namespace {name} {{\n"]
    for tool in tools:
        lines += [f"// {line}" for line in _lines(tool.description)]
        lines.append(f"type {tool.name} = ({_argument(tool.parameters)}) => any;\n")
    lines.append(f"}} // namespace {name}")
    return "\n".join(lines)


def type_text(schema: object, indent: str = "") -> str:
    """The type that `schema` describes; `any` if it does not say."""
    if not isinstance(schema, Mapping):
        return "any"
    variants = schema.get("oneOf")
    if isinstance(variants, list):
        return "".join(f"\n{indent} | {_variant(variant, indent)}{_loose_notes(variant)}" for variant in variants)
    match schema.get("type"):
        case list(kinds):
            return (
                " | ".join("number" if kind == "integer" else kind for kind in kinds if isinstance(kind, str)) or "any"
            )
        case "object":
            return _object(schema, indent)
        case "array":
            return type_text(schema["items"], indent) + "[]" if "items" in schema else "Array<any>"
        case "string":
            return " | ".join(f'"{value}"' for value in _list(schema, "enum") if isinstance(value, str)) or "string"
        case "integer" | "number":
            return "number"
        case "boolean":
            return "boolean"
    return "any"


def _argument(parameters: Mapping[str, Json]) -> str:
    takes_any = any(parameters.get(key) for key in ("properties", "oneOf", "additionalProperties"))
    return f"_: {type_text(parameters)}" if takes_any else ""


def _object(schema: Mapping[str, Json], indent: str) -> str:
    properties = schema.get("properties")
    required = _list(schema, "required")
    written = [
        _property(f"{indent}{name}{'' if name in required else '?'}:", about, indent)
        for name, about in (properties.items() if isinstance(properties, Mapping) else ())
    ]
    return _comment(schema.get("description"), indent) + "{\n" + "".join(written) + f"{indent}}}"


def _property(head: str, schema: object, indent: str) -> str:
    if not isinstance(schema, Mapping):
        return f"{head} any,\n"
    title = schema.get("title")
    above = f"{indent}// {title}\n{indent}//\n" if isinstance(title, str) else ""
    if "oneOf" not in schema:
        above += _comment(schema.get("description"), indent)
    examples = _list(schema, "examples")
    if examples:
        quoted = (f'{indent}// - "{example}"\n' for example in examples if isinstance(example, str))
        above += f"{indent}// Examples:\n" + "".join(quoted)
    if isinstance(schema.get("oneOf"), list):
        return above + _union(head, schema, indent)
    note = f" // {_default(schema)}" if "default" in schema and "oneOf" not in schema else ""
    return f"{above}{head} {_nullable(schema, type_text(schema, indent + '    '))},{note}\n"


def _union(head: str, schema: Mapping[str, Json], indent: str) -> str:
    """A property that is a union: a line for each variant, without repeating a description."""
    variants = _list(schema, "oneOf")
    described = schema.get("description")
    first = variants[0] if variants else None
    is_above = isinstance(described, str) and not (isinstance(first, Mapping) and first.get("description") == described)
    text = _comment(described, indent) if is_above else ""
    if "default" in schema:
        text += f"{indent}// {_default(schema)}\n"
    text += f"{head}\n"
    for place, variant in enumerate(variants):
        notes = []
        if isinstance(variant, Mapping):
            about = variant.get("description")
            if isinstance(about, str) and about != described and not (place == 0 and is_above):
                notes.append(about)
            if "default" in variant:
                notes.append(_default(variant))
        text += f"{indent} | {_variant(variant, indent)}{' // ' + ' '.join(notes) if notes else ''}\n"
    return f"{text}{indent},\n"


def _variant(schema: Json, indent: str) -> str:
    return _nullable(schema, type_text(schema, indent + "   "))


def _loose_notes(schema: Json) -> str:
    """The comment after a variant of a union that is not a property. Here even the default of an enum is quoted."""
    if not isinstance(schema, Mapping):
        return ""
    about = schema.get("description")
    notes = [about] if isinstance(about, str) else []
    if "default" in schema:
        value = schema["default"]
        is_enum_value = isinstance(value, str) and bool(_list(schema, "enum"))
        notes.append(f"default: {_json_text(value)}" if is_enum_value else _default(schema))
    return f" // {' '.join(notes)}" if notes else ""


def _default(schema: Mapping[str, Json]) -> str:
    value = schema["default"]
    if not isinstance(value, str):
        return f"default: {_json_text(value)}"
    return f"default: {value}" if _list(schema, "enum") else f'default: "{value}"'


def _nullable(schema: object, text: str) -> str:
    is_nullable = isinstance(schema, Mapping) and schema.get("nullable") is True
    return f"{text} | null" if is_nullable and "null" not in text else text


def _comment(text: object, indent: str) -> str:
    return f"{indent}// {text}\n" if isinstance(text, str) else ""


def _list(schema: Mapping[str, Json], key: str) -> list[Json]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _lines(text: str) -> list[str]:
    """Split at line feeds, with or without a carriage return, and nothing else."""
    *whole, last = text.split("\n")
    return [line.removesuffix("\r") for line in whole] + ([last] if last else [])


def _json_text(value: Json) -> str:
    match value:
        case float():
            return _float_text(value)
        case list():
            return f"[{','.join(map(_json_text, value))}]"
        case dict():
            return "{" + ",".join(f"{_json_text(name)}:{_json_text(item)}" for name, item in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def _float_text(value: float) -> str:
    """The encoder is written in Rust, which writes 0.00001 and 1e16 where Python writes 1e-05 and 1e+16."""
    digits, _, exponent = repr(value).partition("e")
    if not exponent:
        return digits
    return format(Decimal(repr(value)), "f") if int(exponent) == -5 else f"{digits}e{int(exponent)}"
