"""Configs: frozen dataclasses of plain data, changed by `key=value`, written to JSON and read back.

Invariants: an unknown key is an error that names the nearest known one; a value of the wrong type is an error that
names the value; reading back what was written gives an equal config. Importing a config loads nothing heavy.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import NoneType
from typing import Any, NoReturn, TypeVar, cast, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from slipstream.errors import ConfigError
from slipstream.names import did_you_mean
from slipstream.types import Json

Config = TypeVar("Config")


def apply_overrides(config: Config, pairs: Iterable[str]) -> Config:
    """`config` with each `dotted.key=value` applied. Sources are set first, wherever they stand: that resets the
    settings that belong to the old source (`RESETS`)."""
    for pair in sorted(pairs, key=lambda pair: not _resets(type(config), pair.partition("=")[0].split("."))):
        key, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(f'"{pair}" is not a setting: write key=value')
        config = _put(config, key.split("."), text, key)
    return config


def checked(config: Config) -> Config:
    """`config`, made by someone's code, with every value read as one of the command line is: `samples="4"` becomes 4,
    and a text in the place of a group with a main setting (`tasks="file.py:tasks"`) sets that. What cannot be read so
    is a ConfigError."""
    return _checked(config, "")


def _checked(config: Config, prefix: str) -> Config:
    fitted: dict[str, Any] = {}
    for name, kind in _field_types(type(config)).items():
        value, key = getattr(config, name), f"{prefix}{name}"
        group = _optional_group(kind) or kind
        is_group = dataclasses.is_dataclass(group) and isinstance(group, type)
        main = getattr(group, "MAIN", None) if is_group else None
        if is_group and isinstance(value, group):
            fitted[name] = _checked(value, f"{key}.")
        elif main is not None and isinstance(value, str):
            fitted[name] = group(**{main: value})
        elif is_group and not (value is None and group is not kind):
            raise ConfigError(
                f"{key}={value!r:.80} is a {type(value).__name__}: give a {group.__name__}(...)", key=key, value=value
            )
        elif not is_group:
            fitted[name] = _fit(kind, value, key, f"{value!r:.80}")
    given = {name: getattr(config, name) for name in fitted}
    changed = {
        name: value for name, value in fitted.items() if (value, type(value)) != (given[name], type(given[name]))
    }
    return cast("Config", dataclasses.replace(cast("Any", config), **changed)) if changed else config


def to_json(config: object) -> Json:
    """As plain data, for the run store."""
    return cast("Json", TypeAdapter(type(config)).dump_python(config, mode="json"))


def from_json(kind: type[Config], value: Json) -> Config:
    """What `to_json` wrote."""
    _refuse_unknown(kind, value, ())
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as raised:
        problem = raised.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise ConfigError(
            f"the setting {where} is {problem['input']!r}: {problem['msg']}", key=where, value=problem["input"]
        ) from None


def leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Json]]:
    """Every setting by its dotted key, as JSON; a mapping is one setting, and so is a group that is absent."""
    for item in dataclasses.fields(config):
        value, key = getattr(config, item.name), f"{prefix}{item.name}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from leaves(value, f"{key}.")
        else:
            yield key, to_json(value)


def overrides_between(base: Config, wanted: Config) -> list[str]:
    """The `key=value` pairs that make `wanted` of `base`."""
    pairs = _pairs(base, wanted)
    return pairs + _pairs(apply_overrides(base, pairs), wanted)  # what another source has reset is set once more


def _pairs(base: object, wanted: object) -> list[str]:
    known = dict(leaves(base))
    return [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in leaves(wanted)
        if known.get(key) != value
    ]


def checked_arguments(function: Callable[..., object], given: Mapping[str, Json], key: str) -> dict[str, Any]:
    """`given` as the keyword arguments of `function`, by its annotations; `key` is where they were set."""
    try:
        parameters = inspect.signature(function, eval_str=True).parameters
    except (
        NameError,
        TypeError,
        ValueError,
    ):  # written in C, or annotated with what is not there: it must check itself
        return dict(given)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    arguments: dict[str, Any] = {}
    for name, value in given.items():
        parameter = parameters.get(name)
        if parameter is None and not takes_any:
            known = ", ".join(parameters) or "none"
            raise ConfigError(
                f'there is no setting "{key}.{name}"{did_you_mean(name, parameters)}; known are {known}',
                key=f"{key}.{name}",
                value=value,
            )
        annotated = parameter is not None and parameter.annotation is not parameter.empty
        arguments[name] = _fit(parameter.annotation, value, f"{key}.{name}") if parameter and annotated else value
    return arguments


def _resets(kind: Any, path: list[str]) -> bool:
    """Whether the setting at `path` resets others."""
    for place, name in enumerate(path):
        if not dataclasses.is_dataclass(kind):
            return False
        known = _field_types(cast("type", kind))
        if place == len(path) - 1 and name in getattr(kind, "RESETS", {}):
            return True
        kind = _optional_group(known.get(name)) or known.get(name)
    return getattr(kind, "MAIN", None) in getattr(kind, "RESETS", {})


def _put(config: Config, path: list[str], text: str, key: str, group: Any = None) -> Config:
    """`group`: the dataclass of a mapping's values, if they have one."""
    name = path[0]
    if isinstance(config, Mapping):
        if group is not None:
            return cast("Config", _put_in_group(config, group, path, text, key))
        if len(path) == 1:
            return cast("Config", {**config, name: _parse(text)})
        inner = config.get(name)
        return cast("Config", {**config, name: _put(inner if isinstance(inner, Mapping) else {}, path[1:], text, key)})
    known = _field_types(type(config))
    if name not in known:
        raise ConfigError(
            f'there is no setting "{key}"{did_you_mean(name, known)}; known here are {", ".join(known)}', key=key
        )
    current: Any = getattr(config, name)
    optional = _optional_group(known[name])
    if len(path) > 1:
        if current is None and optional is not None:
            current = optional()
        if not (dataclasses.is_dataclass(current) or isinstance(current, Mapping)):
            raise ConfigError(f'"{key}": {name} is a value and has no settings of its own', key=key)
        value: Any = _put(current, path[1:], text, key, _mapped_group(known[name]))
    elif optional is not None and _parse(text) is None:
        value = None
    elif dataclasses.is_dataclass(current) and (main := getattr(current, "MAIN", None)):
        value = _put(current, [main], text, f"{key}.{main}")
    elif dataclasses.is_dataclass(current) or optional is not None:
        inner = ", ".join(f"{key}.{field.name}" for field in dataclasses.fields(optional or current))
        unset = "" if optional is None else f", or {key}=null for none"
        raise ConfigError(f'"{key}" is a group of settings: set one of {inner}{unset}', key=key)
    else:
        value = _check(known[name], text, key)
    changed = {name: value}
    if value != current:
        changed |= {each: _default(type(config), each) for each in getattr(config, "RESETS", {}).get(name, ())}
    return cast("Config", dataclasses.replace(cast("Any", config), **changed))


