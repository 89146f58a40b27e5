"""An event loop on virtual time: whenever nothing is ready, the clock jumps to the next timer.

Code that reads time from its loop and waits on its loop runs unchanged, deterministically and without delay. Real I/O
is not supported: waiting for something that no timer will trigger is an error, not a hang.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class NothingWillHappen(RuntimeError):
    """Every task is waiting and no timer is set: on a real clock this would hang forever."""


class _JumpingSelector(selectors.BaseSelector):
    """Instead of waiting, advances the clock by the timeout."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._keys: dict[object, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        # Only the loop's own wake-up pipe is registered.
        self._keys[fileobj] = key = selectors.SelectorKey(fileobj, -1, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise NothingWillHappen("every task waits and no timer is set")
        self.now_s += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """`with asyncio.Runner(loop_factory=VirtualLoop) as runner: runner.run(main())`."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on virtual time, starting at 0 s."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
