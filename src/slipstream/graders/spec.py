"""Reads a task's grading into a grader's typed settings: strict, with errors that a task's author can act on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from slipstream.errors import ConfigError
from slipstream.names import did_you_mean
from slipstream.types import Json


class GraderSpec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Spec = TypeVar("Spec", bound=GraderSpec)


def read_spec(kind: str, model: type[Spec], spec: Mapping[str, Json]) -> Spec:
    try:
        return model.model_validate(dict(spec))
    except ValidationError as raised:
        problem = raised.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            known = model.model_fields
            message = f"unknown key{did_you_mean(key, known)}; known are {', '.join(known)}"
        else:
            message = problem["msg"]
        raise ConfigError(f'grading "{kind}", key "{key}": {message}') from None
