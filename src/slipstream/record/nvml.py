"""GPUs, through NVIDIA's management library, which comes with the driver: no package is needed.

Enters: nothing, or a library that stands in for it. Leaves: a sample of each GPU, whenever asked. Always holds: without
the library, a driver or a GPU there are no samples and no complaint; a GPU that does not answer is left out of that
sample. All GPUs of the machine are read, whichever of them the process may use.
"""

from __future__ import annotations

import ctypes
from typing import Any

from slipstream.record.hardware import GpuSample

LIBRARIES = ("libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1")
"""Where the loader finds it; and where it is in containers that get the driver as a folder."""
_SUCCESS = 0
_MB = 1024 * 1024


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
    def find(library: Any = None) -> Gpus:
        """Those of this machine, or those that `library` pretends."""
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
        except AttributeError:  # a library too old to have these functions
            return Gpus(None, {})
        return found

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


def _load() -> Any:
    for path in LIBRARIES:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None
