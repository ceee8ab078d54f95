"""Charts as SVG text: no script, no fonts, no network; colours come from the page, so they follow light and dark.

A chart is about as wide as a telephone, so that its text has the size of the page's text there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

# Axes of a chart: where a number goes, and which numbers stand next to the axis.


@dataclass(frozen=True)
class Axis:
    """A labelled range of numbers; `place` says how far along it a number is, from 0 to 1."""

    label: str
    low: float
    high: float
    logarithmic: bool = False
    percent: bool = False

    @classmethod
    def around(cls, label: str, values: Sequence[float], percent: bool = False) -> Axis:
        """A linear axis from one round number to another that holds all values, and zero."""
        kept = [value for value in values if math.isfinite(value)] or [0.0]
        low, high = min(*kept, 0.0), max(*kept, 0.0)
        if high <= low:
            high = low + 1.0
        step = _step(low, high)
        return cls(label, math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, percent=percent)

    def place(self, value: float) -> float:
        if self.logarithmic:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, share))

    def ticks(self) -> tuple[float, ...]:
        if self.logarithmic:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            return tuple(10.0**number for number in range(first, last + 1))
        step = _step(self.low, self.high)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return tuple(number * step for number in range(first, last + 1))

    def text(self, value: float) -> str:
        if self.percent:
            return f"{round(100 * value, 6):g}%"
        return f"{round(value, 10):g}"


def _step(low: float, high: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that cuts the range into at most six parts."""
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))


_WIDTH, _HEIGHT = 400, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 10, 46
_ROW = 40
_COLOURS = 6


@dataclass(frozen=True)
class Series:
    """A line; with `lower` and `upper` also the band of its intervals."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    dashed: bool = False
    lower: tuple[float, ...] = ()
    upper: tuple[float, ...] = ()


@dataclass(frozen=True)
class Whisker:
    """An estimate with its interval; `alarming` ones are drawn in the colour of alarm."""

    name: str
    value: float
    lower: float
    upper: float
    alarming: bool = False


@dataclass(frozen=True)
class Bars:
    """One row of bars: a name, and a value for each of the chart's colours (None: undefined)."""

    name: str
    values: tuple[float | None, ...]


