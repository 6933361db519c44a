"""The page about a capability sweep: proxy and true return against capability, and where the true return changes.

Like a report it loads nothing, runs no script, and escapes the content of folders. It is made from the content of
sweep.json alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import packtrain
from packtrain.metrics.console import duration
from packtrain.studies.chart import PALETTE, curve_colour, escape, human, nice_ticks, tick_labels
from packtrain.studies.html_page import html_page

PANELS = (("proxy_return", "proxy return"), ("true_return", "true return"))  # from top to bottom
WIDTH, PANEL_HEIGHT = 560, 170
_LEFT, _RIGHT, _TOP, _GAP, _BOTTOM = 52, 14, 50, 36, 44  # margins of the panels in the drawing
_LABELS = 12  # maximum number of labelled values below the axis; with more, every second or third is labelled


def label(value: Any) -> str:
    """Return a short label of a knob's value: 16000 is 16K, (64, 64) is 64×64."""
    if isinstance(value, (tuple, list)):
        return "×".join(label(part) for part in value)
    return human(value, 4) if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def p_values(change: dict[str, Any]) -> str:
    """Return the p-value against every smooth curve, in words."""
    each = ", ".join(f"{name} {p:.2g}" for name, p in change["nulls"].items())
    return f"p against smooth curves: {each}; the closest is {change['closest']}"


def page(result: dict[str, Any]) -> str:
    """Return the page for the content of sweep.json."""
    axis, proxies = result["axis"], result["proxies"]
    tiles = "".join(_tile(proxy, found) for proxy, found in proxies.items())
    figures = "".join(f"<figure>{draw(result, proxy)}</figure>" for proxy in proxies)
    runs = result["runs"]
    trained = duration(sum(row["seconds"] for row in runs))
    facts = (
        f"<b>{escape(result['config'])}</b> · {len(result['values'])} values of {escape(axis)} × {len(proxies)} "
        f"proxies × {result['seeds']} seeds: {len(runs)} runs, {trained} of training"
    )
    return html_page(
        f"{result['config']}: {axis} – packtrain capability sweep",
        f"""<header><h1>Proxy and truth against {escape(axis)}</h1><p class=facts>{facts}</p>
<div class="tiles wide">{tiles}</div></header>
<section class="grid large">{figures}</section>
{_correlations(proxies)}
{_table(result)}
{_runs(result)}
<details><summary>Settings</summary><pre>{escape(_settings(result))}</pre></details>
<footer>Written by packtrain {escape(packtrain.__version__)} from sweep.json. Lines are means over seeds, bands their
95 % Student-t intervals, dots single runs, each played greedily for {result["episodes"]} episodes. A dashed line is
a phase transition: a fall of the true return between two neighbouring values that no smooth curve (straight, quadratic,
cubic, logistic, exponential) explains. p is the largest of the p-values against these curves: the share of data sets
drawn from the curve's fit that favour a jump at least as much.</footer>""",
    )


