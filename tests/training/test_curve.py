"""The picture of a learning curve."""

import asyncio
from pathlib import Path
from xml.etree import ElementTree

import pytest

from slipstream.config import apply_overrides
from slipstream.dispatch.base import DispatchView
from slipstream.recipes.quickstart import recipe
from slipstream.record import RunStore
from slipstream.training.curve import draw_curves
from slipstream.training.curve_file import CurveFile
from slipstream.training.loop import TrainProgress
from slipstream.training.run import plan_training, run_training

NS = "{http://www.w3.org/2000/svg}"


def test_every_point_is_drawn_within_the_frame() -> None:
    curves = {"held out": [(0, 0.25), (10, 0.5), (20, 1.0)], "a < b": [(0, 0.0), (20, 2.0)]}
    picture = ElementTree.fromstring(draw_curves("success & more", curves, x_label="step"))
    lines = [line.attrib["points"].split() for line in picture.iter(f"{NS}polyline")]
    assert [len(line) for line in lines] == [3, 2]
    assert all(
        60 <= float(x) <= 700 and 72 <= float(y) <= 372 for line in lines for x, y in (p.split(",") for p in line)
    )
    first, last = (tuple(map(float, point.split(","))) for point in (lines[0][0], lines[0][-1]))
    assert first == (60.0, 297.0)
    assert last == (700.0, 72.0)
    words = [text.text for text in picture.iter(f"{NS}text")]
    assert {"success & more", "held out", "a < b", "step"} <= set(words)


def test_nothing_yet_is_an_empty_frame() -> None:
    assert "polyline" not in draw_curves("nothing", {}, x_label="step")


def boxes(picture: ElementTree.Element) -> list[tuple[float, float]]:
    """Top and bottom of the squares of the legend."""
    squares = [each for each in picture.iter(f"{NS}rect") if each.get("width") == "12"]
    return [(float(each.attrib["y"]), float(each.attrib["y"]) + 12) for each in squares]


@pytest.mark.parametrize(
    "names", [["held-out success"], ["a" * 22, "b" * 16, "c" * 20], ["d" * 60, "e" * 60, "f" * 60]]
)
def test_the_legend_stands_above_every_point_a_curve_can_have(names: list[str]) -> None:
    curves = {name: [(0.0, 0.0), (4.0, 1.0)] for name in names}
    picture = ElementTree.fromstring(draw_curves("title", curves, x_label="step"))
    highest = min(float(circle.attrib["cy"]) for circle in picture.iter(f"{NS}circle"))
    assert len(boxes(picture)) == len(names)
    assert all(bottom < highest - 3 for _, bottom in boxes(picture))
    height = float(picture.attrib["viewBox"].split()[3])
    assert all(0 < float(text.attrib["y"]) < height for text in picture.iter(f"{NS}text"))


def test_the_curve_is_drawn_after_every_evaluation(tmp_path: Path) -> None:
    path = tmp_path / "curve.svg"
    seen: list[int] = []

    def num_points() -> int:
        return len(list(ElementTree.parse(path).getroot().iter(f"{NS}circle"))) if path.exists() else 0

    tell = CurveFile(path, "mine").watching(lambda progress: seen.append(num_points()))
    view = DispatchView(
        waiting=0, initialising=0, ready=0, running=0, ended=0, grading=0, in_flight=0, live=0, done=0, abandoned=0
    )
    for held_out in ({}, {0: 0.1}, {0: 0.1}, {0: 0.1, 2: 0.4}):
        tell(TrainProgress(version=0, steps=4, doing="x", view=view, metrics={}, held_out=held_out))
    assert seen == [0, 1, 1, 2]


def test_a_run_has_its_curve_while_it_goes_on(tmp_path: Path) -> None:
    coins = f"{Path(__file__).parents[1] / 'faults' / 'coin_tasks.py'}:coin_tasks"
    pairs = [f"tasks.source={coins}", "tasks.num=2", f"held_out.source={coins}", "held_out.num=2", "groups=2"]
    pairs += ["samples=2", "steps=1", "eval_every=1", "warm_start.source=", "model.max_tokens=4"]
    config = apply_overrides(recipe(), pairs)
    has_curve: list[bool] = []

    def on_progress(progress: TrainProgress) -> None:
        if progress.held_out:
            has_curve.append((tmp_path / "run" / "curve.svg").exists())

    def open_store() -> RunStore:
        return RunStore.create(tmp_path / "run", config={})

    asyncio.run(run_training(plan_training(config), open_store, on_progress=on_progress))
    assert has_curve and all(has_curve)


def test_a_curve_that_cannot_be_written_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    CurveFile(tmp_path / "gone" / "curve.svg", "mine").draw({"a": {0: 0.5}})
    assert "the curve cannot be written" in caplog.text
