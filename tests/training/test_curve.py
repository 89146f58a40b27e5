"""The picture of a learning curve."""

import asyncio
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from slipstream.config import apply_overrides
from slipstream.dispatch.base import DispatchView
from slipstream.recipes.quickstart import recipe
from slipstream.record import RunStore
from slipstream.training.curve import Curve, draw_curves
from slipstream.training.curve_file import REWARD, SUCCESS, CurveFile
from slipstream.training.held_out import recorded_success
from slipstream.training.loop import TrainProgress
from slipstream.training.run import plan_training, run_training

NS = "{http://www.w3.org/2000/svg}"


def test_every_point_is_drawn_within_the_frame() -> None:
    curves = {
        "held out": Curve(points=[(0, 0.25), (10, 0.5), (20, 1.0)]),
        "a < b": Curve(points=[(0, 0.0), (20, 2.0)]),
    }
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


def test_intervals_are_drawn_where_they_are_and_rewards_lie_behind() -> None:
    success = Curve(points=[(0, 0.25), (20, 0.5)], intervals={0: (0.0, 0.5), 20: (0.25, 1.0)})
    rewards = Curve(points=[(step, 0.5) for step in range(20)], is_faint=True)
    picture = ElementTree.fromstring(draw_curves("mine", {"success": success, "reward": rewards}, x_label="step"))
    assert [path.attrib["d"] for path in picture.iter(f"{NS}path")] == [
        "M60.0,372.0V222.0M56.0,372.0h8M56.0,222.0h8",
        "M700.0,297.0V72.0M696.0,297.0h8M696.0,72.0h8",
    ]
    faint, bold = picture.iter(f"{NS}polyline")
    assert (len(faint.attrib["points"].split()), len(bold.attrib["points"].split())) == (20, 2)
    assert faint.attrib["stroke"] != bold.attrib["stroke"]
    assert len(list(picture.iter(f"{NS}circle"))) == 2, "a step's reward has no dot"


def boxes(picture: ElementTree.Element) -> list[tuple[float, float]]:
    """Top and bottom of the squares of the legend."""
    squares = [each for each in picture.iter(f"{NS}rect") if each.get("width") == "12"]
    return [(float(each.attrib["y"]), float(each.attrib["y"]) + 12) for each in squares]


@pytest.mark.parametrize(
    "names", [["held-out success"], ["a" * 22, "b" * 16, "c" * 20], ["d" * 60, "e" * 60, "f" * 60]]
)
def test_the_legend_stands_above_every_point_a_curve_can_have(names: list[str]) -> None:
    curves = {name: Curve(points=[(0.0, 0.0), (4.0, 1.0)]) for name in names}
    picture = ElementTree.fromstring(draw_curves("title", curves, x_label="step"))
    highest = min(float(circle.attrib["cy"]) for circle in picture.iter(f"{NS}circle"))
    assert len(boxes(picture)) == len(names)
    assert all(bottom < highest - 3 for _, bottom in boxes(picture))
    height = float(picture.attrib["viewBox"].split()[3])
    assert all(0 < float(text.attrib["y"]) < height for text in picture.iter(f"{NS}text"))


def test_the_curve_is_drawn_after_every_evaluation_and_every_step(tmp_path: Path) -> None:
    path = tmp_path / "curve.svg"
    seen: list[tuple[int, int, int]] = []

    def drawn() -> tuple[int, int, int]:
        """Evaluations, intervals, and steps whose reward is drawn."""
        if not path.exists():
            return 0, 0, 0
        picture = ElementTree.parse(path).getroot()
        faint = [line for line in picture.iter(f"{NS}polyline") if "stroke-opacity" in line.attrib]
        steps = sum(len(line.attrib["points"].split()) for line in faint)
        return len(list(picture.iter(f"{NS}circle"))), len(list(picture.iter(f"{NS}path"))), steps

    tell = CurveFile(path, "mine").watching(lambda progress: seen.append(drawn()))
    view = DispatchView(
        waiting=0, initialising=0, ready=0, running=0, ended=0, grading=0, in_flight=0, live=0, done=0, abandoned=0
    )
    progress = TrainProgress(version=0, steps=4, doing="x", view=view, metrics={}, held_out={})
    before = replace(progress, held_out={0: 0.1}, intervals={0: (0.0, 0.2)})
    after = replace(before, held_out={0: 0.1, 2: 0.4}, intervals={0: (0.0, 0.2), 2: (0.3, 0.5)})
    for each in (progress, before, before, replace(before, rewards={0: 0.2}), replace(after, rewards={0: 0.2, 1: 0.3})):
        tell(each)
    assert seen == [(0, 0, 0), (1, 1, 0), (1, 1, 0), (1, 1, 1), (2, 2, 2)]


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
    picture = (tmp_path / "run" / "curve.svg").read_text()
    assert SUCCESS in picture and REWARD in picture
    success, intervals = recorded_success(RunStore.read(tmp_path / "run").measured())
    assert success.keys() == intervals.keys() == {0, 1}
    assert all(low <= success[version] <= high for version, (low, high) in intervals.items())


def test_a_curve_that_cannot_be_written_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    CurveFile(tmp_path / "gone" / "curve.svg", "mine").draw({"a": Curve(points=[(0, 0.5)])})
    assert "the curve cannot be written" in caplog.text
