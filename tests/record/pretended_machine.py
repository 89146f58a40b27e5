"""A machine that is not there: a driver's library, /proc and cgroups, and a clock that tests set."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NOT_SUPPORTED = 3


@dataclass
class PretendedNvml:
    """Answers as libnvidia-ml does. `busy[n]` is what GPU n says one call after the other, the last for ever after."""

    busy: Sequence[Sequence[int]] = ()
    used_mb: int = 1_000
    can_start: bool = True
    silent: set[int] = field(default_factory=set)
    """GPUs that cannot tell their utilisation."""
    num_open: int = 0
    uuids: Sequence[str] = ()
    """Of each GPU; one that has none does not tell."""

    def __post_init__(self) -> None:
        self._asked = [0] * len(self.busy)

    def nvmlInit_v2(self) -> int:  # noqa: N802
        self.num_open += self.can_start
        return 0 if self.can_start else 9

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.num_open -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.busy)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number: int, handle: Any) -> int:  # noqa: N802
        handle._obj.value = 100 + number
        return 0

    def nvmlDeviceGetUUID(self, handle: ctypes.c_void_p, name: Any, num_bytes: ctypes.c_uint) -> int:  # noqa: N802
        assert handle.value is not None and num_bytes.value == len(name)
        if handle.value - 100 >= len(self.uuids):
            return NOT_SUPPORTED
        name.value = self.uuids[handle.value - 100].encode()
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: ctypes.c_void_p, used: Any) -> int:  # noqa: N802
        assert handle.value is not None
        number = handle.value - 100
        if number in self.silent:
            return NOT_SUPPORTED
        said = self.busy[number]
        used._obj.gpu = said[min(self._asked[number], len(said) - 1)]
        self._asked[number] += 1
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: ctypes.c_void_p, memory: Any) -> int:  # noqa: N802
        assert handle.value is not None
        memory._obj.used = (self.used_mb + handle.value - 100) * 1024 * 1024
        return 0


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
