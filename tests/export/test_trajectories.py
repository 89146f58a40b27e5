"""The shape of ATIF documents, pinned by hand, and checked by the `atif` package."""

from array import array
from dataclasses import replace
from typing import Any

import pytest
from atif import Trajectory
from export_stage import ODD, TREES, WITH_SUB_AGENT, rollout, turn

from slipstream.export.portable import json_line
from slipstream.export.trajectories import rollout_of, trajectory_of
from slipstream.types import EndReason, ForkReason, Message, Role, Turn

AGENT = {"name": "slipstream", "version": "0", "model_name": "tiny"}


def document(*turns: Turn) -> dict[str, Any]:
    made = trajectory_of(rollout(*turns), run="r", agent=AGENT)
    Trajectory.model_validate_json(json_line(made))
    return made


def told(made: dict[str, Any]) -> list[tuple[str, Any, bool]]:
    """Source, message, and whether it is copied, of each step."""
    return [(step["source"], step["message"], step.get("is_copied_context", False)) for step in made["steps"]]


def test_a_call_and_its_answer_stand_in_one_step_with_its_tokens() -> None:
    made = document(*TREES["plain"])
    assert told(made) == [
        ("system", "Be brief.", False),
        ("user", "How many files?", False),
        ("agent", "Counting.", False),
        ("agent", "Seven.", False),
    ]
    step = made["steps"][2]
    assert step["reasoning_content"] == "Count them."
    (call,) = step["tool_calls"]
    assert (call["tool_call_id"], call["function_name"]) == ("call_0_0", "bash")
    assert call["arguments"] == {"command": "ls | wc -l"}
    (result,) = step["observation"]["results"]
    assert (result["source_call_id"], result["content"]) == ("call_0_0", "7")
    assert result["extra"]["slipstream"]["hints"] == ["be_brief"]
    metrics = made["steps"][3]["metrics"]
    assert (metrics["prompt_token_ids"], metrics["completion_token_ids"]) == ([1, 2, 10, 11, 3], [12])
    assert (metrics["prompt_tokens"], metrics["completion_tokens"]) == (5, 1)
    assert metrics["logprobs"] == pytest.approx([-0.12])
    assert metrics["extra"]["slipstream"] == {"stop": "stop", "policy_versions": [1]}
    assert made["final_metrics"] == {"total_steps": 4, "total_prompt_tokens": 7, "total_completion_tokens": 3}


def test_the_document_says_what_became_of_the_rollout() -> None:
    made = document(*TREES["plain"])
    assert (made["schema_version"], made["trajectory_id"]) == ("ATIF-v1.8", "r/train/0/count/0#2")
    ours = made["extra"]["slipstream"]
    assert ours["job"]["task_id"] == "count"
    assert ours["verdict"] == {"reward": 1.0, "components": {"tests": 1.0}, "detail": "half"}
    assert (ours["ending"]["reason"], ours["trust"], ours["attempt"]) == ("finished", "trusted", 2)


def test_a_context_edit_replaces_what_was_before_and_marks_what_it_copies() -> None:
    made = document(*TREES["context edit"])
    assert told(made)[4:] == [
        ("system", "The conversation was rewritten: what follows takes the place of all before.", False),
        ("system", "Be brief.", True),
        ("user", "How many files?", True),
        ("user", "So far: there are seven files.", False),
        ("agent", "Seven.", False),
        ("user", "How many files?", False),
        ("agent", "Seven.", False),
    ]
    assert made["steps"][4]["extra"]["context_management"] == {"type": "compaction", "boundary": "replace"}
    assert made["steps"][8]["extra"]["slipstream"]["fork"] == "context_edit"
    assert "subagent_trajectories" not in made


def test_replies_that_a_rewritten_conversation_repeats_are_copied_context() -> None:
    rewritten = Turn(
        index=1,
        branch=1,
        parent=0,
        messages=(*TREES["chat"][0].messages, Message(role=Role.TOOL, content="cut", call_id="call_0_0")),
    )
    made = document(TREES["chat"][0], rewritten)
    copied = [step for step in made["steps"] if step.get("is_copied_context")]
    assert [step["source"] for step in copied] == ["system", "user", "agent"]
    assert "metrics" not in copied[2]
    assert [result["content"] for result in copied[2]["observation"]["results"]] == ["cut"]


