"""Curves to SVG: lines with markers, a scale on both axes, a legend in text. Colours are the page's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from workbench.report.statement import Curves

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 340, 64, 16, 12, 46

_SVG = Environment(
    autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
).from_string("""\
<svg class="curves" viewBox="0 0 {{ width }} {{ height }}" role="img" aria-label="{{ title }}">
{% for at, label in y_ticks %}
<line class="grid" x1="{{ left }}" x2="{{ right }}" y1="{{ at }}" y2="{{ at }}"/>
<text class="tick" x="{{ left - 8 }}" y="{{ at + 4 }}" text-anchor="end">{{ label }}</text>
{% endfor %}
{% for at, label in x_ticks %}
<line class="axis" x1="{{ at }}" x2="{{ at }}" y1="{{ bottom }}" y2="{{ bottom + 4 }}"/>
<text class="tick" x="{{ at }}" y="{{ bottom + 18 }}" text-anchor="middle">{{ label }}</text>
{% endfor %}
<line class="axis" x1="{{ left }}" x2="{{ right }}" y1="{{ bottom }}" y2="{{ bottom }}"/>
<text class="name" x="{{ (left + right) / 2 }}" y="{{ height - 6 }}" text-anchor="middle">{{ x }}</text>
{% for line in lines %}
<polyline class="line s{{ line.number }}" points="{{ line.path }}"/>
{% for px, py, label in line.points %}
<circle class="dot s{{ line.number }}" cx="{{ px }}" cy="{{ py }}" r="4"><title>{{ label }}</title></circle>
{% endfor %}
{% endfor %}
</svg>
""")


def svg(curves: Curves) -> Markup:
    """One picture; every point tells its values to a pointer that rests on it."""

    def seen(x: float, y: float) -> bool:
        finite = math.isfinite(x) and math.isfinite(y)
        return finite and (x > 0 or not curves.log_x) and (y > 0 or not curves.log_y)

    shown = {name: [point for point in line if seen(*point)] for name, line in curves.lines.items()}
    points = [point for line in shown.values() for point in line]
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    x_ticks, across = _axis([x for x, _ in points], curves.log_x, LEFT, right)
    y_ticks, down = _axis([y for _, y in points], curves.log_y, bottom, TOP)
    lines = [
        {
            "number": number,
            "points": [(across(x), down(y), f"{name}: {x:.3g}, {y:.3g}") for x, y in line],
            "path": " ".join(f"{across(x)},{down(y)}" for x, y in line),
        }
        for number, (name, line) in enumerate(shown.items(), start=1)
    ]
    return Markup(
        _SVG.render(
            title=f"{curves.title}. {curves.y} against {curves.x}.",
            x=curves.x,
            width=WIDTH,
            height=HEIGHT,
            left=LEFT,
            right=right,
            bottom=bottom,
            x_ticks=[(across(x), f"{x:g}") for x in x_ticks],
            y_ticks=[(down(y), f"{y:g}") for y in y_ticks],
            lines=lines,
        )
    )


def _axis(
    values: Sequence[float], log: bool, start: float, end: float
) -> tuple[list[float], Callable[[float], float]]:
    """Ticks, and where a value stands between the pixels `start` and `end`."""
    marks = decades(values) if log else ticks(values)

    def scale(value: float) -> float:
        return math.log10(value) if log else value

    low, high = scale(marks[0]), scale(marks[-1])
    return marks, lambda value: round(start + (scale(value) - low) / (high - low) * (end - start), 1)


def decades(values: Sequence[float]) -> list[float]:
    """Powers of ten around all values; at least two."""
    low, high = (min(values), max(values)) if values else (0.1, 1.0)
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    return [10.0**n for n in range(first, max(last, first + 1) + 1)]


def ticks(values: Sequence[float]) -> list[float]:
    """Round numbers, evenly spaced, around all values; at least two."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * n for n in (1, 2, 2.5, 5, 10) if unit * n >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]
