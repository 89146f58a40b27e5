from collections import Counter

import pytest

from slipstream.errors import ConfigError
from slipstream.simulate.families import FAMILIES, TUNED_ON, UNSEEN, make_family
from slipstream.simulate.regimes import final_context
from slipstream.simulate.workload import Workload


@pytest.fixture(scope="module", params=list(FAMILIES))
def of_family(request: pytest.FixtureRequest) -> Workload:
    return make_family(str(request.param), 3)


def test_the_same_seed_gives_the_same_workload_and_another_one_another(of_family: Workload) -> None:
    assert make_family(of_family.name, 3) == of_family
    other = make_family(of_family.name, 4)
    assert other.jobs != of_family.jobs and other.machine != of_family.machine


def test_every_job_is_there_once_and_the_workload_is_small(of_family: Workload) -> None:
    keys = Counter((one.phase, one.step, one.task, one.sample) for one in of_family.jobs)
    assert set(keys.values()) == {1}
    assert sum(len(one.turns) for one in of_family.jobs) < 12_000
    assert of_family.machine.slots <= of_family.machine.sandbox_cap


def test_half_of_at_least_thirty_families_were_not_tuned_on_and_some_were_never_seen() -> None:
    assert len(FAMILIES) - len(UNSEEN) >= 30 and len(TUNED_ON) == (len(FAMILIES) - len(UNSEEN)) // 2
    assert len(UNSEEN) >= 6 and not set(TUNED_ON) & set(UNSEEN)


def test_each_family_has_what_it_is_for() -> None:
    made = {name: make_family(name, 1) for name in FAMILIES}
    long_tools = made["long_tools"]
    waits = [turn.tool_s for one in long_tools.jobs for turn in one.turns]
    assert 300 < sum(waits) / len(waits) < 900
    assert 40_000 < final_context(list(long_tools.jobs)) < 75_000
    faults = [fault for one in made["flaky"].jobs for fault in (one.faults or {}).values()]
    assert len(faults) / (9 * len(made["flaky"].jobs)) == pytest.approx(0.2, abs=0.05)
    assert len({(one.prompt, one.turns, one.init, one.grade) for one in made["identical"].jobs}) == 1
    rewritten = [turn for one in made["compaction"].jobs for turn in one.turns if turn.context is not None]
    assert rewritten and all(turn.kept is not None for turn in rewritten)
    assert (
        made["fleet"].engines == 4 and made["slots"].machine.engine.slots and not made["silent"].machine.engine.reports
    )
    turns = [sum(len(one.turns) for one in made["growing"].jobs if one.step == step) for step in range(4)]
    assert turns == sorted(turns) and turns[3] > 2 * turns[0]
    assert {one.phase for one in made["held_out"].jobs} == {"train", "held_out"}


def test_an_unknown_family_is_said_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r'"long_tool"; did you mean "?long_tools|"long_tool".*long_tools'):
        make_family("long_tool", 1)
