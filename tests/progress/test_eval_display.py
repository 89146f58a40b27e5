"""How a running evaluation looks: on a terminal, and elsewhere."""

import io

import pytest
from rich.console import Console

from slipstream.dispatch.base import DispatchView
from slipstream.evaluation import EvalProgress
from slipstream.progress.display import QuietConsole, clock
from slipstream.progress.evaluation import EvalDisplay, Pace


def progress(done: int, *, before: int = 0, total: int = 20, untrusted: int = 0) -> EvalProgress:
    view = DispatchView(
        waiting=1, initialising=2, ready=3, running=4, ended=5, grading=6, in_flight=0, live=0, done=done, abandoned=0
    )
    return EvalProgress(total=total, before=before, view=view, num_solved=7, num_untrusted=untrusted)


def shown(*steps: EvalProgress, terminal: bool) -> str:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=120, color_system=None)
    with EvalDisplay(console) as display:
        for step in steps:
            display.show(step)
    return text.getvalue()


def test_elsewhere_than_on_a_terminal_it_is_plain_lines() -> None:
    text = shown(progress(0), terminal=False)
    assert text == ("0/20 done, 7 solved, 0 untrusted; waiting 1, init 2, ready 3, run 4, ended 5, grade 6; ? left\n")


def test_lines_are_few_but_the_last_is_always_said() -> None:
    lines = shown(progress(1), progress(2), progress(3), progress(18, before=2), terminal=False).splitlines()
    assert [line.split(" ")[0] for line in lines] == ["1/20", "20/20"]
    assert lines[-1] == "20/20 done, 7 solved, 0 untrusted"


def test_what_earlier_sessions_did_counts_as_done() -> None:
    assert shown(progress(3, before=5), terminal=False).startswith("8/20 done")


def test_a_terminal_shows_counts_by_stage_and_clears_them_at_the_end() -> None:
    text = shown(progress(5, untrusted=2), terminal=True)
    assert "5/20 done  7 solved  2 untrusted" in text
    assert "waiting     init    ready      run    ended    grade" in text
    assert "      1        2        3        4        5        6" in text
    assert text.endswith("\x1b[2K")


def test_a_line_is_printed_as_it_is() -> None:
    text = io.StringIO()
    EvalDisplay(Console(file=text, width=20)).say("run: [bold]/a/very/long/path/of/a/run/[1]")
    assert text.getvalue() == "run: [bold]/a/very/long/path/of/a/run/[1]\n"


class Gone(io.StringIO):
    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.num_tries = 0
        self._error = error

    def write(self, text: str) -> int:
        self.num_tries += 1
        raise self._error


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(28, "No space left on device")])
def test_a_display_that_nobody_reads_falls_silent_and_ends_nothing(error: OSError) -> None:
    file = Gone(error)
    display = EvalDisplay(QuietConsole(file=file))
    display.say("one")
    display.say("two")
    assert file.num_tries == 1


def test_the_time_left_goes_by_the_pace_since_the_first_was_done() -> None:
    pace = Pace()
    assert pace.left(10) == "?"
    pace.note(100.0, 0)
    pace.note(200.0, 1)
    assert pace.left(9) == "?"
    pace.note(202.0, 2)
    assert pace.left(8) == "0:16"
    assert pace.left(0) == "0:00"


def test_the_pace_is_that_of_the_last_minute() -> None:
    pace = Pace()
    for second in range(100):
        pace.note(float(second), 1 + second)
    pace.note(160.0, 100)
    pace.note(165.0, 101)
    assert pace.left(1) == "0:05"


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (65, "1:05"), (3_599.6, "1:00:00"), (7_325, "2:02:05")])
def test_times_read_as_on_a_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
