"""The engine's thread when what it is asked of a device fails: everyone is told, once, and nobody waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import pytest
import torch

from slipstream.engine.config import EngineConfig
from slipstream.engine.decoder import Decoder
from slipstream.engine.graph_worker import GraphWorker, Pending
from slipstream.engine.plan import Piece
from slipstream.engine.request import Request
from slipstream.engine.sampling import Draw, Drawing
from slipstream.engine.worker import Update, Worker
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
        self.in_put: BaseException | None = None

    def put(self, named: object) -> None:
        if self.in_put is not None:
            raise self.in_put

    def copy_prefix(self, *_: int) -> None:
        if self.in_copy is not None:
            raise self.in_copy

    def forward(self, singles: object, chunks: object, *, outputs: Sequence[int], alone: bool) -> torch.Tensor:
        if (moment := self.at_forward) is not None:
            self.at_forward = None
            moment.pass_by()
        return torch.zeros(len(outputs), 5)


class FakePasses:
    """Sampled tokens are 5; the first time that sequences go on, it stops, and what it drew is lost."""

    def __init__(self) -> None:
        self.at_first = Moment()
        self._is_first = True

    def stream(self) -> AbstractContextManager[object]:
        return nullcontext()

    def settle(self) -> None: ...

    def prefill(self, pieces: Sequence[Piece], drawings: Sequence[Drawing | None]) -> Pending:
        return Fives(len(pieces), 1)

    def go_on(self, slots: Sequence[int], num_steps: int, nucleus: Mapping[int, Draw] | None = None) -> Pending:
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


def update() -> Update:
    return Update(named=[], version=1, done=Future())


def test_if_what_was_sampled_is_lost_the_update_that_reads_it_is_told_and_the_thread_goes_on() -> None:
    passes = FakePasses()
    worker = GraphWorker(cast("Decoder", FakeDecoder()), passes, EngineConfig(num_slots=2), 0)
    try:
        asked, refused = Asked([1, 2, 3], max_tokens=64), update()
        worker.put(asked.request)
        with passes.at_first.held():
            worker.put(refused)
        with pytest.raises(RuntimeError, match=LOST):
            refused.done.result(SOON_S)
        assert isinstance(told := asked.first(), ModelError) and LOST in str(told)
        assert (worker.version, worker.num_running, worker.num_held) == (0, 0, 0)
        taken, after = update(), Asked([1, 2, 3])
        worker.put(taken)
        worker.put(after.request)
        assert taken.done.result(SOON_S) is None
        assert isinstance(sampled := after.first(), Sampled) and list(sampled.ids) == [5] * 8
        assert list(sampled.versions) == [1] * 8
    finally:
        worker.close()
    assert (len(asked.told), len(after.told)) == (1, 1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("by", ["update", "request"])
def test_whatever_ends_the_thread_everyone_is_told(by: str) -> None:
    decoder, moment = FakeDecoder(), Moment()
    decoder.at_forward, decoder.in_put = moment, SystemExit("the thread ends here")
    worker = Worker(cast("Decoder", decoder), EngineConfig(num_slots=1), 0)
    running, waiting, behind = Asked([1], max_tokens=64), Asked([2]), Asked([3])
    fatal, last = update(), update()
    no_order = Asked([4], priority=None)
    worker.put(running.request)
    with moment.held():
        worker.put(waiting.request)
        worker.put(fatal if by == "update" else no_order.request)
        worker.put(behind.request)
        worker.put(last)
    updates = [fatal, last] if by == "update" else [last]
    requests = [running, waiting, behind, *([no_order] if by == "request" else [])]
    for each in updates:
        with pytest.raises(ModelError, match="closed"):
            each.done.result(SOON_S)
    assert all(isinstance(asked.first(), ModelError) for asked in requests)
    worker.close()
    assert [len(asked.told) for asked in requests] == [1] * len(requests)


def test_if_a_prefix_cannot_be_copied_whoever_got_a_slot_is_told_once() -> None:
    decoder, moment = FakeDecoder(), Moment()
    worker = Worker(cast("Decoder", decoder), EngineConfig(num_slots=4), 0)
    shared = list(range(40))
    before = Asked(shared)
    worker.put(before.request)
    assert isinstance(before.first(), Sampled)
    decoder.at_forward, decoder.in_copy = moment, RuntimeError("out of memory")
    running, placed, copied = Asked([60, 61], max_tokens=64), Asked([50, 51]), Asked([*shared[:39], 70])
    later = Asked([80, 81])
    worker.put(running.request)
    with moment.held():
        for asked in (placed, copied, later):
            worker.put(asked.request)
    assert isinstance(later.first(), Sampled)
    worker.close()
    assert all(isinstance(asked.first(), ModelError) for asked in (running, placed, copied))
    assert [len(asked.told) for asked in (before, running, placed, copied, later)] == [1] * 5
