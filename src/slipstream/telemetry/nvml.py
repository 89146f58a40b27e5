"""GPU samples through NVML, NVIDIA's management library: `Gpus.find().read()`.

Invariants: without a driver or a GPU there are no samples and no complaint; a GPU that does not answer is left out of
that sample; a GPU keeps the driver's number, whatever number CUDA gives it in this process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import pynvml

from slipstream.record.hardware import GpuSample

CONTAINER_LIBRARY = "/usr/local/nvidia/lib64/libnvidia-ml.so.1"
"""Where containers that mount the driver as a folder have it. Once it is loaded, pynvml finds it by name."""
_MB = 1024 * 1024

T = TypeVar("T")


class Gpus:
    """The GPUs of this machine. Used by one thread at a time."""

    def __init__(self, library: Any, handles: Mapping[int, Any]) -> None:
        """For `find`. The library and its handles are ctypes' and have no types."""
        self._library = library
        self._handles = dict(handles)

    @staticmethod
    def find(library: Any = pynvml, *, visible: str | None = None) -> Gpus:
        """All GPUs, or those that `visible` names as CUDA_VISIBLE_DEVICES does. `library` stands in for pynvml."""
        with suppress(OSError):
            ctypes.CDLL(CONTAINER_LIBRARY)
        try:
            library.nvmlInit()
        except pynvml.NVMLError:
            return Gpus(None, {})
        handles: dict[int, Any] = {}
        for number in range(_ask(library.nvmlDeviceGetCount) or 0):
            handle = _ask(library.nvmlDeviceGetHandleByIndex, number)
            if handle is not None:
                handles[number] = handle
        if visible is not None:
            uuids = {number: _ask(library.nvmlDeviceGetUUID, handle) or "" for number, handle in handles.items()}
            handles = {number: handles[number] for number in visible_gpus(visible, uuids)}
        return Gpus(library, handles)

    def read(self) -> tuple[GpuSample, ...]:
        found = []
        for number, handle in self._handles.items():
            rates = _ask(self._library.nvmlDeviceGetUtilizationRates, handle)
            memory = _ask(self._library.nvmlDeviceGetMemoryInfo, handle)
            if rates is not None and memory is not None:
                found.append(GpuSample(gpu=number, percent=float(rates.gpu), memory_mb=memory.used / _MB))
        return tuple(found)

    def close(self) -> None:
        """Closing twice is fine."""
        library, self._library, self._handles = self._library, None, {}
        if library is not None:
            with suppress(pynvml.NVMLError):
                library.nvmlShutdown()


def _ask(function: Callable[..., T], *args: Any) -> T | None:
    """What a function of the library returns; None if the driver cannot say."""
    try:
        return function(*args)
    except pynvml.NVMLError:
        return None


def visible_gpus(visible: str, uuids: Mapping[int, str]) -> tuple[int, ...]:
    """The numbers of the GPUs that CUDA_VISIBLE_DEVICES lets a process use, in the driver's order.

    `visible_gpus("1,0", uuids)` or `visible_gpus("GPU-8932f937,GPU-4a1b", uuids)`: a prefix of a UUID will do if it is
    unique. As in CUDA, everything after an entry that names no GPU is ignored: "" and "-1" select none. Numbers are
    taken in the driver's order, as CUDA does if all GPUs are alike or CUDA_DEVICE_ORDER is PCI_BUS_ID. Slices of a GPU
    (MIG) report no utilisation and select none.
    """
    found: set[int] = set()
    for entry in visible.split(","):
        number = _gpu_number(entry.strip(), uuids)
        if number is None:
            break
        found.add(number)
    return tuple(sorted(found))


def _gpu_number(entry: str, uuids: Mapping[int, str]) -> int | None:
    if entry.isascii() and entry.isdecimal():
        return int(entry) if int(entry) in uuids else None
    if not entry.startswith("GPU-"):
        return None
    matches = [number for number, uuid in uuids.items() if uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None
