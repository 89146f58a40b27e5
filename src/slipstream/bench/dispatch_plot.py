"""Draws the makespans printed by `bench dispatch` as an SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_WIDTH, _ROW, _LEFT, _RIGHT, _TOP = 760, 20, 150, 90, 74
_COLOURS = {"adaptive": "#1f6feb"}
_OTHER, _OVER_CAP = "#afb8c1", "#eac54f"


def draw(found: Sequence[Mapping[str, Any]]) -> str:
    """A block of bars for each regime: makespans relative to the lower bound, which is a dashed line."""
    blocks: list[str] = []
    y = float(_TOP)
    widest = max(figures["makespan_s"] / one["lower_bound_s"] for one in found for figures in one["policies"].values())
    scale = (_WIDTH - _LEFT - _RIGHT) / widest
    for one in found:
        blocks.append(_text(16, y, f"{one['regime']}, seed {one['seed']}", size=14, weight="600"))
        top = y + 8
        for name, figures in one["policies"].items():
            y += _ROW
            length = figures["makespan_s"] / one["lower_bound_s"] * scale
            over_cap = figures["peak_live"] > one["sandbox_cap"]
            colour = _COLOURS.get(name, _OVER_CAP if over_cap else _OTHER)
            blocks.append(_text(_LEFT - 8, y + 4, name, anchor="end"))
            blocks.append(f'<rect x="{_LEFT}" y="{y - 8:.1f}" width="{length:.1f}" height="14" fill="{colour}"/>')
            blocks.append(_text(_LEFT + length + 6, y + 4, f"{figures['makespan_s']:,.0f} s"))
        line_x = _LEFT + scale
        blocks.append(
            f'<line x1="{line_x:.1f}" y1="{top:.1f}" x2="{line_x:.1f}" y2="{y + 10:.1f}" stroke="#d1242f" '
            'stroke-width="1.5" stroke-dasharray="4 3"/>'
        )
        y += 2 * _ROW
    height = y
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height:.0f}" fill="#ffffff"/>',
        _text(16, 22, "Makespan of each policy, relative to the lower bound of its regime", size=15),
        _text(
            16,
            40,
            "Bars of different regimes are on different scales of seconds; dashed: the lower bound; "
            "yellow: over the sandbox cap",
        ),
    ]
    return "\n".join([*head, *blocks, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, weight: str = "400") -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" '
        f'fill="#1f2328">{escaped}</text>'
    )
