"""Turns the signature of an async function into a tool's JSON schema, and checks arguments against it.

Input: a function, then the arguments a model wrote. Output: a JSON schema, then checked values by parameter name.
Invariants: the schema has the function's parameters except `ctx`; one ToolError names all problems and all arguments.

Values are checked in pydantic's lax mode, since models often quote numbers: "5" and 5.0 are accepted for an int, "true"
for a bool; 5.5 is not an int, and 5 is not a str. Infinite and NaN numbers are never accepted.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from slipstream.errors import ConfigError, ToolError
from slipstream.names import did_you_mean
from slipstream.tools.base import Outcome, ToolContext
from slipstream.types import Json

ToolFunction: TypeAlias = Callable[..., Awaitable[str | Outcome]]
"""With any parameters: `Signature.of` checks them."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, default=dict)
_MAX_PROBLEMS = 5
_MAX_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    parameters: Mapping[str, Json]
    """The JSON schema of the arguments."""
    takes_ctx: bool
    _model: type[BaseModel]
    _names: Mapping[str, str]
    """What an argument is called, by its field of the model."""

    @staticmethod
    def of(function: ToolFunction, where: str) -> Signature:
        """Read the signature of `function`; errors refer to it as `where`."""
        if not inspect.iscoroutinefunction(function):
            raise ConfigError(f"{where} is not async: write `async def`")
        try:
            hints = get_type_hints(function, include_extras=True)
        except (NameError, AttributeError) as unknown:
            raise ConfigError(f"{where}: an annotation cannot be read, {unknown}: import it at module level") from None
        fields: dict[str, Any] = {}  # create_model takes its fields untyped
        takes_ctx = False
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name == "ctx":
                if hints.get("ctx") is not ToolContext:
                    raise ConfigError(f'{where}: parameter "ctx" must be annotated as ToolContext')
                takes_ctx = True
            else:
                # Named by position, with an alias, so that `schema` or `copy` may be arguments too.
                fields[f"a{len(fields)}"] = _field(parameter, hints, where)
        try:
            model = create_model("Arguments", __config__=ConfigDict(extra="forbid", allow_inf_nan=False), **fields)
            parameters = _compact(model.model_json_schema())
        except PydanticUserError as unfit:
            raise ConfigError(f"{where}: a parameter's type has no JSON schema: {unfit.message}") from unfit
        assert isinstance(parameters, dict)
        names = {name: field.alias or name for name, field in model.model_fields.items()}
        return Signature(parameters=parameters, takes_ctx=takes_ctx, _model=model, _names=names)

    def check(self, tool_name: str, arguments: Mapping[str, Json]) -> dict[str, object]:
        """The arguments as the function expects them, with defaults. Raises ToolError."""
        try:
            if not _are_ascii(arguments):
                _ENCODER.encode(arguments).encode("utf-8")
        except UnicodeEncodeError as lone:
            # JSON can carry half of a surrogate pair; no file or process takes it.
            raise ToolError(f"{tool_name}: {lone.object[lone.start]!a} is no character: leave it out") from None
        try:
            values = self._model.model_validate(dict(arguments))
        except ValidationError as failed:
            problems = _problems(failed.errors(include_url=False), arguments, self.parameters)
            raise ToolError(f"{tool_name}: {problems}. {describe_arguments(self.parameters)}") from None
        return {argument: getattr(values, name) for name, argument in self._names.items()}


def _are_ascii(arguments: Mapping[str, Json]) -> bool:
    """Whether they are plain values, with no character beyond ASCII."""
    for name, value in arguments.items():
        is_plain = value.isascii() if isinstance(value, str) else value is None or isinstance(value, (int, float))
        if not (is_plain and name.isascii()):
            return False
    return True


def describe_arguments(parameters: Mapping[str, Json]) -> str:
    """One line for a model: `Arguments: command (string, required), timeout_s (number, optional).`"""
    properties, required, defs = (parameters.get(key) for key in ("properties", "required", "$defs"))
    if not isinstance(properties, dict) or not properties:
        return "Arguments: none."
    needed = required if isinstance(required, list) else []
    shown = (
        f"{name} ({_kind(schema, defs)}, {'required' if name in needed else 'optional'})"
        for name, schema in properties.items()
    )
    return f"Arguments: {', '.join(shown)}."


# ---------------------------------------------------------------- from parameters to a schema


