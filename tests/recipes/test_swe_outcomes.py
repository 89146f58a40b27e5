"""Figures by level, and the paired difference of two runs."""

from array import array

from slipstream.recipes.swe.outcomes import by_level, paired
from slipstream.types import (
    Ending,
    EndReason,
    Job,
    JobKey,
    Message,
    Role,
    Rollout,
    Sampled,
    StopReason,
    ToolCall,
    Turn,
    Verdict,
)


def rollout(task: str, sample: int, reward: float | None, *, calls: tuple[str, ...] = ("finish",)) -> Rollout:
    said = tuple(ToolCall(id=name, name=name, arguments={}) for name in calls)
    sampled = Sampled(ids=array("i", [1, 2]), logprobs=None, versions=array("i", [0, 0]), stop=StopReason.STOP)
    told = (Message(role=Role.TOOL, content="no", name="bash", is_error=True),)
    turns = (
        Turn(index=0, added=array("i", [5, 6, 7]), sampled=sampled, messages=(Message(role=Role.ASSISTANT),)),
        Turn(
            index=1,
            parent=0,
            num_kept=5,
            added=array("i", [8]),
            sampled=sampled,
            messages=(*told, Message(role=Role.ASSISTANT, calls=said)),
        ),
    )
    ended = EndReason.FINISHED if reward is not None else EndReason.INFRASTRUCTURE
    return Rollout(
        job=Job(key=JobKey(phase="eval", step=0, task_id=task, sample=sample), seed=0),
        attempt=1,
        ending=Ending(reason=ended),
        verdict=None if reward is None else Verdict(reward=reward),
        turns=turns,
    )


def test_each_level_has_its_own_figures() -> None:
    rollouts = [
        rollout("one-1-0000-tiny@shown", 0, 1.0, calls=("replace", "finish")),
        rollout("one-1-0000-tiny@shown", 1, 0.0),
        rollout("one-1-0001-tiny@shown", 0, 0.0),
        rollout("one-1-0001-tiny@shown", 1, None),
        rollout("one-1-0001-tiny@search", 0, 0.0),
    ]
    levels = by_level(rollouts)
    shown = levels["shown"]
    assert set(levels) == {"shown", "search", "all"}
    assert (shown["tasks"], shown["rollouts"], shown["trusted"]) == (2, 4, 3)
    assert shown["solved"] == 0.25 and shown["pass_at_k"] == {"1": 0.25, "2": 1.0}
    assert shown["mixed_groups"] == 1.0  # the other group has one verdict alone
    assert shown["endings"] == {"finished": 3, "infrastructure": 1}
    assert shown["calls"] == {"finish": 4, "replace": 1} and shown["failed_calls"] == {"bash": 4}
    assert (shown["turns"], shown["no_call_turns"]) == (2.0, 0.5)
    assert (shown["prompt_tokens"], shown["sampled_tokens"]) == (6.0, 4.0)
    assert levels["search"]["mixed_groups"] is None


def test_two_runs_are_compared_on_the_tasks_that_both_have() -> None:
    before = [rollout(f"{name}-1-0000-tiny@named", 0, 0.0) for name in ("one", "two")]
    before += [rollout("one-1-0009-tiny@named", 0, 1.0)]
    after = [rollout("one-1-0000-tiny@named", 0, 1.0), rollout("two-1-0000-tiny@named", 0, 0.0)]
    told = paired(before, after)["named"]
    assert (told["tasks"], told["packages"], told["better"], told["worse"]) == (2, 2, 1, 0)
    assert (told["before"], told["after"], told["more"]) == (0.0, 0.5, 0.5)
    assert told["interval"] == [0.0, 1.0]
