import random
from dataclasses import replace

import pytest
from run_stage import CORES, EVAL, SIZES, TRUE, jobs, ran, steps_of, with_dispatch, workload

from slipstream.errors import ConfigError
from slipstream.simulate.machine.engine import EngineSpec
from slipstream.simulate.recorded_run.chores import Sample, engine_level, fit_cores, own_work, wanted_by_others
from slipstream.simulate.recorded_run.fit import Fit, admissions, fit_engine, fit_steps
from slipstream.simulate.recorded_run.recorded import Call, Piece, Recorded, TimeKind, recorded
from slipstream.types import EngineWork

SLOTS = replace(TRUE, slots=8, contexts=8, kv_tokens=8 * 4_096)


def made(engine: EngineSpec = TRUE, slots: int = 16, **shape: int) -> Recorded:
    these = jobs(**shape)  # type: ignore[arg-type]  # no shape here has a phase
    return recorded(ran(workload(these, engine), with_dispatch(EVAL, slots=slots)).rollouts, name="r")


def fitted(run: Recorded, engine: EngineSpec) -> Fit:
    known = EngineSpec(kv_tokens=engine.kv_tokens, slots=engine.slots, contexts=engine.contexts, cores=engine.cores)
    return fit_engine(run.calls, known, fit_cores(run, cores=CORES, engine_cores=engine.cores), name=run.name)


def test_the_parameters_of_an_engine_are_recovered() -> None:
    found = fitted(made(TRUE), TRUE)
    spec = found.spec
    assert spec.step_s == pytest.approx(TRUE.step_s, rel=0.1)
    assert spec.row_s == pytest.approx(TRUE.row_s, rel=0.25)
    assert spec.token_s == pytest.approx(TRUE.token_s, rel=0.15)
    assert spec.prefill_tokens_s == pytest.approx(TRUE.prefill_tokens_s, rel=0.2)
    assert spec.call_s == pytest.approx(TRUE.call_s, abs=0.02)
    assert found.error < 0.02


def test_a_slow_prefill_is_told_from_slow_steps() -> None:
    slow = replace(TRUE, prefill_tokens_s=1_500.0, step_s=0.004)
    spec = fitted(made(slow), slow).spec
    assert spec.prefill_tokens_s == pytest.approx(1_500, rel=0.35)
    assert spec.step_s < 0.008


def test_the_wait_for_a_slot_is_not_taken_for_the_engines_work() -> None:
    free, held = fitted(made(TRUE), TRUE).spec, fitted(made(SLOTS), SLOTS).spec
    assert held.step_s + 8 * held.row_s == pytest.approx(free.step_s + 8 * free.row_s, rel=0.3)


def test_a_call_that_is_far_off_counts_little() -> None:
    run = made(TRUE)
    odd = replace(run.calls[40], end_s=run.calls[40].end_s + 60)
    spoilt = [odd if call is run.calls[40] else call for call in run.calls]
    cores = fit_cores(run, cores=CORES, engine_cores=0.0)
    clean, found = (fit_engine(calls, TRUE, cores, name="r").spec for calls in (run.calls, spoilt))
    assert found.step_s == pytest.approx(clean.step_s, rel=0.15)


def test_calls_are_let_in_when_a_slot_is_free() -> None:
    def call(start_s: float, end_s: float) -> Call:
        return Call(start_s=start_s, end_s=end_s, context=1, kept=0, cached=None, sampled=1)

    calls = [call(0, 10), call(1, 4), call(2, 12), call(3, 11), call(20, 21)]
    assert admissions(calls, 2) == [0, 1, 4, 10, 20]
    assert admissions(calls, None) == [0, 1, 2, 3, 20]


def test_calls_that_never_overlap_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"hardly overlapped .* record a run with more rollouts in flight"):
        fitted(made(TRUE, slots=1), TRUE)


