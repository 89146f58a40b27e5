"""The learning curve as a picture: points enter, an SVG leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_WIDTH, _HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 48, 52
_COLOURS = ("#1f6feb", "#d1242f", "#8250df", "#9a6700")
_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)


def draw_curves(title: str, curves: Mapping[str, Sequence[tuple[float, float]]], *, x_label: str) -> str:
    """Lines between 0 and 1, each with a name, over a shared axis from 0."""
    most = max((x for points in curves.values() for x, _ in points), default=1.0) or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        inner_width, inner_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        return _LEFT + x / most * inner_width, _TOP + (1.0 - min(max(y, 0.0), 1.0)) * inner_height

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(_LEFT, 26, title, anchor="start", size=15),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, x_label),
    ]
    for tick in _TICKS:
        _, y = at(0, tick)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#d8dee4"/>')
        parts.append(_text(_LEFT - 8, y + 4, f"{tick:g}", anchor="end"))
    for x in _marks(most):
        parts.append(_text(at(x, 0)[0], _HEIGHT - _BOTTOM + 20, f"{x:g}"))
    for place, (name, points) in enumerate(curves.items()):
        parts += _curve(name, [at(x, y) for x, y in points], _COLOURS[place % len(_COLOURS)], place)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _curve(name: str, points: Sequence[tuple[float, float]], colour: str, place: int) -> list[str]:
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    legend_y = _HEIGHT - _BOTTOM - 14 - 20 * place
    return [
        f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points),
        f'<rect x="{_WIDTH - 220}" y="{legend_y - 9}" width="12" height="12" fill="{colour}"/>',
        _text(_WIDTH - 202, legend_y + 1, name, anchor="start"),
    ]


def _marks(most: float) -> list[float]:
    step = next((step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500) if most / step <= 10), most / 10)
    return [number * step for number in range(int(most / step) + 1)]


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: int = 13) -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="#1f2328">{escaped}</text>'
