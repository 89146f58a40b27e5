"""The picture of a learning curve."""

from xml.etree import ElementTree

from slipstream.train.curve import draw_curves

NS = "{http://www.w3.org/2000/svg}"


def test_every_point_is_drawn_within_the_frame() -> None:
    curves = {"held out": [(0, 0.25), (10, 0.5), (20, 1.0)], "a < b": [(0, 0.0), (20, 2.0)]}
    picture = ElementTree.fromstring(draw_curves("success & more", curves, x_label="step"))
    lines = [line.attrib["points"].split() for line in picture.iter(f"{NS}polyline")]
    assert [len(line) for line in lines] == [3, 2]
    assert all(
        60 <= float(x) <= 700 and 48 <= float(y) <= 348 for line in lines for x, y in (p.split(",") for p in line)
    )
    first, last = (tuple(map(float, point.split(","))) for point in (lines[0][0], lines[0][-1]))
    assert first == (60.0, 273.0)
    assert last == (700.0, 48.0)
    words = [text.text for text in picture.iter(f"{NS}text")]
    assert {"success & more", "held out", "a < b", "step"} <= set(words)


def test_nothing_yet_is_an_empty_frame() -> None:
    assert "polyline" not in draw_curves("nothing", {}, x_label="step")
