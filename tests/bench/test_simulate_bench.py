import pytest

from slipstream.bench.simulate import OTHERS, Round, noise, summary, table


def made(predicted_s: float, measured_s: float) -> Round:
    return Round(
        own_s=10.0,
        replayed_s=10.1,
        call_error=0.2,
        predicted_s=dict.fromkeys(OTHERS, predicted_s),
        measured_s=dict.fromkeys(OTHERS, measured_s),
    )


def test_errors_and_noise_are_shares_of_what_was_measured() -> None:
    found = summary([made(11.0, 10.0), made(11.0, 12.0)])
    others = found["others"]
    assert isinstance(others, dict)
    one = others["bounded, 4 slots"]
    assert isinstance(one, dict)
    assert one["errors"] == [0.1, pytest.approx(-0.0833, abs=1e-4)]
    assert one["error"] == 0.0
    assert one["noise"] == pytest.approx(0.0909, abs=1e-4)
    assert found["worst_error"] == 0.0
    assert noise([10.0]) == 0.0


def test_the_table_has_a_row_for_each_run() -> None:
    lines = table(summary([made(11.0, 10.0)]))
    assert len(lines) == 2 + 1 + len(OTHERS)
    assert lines[3] == "| B: bounded, 4 slots | 11.0 | 10.0 | +10.0% | 0.0% |"
