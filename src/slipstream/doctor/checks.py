"""One check and its result. What could not be checked is skipped, never passed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    status: Status
    detail: str


def passed(name: str, detail: str) -> Check:
    return Check(name=name, status=Status.PASSED, detail=detail)


def failed(name: str, detail: str) -> Check:
    return Check(name=name, status=Status.FAILED, detail=detail)


def skipped(name: str, detail: str) -> Check:
    return Check(name=name, status=Status.SKIPPED, detail=detail)
