"""Line charts as SVG text, for the report page and as separate files.

In a page a chart uses the page's text colour, and its curves the CSS variables of `palette_css`, so it follows light
and dark mode. A standalone chart has explicit colours and a white background.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

# Okabe and Ito's colours, which are distinct for the common kinds of colour blindness; without yellow and black, each
# of which is invisible on one of the two backgrounds. After the last one, colours repeat with dashes.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
PALETTE_DARK = ("#4aa8ea", "#ff8a4a", "#2cc295", "#e59ac5", "#f5b940", "#a5dbff", "#a9a9a9")
_DASHES = ("", "7 3", "2 3", "9 3 2 3")
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

_DOTS = 40  # largest number of points of a curve that are drawn as dots
_LEGEND_CHARACTERS = 36
_CHARACTER = 7  # px, about the width of one at 12 px
_LARGEST = 1e150  # beyond it, differences of values overflow


@dataclass(frozen=True)
class Curve:
    """One named line, with a band if low and high are given. NaN leaves a gap."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    colour: int | None = None  # index in the palette; None: the curve's index in the chart

    def __post_init__(self) -> None:
        lengths = {len(part) for part in (self.steps, self.values, self.low, self.high) if part is not None}
        if len(lengths) != 1 or (self.low is None) != (self.high is None):
            raise ValueError(f"curve {self.name!r}: steps, values, low and high must have one length")