def draw(result: dict[str, Any], proxy: str, standalone: bool = False) -> str:
    """Draw two panels over one axis as SVG: the proxy's return, and below it the true one.

    Args:
      result: content of sweep.json.
      proxy: the proxy to draw.
      standalone: explicit colours on white, for a separate file.
    """
    found, values = result["proxies"][proxy], result["values"]
    height = _TOP + 2 * PANEL_HEIGHT + _GAP + _BOTTOM
    step = (WIDTH - _LEFT - _RIGHT) / len(values)
    across = [_LEFT + (place + 0.5) * step for place in range(len(values))]
    places = {json.dumps(value): place for place, value in enumerate(values)}
    title = f"Trained on {proxy}" + ", the control" * (proxy == "true")
    parts = [_text(0, 15, title, size=14, weight=600)]
    for panel, (name, words) in enumerate(PANELS):
        top = _TOP + panel * (PANEL_HEIGHT + _GAP)
        dots = [
            (across[places[json.dumps(row["capability"])]], row[name])
            for row in result["runs"]
            if row["proxy"] == proxy
        ]
        colour = PALETTE[panel] if standalone else curve_colour(panel)
        parts.append(_text(0, top - 12, words, size=11, opacity=0.65))
        parts.append(_panel(top, across, found[name], dots, colour, _shown(result, proxy, name)))
    low = _TOP + 2 * PANEL_HEIGHT + _GAP
    every = math.ceil(len(values) / _LABELS)
    for x, value in list(zip(across, values, strict=True))[::every]:
        parts.append(_text(x, low + 17, label(value), anchor="middle", opacity=0.75))
    parts.append(_text((_LEFT + WIDTH - _RIGHT) / 2, low + 38, result["axis"], size=11, anchor="middle", opacity=0.65))
    if found["phase_transition"]:
        x = _LEFT + (found["change"]["split"] + 0.5) * step
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{low}" stroke="currentColor" stroke-width="1.4" '
            f'stroke-dasharray="5 4"><title>{escape(found["verdict"])}</title></line>'
        )
        words, near_end = f"phase transition, p = {found['change']['p']:.2g}", x > WIDTH / 2
        parts.append(_text(x + (-6 if near_end else 6), _TOP - 12, words, anchor="end" if near_end else "start"))
    margin = 12 if standalone else 0
    size = f' width="{WIDTH + 2 * margin}" height="{height + 2 * margin}"' if standalone else ""
    box = f"{-margin} {-margin} {WIDTH + 2 * margin} {height + 2 * margin}"
    background = f'<rect x="{-margin}" y="{-margin}" width="100%" height="100%" fill="#ffffff"/>' if standalone else ""
    ink = "#1d2430" if standalone else "currentColor"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}"{size} role="img" aria-label="{escape(title)}" '
        f'font-family="system-ui, sans-serif" color="{ink}" fill="{ink}">{background}{"".join(parts)}</svg>'
    )


def _shown(result: dict[str, Any], proxy: str, name: str) -> list[float]:
    """Return the returns and intervals that a panel's axis must show. All true returns share one axis."""
    sharing = list(result["proxies"]) if name == "true_return" else [proxy]
    ends = [number for one in sharing for ends in result["proxies"][one][name] for number in ends if number is not None]
    return ends + [row[name] for row in result["runs"] if row["proxy"] in sharing]


def _panel(
    top: float,
    across: Sequence[float],
    means: Sequence[Sequence[float | None]],
    dots: Sequence[tuple[float, float]],
    colour: str,
    shown: Sequence[float],
) -> str:
    """Draw one return: grid, band, dots and line.

    Args:
      top: of the panel.
      across: horizontal positions of the values.
      means: (mean, low, high) of each value.
      dots: (position, return) of each run.
      colour: of the return.
      shown: numbers that the axis must include.
    """
    air = 0.06 * (max(shown) - min(shown)) or 0.1 * abs(shown[0]) or 1.0
    low, high = min(shown) - air, max(shown) + air

    def y(value: float) -> float:
        return top + PANEL_HEIGHT * (high - value) / (high - low)

    drawn = []
    ticks = nice_ticks(low, high, 4)
    for tick, words in zip(ticks, tick_labels(ticks), strict=True):
        strength = 0.45 if tick == 0 else 0.14
        drawn.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="currentColor" '
            f'stroke-opacity="{strength}"/>'
        )
        drawn.append(_text(_LEFT - 7, y(tick) + 4, words, anchor="end", opacity=0.75))
    if all(number is not None for ends in means for number in ends):
        upper = [f"{x:.1f} {y(ends[2]):.1f}" for x, ends in zip(across, means, strict=True)]  # type: ignore[arg-type]
        lower = [f"{x:.1f} {y(ends[1]):.1f}" for x, ends in zip(across, means, strict=True)]  # type: ignore[arg-type]
        drawn.append(f'<path d="M{"L".join(upper + lower[::-1])}Z" style="fill:{colour}" fill-opacity="0.17"/>')
    line = "L".join(f"{x:.1f} {y(ends[0]):.1f}" for x, ends in zip(across, means, strict=True))  # type: ignore[arg-type]
    drawn.append(f'<path d="M{line}" style="stroke:{colour}" fill="none" stroke-width="1.8" stroke-linejoin="round"/>')
    for x, value in dots:
        drawn.append(
            f'<circle cx="{x:.1f}" cy="{y(value):.1f}" r="2.8" style="fill:{colour}" fill-opacity="0.6">'
            f"<title>{escape(human(value, 4))}</title></circle>"
        )
    return "".join(drawn)


