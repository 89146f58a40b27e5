"""All results of the doctor, in one value.

Input: a model's folder or a family, and perhaps an endpoint. Output: a Report. It certifies if something was checked
and nothing failed; what was skipped is listed with its reason, for the reader to weigh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slipstream.doctor.checks import Check, Status, skipped
from slipstream.doctor.rendering import check_rendering
from slipstream.render.load import open_renderer
from slipstream.render.renderer import Renderer
from slipstream.render.template import ChatTemplate
from slipstream.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    model: str
    family: str
    checks: tuple[Check, ...]

    @property
    def certified(self) -> bool:
        statuses = {check.status for check in self.checks}
        return Status.FAILED not in statuses and Status.PASSED in statuses

    def with_status(self, status: Status) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.status is status)

    def as_json(self) -> dict[str, Json]:
        run = [check for check in self.checks if check.status is not Status.SKIPPED]
        left = self.with_status(Status.SKIPPED)
        return {
            "certified": self.certified,
            "model": self.model,
            "family": self.family,
            "checks": [{"name": one.name, "status": one.status.value, "detail": one.detail} for one in run],
            "skipped": [{"name": one.name, "reason": one.detail} for one in left],
        }


def examine_model(
    folder: Path | None, *, family: str = "auto", args: Mapping[str, Json] | None = None
) -> tuple[Renderer, list[Check]]:
    """The renderer of a model's folder, or of a family's bytes, and the checks of it."""
    renderer = open_renderer(folder, family=family, args=args)
    faithful = open_renderer(folder, family=family, args=args, thinking="template")
    template = ChatTemplate.load(folder) if folder is not None and folder.is_dir() else None
    checks = check_rendering(renderer, faithful, template)
    if folder is None:
        checks.append(skipped("vocabulary", "bytes stand for the model's own: name its folder with --model"))
    return renderer, checks
