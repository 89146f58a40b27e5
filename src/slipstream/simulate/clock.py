"""An event loop on virtual time: whenever nothing is ready, the clock jumps to the next timer.

Code that reads time from its loop and waits on its loop runs here unchanged, deterministically and at once. Real
input and output has no place on it: waiting for something that no timer will bring is an error, not a hang.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class NothingWillHappen(RuntimeError):
    """Every task waits, and no timer is set: on a real clock this would hang for ever."""


class _JumpingSelector(selectors.BaseSelector):
    """Instead of waiting for a file descriptor, moves the clock on by the time that would have been waited."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._keys: dict[object, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        # The loop registers its own wake-up pipe; nothing else may be waited for.
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
