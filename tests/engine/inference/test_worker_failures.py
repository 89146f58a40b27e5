"""Failures in the engine's thread: every request fails exactly once, and nobody waits forever."""

from __future__ import annotations

from concurrent.futures import Future
from typing import cast

import pytest
from worker_stage import LOST, SOON_S, Asked, FakeDecoder, FakePasses, Moment

from slipstream.engine.gpu.graph_worker import GraphWorker
from slipstream.engine.inference.config import EngineConfig
from slipstream.engine.inference.decoder import Decoder
from slipstream.engine.inference.worker import Update, Worker
from slipstream.errors import ModelError
from slipstream.types import Sampled


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
    decoder.at_forward, decoder.in_load = moment, SystemExit("the thread ends here")
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
