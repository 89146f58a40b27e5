"""GPUs, through NVIDIA's management library, which comes with the driver: no package is needed.

Input: which GPUs the process may use, as CUDA_VISIBLE_DEVICES says it; and maybe a library that stands in for
NVIDIA's. Output: a sample of each of these GPUs, whenever asked. Invariants: without the library, a driver or a GPU
there are no samples and no complaint; a GPU that does not answer is left out of that sample; a GPU keeps the driver's
number, whatever number it has for the process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from slipstream.record.hardware import GpuSample

LIBRARIES = ("libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1")
"""Where the loader finds it; and where it is in containers that get the driver as a folder."""
_SUCCESS = 0
_MB = 1024 * 1024
_UUID_BYTES = 96


class _Utilisation(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Gpus:
    """`Gpus.find().read()`. Used by one thread at a time."""

    def __init__(self, library: Any, handles: dict[int, ctypes.c_void_p]) -> None:
        """For `find`. The library is ctypes' and has no types."""
        self._library = library
        self._handles = handles

    @staticmethod
    def find(library: Any = None, *, visible: str | None = None) -> Gpus:
        """Those of this machine, or those that `library` pretends; and of them those that are `visible`."""
        try:
            library = _load() if library is None else library
            if library is None or library.nvmlInit_v2() != _SUCCESS:
                return Gpus(None, {})
            found = Gpus(library, {})
            count = ctypes.c_uint()
            if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == _SUCCESS:
                for number in range(count.value):
                    handle = ctypes.c_void_p()
                    if library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)) == _SUCCESS:
                        found._handles[number] = handle
            if visible is not None:
                found._keep(visible)
        except AttributeError:  # a library too old to have these functions
            return Gpus(None, {})
        return found

    def _keep(self, visible: str) -> None:
        names = {}
        for number, handle in self._handles.items():
            name = ctypes.create_string_buffer(_UUID_BYTES)
            told = self._library.nvmlDeviceGetUUID(handle, name, ctypes.c_uint(_UUID_BYTES))
            names[number] = name.value.decode("ascii", "replace") if told == _SUCCESS else ""
        kept = chosen(visible, names)
        self._handles = {number: handle for number, handle in self._handles.items() if number in kept}

    def read(self) -> tuple[GpuSample, ...]:
        found = []
        for number, handle in self._handles.items():
            used, memory = _Utilisation(), _Memory()
            if (
                self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(used)) == _SUCCESS
                and self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == _SUCCESS
            ):
                found.append(GpuSample(gpu=number, percent=float(used.gpu), memory_mb=memory.used / _MB))
        return tuple(found)

    def close(self) -> None:
        """Closing twice is fine."""
        library, self._library, self._handles = self._library, None, {}
        if library is not None:
            library.nvmlShutdown()


def chosen(visible: str, uuids: Mapping[int, str]) -> frozenset[int]:
    """The numbers of the GPUs that CUDA_VISIBLE_DEVICES lets a process use, of those there are.

    `chosen("1,0", uuids)` or `chosen("GPU-8932f937,GPU-4a1b", uuids)`, where the beginning of a UUID is enough if no
    other begins so. As in CUDA, what comes after an entry that names no GPU does not count: "" and "-1" choose none.
    Numbers are taken as the driver counts, which is how CUDA does if the GPUs are alike or CUDA_DEVICE_ORDER is
    PCI_BUS_ID. Parts of a GPU (MIG) have no utilisation to be read and choose none.
    """
    found: set[int] = set()
    for entry in visible.split(","):
        number = _number(entry.strip(), uuids)
        if number is None:
            break
        found.add(number)
    return frozenset(found)


def _number(entry: str, uuids: Mapping[int, str]) -> int | None:
    if entry.isascii() and entry.isdecimal():
        return int(entry) if int(entry) in uuids else None
    if not entry.startswith("GPU-"):
        return None
    like = [number for number, uuid in uuids.items() if uuid.startswith(entry)]
    return like[0] if len(like) == 1 else None


def _load() -> Any:
    for path in LIBRARIES:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None
