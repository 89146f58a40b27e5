"""Rows to datums: field by field what the batch has, one place to the left."""

import random
from array import array
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tinker_stage import row

from slipstream.batch.pack import pack_rows
from slipstream.bridges.tinker.data import Datum, demonstration_datums, to_datums
from slipstream.bridges.tinker.figures import UpdateFigures
from slipstream.bridges.tinker.protocols import Loss, PassResult
from slipstream.bridges.tinker.schedule import minibatches, warm_steps
from slipstream.engine.training.config import LearnerConfig, WarmStartConfig
from slipstream.errors import ConfigError
from slipstream.types import JobKey, Row, Sample, token_ids


def test_a_row_becomes_a_datum_shifted_by_one() -> None:
    sample = Sample(
        key=JobKey(phase="train", step=0, task_id="t", sample=0),
        branch=0,
        ids=token_ids([7, 8, 20, 21, 9, 22]),
        mask=array("b", [0, 0, 1, 1, 0, 1]),
        logprobs=array("f", [0.0, 0.0, -0.5, -0.25, 0.0, -1.0]),
        versions=array("i", [-1, -1, 3, 3, -1, 4]),
        turns=(0, 1),
    )
    (datum,) = to_datums([Row(sample=sample, advantage=-0.75, in_loss=True)])
    assert datum.inputs.tolist() == [7, 8, 20, 21, 9]
    assert datum.targets.tolist() == [8, 20, 21, 9, 22]
    assert datum.weights.tolist() == [0, 1, 1, 0, 1]
    assert datum.logprobs.tolist() == [0.0, -0.5, -0.25, 0.0, -1.0]
    assert datum.advantages.tolist() == [0.0, -0.75, -0.75, 0.0, -0.75]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.data())
def test_datums_say_what_the_packs_of_the_same_rows_say(data: st.DataObject) -> None:
    rows = []
    for number in range(data.draw(st.integers(1, 4))):
        mask = data.draw(st.lists(st.integers(0, 1), min_size=2, max_size=9))
        rows.append(
            Row(
                sample=Sample(
                    key=JobKey(phase="train", step=0, task_id="t", sample=number),
                    branch=0,
                    ids=token_ids(range(len(mask))),
                    mask=array("b", mask),
                    logprobs=array("f", [-0.125 * bit * (place + 1) for place, bit in enumerate(mask)]),
                    versions=array("i", [bit - 1 for bit in mask]),
                    turns=(0,),
                ),
                advantage=data.draw(st.sampled_from([-1.0, 0.0, 0.3])),
                in_loss=data.draw(st.booleans()),
            )
        )
    datums = {datum.rollout: datum for datum in to_datums(rows)}
    for each in rows:
        (pack,) = pack_rows([each], 100)
        if not any(pack.mask):
            assert each.sample.key not in datums
            continue
        datum = datums[each.sample.key]
        assert datum.targets == pack.ids[1:] and datum.inputs == pack.ids[:-1]
        assert datum.weights == array("f", pack.mask[1:])
        assert datum.advantages == pack.advantages[1:]
        assert datum.logprobs == pack.logprobs[1:]


def test_what_is_outside_the_loss_is_not_sent() -> None:
    assert to_datums([row(in_loss=False)]) == []


def test_an_advantage_that_is_no_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="advantage of nan"):
        to_datums([row(advantage=float("nan"))])


def test_a_logprob_that_is_no_number_is_refused() -> None:
    bad = row()
    bad = replace(bad, sample=replace(bad.sample, logprobs=array("f", [0, 0, float("-inf"), 0])))
    with pytest.raises(ConfigError, match="not a number"):
        to_datums([bad])


def test_samples_of_one_rollout_stay_in_one_minibatch() -> None:
    rows = [row(sample=0), row(sample=0, num=3), row(sample=1), row(sample=2), row(sample=3)]
    config = LearnerConfig(num_epochs=2, num_minibatches=2)
    steps = list(minibatches(to_datums(rows), config, random.Random(1)))
    assert len(steps) == 4
    for first, second in (steps[:2], steps[2:]):
        assert len(first) + len(second) == 5
        assert {datum.rollout for datum in first}.isdisjoint(datum.rollout for datum in second)


def test_the_learning_rate_rises_then_falls_to_a_tenth() -> None:
    config = LearnerConfig(warmup_steps=2, decay_steps=12)
    assert [config.rate_factor(step) for step in (0, 1, 2, 11, 50)] == pytest.approx([0.5, 1.0, 1.0, 0.1, 0.1])
    flat = LearnerConfig(warmup_steps=4)
    assert [flat.rate_factor(step) for step in (0, 3, 100)] == [0.25, 1.0, 1.0]
    assert LearnerConfig().rate_of("lora") == 1e-5
    assert LearnerConfig(learning_rate=1e-6).rate_of("lora") == 1e-6
    warm = WarmStartConfig(learning_rate=1.0, warmup_steps=2)
    assert warm.rate_at(9, 10) == pytest.approx(0.1)


def test_warm_steps_are_of_one_size_and_deal_out_everything() -> None:
    samples = [row(sample=number, num=2 + number % 3).sample for number in range(10)]
    config = WarmStartConfig(num_epochs=2, tokens_per_step=16)
    steps = warm_steps(demonstration_datums(samples), config)
    assert [len(step) for step in steps] == [3, 3, 3, 1] * 2
    assert sorted(datum.rollout for step in steps[:4] for datum in step if isinstance(datum.rollout, int)) == list(
        range(10)
    )
    assert len(warm_steps(demonstration_datums(samples), replace(config, max_steps=5))) == 5


def test_what_the_server_computes_differently_is_told_apart_from_what_the_policy_drifted() -> None:
    datum = Datum(
        rollout=0,
        inputs=token_ids([1, 2, 3]),
        targets=token_ids([2, 3, 4]),
        logprobs=array("f", [-1.0, -1.0, -1.0]),
        advantages=array("f", [1.0, 1.0, 1.0]),
        weights=array("f", [1.0, 1.0, 1.0]),
        versions=array("i", [3, 2, 2]),
    )

    def figures(version: int | None) -> dict[str, float]:
        tally = UpdateFigures(Loss(name="importance_sampling"), version)
        tally.add([datum], PassResult(logprobs=[[-0.875, -0.5, -0.5]]), {})
        found = tally.metrics()
        return {name: found[name] for name in found if "engine_diff" in name or "policy_drift" in name}

    names = ("learn/engine_diff_mean", "learn/engine_diff_max", "learn/policy_drift_mean", "learn/policy_drift_max")
    assert figures(3) == dict(zip(names, (0.125, 0.125, 0.5, 0.5), strict=True))
    assert figures(None) == {names[0]: pytest.approx(0.375), names[1]: 0.5}