def _put_in_group(config: Mapping[str, Any], group: Any, path: list[str], text: str, key: str) -> Mapping[str, Any]:
    """A mapping of groups with one setting of one of them changed; a group is made when it is first named."""
    name, *rest = path
    if not rest and _parse(text) is None:
        return {each: value for each, value in config.items() if each != name}
    if not rest:
        main = getattr(group, "MAIN", None)
        if main is None:
            raise ConfigError(f'"{key}" is a group of settings: set one of those in it', key=key)
        rest = [main]
    return {**config, name: _put(config.get(name, group()), rest, text, key)}


def _mapped_group(kind: Any) -> Any:
    """The dataclass X of an annotation `Mapping[str, X]`; None for any other."""
    parts = get_args(kind) if get_origin(kind) is Mapping else ()
    return parts[1] if len(parts) == 2 and dataclasses.is_dataclass(parts[1]) else None


def _default(kind: Any, name: str) -> Any:
    (item,) = (each for each in dataclasses.fields(kind) if each.name == name)
    return item.default if item.default_factory is dataclasses.MISSING else item.default_factory()


def _check(kind: Any, text: str, key: str) -> Any:
    """`text` as the field's type: a dataclass annotation is data only at run time, hence Any."""
    try:
        return _fit(kind, _parse(text), key, text)
    except ConfigError as raised:
        with suppress(ConfigError):
            return _fit(kind, text, key)  # what looks like JSON may be meant as text: model.name=7
        raise raised from None


def _fit(kind: Any, value: Json, key: str, shown: str | None = None) -> Any:
    """`shown` stands for the value in errors."""
    setting = f"{key}={value if shown is None else shown}"
    _refuse_unknown(kind, value, tuple(key.split(".")))
    try:
        fitted = TypeAdapter(kind).validate_python(value)
    except ValidationError as raised:
        messages = "; ".join(dict.fromkeys(problem["msg"] for problem in raised.errors()))
        raise ConfigError(f"{setting}: {messages}", key=key, value=value) from None
    if _took_bool(value, fitted):
        raise ConfigError(f"{setting}: give a number, not true or false", key=key, value=value)
    return fitted


def _took_bool(value: Json, fitted: Any) -> bool:
    """Whether true or false was taken for a number, 1 or 0, anywhere in a value."""
    if isinstance(value, bool):
        return isinstance(fitted, int | float) and not isinstance(fitted, bool)
    if isinstance(value, list) and isinstance(fitted, list | tuple):
        return any(map(_took_bool, value, fitted))
    if isinstance(value, dict):
        inner = fitted.get if isinstance(fitted, Mapping) else partial(getattr, fitted)
        return any(_took_bool(part, inner(name, None)) for name, part in value.items())
    return False


def _parse(text: str) -> Json:
    """JSON where it is JSON, text otherwise. NaN and Infinity are not JSON."""
    try:
        return cast("Json", json.loads(text, parse_constant=_refuse_constant))
    except (ValueError, RecursionError):
        return text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _field_types(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _optional_group(kind: Any) -> Any:
    """The dataclass X of an annotation `X | None`; None for any other."""
    parts = get_args(kind)
    group = next((part for part in parts if dataclasses.is_dataclass(part)), None)
    return group if len(parts) == 2 and NoneType in parts else None


def _refuse_unknown(kind: Any, value: Json, path: tuple[str, ...]) -> None:
    kind = _optional_group(kind) or kind
    if not isinstance(value, dict):
        return
    if (group := _mapped_group(kind)) is not None:
        for name, inner in value.items():
            _refuse_unknown(group, inner, (*path, str(name)))
    if not (dataclasses.is_dataclass(kind) and isinstance(kind, type)):
        return
    known = _field_types(kind)
    for name, inner in value.items():
        if name not in known:
            where = ".".join((*path, name))
            raise ConfigError(f'there is no setting "{where}"{did_you_mean(name, known)}', key=where)
        _refuse_unknown(known[name], inner, (*path, name))
