"""Small workloads to simulate, and the policies to try them with."""

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from slipstream.dispatch.base import Deadlines, DispatchLimits, SchedulingPolicy
from slipstream.dispatch.policies import Batch, Bounded, Pipeline
from slipstream.simulate.machine.engine import EngineSpec
from slipstream.simulate.run import MakePolicy, adaptive, open_gate
from slipstream.simulate.workload import Chore, SimFault, SimJob, SimMachine, SimTurn, Workload, checked

PLAIN = EngineSpec(kv_tokens=1000, step_s=0.01, row_s=0.0, token_s=0.0, prefill_tokens_s=1000.0)
MACHINE = SimMachine(engine=PLAIN, cores=4.0, agents=2, sandbox_cap=4, slots=2)
NOTHING = Chore()


def job(
    task: str = "t",
    sample: int = 0,
    *,
    prompt: int = 100,
    turns: tuple[SimTurn, ...] = (SimTurn(sampled=10),),
    init: Chore = NOTHING,
    grade: Chore = NOTHING,
    step: int = 0,
    faults: dict[str, SimFault] | None = None,
) -> SimJob:
    return SimJob(
        task=task, sample=sample, step=step, prompt=prompt, init=init, turns=turns, grade=grade, faults=faults
    )


def workload(*jobs: SimJob, machine: SimMachine = MACHINE, staleness: int | None = None) -> Workload:
    return checked(Workload(name="small", machine=machine, jobs=jobs, staleness=staleness))


# ---------------------------------------------------------------- anything

turns = st.builds(
    SimTurn,
    sampled=st.sampled_from([1, 5, 20, 100, 300]),
    observed=st.sampled_from([0, 10, 200]),
    tool_s=st.sampled_from([0.0, 0.5, 5.0, 50.0]),
    tool_cpu_s=st.sampled_from([0.0, 0.0, 1.0]),
)
chores = st.builds(Chore, wait_s=st.sampled_from([0.0, 1.0, 5.0]), cpu_s=st.sampled_from([0.0, 0.0, 2.0]))
specs = st.builds(
    EngineSpec,
    kv_tokens=st.just(0),  # said below, in contexts
    step_s=st.sampled_from([0.001, 0.02]),
    row_s=st.sampled_from([0.0, 5e-5, 0.01]),
    token_s=st.sampled_from([0.0, 1e-8, 1e-5]),
    prefill_tokens_s=st.sampled_from([50.0, 1_000.0, 1e5]),
    prefill_share=st.sampled_from([0.2, 0.5, 0.9]),
)
_KINDS: tuple[SimFault, ...] = ("raise", "hang", "lose")
faults = st.dictionaries(
    st.sampled_from([f"{attempt} {stage}" for attempt in (1, 2) for stage in ("init", "run", "grade")]),
    st.sampled_from(_KINDS),
    max_size=2,
)


@st.composite
def workloads(draw: st.DrawFn, *, max_kinds: int = 3, max_samples: int = 5, with_faults: bool = False) -> Workload:
    jobs = []
    for kind in range(draw(st.integers(1, max_kinds))):
        plan = draw(st.lists(turns, min_size=1, max_size=4).map(tuple))
        prompt = draw(st.sampled_from([1, 100, 1000]))
        init, grade = draw(chores), draw(chores)
        for sample in range(draw(st.integers(1, max_samples))):
            failing = draw(faults) if with_faults else None
            jobs.append(job(f"t{kind}", sample, prompt=prompt, turns=plan, init=init, grade=grade, faults=failing))
    largest = max(one.contexts[-1] + one.turns[-1].sampled for one in jobs)
    spec = replace(draw(specs), kv_tokens=int(largest * draw(st.sampled_from([1, 1.3, 2, 4]))))
    cap = draw(st.sampled_from([1, 2, 4, 20]))
    machine = SimMachine(engine=spec, cores=draw(st.sampled_from([1.0, 8.0])), agents=1, sandbox_cap=cap, slots=1)
    if with_faults:
        machine = replace(machine, deadlines=Deadlines(init_s=60, run_s=2_000, grade_s=60, job_s=1e6, total_s=1e7))
    return workload(*jobs, machine=machine)


shares = st.sampled_from([0.0, 0.3, 0.8])


