"""Small line charts as SVG text: no script, no fonts, no network; readable when printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 460, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 22, 14, 42
_COLOURS = ("#1f5fa8", "#c05621", "#2f855a", "#6b46c1")
_TICKS = 4


@dataclass(frozen=True)
class Series:
    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    dashed: bool = False


def line_chart(title: str, x_label: str, y_label: str, series: Sequence[Series]) -> str:
    """A chart with axes, ticks and a legend; its title is also its text for screen readers."""
    points = [(x, y) for one in series for x, y in zip(one.x, one.y, strict=True)]
    left, right = _span([x for x, _ in points])
    low, high = _span([y for _, y in points] + [0.0])

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (x - left) / (right - left) * (_WIDTH - _LEFT - _RIGHT)
        up = _HEIGHT - _BOTTOM - (y - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)
        return across, up

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 18 * len(series)}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
        *_axes(left, right, low, high, place),
        _text(_WIDTH / 2, _HEIGHT - 8, x_label, "middle"),
        _upright(y_label),
    ]
    for number, one in enumerate(series):
        colour = _COLOURS[number % len(_COLOURS)]
        dash = ' stroke-dasharray="5 4"' if one.dashed else ""
        path = " ".join(
            f"{a:.1f},{b:.1f}" for a, b in (place(x, y) for x, y in zip(one.x, one.y, strict=True))
        )
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        row = _HEIGHT + 6 + 18 * number
        legend = f'x1="{_LEFT}" x2="{_LEFT + 24}" y1="{row}" y2="{row}"'
        parts.append(f'<line {legend} stroke="{colour}"{dash} stroke-width="2"/>')
        parts.append(_text(_LEFT + 30, row + 4, one.name, "start"))
    return "".join((*parts, "</svg>"))


def _axes(left: float, right: float, low: float, high: float, place) -> list[str]:  # type: ignore[no-untyped-def]
    parts = []
    for tick in range(_TICKS + 1):
        x, y = left + (right - left) * tick / _TICKS, low + (high - low) * tick / _TICKS
        across, bottom = place(x, low)
        start, up = place(left, y)
        end, _ = place(right, y)
        parts.append(f'<line x1="{start:.1f}" x2="{end:.1f}" y1="{up:.1f}" y2="{up:.1f}" stroke="#ddd"/>')
        parts.append(_text(start - 6, up + 4, f"{y:.3g}", "end"))
        parts.append(_text(across, bottom + 16, f"{x:.4g}", "middle"))
    return parts


def _upright(text: str) -> str:
    middle = _HEIGHT / 2
    turned = f'x="12" y="{middle}" transform="rotate(-90 12 {middle})"'
    return f'<text {turned} text-anchor="middle">{escape(text)}</text>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _span(values: list[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low, low + 1.0)
