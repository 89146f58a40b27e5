"""The learning curve as a picture: points in, an SVG out.

The legend stands above the frame, so it never covers a curve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_WIDTH, _FRAME_HEIGHT = 720, 300
_LEFT, _RIGHT, _TITLE_HEIGHT, _LEGEND_ROW, _BOTTOM = 60, 20, 40, 22, 52
_COLOURS = ("#1f6feb", "#d1242f", "#8250df", "#9a6700", "#1a7f37", "#bf3989", "#0598bc", "#6e7781")
_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
_SWATCH, _CHARACTER, _GAP = 18, 7.2, 24
"""Widths in a legend: the coloured square with its margin, one character of text, the space between two names."""
_CAP = 4
"""Half the width of an interval's ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    points: Sequence[tuple[float, float]]
    intervals: Mapping[float, tuple[float, float]] = field(default_factory=dict)
    """By x: the lowest and highest value that the point there stands for."""
    is_faint: bool = False
    """A thin line without dots: for noisy values at every step, behind the other curves."""


def draw_curves(title: str, curves: Mapping[str, Curve], *, x_label: str) -> str:
    """Lines between 0 and 1, each with a name, over a shared axis from 0."""
    most = max((x for curve in curves.values() for x, _ in curve.points), default=1.0) or 1.0
    places = _legend_places(list(curves))
    top = _TITLE_HEIGHT + _LEGEND_ROW * (1 + max((row for _, row in places), default=-1)) + 10
    height = top + _FRAME_HEIGHT + _BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return _LEFT + x / most * (_WIDTH - _LEFT - _RIGHT), top + (1.0 - min(max(y, 0.0), 1.0)) * _FRAME_HEIGHT

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(_LEFT, 26, title, anchor="start", size=15),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, height - 12, x_label),
    ]
    for tick in _TICKS:
        _, y = at(0, tick)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#d8dee4"/>')
        parts.append(_text(_LEFT - 8, y + 4, f"{tick:g}", anchor="end"))
    for x in _marks(most):
        parts.append(_text(at(x, 0)[0], top + _FRAME_HEIGHT + 20, f"{x:g}"))
    coloured = [(curve, _COLOURS[number % len(_COLOURS)]) for number, curve in enumerate(curves.values())]
    for name, (_, colour), (x, row) in zip(curves, coloured, places, strict=True):
        parts += _legend(name, colour, x, _TITLE_HEIGHT + _LEGEND_ROW * row)
    for curve, colour in sorted(coloured, key=lambda each: not each[0].is_faint):
        for x, (low, high) in sorted(curve.intervals.items()):
            parts.append(_interval(at(x, low), at(x, high), colour))
        parts += _curve([at(*point) for point in curve.points], colour, is_faint=curve.is_faint)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend_places(names: Sequence[str]) -> list[tuple[float, int]]:
    """Where each name begins, and in which row."""
    places: list[tuple[float, int]] = []
    x, row = float(_LEFT), 0
    for name in names:
        width = _SWATCH + _CHARACTER * len(name)
        if x > _LEFT and x + width > _WIDTH - _RIGHT:
            x, row = float(_LEFT), row + 1
        places.append((x, row))
        x += width + _GAP
    return places


def _legend(name: str, colour: str, x: float, y: float) -> list[str]:
    return [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="12" height="12" fill="{colour}"/>',
        _text(x + _SWATCH, y + 11, name, anchor="start"),
    ]


def _curve(points: Sequence[tuple[float, float]], colour: str, *, is_faint: bool) -> list[str]:
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    look = 'stroke-width="1" stroke-opacity="0.6"' if is_faint else 'stroke-width="2"'
    dots = [] if is_faint else [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    return [f'<polyline points="{line}" fill="none" stroke="{colour}" {look}/>', *dots]


def _interval(low: tuple[float, float], high: tuple[float, float], colour: str) -> str:
    x, bottom, top = low[0], low[1], high[1]
    ends = "".join(f"M{x - _CAP:.1f},{y:.1f}h{2 * _CAP}" for y in (bottom, top))
    return f'<path d="M{x:.1f},{bottom:.1f}V{top:.1f}{ends}" fill="none" stroke="{colour}"/>'


def _marks(most: float) -> list[float]:
    step = next((step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500) if most / step <= 10), most / 10)
    return [number * step for number in range(int(most / step) + 1)]


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: int = 13) -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="#1f2328">{escaped}</text>'