def test_a_load_that_never_varies_is_refused() -> None:
    calls = [
        Call(start_s=n // 2, end_s=n // 2 + 1, context=10, kept=0, cached=None, sampled=5 + n % 7) for n in range(60)
    ]
    cores = fit_cores(made(TRUE, num_tasks=2), cores=CORES, engine_cores=0.0)
    with pytest.raises(ConfigError, match=r"always had about 2.0 model calls at once"):
        fit_engine(calls, TRUE, cores, name="r")


def test_too_few_calls_are_refused() -> None:
    with pytest.raises(ConfigError, match="but fitting an engine takes"):
        fitted(made(TRUE, num_tasks=1, samples=2, most_turns=2), TRUE)


def test_an_engine_that_answers_from_memory_needs_no_fit() -> None:
    instant = replace(TRUE, step_s=1e-6, row_s=0.0, token_s=0.0, prefill_tokens_s=1e9, call_s=0.001)
    found = fitted(made(instant), instant)
    assert found.spec.call_s == pytest.approx(0.001, rel=0.1)


@pytest.mark.parametrize("on_cores", [True, False])
def test_what_a_step_costs_is_what_the_engine_told(on_cores: bool) -> None:
    told = steps_of(TRUE, SIZES, slower=2.0)
    found = fit_steps(told, on_cores=on_cores, name="r")
    assert found is not None and found.num == 200
    more = 1.0 if on_cores else 2.4  # in the middle, by what the machine or the sharing of it added
    assert found.step_s == pytest.approx(more * TRUE.step_s, rel=0.12)
    assert found.row_s == pytest.approx(more * TRUE.row_s, rel=0.25)
    assert 1 / found.prefill_s == pytest.approx(TRUE.prefill_tokens_s / more, rel=0.12)


def test_prompts_that_were_computed_alone_tell_of_prompts_alone() -> None:
    told = [
        *steps_of(TRUE, [(rows, 0) for rows, _ in SIZES]),
        *(
            EngineWork(num_steps=0, num_rows=0, num_held=0, num_prompt=size, seconds=size / 2_000, cpu_s=0.0)
            for size in range(100, 600, 20)
        ),
    ]
    found = fit_steps(told, on_cores=False, name="r", num_prompts=50)
    assert found is not None
    assert 1 / found.prefill_s == pytest.approx(2_000, rel=0.05)
    assert found.step_s == pytest.approx(1.2 * TRUE.step_s, rel=0.12)
    assert found.prompt_s == pytest.approx(0.0, abs=1e-3)
    slow = [replace(each, seconds=each.seconds + 0.25) if not each.num_steps else each for each in told]
    dear = fit_steps(slow, on_cores=False, name="r", num_prompts=50)
    assert dear is not None
    whole_s = 50 * dear.prompt_s + sum(each.num_prompt for each in told) * dear.prefill_s
    assert whole_s == pytest.approx(sum(each.seconds for each in slow if not each.num_steps), rel=0.01)


def test_steps_that_are_far_off_take_their_time_all_the_same() -> None:
    told = steps_of(TRUE, SIZES)
    odd = [replace(each, cpu_s=9 * each.cpu_s) if not number % 20 else each for number, each in enumerate(told)]
    clean, found = fit_steps(told, on_cores=True, name="r"), fit_steps(odd, on_cores=True, name="r")
    assert clean is not None and found is not None
    assert found.step_s == pytest.approx(clean.step_s * sum(e.cpu_s for e in odd) / sum(e.cpu_s for e in told), rel=0.1)
    assert found.row_s / found.step_s == pytest.approx(clean.row_s / clean.step_s, rel=0.3)


def test_steps_tell_what_the_calls_cannot() -> None:
    """Nearly all calls have as many others beside them, so a step and a request of it can hardly be told apart by them;
    the steps can, and the calls say what is left."""
    chance = random.Random(1)
    calls = []
    for place in range(7):
        start_s = 0.0
        for _ in range(12):
            sampled = chance.randint(5, 30)
            each_s = TRUE.step_s + 7 * TRUE.row_s
            calls.append(
                Call(
                    start_s=start_s,
                    end_s=start_s + 0.05 + sampled * each_s,
                    context=1,
                    kept=1,
                    cached=1,
                    sampled=sampled,
                )
            )
            start_s = calls[-1].end_s + 0.001 * place
    cores = fit_cores(made(TRUE, num_tasks=2), cores=CORES, engine_cores=0.0)
    assert fit_engine(calls, TRUE, cores, name="r").spec.step_s > 1.4 * TRUE.step_s
    free = replace(TRUE, token_s=0.0)
    steps = fit_steps(steps_of(free, SIZES), on_cores=True, name="r")
    found = fit_engine(calls, TRUE, cores, name="r", steps=steps)
    assert found.spec.step_s == pytest.approx(TRUE.step_s, rel=0.1)
    assert found.spec.row_s == pytest.approx(TRUE.row_s, rel=0.2)
    assert found.spec.call_s == pytest.approx(0.05, abs=0.015)
    assert found.error < 0.05 and (found.num_steps, found.num_calls) == (200, 84)


def test_steps_that_are_too_few_or_all_alike_tell_nothing() -> None:
    assert fit_steps([], on_cores=True, name="r") is None
    assert fit_steps(steps_of(TRUE, SIZES[:50]), on_cores=True, name="r") is None
    with pytest.raises(ConfigError, match=r"always had about 7.0 model calls at once"):
        fit_steps(steps_of(TRUE, [(7, 0)] * 200), on_cores=True, name="r")
    with pytest.raises(ConfigError, match="hardly overlapped"):
        fit_steps(steps_of(TRUE, [(1, 0)] * 200), on_cores=True, name="r")


def test_work_on_the_cores_is_told_from_waiting() -> None:
    """Gradings are nearly all work and tools half of it: with 16 at once on four cores both take longer."""
    shares = fit_cores(made(TRUE, samples=8), cores=CORES, engine_cores=0.0).shares
    assert shares[TimeKind.GRADE] > 0.7
    quiet = made(TRUE, num_tasks=3, slots=2)
    cores = fit_cores(quiet, cores=CORES, engine_cores=0.0)
    grade = quiet.rollouts[0].grade
    assert cores.alone(grade).wait_s + cores.alone(grade).cpu_s == pytest.approx(1.1, rel=0.01), "nobody was in the way"


def test_what_others_wanted_of_a_full_machine_is_what_the_run_does_not_account_for() -> None:
    run = made(replace(SLOTS, cores=1.0))
    cores = fit_cores(run, cores=CORES, engine_cores=1.0)
    first_s, last_s = run.rollouts[0].first_s, max(rollout.last_s for rollout in run.rollouts)

    def found(percent: float, own_cores: float) -> float:
        sample = Sample(start_s=first_s, end_s=last_s, percent=percent, own_cores=own_cores)
        return wanted_by_others([sample], cores, cores=CORES, engine=engine_level(run, 1.0))

    asked = engine_level(run, 1.0).mean(first_s, last_s)
    own = cores.wanted.mean(first_s, last_s)
    assert found(100.0, asked / 4) == pytest.approx(4 * CORES - own), "it got a quarter of what it asked for"
    assert found(60.0, asked / 4) == 0.0, "the machine had room"
    assert found(100.0, asked) == pytest.approx(max(0.0, CORES - own))


def test_of_what_agents_do_themselves_most_is_waiting_for_the_thread_they_share() -> None:
    """Eight agents for a second, in one thread and in four: an eighth of it, or half of it, is work."""
    run = made(TRUE, num_tasks=2)
    own = tuple(Piece(kind=TimeKind.OWN, start_s=100.0, end_s=101.0) for _ in range(8))
    busy = replace(run, rollouts=(replace(run.rollouts[0], start=own), *run.rollouts[1:]))
    for threads, work_s in ((1, 1 / 8), (4, 1 / 2), (16, 1.0)):
        cores = fit_cores(busy, cores=CORES, engine_cores=0.0, threads=threads)
        assert cores.wanted.mean(100.0, 101.0) == pytest.approx(min(threads, 8))
        chore = cores.alone(own[:1])
        stretch = max(1.0, min(threads, 8) / CORES)
        assert chore.cpu_s * stretch + chore.wait_s == pytest.approx(1.0)
        assert chore.cpu_s / (chore.cpu_s + chore.wait_s) == pytest.approx(work_s)


def test_where_the_runs_own_process_is_accounted_for_what_agents_do_themselves_is_what_the_quickest_take() -> None:
    run = made(TRUE, num_tasks=2)
    own = tuple(Piece(kind=TimeKind.OWN, start_s=100.0, end_s=100.02 + 0.01 * number) for number in range(20))
    alone = replace(run, rollouts=tuple(replace(rollout, start=(), between=()) for rollout in run.rollouts))
    busy = replace(alone, rollouts=(replace(alone.rollouts[0], start=own), *alone.rollouts[1:]))
    assert own_work(busy, apart=True) == pytest.approx(0.04)
    assert own_work(busy, apart=False) == own_work(alone, apart=True) == 0.0
    cores = fit_cores(busy, cores=CORES, engine_cores=0.0, threads=4, own_s=0.04)
    assert [cores.alone([piece]).cpu_s for piece in own[::19]] == pytest.approx([0.02, 0.04])
    assert cores.alone(own).wait_s == 0.0, "a replay waits for itself"
    assert cores.wanted.mean(100.0, 100.01) == pytest.approx(min(4, sum(min(1, 0.04 / each.seconds) for each in own)))
