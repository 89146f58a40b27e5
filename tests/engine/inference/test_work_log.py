"""The engine's log of its steps."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import cast

from engine_stage import engine, prompt
from worker_stage import Asked, FakeDecoder, FakePasses

from slipstream.engine.gpu.graph_worker import GraphWorker
from slipstream.engine.inference.config import EngineConfig
from slipstream.engine.inference.decoder import Decoder
from slipstream.engine.inference.work_log import Stopwatch, WorkLog
from slipstream.model.base import WorkReporter
from slipstream.types import EngineWork, Sampled, SampleParams


def work(num_rows: int, num_prompt: int = 0, *, num_steps: int = 1) -> EngineWork:
    return EngineWork(
        num_steps=num_steps, num_rows=num_rows, num_held=10, num_prompt=num_prompt, seconds=0.5, cpu_s=0.25
    )


def test_steps_that_are_about_as_large_are_added_up_and_others_kept_apart() -> None:
    log = WorkLog()
    for one in (work(100), work(101), work(3), work(4), work(2, 50), work(2, 5), work(0, 50, num_steps=0)):
        log.add(one)
    found = {(each.num_steps, each.num_rows, each.num_prompt): each for each in log.take()}
    assert set(found) == {(2, 201, 0), (1, 3, 0), (1, 4, 0), (1, 2, 50), (1, 2, 5), (0, 0, 50)}
    assert found[2, 201, 0] == EngineWork(num_steps=2, num_rows=201, num_held=20, num_prompt=0, seconds=1.0, cpu_s=0.5)
    assert log.take() == ()


def test_several_steps_that_were_asked_for_at_once_are_as_large_as_each_of_them() -> None:
    log = WorkLog()
    log.add(work(8 * 5, num_steps=8))
    log.add(work(5))
    (found,) = log.take()
    assert (found.num_steps, found.num_rows) == (9, 45)


def test_the_speed_of_prompts_is_over_the_steps_that_had_some() -> None:
    log = WorkLog()
    log.add(work(5))
    assert log.prefill_tokens_s is None
    log.add(work(2, 50))
    log.add(work(0, 150, num_steps=0))
    log.take()
    assert log.prefill_tokens_s == 200 / 1.0


def test_however_many_sizes_there_are_what_is_kept_stays_small() -> None:
    log = WorkLog()
    for size in range(4_096):
        log.add(work(size))
    assert len(log.take()) < 50


def test_a_stopwatch_tells_waiting_from_work() -> None:
    def work_on() -> None:
        until_s = time.thread_time() + 0.05
        while time.thread_time() < until_s:
            pass

    other = threading.Thread(target=work_on)
    watch = Stopwatch()
    watch.start()
    other.start()
    other.join()
    seconds, cpu_s = watch.lap()
    assert cpu_s < 0.05 <= seconds  # the other thread worked, this one waited
    work_on()
    seconds, cpu_s = watch.lap()
    assert 0.05 <= cpu_s <= seconds + 0.01


def test_an_engine_tells_all_that_it_did_and_only_once() -> None:
    async def main() -> None:
        async with engine(num_slots=3) as served:
            assert isinstance(served, WorkReporter)
            prompts = [prompt(20 + number, number) for number in range(5)]
            asked = (served.complete(ids, SampleParams(max_tokens=6, seed=1)) for ids in prompts)
            replies = await asyncio.gather(*asked)
            found = served.take_work()
        found += served.take_work()  # the worker writes down a step after it has answered
        counts = served.counts
        assert served.take_work() == ()
        assert sum(each.num_steps for each in found) == counts.num_steps
        assert sum(each.num_rows for each in found) == counts.num_sampled == sum(len(each.ids) for each in replies)
        assert sum(each.num_prompt for each in found) == sum(map(len, prompts))
        held = sum(len(ids) + n for ids, reply in zip(prompts, replies, strict=True) for n in range(len(reply.ids)))
        assert sum(each.num_held for each in found) == held
        assert all(0 < each.cpu_s <= each.seconds + 0.01 * each.num_steps for each in found)

    asyncio.run(main())


def test_an_engine_on_a_gpu_tells_prompts_and_replies_apart() -> None:
    passes = FakePasses()
    passes.lose_nothing()
    worker = GraphWorker(cast("Decoder", FakeDecoder()), passes, EngineConfig(num_slots=2, steps_ahead=4), 0)
    try:
        asked = Asked([1, 2, 3], max_tokens=9)
        worker.put(asked.request)
        assert isinstance(asked.first(), Sampled)
    finally:
        worker.close()
    found = worker.work.take()
    assert sum(each.num_prompt for each in found) == 3
    assert [each.num_rows for each in found if not each.num_steps] == [0]
    stepped = [each for each in found if each.num_steps]
    assert sum(each.num_steps for each in stepped) == sum(each.num_rows for each in stepped) == 8
    assert all(each.seconds > 0 for each in found)
