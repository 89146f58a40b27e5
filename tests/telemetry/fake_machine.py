"""A machine that is not there: NVML, /proc and cgroups, and a clock that tests set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pynvml


@dataclass
class FakeNvml:
    """Answers as pynvml does. `busy[n]` is what GPU n says one call after the other, the last for ever after."""

    busy: Sequence[Sequence[int]] = ()
    used_mb: int = 1_000
    can_start: bool = True
    silent: set[int] = field(default_factory=set)
    """GPUs that cannot tell their utilisation."""
    num_open: int = 0
    uuids: Sequence[str] = ()
    """Of each GPU; one that has none does not tell."""

    def __post_init__(self) -> None:
        self._num_asked = [0] * len(self.busy)

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.can_start:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        self.num_open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.num_open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.busy)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> str:  # noqa: N802
        return f"handle {number}"

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        number = self._number(handle)
        if number >= len(self.uuids):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return self.uuids[number]

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:  # noqa: N802
        number = self._number(handle)
        if number in self.silent:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        said = self.busy[number]
        self._num_asked[number] += 1
        return SimpleNamespace(gpu=said[min(self._num_asked[number], len(said)) - 1], memory=1)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=(self.used_mb + self._number(handle)) * 1024 * 1024)

    def _number(self, handle: str) -> int:
        return int(handle.removeprefix("handle "))


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


def put(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def stat(*busy_idle: tuple[int, int]) -> str:
    """/proc/stat with a line for each processor: ticks busy, half of them in the system, and ticks idle, half of them
    waiting for a disk."""
    lines = [
        f"cpu{number} {busy - busy // 2} 0 {busy // 2} {idle - idle // 2} {idle // 2} 0 0 0 0 0"
        for number, (busy, idle) in enumerate(busy_idle)
    ]
    return "\n".join(["cpu  999 0 0 0 0 0 0 0 0 0", *lines, "intr 12345 1 2 3", "ctxt 99"]) + "\n"