def line_chart(title: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """Lines over two axes, with a legend below."""

    def place(across: float, up: float) -> str:
        return f"{_across(x, across):.1f},{_up(y, up):.1f}"

    parts = [*_grid(x, y)]
    for number, one in enumerate(series):
        colour = f"c{number % _COLOURS + 1}"
        if one.lower:
            there = [place(a, b) for a, b in zip(one.x, one.upper, strict=True)]
            back = [place(a, b) for a, b in zip(one.x, one.lower, strict=True)]
            parts.append(f'<polygon class="band {colour}" points="{" ".join([*there, *reversed(back)])}"/>')
    for number, one in enumerate(series):
        colour = f"c{number % _COLOURS + 1}{' dashed' if one.dashed else ''}"
        points = [place(a, b) for a, b in zip(one.x, one.y, strict=True)]
        parts.append(f'<polyline class="line {colour}" points="{" ".join(points)}"/>')
    legend = [(one.name, one.dashed) for one in series]
    return _svg(title, _HEIGHT, parts) + _legend(legend)


def interval_chart(title: str, axis: Axis, rows: Sequence[Whisker]) -> str:
    """Estimates with their intervals, one row each, around a line at zero."""
    height = _ROW * len(rows) + _BOTTOM + _TOP
    bottom = height - _BOTTOM
    parts = [*_bottom_axis(axis, bottom, left=_RIGHT)]
    if axis.low <= 0 <= axis.high:
        zero = _across(axis, 0.0, left=_RIGHT)
        parts.append(f'<line class="zero" x1="{zero:.1f}" x2="{zero:.1f}" y1="{_TOP}" y2="{bottom}"/>')
    for number, row in enumerate(rows):
        middle = _TOP + _ROW * number + 27
        start, value, end = (_across(axis, at, left=_RIGHT) for at in (row.lower, row.value, row.upper))
        colour = "alarm" if row.alarming else "c1"
        parts.append(_text(_RIGHT, middle - 12, row.name, "start"))
        parts.append(
            f'<line class="line {colour}" x1="{start:.1f}" x2="{end:.1f}" y1="{middle}" y2="{middle}"/>'
            f'<circle class="dot {colour}" cx="{value:.1f}" cy="{middle}" r="4.5"/>'
        )
    return _svg(title, height, parts)


def bar_chart(title: str, axis: Axis, colours: Sequence[str], rows: Sequence[Bars]) -> str:
    """Horizontal bars in rows; `colours` names what each colour stands for."""
    thick, parts, top = 13, [], float(_TOP)
    drawn = []
    for row in rows:
        drawn.append(_text(_RIGHT, top + 10, row.name, "start"))
        top += 15
        for number, value in enumerate(row.values):
            length = 0.0 if value is None else _across(axis, value, left=_RIGHT, right=58) - _RIGHT
            said = "undefined" if value is None else f"{value:.3f}"
            drawn.append(
                f'<rect class="bar c{number % _COLOURS + 1}" x="{_RIGHT}" y="{top:.0f}" width="{length:.1f}" '
                f'height="{thick}" rx="2"/>' + _text(_RIGHT + length + 5, top + 11, said, "start")
            )
            top += thick + 2
        top += 9
    parts += drawn
    legend = [(name, False) for name in colours] if len(colours) > 1 else []
    return _svg(title, int(top), parts) + _legend(legend, filled=True)


def _grid(x: Axis, y: Axis) -> list[str]:
    bottom = _HEIGHT - _BOTTOM
    parts = _bottom_axis(x, bottom, left=_LEFT)
    for tick in y.ticks():
        up = _up(y, tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{up:.1f}" y2="{up:.1f}"/>')
        parts.append(_text(_LEFT - 6, up + 4, y.text(tick), "end"))
    middle = (_TOP + bottom) / 2
    turned = f'x="12" y="{middle}" transform="rotate(-90 12 {middle})"'
    parts.append(f'<text {turned} text-anchor="middle">{escape(y.label)}</text>')
    return parts


def _bottom_axis(axis: Axis, bottom: float, left: float) -> list[str]:
    parts = []
    for tick in axis.ticks():
        across = _across(axis, tick, left=left)
        parts.append(f'<line class="grid" x1="{across:.1f}" x2="{across:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        anchor = "end" if across > _WIDTH - _RIGHT - 12 else "start" if across < 12 + _RIGHT else "middle"
        parts.append(_text(across, bottom + 16, axis.text(tick), anchor))
    parts.append(_text((left + _WIDTH - _RIGHT) / 2, bottom + 37, axis.label, "middle"))
    return parts


def _across(axis: Axis, value: float, left: float = _LEFT, right: float = _RIGHT) -> float:
    return left + axis.place(value) * (_WIDTH - left - right)


def _up(axis: Axis, value: float) -> float:
    return _HEIGHT - _BOTTOM - axis.place(value) * (_HEIGHT - _TOP - _BOTTOM)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(title: str, height: int, parts: Sequence[str]) -> str:
    """The title is also the chart's text for screen readers."""
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _legend(entries: Sequence[tuple[str, bool]], filled: bool = False) -> str:
    if not entries:
        return ""
    shape = '<rect class="bar {0}" x="0" y="2" width="14" height="10" rx="2"/>'
    line = '<line class="line {0}" x1="0" x2="26" y1="7" y2="7"/>'
    items = []
    for number, (name, dashed) in enumerate(entries):
        colour = f"c{number % _COLOURS + 1}{' dashed' if dashed else ''}"
        sample = (shape if filled else line).format(colour)
        width = 16 if filled else 28
        items.append(
            f'<li><svg class="sample" viewBox="0 0 {width} 14" width="{width}" height="14" aria-hidden="true">'
            f"{sample}</svg>{escape(name)}</li>"
        )
    return f'<ul class="legend">{"".join(items)}</ul>'
