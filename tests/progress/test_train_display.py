"""How a running training run looks: on a terminal, and elsewhere."""

import io
from dataclasses import replace

from rich.console import Console

from slipstream.dispatch.base import DispatchView
from slipstream.progress.training import TrainDisplay
from slipstream.training.loop import TrainProgress
from slipstream.training.policy import WarmProgress

NOTHING = DispatchView(
    waiting=0, initialising=0, ready=0, running=0, ended=0, grading=0, in_flight=0, live=0, done=0, abandoned=0
)
PROGRESS = TrainProgress(version=0, steps=20, doing="rollouts", view=NOTHING, metrics={}, held_out={})


def shown(*, terminal: bool, progresses: list[TrainProgress]) -> str:
    text = io.StringIO()
    with TrainDisplay(Console(file=text, force_terminal=terminal, width=140, color_system=None)) as display:
        for progress in progresses:
            display.show(progress)
    return text.getvalue()


def test_elsewhere_than_on_a_terminal_there_is_a_line_a_step() -> None:
    after = replace(PROGRESS, version=1, metrics={"reward/mean": 0.25, "learn/entropy": 1.0})
    lines = shown(
        terminal=False,
        progresses=[PROGRESS, replace(PROGRESS, held_out={0: 0.5}), after, replace(after, doing="update")],
    ).splitlines()
    assert lines == ["step 0/20", "step 0/20; held-out success 0.500", "step 1/20: reward 0.25, entropy 1"]


def test_an_evaluation_tells_its_interval() -> None:
    evaluated = replace(PROGRESS, held_out={0: 0.5}, intervals={0: (0.4375, 0.5625)})
    assert shown(terminal=False, progresses=[evaluated]) == "step 0/20; held-out success 0.500 (0.438 to 0.562)\n"


def test_the_warm_start_shows_its_step_its_loss_and_the_time_left() -> None:
    first = WarmProgress(step=1, steps=90, loss=3.25, seconds_left=None)
    last = WarmProgress(step=90, steps=90, loss=0.5, seconds_left=0.0)
    for terminal in (False, True):
        text = io.StringIO()
        with TrainDisplay(Console(file=text, force_terminal=terminal, width=140, color_system=None)) as display:
            for progress in (first, replace(first, step=2, seconds_left=61.0), last):
                display.show_warm(progress)
        if terminal:
            assert "warm start 90/90" in text.getvalue() and "loss 0.500, 0:00 left" in text.getvalue()
        else:  # the second is too soon after the first for a line of its own
            assert text.getvalue().splitlines() == [
                "warm start 1/90: loss 3.250, ? left",
                "warm start 90/90: loss 0.500, 0:00 left",
            ]


def test_a_terminal_gets_a_table_of_the_last_steps() -> None:
    steps = [replace(PROGRESS, version=number, metrics={"reward/mean": number / 20}) for number in range(1, 20)]
    picture = shown(terminal=True, progresses=steps)
    assert "step 19/20" in picture
    assert "reward" in picture and "0.95" in picture


def test_a_long_step_says_now_and_then_what_it_is_doing() -> None:
    text, clock = io.StringIO(), iter([0.0, 1.0, 8.0, 11.5, 15.0, 22.0])
    with TrainDisplay(Console(file=text, width=140), now=lambda: next(clock)) as display:
        for running in (0, 1, 2, 3, 4):
            display.show(replace(PROGRESS, view=replace(NOTHING, running=running)))
    assert text.getvalue().splitlines() == [
        "step 0/20",
        "step 0/20: rollouts; init 0, run 2, grade 0",
        "step 0/20: rollouts; init 0, run 4, grade 0",
    ]
