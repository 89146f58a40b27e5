"""The teacher is wrong in its own ways: in the choices alone, and always to the same side."""

import re
from collections import Counter

import pytest

from slipstream.errors import ConfigError
from slipstream.model.scripted import ScriptedCall
from slipstream.recipes.demo.tasks import FOLDERS, FORMATS, OPERATIONS
from slipstream.recipes.quickstart.teacher import teacher
from slipstream.types import Message, SampleParams

MANY = 400
START, LAST = "user: Start in amber.", "user: Start in pearl. cat pearl/note tool: the largest, as json"


def commands(prompt: str, quality: float) -> Counter[str]:
    script = teacher(quality=quality)
    found: Counter[str] = Counter()
    for seed in range(MANY):
        reply = script(ScriptedCall(prompt_text=prompt, params=SampleParams(max_tokens=64, seed=seed)))
        assert isinstance(reply, Message)
        (call,) = reply.calls
        found[str(call.arguments.get("command", call.name))] += 1
    return found


def test_a_perfect_teacher_does_what_was_asked() -> None:
    assert set(commands(START, 1.0)) == {"cat amber/note"}
    assert set(commands(LAST, 1.0)) == {"max pearl/data | json > out"}


def test_a_wrong_choice_is_the_next_in_the_list_and_likelier_than_the_right_one() -> None:
    read = commands(START, 0.45)
    assert set(read) == {"cat amber/note", "cat birch/note"}
    assert read["cat amber/note"] / MANY == pytest.approx(0.45, abs=0.08)
    made = commands(LAST, 0.45)
    assert set(made) == {f"{name} pearl/data | {form} > out" for name in ("max", "count") for form in ("json", "list")}
    assert made["max pearl/data | json > out"] / MANY == pytest.approx(0.45**2, abs=0.08)
    assert made.most_common(1)[0][0] == "count pearl/data | list > out"


def test_the_list_is_a_ring() -> None:
    last = [list(names)[-1] for names in (FOLDERS, OPERATIONS, FORMATS)]
    first = [next(iter(names)) for names in (FOLDERS, OPERATIONS, FORMATS)]
    assert set(commands(f"Start in {last[0]}.", 0.0)) == {f"cat {first[0]}/note"}
    prompt = f"cat amber/note {OPERATIONS[last[1]][0]}, as {last[2]}"
    assert set(commands(prompt, 0.0)) == {f"{first[1]} amber/data | {first[2]} > out"}


def test_it_finishes_when_the_file_is_made() -> None:
    assert set(commands(f"{LAST} max pearl/data | json > out", 0.0)) == {"finish"}


@pytest.mark.parametrize("quality", [-0.1, 1.1])
def test_a_quality_that_is_no_probability_is_refused(quality: float) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"quality={quality}")):
        teacher(quality=quality)
