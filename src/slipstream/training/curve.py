"""The learning curve as a picture: points in, an SVG out.

The legend stands above the frame, so it never covers a curve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_WIDTH, _FRAME_HEIGHT = 720, 300
_LEFT, _RIGHT, _TITLE_HEIGHT, _LEGEND_ROW, _BOTTOM = 60, 20, 40, 22, 52
_COLOURS = ("#1f6feb", "#d1242f", "#8250df", "#9a6700", "#1a7f37", "#bf3989", "#0598bc", "#6e7781")
_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
_SWATCH, _CHARACTER, _GAP = 18, 7.2, 24
"""Widths in a legend: the coloured square with its margin, one character of text, the space between two names."""


def draw_curves(title: str, curves: Mapping[str, Sequence[tuple[float, float]]], *, x_label: str) -> str:
    """Lines between 0 and 1, each with a name, over a shared axis from 0."""
    most = max((x for points in curves.values() for x, _ in points), default=1.0) or 1.0
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
    for number, ((name, points), (x, row)) in enumerate(zip(curves.items(), places, strict=True)):
        colour = _COLOURS[number % len(_COLOURS)]
        parts += _legend(name, colour, x, _TITLE_HEIGHT + _LEGEND_ROW * row)
        parts += _curve([at(*point) for point in points], colour)
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


def _curve(points: Sequence[tuple[float, float]], colour: str) -> list[str]:
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return [
        f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points),
    ]


def _marks(most: float) -> list[float]:
    step = next((step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500) if most / step <= 10), most / 10)
    return [number * step for number in range(int(most / step) + 1)]


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: int = 13) -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="#1f2328">{escaped}</text>'