def _field(parameter: inspect.Parameter, hints: Mapping[str, Any], where: str) -> tuple[Any, FieldInfo]:
    name = parameter.name
    if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
        raise ConfigError(f'{where}: parameter "{name}" is {parameter.kind.description}: give every argument a name')
    if name not in hints:
        raise ConfigError(f'{where}: parameter "{name}" has no annotation: the model must be told its type')
    if isinstance(parameter.default, FieldInfo):
        raise ConfigError(f'{where}: parameter "{name}" has Field(...) as its default: put it into Annotated[...]')
    kind = hints[name]
    metadata: list[Any] = []
    if get_origin(kind) is Annotated:
        kind, *metadata = get_args(kind)
    options: dict[str, Any] = {"alias": name}
    if described := [note for note in metadata if isinstance(note, str)]:
        options["description"] = " ".join(described)
    if parameter.default is not inspect.Parameter.empty:
        options["default"] = parameter.default
    for note in metadata:
        if not isinstance(note, str):
            kind = Annotated[kind, note]
    return kind, Field(**options)


def _compact(schema: Json, *, is_names: bool = False) -> Json:
    """The schema without titles, and without null for an argument that defaults to None.

    `is_names`: the keys of this object are names of arguments or definitions, not JSON schema keywords.
    """
    if isinstance(schema, list):
        return [_compact(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if is_names:
        return {name: _compact(item) for name, item in schema.items()}
    kept = {
        key: value if key in ("default", "enum", "const", "examples") else _compact(value, is_names=key in _NAME_MAPS)
        for key, value in schema.items()
        if key != "title"
    }
    options = kept.get("anyOf")
    if isinstance(options, list) and "default" in kept and kept["default"] is None:
        del kept["default"], kept["anyOf"]
        options = [option for option in options if option != {"type": "null"}]
        only = options[0] if len(options) == 1 else {"anyOf": options}
        assert isinstance(only, dict)
        kept = {**only, **kept}
    return kept


_NAME_MAPS = ("properties", "$defs")


def _kind(schema: Json, defs: Json) -> str:
    """A short description of a schema."""
    if not isinstance(schema, dict):
        return "any"
    match schema:
        case {"$ref": str(ref)} if isinstance(defs, dict):
            return _kind(defs.get(ref.removeprefix("#/$defs/")), None)
        case {"enum": list(values)}:
            return " or ".join(json.dumps(value) for value in values)
        case {"const": value}:
            return json.dumps(value)
        case {"anyOf": list(options)}:
            return " or ".join(_kind(option, defs) for option in options)
        case {"type": "array", "items": items}:
            return f"array of {_kind(items, defs)}"
        case {"type": str(kind)}:
            return kind
    return "any"


# ---------------------------------------------------------------- from pydantic's errors to one sentence


def _problems(errors: list[ErrorDetails], arguments: Mapping[str, Json], parameters: Mapping[str, Json]) -> str:
    properties = parameters.get("properties")
    known = list(properties) if isinstance(properties, dict) else []
    told: dict[str, str] = {}  # by path, as a union fails once for each of its members
    for error in errors:
        path, value = _find(error, arguments)
        match error["type"]:
            case "missing":
                told[path] = f'argument "{path}" is missing'
            case "extra_forbidden":
                close = did_you_mean(path, known) if path in arguments else ""
                told[path] = f'argument "{path}" is unknown{close}'
            case _ if path in told:
                told[path] += f" or {_lower(error['msg']).removeprefix('input should be ')}"
            case _:
                told[path] = f'argument "{path}" is {_shown(value)}: {_lower(error["msg"])}'
    more = f"; and {len(told) - _MAX_PROBLEMS} more" if len(told) > _MAX_PROBLEMS else ""
    return "; ".join(list(told.values())[:_MAX_PROBLEMS]) + more


def _find(error: ErrorDetails, arguments: Mapping[str, Json]) -> tuple[str, object]:
    """The path of the error, such as `edits[0].line`, and the value there. Parts of its location that lead nowhere are
    names of union members."""
    path = ""
    value: object = arguments
    for step in error["loc"]:
        if isinstance(step, int):
            if isinstance(value, list) and step < len(value):
                path, value = f"{path}[{step}]", value[step]
        elif isinstance(value, Mapping) and step in value:
            path, value = f"{path}.{step}".lstrip("."), value[step]
    if error["type"] == "missing":
        path = f"{path}.{error['loc'][-1]}".lstrip(".")
    return path if len(path) <= _MAX_SHOWN_CHARS else f"{path[:_MAX_SHOWN_CHARS]}...", value


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]