def line_chart(
    curves: Sequence[Curve],
    title: str,
    x_label: str,
    y_label: str,
    *,
    width: int = 560,
    height: int = 320,
    legend: bool | None = None,
    standalone: bool = False,
    heading: bool = True,
) -> str:
    """Return an SVG element with the curves, axes, grid and legend.

    Args:
      curves: drawn in order, the later ones on top.
      title: above the chart, and read by screen readers.
      x_label: below the horizontal axis.
      y_label: under the title; may be empty.
      width: of the drawing, in units in which its text is 12 high; the element scales to the available width.
      height: of the drawing.
      legend: whether to name the curves; None: if there are several.
      standalone: explicit colours on white, for a separate file.
      heading: whether to write the title into the drawing.
    """
    ink = "#1d2430" if standalone else "currentColor"
    lines = [_Line(curve, index, standalone) for index, curve in enumerate(curves)]
    points = [point for line in lines for point in line.points]
    x_low, x_high = _x_range(points)
    y_low, y_high = _y_range(points)
    x_ticks = nice_ticks(x_low, x_high, max(2, min(6, width // 85)))
    y_ticks = nice_ticks(y_low, y_high, max(3, min(6, height // 46)))

    head = [_text(0, 15, title, size=14, weight=600)] if heading else []
    top = 24.0 if heading else 4.0
    if y_label:
        head.append(_text(0, 32, y_label, size=11, opacity=0.65))
        top = 39.0
    if legend or (legend is None and len(lines) > 1):
        drawn, top = _legend(lines, top, width)
        head += drawn
    left = 10 + _CHARACTER * max((len(text) for text in tick_labels(y_ticks)), default=1)
    right, top, bottom = width - 20, top + 6, height - (40 if x_label else 24)
    frame = _Frame(left, right, top, max(bottom, top + 20), x_low, x_high, y_low, y_high)

    axes = _axes(frame, x_ticks, y_ticks, ink)
    if x_label:
        axes.append(_text((left + right) / 2, height - 5, x_label, size=11, anchor="middle", opacity=0.65))
    if points:
        body = _inside(frame, lines)
    else:
        body = _text((left + right) / 2, (frame.top + frame.bottom) / 2, "no data", anchor="middle", opacity=0.65)

    margin = 12 if standalone else 0
    full_width, full_height = width + 2 * margin, height + 2 * margin
    size = background = ""
    if standalone:
        size = f' width="{full_width}" height="{full_height}"'
        background = f'<rect x="{-margin}" y="{-margin}" width="{full_width}" height="{full_height}" fill="#ffffff"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-margin} {-margin} {full_width} {full_height}"{size} '
        f'role="img" aria-label="{escape(title)}" font-family="{_FONT}" fill="{ink}">'
        f"{background}{''.join(head)}{''.join(axes)}{body}</svg>"
    )


def palette_css(palette: Sequence[str] = PALETTE) -> str:
    """Return the CSS declarations of the curves' colours, for the page's root element."""
    return "".join(f"--curve-{index}:{colour};" for index, colour in enumerate(palette, 1))


def curve_colour(index: int) -> str:
    """Return the CSS colour of the curve with this index in the palette."""
    place = index % len(PALETTE)
    return f"var(--curve-{place + 1}, {PALETTE[place]})"


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return the multiples of 1, 2 or 5 times a power of ten in [low, high], about `count` of them.

    Empty if low and high are too close, or too large, to be distinguished.
    """
    if not (_fine(low) and _fine(high)) or count < 1 or not high - low > 1e-12 * max(abs(low), abs(high), 1e-140):
        return []
    exponent = math.floor(math.log10((high - low) / count))
    spacing = min((factor * 10.0**exponent for factor in (1, 2, 5, 10)), key=lambda s: abs((high - low) / s - count))
    # The small tolerance allows for rounding errors of low and high.
    first, last = math.ceil(low / spacing - 1e-9), math.floor(high / spacing + 1e-9)
    # Rounding to the digits of the spacing turns 0.30000000000000004 into 0.3.
    return [round(index * spacing, 1 - exponent) for index in range(first, last + 1)]


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Return the ticks as text, each with enough decimals to differ from its neighbours."""
    if not ticks:
        return []
    spacing = min((after - before for before, after in zip(ticks, ticks[1:], strict=False)), default=abs(ticks[0]))
    largest = max(abs(tick) for tick in ticks)
    if spacing <= 0:
        return [human(tick) for tick in ticks]
    if largest >= 1e15 or largest < 1e-3:
        digits = max(0, math.floor(math.log10(largest)) - math.floor(math.log10(spacing) + 1e-9))
        return [_exponent(f"{tick:.{digits}e}") if tick else "0" for tick in ticks]
    texts = []
    for tick in ticks:
        scale, suffix = _scale(abs(tick))
        decimals = max(0, -math.floor(math.log10(spacing / scale) + 1e-9))
        text = f"{tick / scale:.{decimals}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
        texts.append("0" if tick == 0 else _minus(text) + suffix)
    return texts


def human(value: float, digits: int = 3) -> str:
    """Return a short text of a number: 100K, 1.5M, 0.25, 1e-5; `digits` significant digits."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    value = float(f"{value:.{digits}g}")
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e15:
        return _exponent(f"{value:.{digits - 1}e}")
    scale, suffix = _scale(abs(value))
    text = f"{value / scale:.{digits}g}"
    if "e" in text:  # 1234 with two digits is 1.2e+03 to format, but the rounding has been done above
        text = f"{value / scale:.0f}"
    return _minus(text) + suffix


def escape(text: object) -> str:
    """Return text that HTML and XML show literally, also markup, control characters and half surrogate pairs.

    Characters that change the direction of the text after them are shown like control characters: with them a page
    could show another order of letters than the file has.
    """
    return html.escape(printable(text), quote=True)


def printable(text: object) -> str:
    """Return text with a replacement for each unprintable character; markup is kept."""
    clean = str(text).encode("utf-8", "replace").decode("utf-8")
    return "".join("\ufffd" if _unprintable(character) else character for character in clean)


_DIRECTIONS = {0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}


def _unprintable(character: str) -> bool:
    code = ord(character)
    if code in _DIRECTIONS:
        return True
    return (code < 32 and character not in "\t\n") or 127 <= code < 160 or code in (0xFFFE, 0xFFFF)


def _scale(size: float) -> tuple[float, str]:
    for scale, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if size >= scale:
            return scale, suffix
    return 1.0, ""


def _exponent(text: str) -> str:
    """Shorten 1.50e-05 to 1.5e-5."""
    mantissa, _, power = text.partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{_minus(mantissa)}e{_minus(str(int(power)))}"


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _n(value: float) -> str:
    """Return a coordinate rounded to a tenth of a unit, finer than a screen shows."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def _text(
    x: float, y: float, text: str, *, size: int = 12, weight: int = 400, anchor: str = "start", opacity: float = 1.0
) -> str:
    look = f' font-weight="{weight}"' * (weight != 400) + f' text-anchor="{anchor}"' * (anchor != "start")
    look += f' opacity="{opacity}"' * (opacity != 1)
    return f'<text x="{_n(x)}" y="{_n(y)}" font-size="{size}"{look}>{escape(text)}</text>'


_Point = tuple[float, float, float, float]  # step, value, low, high; NaN if absent


class _Line:
    """A curve prepared for drawing."""

    def __init__(self, curve: Curve, index: int, standalone: bool):
        place = index if curve.colour is None else curve.colour
        dash = _DASHES[place // len(PALETTE) % len(_DASHES)]
        nothing = [math.nan] * len(curve.steps)
        low = nothing if curve.low is None else curve.low
        high = nothing if curve.high is None else curve.high
        self.name = curve.name
        self.colour = PALETTE[place % len(PALETTE)] if standalone else curve_colour(place)
        self.dash = f' stroke-dasharray="{dash}"' if dash else ""
        self.points: list[_Point] = [
            (step, _drawable(value), _drawable(lower), _drawable(upper))
            for step, value, lower, upper in zip(curve.steps, curve.values, low, high, strict=True)
            if _fine(step)
        ]

    def stretches(self, *columns: int) -> list[list[_Point]]:
        """Return the segments of consecutive points that have numbers in all these columns."""
        found: list[list[_Point]] = [[]]
        for point in self.points:
            if any(math.isnan(point[column]) for column in columns):
                found.append([])
            else:
                found[-1].append(point)
        return [stretch for stretch in found if stretch]


@dataclass(frozen=True)
class _Frame:
    """Position of the axes in the drawing, and the numbers at their ends."""

    left: float
    right: float
    top: float
    bottom: float
    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, step: float) -> float:
        return self.left + (step - self.x_low) / (self.x_high - self.x_low) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - (value - self.y_low) / (self.y_high - self.y_low) * (self.bottom - self.top)


def _axes(frame: _Frame, x_ticks: list[float], y_ticks: list[float], ink: str) -> list[str]:
    """Draw a grid line and a label for each vertical tick, a small mark and a label for each horizontal one."""
    drawn = []
    for tick, text in zip(y_ticks, tick_labels(y_ticks), strict=True):
        y = frame.y(tick)
        strength = 0.45 if tick == 0 else 0.14
        drawn.append(
            f'<line x1="{_n(frame.left)}" x2="{_n(frame.right)}" y1="{_n(y)}" y2="{_n(y)}" stroke="{ink}" '
            f'stroke-opacity="{strength}"/>'
        )
        drawn.append(_text(frame.left - 7, y + 4, text, anchor="end", opacity=0.75))
    for tick, text in zip(x_ticks, tick_labels(x_ticks), strict=True):
        x = frame.x(tick)
        drawn.append(
            f'<line x1="{_n(x)}" x2="{_n(x)}" y1="{_n(frame.bottom)}" y2="{_n(frame.bottom + 4)}" stroke="{ink}" '
            f'stroke-opacity="0.45"/>'
        )
        drawn.append(_text(x, frame.bottom + 17, text, anchor="middle", opacity=0.75))
    return drawn


def _inside(frame: _Frame, lines: list[_Line]) -> str:
    """Draw the bands, and over them the lines and dots, clipped to the frame.

    A nested element clips without an id, which would have to be unique in the page.
    """
    bands, strokes = [], []
    for line in lines:
        for stretch in line.stretches(2, 3):
            upper = [f"{_n(frame.x(step))} {_n(frame.y(high))}" for step, _, _, high in stretch]
            lower = [f"{_n(frame.x(step))} {_n(frame.y(low))}" for step, _, low, _ in reversed(stretch)]
            path = "L".join(upper + lower)
            bands.append(f'<path d="M{path}Z" style="fill:{line.colour}" fill-opacity="0.17"/>')
        for stretch in line.stretches(1):
            if len(stretch) > 1:
                path = "L".join(f"{_n(frame.x(step))} {_n(frame.y(value))}" for step, value, _, _ in stretch)
                strokes.append(
                    f'<path d="M{path}" style="stroke:{line.colour}" fill="none" stroke-width="1.8" '
                    f'stroke-linejoin="round" stroke-linecap="round"{line.dash}/>'
                )
            if len(stretch) == 1 or len(line.points) <= _DOTS:
                strokes += [_dot(frame, line, point) for point in stretch]
    air = 4  # so that dots on the edge stay whole
    x, y = _n(frame.left - air), _n(frame.top - air)
    width, height = _n(frame.right - frame.left + 2 * air), _n(frame.bottom - frame.top + 2 * air)
    return (
        f'<svg x="{x}" y="{y}" width="{width}" height="{height}" viewBox="{x} {y} {width} {height}" overflow="hidden">'
        f"{''.join(bands)}{''.join(strokes)}</svg>"
    )


def _dot(frame: _Frame, line: _Line, point: _Point) -> str:
    """Draw one point of a curve with its numbers as a tooltip."""
    step, value, low, high = point
    text = f"{line.name}, step {human(step, 6)}: {human(value, 4)}"
    if not math.isnan(low + high):
        text += f" ({human(low, 4)} to {human(high, 4)})"
    return (
        f'<circle cx="{_n(frame.x(step))}" cy="{_n(frame.y(value))}" r="2.6" style="fill:{line.colour}">'
        f"<title>{escape(text)}</title></circle>"
    )


def _legend(lines: list[_Line], top: float, width: int) -> tuple[list[str], float]:
    """Draw the legend in as many rows as needed; return it and the position where it ends."""
    drawn = []
    x, y = 0.0, top + 12
    for line in lines:
        name = line.name
        if len(name) > _LEGEND_CHARACTERS:  # the ends distinguish names better than the middle
            name = name[: _LEGEND_CHARACTERS // 2] + "…" + name[1 - _LEGEND_CHARACTERS // 2 :]
        needed = 22 + len(name) * _CHARACTER
        if x > 0 and x + needed > width:
            x, y = 0.0, y + 17
        drawn.append(
            f'<line x1="{_n(x)}" x2="{_n(x + 17)}" y1="{_n(y - 4)}" y2="{_n(y - 4)}" style="stroke:{line.colour}" '
            f'stroke-width="3"{line.dash}/>'
        )
        drawn.append(_text(x + 22, y, name))
        x += needed + 16
    return drawn, y + 5


def _fine(value: float) -> bool:
    return math.isfinite(value) and abs(value) < _LARGEST


def _drawable(value: float) -> float:
    return value if _fine(value) else math.nan


def _x_range(points: list[_Point]) -> tuple[float, float]:
    if not points:
        return 0.0, 1.0
    low, high = min(step for step, *_ in points), max(step for step, *_ in points)
    if 0 < low < 0.2 * high or 0 < low == high:  # a single point is drawn at the end of its range
        low = 0
    air = max(0.5, 1e-6 * abs(low))
    return (low, high) if high > low else (low - air, high + air)


def _y_range(points: list[_Point]) -> tuple[float, float]:
    """Return the range of the values with a margin.

    Bands extend it by at most a quarter on each side and are clipped.
    """
    values = [value for _, value, _, _ in points if not math.isnan(value)]
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    from_zero = low >= 0  # axes of non-negative values start at zero, unless that is far away
    room = 0.25 * (high - low)
    low = max(low - room, min([low, *(lower for _, _, lower, _ in points if not math.isnan(lower))]))
    high = min(high + room, max([high, *(upper for _, _, _, upper in points if not math.isnan(upper))]))
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # flat
        air = 0.1 * abs(high) or 1.0
    else:
        air = 0.04 * (high - low)
    low, high = low - air, high + air
    return (0.0 if from_zero and low < 0.35 * high else low), high
