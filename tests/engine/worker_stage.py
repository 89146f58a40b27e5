"""Fakes shared by the tests of the engine's thread: a device, and requests that keep their results."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from slipstream.engine.gpu.graph_worker import Pending
from slipstream.engine.inference.plan import Piece
from slipstream.engine.inference.request import Request
from slipstream.engine.inference.sampling import DeviceDraw, DrawSpec
from slipstream.errors import ModelError
from slipstream.types import Sampled, SampleParams, token_ids

SOON_S = 20.0
"""Nothing here takes a second; without a limit a test that fails would not end."""
LOST = "an illegal memory access was encountered"


class Moment:
    """Where the engine's thread stops, until the test lets it go on."""

    def __init__(self) -> None:
        self._reached, self._let_go = threading.Event(), threading.Event()

    def pass_by(self) -> None:
        self._reached.set()
        assert self._let_go.wait(SOON_S)

    @contextmanager
    def held(self) -> Iterator[None]:
        """The thread stands there."""
        assert self._reached.wait(SOON_S)
        yield
        self._let_go.set()


class FakeDecoder:
    """Every token is as likely as any other; what a call raises, or where it stops, is set by the test."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.at_forward: Moment | None = None
        self.in_copy: Exception | None = None
        self.in_load: BaseException | None = None

    def load_weights(self, named: object) -> None:
        if self.in_load is not None:
            raise self.in_load

    def copy_prefix(self, *_: int) -> None:
        if self.in_copy is not None:
            raise self.in_copy

    def forward(self, singles: object, chunks: object, *, outputs: Sequence[int], separate: bool) -> torch.Tensor:
        if (moment := self.at_forward) is not None:
            self.at_forward = None
            moment.pass_by()
        return torch.zeros(len(outputs), 5)


class FakePasses:
    """Sampled tokens are 5; the first time that sequences go on, it stops, and what it drew is lost."""

    def __init__(self) -> None:
        self.at_first = Moment()
        self._is_first = True

    def lose_nothing(self) -> None:
        self._is_first = False

    def stream(self) -> AbstractContextManager[object]:
        return nullcontext()

    def synchronize(self) -> None: ...

    def prefill(self, pieces: Sequence[Piece], drawings: Sequence[DeviceDraw | None]) -> Pending:
        return Fives(len(pieces), 1)

    def decode(self, slots: Sequence[int], num_steps: int, nucleus: Mapping[int, DrawSpec] | None = None) -> Pending:
        if not self._is_first:
            return Fives(len(slots), num_steps)
        self._is_first = False
        self.at_first.pass_by()
        return Lost()


class Fives:
    def __init__(self, num_rows: int, num_steps: int) -> None:
        self._shape = num_rows, num_steps

    def wait(self) -> tuple[list[list[int]], list[list[float]]]:
        num_rows, num_steps = self._shape
        return [[5] * num_steps] * num_rows, [[-1.0] * num_steps] * num_rows


class Lost:
    def wait(self) -> tuple[list[list[int]], list[list[float]]]:
        raise RuntimeError(LOST)


class Asked:
    """A request, and all that it was told."""

    def __init__(self, prompt: Sequence[int], *, max_tokens: int = 8, priority: Any = 0) -> None:
        self.told: list[Sampled | ModelError] = []
        self._first: Future[Sampled | ModelError] = Future()
        self.request = Request(
            prompt=token_ids(prompt),
            params=SampleParams(max_tokens=max_tokens),
            seed=1,
            max_tokens=max_tokens,
            deliver=self._deliver,
            priority=priority,
        )

    def _deliver(self, told: Sampled | ModelError) -> None:
        self.told.append(told)
        if len(self.told) == 1:
            self._first.set_result(told)

    def first(self) -> Sampled | ModelError:
        return self._first.result(SOON_S)