@st.composite
def rewritten(draw: st.DrawFn, plan: tuple[SimTurn, ...], prompt: int) -> tuple[SimTurn, ...]:
    """The same turns, of which some begin with another context."""
    found, context = list[SimTurn](), prompt
    for turn in plan:
        is_rewritten = draw(st.booleans())
        if found and is_rewritten:
            changed = max(1, int(context * draw(st.sampled_from([0.2, 0.7, 1.0, 1.5]))))
            share = draw(st.one_of(st.none(), shares))
            kept = None if share is None else int(share * changed)
            turn, context = replace(turn, context=changed, kept=kept), changed
        found.append(turn)
        context += turn.sampled + turn.observed
    return tuple(found)


@st.composite
def odd_jobs(draw: st.DrawFn, name: str, max_samples: int) -> list[SimJob]:
    """The rollouts of a task, with all that a workload file may say of them."""
    prompt = draw(st.sampled_from([1, 100, 1000]))
    plan = draw(rewritten(draw(st.lists(turns, min_size=1, max_size=4).map(tuple)), prompt))
    init, grade, start = draw(chores), draw(chores), draw(chores)
    found = []
    for sample in range(draw(st.integers(1, max_samples))):
        one = job(name, sample, prompt=prompt, turns=plan, init=init, grade=grade, faults=draw(odd_faults))
        found.append(
            replace(
                one,
                start=start,
                release_s=draw(st.sampled_from([0.0, 0.0, 3.0])),
                shared=draw(st.sampled_from([0, 80, 500])),
                weight=draw(st.integers(0, 2)),
                grade_weight=draw(st.integers(0, 2)),
                verdict=draw(st.sampled_from([True, True, False])),
            )
        )
    return found


odd_faults = st.one_of(
    st.none(),
    faults,
    st.sampled_from(_KINDS).map(lambda kind: {f"{attempt} init": kind for attempt in (1, 2, 3)}),
    st.sampled_from(_KINDS).map(lambda kind: {f"{attempt} run": kind for attempt in (1, 2, 3)}),
)
odd_deadlines = st.builds(
    Deadlines,
    init_s=st.sampled_from([3.0, 60.0]),
    run_s=st.sampled_from([2.0, 20.0, 2_000.0]),
    grade_s=st.sampled_from([3.0, 60.0]),
    release_s=st.just(60.0),
    job_s=st.sampled_from([15.0, 100.0, 1e6]),
    total_s=st.just(1e7),
)


@st.composite
def odd_workloads(draw: st.DrawFn, *, max_kinds: int = 3, max_samples: int = 5) -> Workload:
    """Workloads with all that a file may say: fleets, rewritten contexts, deadlines, groups that are enough."""
    jobs = [one for kind in range(draw(st.integers(1, max_kinds))) for one in draw(odd_jobs(f"t{kind}", max_samples))]
    largest = max(context + turn.sampled for one in jobs for context, turn in zip(one.contexts, one.turns, strict=True))
    spec = replace(
        draw(specs),
        kv_tokens=int(largest * draw(st.sampled_from([1, 1.3, 2, 4]))),
        slots=draw(st.sampled_from([None, None, 1, 3])),
        contexts=draw(st.sampled_from([None, None, 1, 3])),
        call_s=draw(st.sampled_from([0.0, 1.0])),
        prompt_s=draw(st.sampled_from([0.0, 0.5])),
        cores=draw(st.sampled_from([0.0, 1.0])),
    )
    machine = SimMachine(
        engine=spec,
        cores=draw(st.sampled_from([1.0, 8.0])),
        agents=1,
        sandbox_cap=draw(st.sampled_from([2, 4, 20])),
        slots=1,
        front_s=draw(st.sampled_from([0.0, 0.1])),
        deadlines=draw(st.one_of(odd_deadlines, st.just(Deadlines(run_s=2_000, job_s=1e6, total_s=1e7)))),
    )
    keep, engines = draw(st.sampled_from([None, 1, 3])), draw(st.sampled_from([1, 2, 4]))
    return checked(Workload(name="odd", machine=machine, jobs=tuple(jobs), keep=keep, engines=engines))


@dataclass(frozen=True, kw_only=True)
class Way:
    """A policy, and a name that says which."""

    name: str
    make: MakePolicy


def _way(policy: SchedulingPolicy[Any]) -> Way:
    return Way(name=repr(policy), make=open_gate(policy))


_few = st.integers(1, 4)
ADAPTIVE = Way(name="adaptive", make=adaptive)
ways = st.one_of(
    st.just(ADAPTIVE),
    st.just(_way(Batch())),
    st.builds(Bounded, slots=_few).map(_way),
    st.builds(Pipeline, init=_few, run=_few, grade=_few).map(_way),
)


def capped(of: Workload) -> DispatchLimits:
    return DispatchLimits(sandboxes=of.machine.sandbox_cap)