def _text(
    x: float, y: float, words: str, *, size: int = 12, weight: int = 400, anchor: str = "start", opacity: float = 1.0
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'opacity="{opacity}">{escape(words)}</text>'
    )


def _tile(proxy: str, found: dict[str, Any]) -> str:
    what = "phase transition" if found["phase_transition"] else "none found"
    name = f"trained on {proxy}" + ", the control" * (proxy == "true")
    return (
        f'<div class="tile run"><div class=label>{escape(name)}</div><div class=value>{what}</div>'
        f"<div class=note>{escape(found['verdict'])}.</div>"
        f"<div class=note>{escape(p_values(found['change']))}.</div></div>"
    )


def _correlations(proxies: dict[str, Any]) -> str:
    """Return the correlations in words."""
    lines = []
    for proxy, found in proxies.items():
        pairs = (
            ("the returns of proxy and truth", found["proxy_and_truth"]),
            ("the same among agents before the largest change", found["proxy_and_truth_before"]),
            ("capability and the proxy's return", found["proxy_and_capability"]),
            ("capability and the true return", found["truth_and_capability"]),
        )
        items = "".join(f"<li>{words}: {_coefficients(pair)}</li>" for words, pair in pairs)
        lines.append(f"<p>Trained on <b>{escape(proxy)}</b>:</p><ul>{items}</ul>")
    return f"<section class=card><h2>Correlations over runs</h2>{''.join(lines)}</section>"


def _coefficients(pair: dict[str, Any] | None) -> str:
    if pair is None:
        return "one of them does not vary"
    words = []
    for name in ("pearson", "spearman"):
        low, high = (_signed(end) for end in pair[f"{name}_interval"])
        words.append(f"{name.capitalize()} {_signed(pair[name])} <small>{low} to {high}</small>")
    return ", ".join(words)


def _signed(number: float) -> str:
    return f"{number:+.2f}".replace("-", "−")


def _table(result: dict[str, Any]) -> str:
    """Return a table with one row per value and two columns per proxy."""
    proxies = result["proxies"]
    heads = "".join(f"<th>{escape(proxy)}: {words}</th>" for proxy in proxies for _, words in PANELS)
    lines = []
    for place, value in enumerate(result["values"]):
        cells = "".join(_cell(found[name][place]) for found in proxies.values() for name, _ in PANELS)
        lines.append(f"<tr><th>{escape(label(value))}</th>{cells}</tr>")
    return (
        f"<section class=card><h2>Means and 95 % intervals over seeds</h2><div class=scroll><table><thead><tr>"
        f"<th>{escape(result['axis'])}</th>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div></section>"
    )


def _cell(ends: Sequence[float | None]) -> str:
    mean, low, high = ends
    interval = "" if low is None or high is None or low == high else f" <small>{human(low)} to {human(high)}</small>"
    return f"<td>{'–' if mean is None else human(mean)}{interval}</td>"


def _runs(result: dict[str, Any]) -> str:
    lines = "".join(
        f"<tr><td>{escape(row['proxy'])}</td><th>{escape(label(row['capability']))}</th><td>{row['seed']}</td>"
        f"<td>{human(row['proxy_return'], 4)}</td><td>{human(row['true_return'], 4)}</td><td>{row['seconds']} s</td>"
        "</tr>"
        for row in result["runs"]
    )
    return (
        f"<details><summary>Each run</summary><div class=scroll><table><thead><tr><th>proxy</th>"
        f"<th>{escape(result['axis'])}</th><th>seed</th><th>proxy return</th><th>true return</th><th>time</th></tr>"
        f"</thead><tbody>{lines}</tbody></table></div></details>"
    )


def _settings(result: dict[str, Any]) -> str:
    return "\n".join(f"{name} = {value!r}" for name, value in result.items() if name not in ("proxies", "runs"))