def test_sub_agents_and_nested_calls_are_embedded_and_referred_to_from_where_they_began() -> None:
    made = document(*WITH_SUB_AGENT)
    sub, nested = made["subagent_trajectories"]
    assert [message for _, message, _ in told(sub)] == ["List.", "Seven.", "How many files?", "Seven."]
    assert (sub["trajectory_id"], sub["extra"]["slipstream"]["fork"]) == ("r/train/0/count/0#2/1", "sub_agent")
    assert nested["extra"]["slipstream"]["fork"] == "nested"
    assert nested["steps"][1]["extra"]["slipstream"]["trainable"] is False
    results = made["steps"][2]["observation"]["results"]
    assert [result.get("subagent_trajectory_ref") for result in results] == [
        [{"trajectory_id": sub["trajectory_id"]}],
        [{"trajectory_id": nested["trajectory_id"]}],
        None,
    ]
    assert [message for _, message, _ in told(made)] == ["Be brief.", "How many files?", "Counting.", "Seven."]


def test_a_sub_agent_that_names_the_turn_it_began_at_has_a_document_of_its_own_too() -> None:
    made = document(TREES["plain"][0], replace(WITH_SUB_AGENT[1], parent=0))
    assert len(made["subagent_trajectories"]) == 1
    assert [message for _, message, _ in told(made)] == ["Be brief.", "How many files?", "Counting."]


def test_an_answer_to_a_call_that_a_rewritten_conversation_left_out_stands_alone() -> None:
    answer = Message(role=Role.TOOL, content="7", call_id="call_0_0")
    made = document(TREES["plain"][0], turn(1, [3], [12], answer, parent=0, branch=1, fork=ForkReason.CONTEXT_EDIT))
    assert "observation" not in made["steps"][2]
    assert [step["source"] for step in made["steps"][3:]] == ["system", "system", "agent"]
    assert made["steps"][4]["observation"]["results"][0]["content"] == "7"


def test_logprobs_that_json_cannot_say_are_no_field_of_atif() -> None:
    bare = turn(0, [1], [10])
    assert bare.sampled is not None
    endless = replace(bare, sampled=replace(bare.sampled, logprobs=array("f", [float("-inf")])))
    made = document(endless)
    assert "logprobs" not in made["steps"][0]["metrics"]
    assert rollout_of(made).turns == (endless,)


def test_a_branch_beside_another_is_embedded_with_its_stem_as_copied_context() -> None:
    made = document(*TREES["parallel"])
    (branch,) = made["subagent_trajectories"]
    refs = [result.get("subagent_trajectory_ref") for result in made["steps"][2]["observation"]["results"]]
    assert refs == [None, [{"trajectory_id": branch["trajectory_id"]}]]
    assert told(branch) == [
        ("system", "Be brief.", True),
        ("user", "How many files?", True),
        ("agent", "Counting.", True),
        ("agent", "Seven.", False),
    ]
    assert branch["steps"][3]["metrics"]["prompt_token_ids"] == [1, 2, 10, 11, 4]


def test_a_conversation_rendered_anew_goes_on_as_it_was() -> None:
    made = document(*TREES["template"])
    assert told(made) == told(document(*TREES["plain"]))
    assert made["steps"][3]["extra"]["slipstream"]["fork"] == "template"


def test_a_rollout_without_turns_has_a_step_that_says_why() -> None:
    made = trajectory_of(rollout(reason=EndReason.INFRASTRUCTURE), run="r", agent=AGENT)
    assert told(made) == [("system", "No model was asked: infrastructure. so it was", False)]


def test_oddities_take_the_nearest_form_and_are_kept_in_full() -> None:
    made = document(*ODD)
    first, _, look, earlier, reply, empty = made["steps"]
    assert (first["source"], first["message"]) == ("system", "")
    assert first["observation"]["results"][0]["content"] == "an answer to nothing"
    assert [part["type"] for part in look["message"]] == ["text", "image"]
    assert look["message"][1]["source"] == {"media_type": "image/png", "path": "data:image/png;base64,iVBORw=="}
    assert earlier["is_copied_context"] is True
    bad, _ = reply["tool_calls"]
    assert bad["extra"]["slipstream"] == {"problem": "bad_json", "raw": "{"}
    assert reply["observation"]["results"][0]["source_call_id"] == "b"
    assert (empty["message"], empty["extra"]["slipstream"]["place"]) == ("", None)
    assert rollout_of(made) == rollout(*ODD)
