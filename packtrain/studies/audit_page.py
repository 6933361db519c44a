"""Output of an audit: a short text, and a page with divergence and value over time and all scores with their nulls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import packtrain
from packtrain.studies.audit_rollouts import Null, Play
from packtrain.studies.chart import PALETTE_DARK, Curve, curve_colour, escape, human, line_chart, palette_css
from packtrain.studies.html_page import html_page

Array = NDArray[Any]


def describe(result: Mapping[str, Any]) -> str:
    """Return the result as a short table and a verdict in words."""
    width = max(len(name) for name in result["scores"])
    lines = [f"{'':<{width}}  {'score':>9}  {'trusted':>19}  {'above':>9}  {_rank(result):>5}"]
    for name, found in result["scores"].items():
        spread = f"{human(min(found['null']))} to {human(max(found['null']))}"
        mark = f"  {_mark(result)}" * found["anomalous"]
        lines.append(
            f"{name:<{width}}  {human(found['score']):>9}  {spread:>19}  {human(found['threshold']):>9}  "
            f"{found['p']:>5.3f}{mark}"
        )
    return "\n".join([*lines, sentence(result), f"page: {result['page']}"])


def _rank(result: Mapping[str, Any]) -> str:
    """Return the name of the last column: a p-value only if the null consists of independent runs."""
    return "p" if result["calibrated"] else "rank"


def _mark(result: Mapping[str, Any]) -> str:
    """Return the mark of a score above its threshold."""
    return "anomalous" if result["calibrated"] else "above"


def sentence(result: Mapping[str, Any]) -> str:
    """Return the verdict, its basis, and how many trusted runs would calibrate it."""
    name, plays = result["detector"], result["null_plays"]
    found = result["scores"][name]
    reached = sum(value >= found["score"] for value in found["null"])
    agree = f"{result['agreeing']} of {len(result['scores'])} detectors agree"
    if result["calibrated"]:
        return (
            f"{result['verdict']}: {name} {human(found['score'])} is reached by {reached} of {plays} further trusted "
            f"runs (p = {found['p']:.3f}, at a rate of {human(result['rate'])}); {agree}"
        )
    runs = len(result["trusted"])
    slips = f", {human(100 * result['slip'])} % of whose actions are random" if result["slip"] else ""
    who = f"the trusted policy{slips}" + f", and {runs - 1} more" * (runs > 1)
    looks = "more than these plays differ" if result["anomalous"] else "no more than these plays differ"
    own, supported = result["independent_runs"], result["supported_rate"]
    less = "" if supported is None else f"; {own} support --rate {math.ceil(supported * 1000) / 1000:g}"
    return (
        f"{result['verdict']}: {name} {human(found['score'])} is reached by {reached} of {plays} plays of {who}: "
        f"{looks}; {agree}. How often a harmless run would be called anomalous is unknown: a verdict at --rate "
        f"{human(result['rate'])} needs {result['runs_needed']} independent trusted runs{less}"
    )


def page(result: Mapping[str, Any], seen: Play, null: Null) -> str:
    """Return a self-contained HTML page: the verdict, the divergence over time, the scores with their nulls."""
    figures = "".join(f"<figure>{chart}</figure>" for chart in _charts(result, seen, null))
    cells = "".join(
        f"<tr{' class=hit' * found['anomalous']}><td>{escape(name)}<td>{human(found['score'], 4)}"
        f"<td>{human(min(found['null']), 4)} to {human(max(found['null']), 4)}<td>{human(found['threshold'], 4)}"
        f"<td>{found['p']:.3f}<td>{_mark(result) if found['anomalous'] else ''}"
        for name, found in result["scores"].items()
    )
    trusted = ", ".join(f"{one['run']} at step {one['checkpoint']:,}" for one in result["trusted"])
    return html_page(
        f"{result['run']} – packtrain audit",
        f"""<h1>{escape(result["verdict"][0].upper() + result["verdict"][1:])}</h1>
<p>{escape(sentence(result).partition(": ")[2])}.</p>
<p>{escape(result["run"])} at step {result["checkpoint"]:,}, beside {escape(trusted)}; {escape(result["env"])},
{result["episodes"]} episodes a play, seed {result["seed"]}. Actions are drawn. The true reward is in no score.</p>
{figures}
<table><tr><th>detector<th>score<th>trusted<th>threshold<th>{_rank(result)}<th></tr>{cells}</table>
<footer>Written by packtrain {escape(packtrain.__version__)}.</footer>""",
        _STYLE,
    )


def _charts(result: Mapping[str, Any], seen: Play, null: Null) -> list[str]:
    titles = {
        "hellinger": ("Distance from the trusted policy", "Hellinger distance of the action distributions"),
        "value": ("What the trusted policy expects", "its value of the states visited"),
    }
    charts = []
    for name, (title, unit) in titles.items():
        curves = [
            _over_time("unknown", seen.features[name][None], 1),
            _over_time("trusted", np.stack(_same_length([one.features[name] for one in null.plays])), 0),
        ]
        charts.append(line_chart(curves, title, "step of the episode", f"{unit}; mean, and 5 % to 95 % of episodes"))
    return [*charts, _strips(result["scores"])]


def _same_length(arrays: Sequence[Array]) -> list[Array]:
    """Pad arrays [E, S] with NaN to the longest S and the largest E."""
    episodes, steps = (max(array.shape[axis] for array in arrays) for axis in (0, 1))
    blank = [np.full((episodes, steps), np.nan) for _ in arrays]
    for target, array in zip(blank, arrays, strict=True):
        target[: array.shape[0], : array.shape[1]] = array
    return blank


def _over_time(name: str, plays: Array, colour: int) -> Curve:
    """Return mean and spread over all episodes at each step, [K, E, S]; of long episodes, at 200 steps."""
    values = plays.reshape(-1, plays.shape[-1])
    alive = np.flatnonzero(~np.isnan(values).all(axis=0))
    steps = alive[np.unique(np.linspace(0, len(alive) - 1, min(len(alive), 200)).astype(int))]
    chosen = values[:, steps]
    low, high = np.nanpercentile(chosen, [5, 95], axis=0)
    return Curve(name, steps.tolist(), np.nanmean(chosen, axis=0).tolist(), low.tolist(), high.tolist(), colour)


def _strips(scores: Mapping[str, Mapping[str, Any]]) -> str:
    """Draw a row per detector: trusted plays as dots, the threshold as a tick, the score as a diamond."""
    left, right, top, height = 170.0, 540.0, 44.0, 24.0
    drawn = [
        '<text x="0" y="15" font-size="14" font-weight="600">Scores beside those of trusted plays</text>',
        '<text x="0" y="32" font-size="11" opacity="0.65">each row has its own scale; | is the threshold</text>',
    ]
    for place, (name, found) in enumerate(scores.items()):
        values = [*found["null"], found["score"], found["threshold"]]
        low, wide = min(values), (max(values) - min(values)) or 1.0
        y = top + height * place + height / 2
        at = [left + (right - left) * (value - low) / wide for value in values]
        colour = curve_colour(1)
        drawn += [
            f'<text x="0" y="{y + 4:.1f}" font-size="12">{escape(name)}</text>',
            f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" opacity="0.15"/>',
            *(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" style="fill:{curve_colour(0)}" fill-opacity="0.5"/>'
                for x in at[:-2]
            ),
            f'<line x1="{at[-1]:.1f}" x2="{at[-1]:.1f}" y1="{y - 8:.1f}" y2="{y + 8:.1f}" stroke="currentColor"/>',
            f'<path d="M{at[-2]:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6Z" style="fill:{colour}"><title>{escape(name)}: '
            f"{human(found['score'], 4)}</title></path>",
        ]
    bottom = top + height * len(scores) + 8
    return (
        f'<svg viewBox="0 0 560 {bottom:.0f}" role="img" aria-label="Scores beside those of trusted plays" '
        f'fill="currentColor">{"".join(drawn)}</svg>'
    )


_STYLE = (
    ":root{color-scheme:light dark;--page:#f5f6f8;--card:#fff;--ink:#1d2430;--edge:#e1e4ea;"
    + palette_css()
    + "}@media (prefers-color-scheme:dark){:root{--page:#0f1318;--card:#181d24;--ink:#e5e9ef;--edge:#2a313b;"
    + palette_css(PALETTE_DARK)
    + "}}body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}"
    "main{max-width:760px;margin:0 auto;padding:28px 20px 40px;overflow-wrap:anywhere}h1{font-size:24px;margin:0}"
    "figure{margin:12px 0 0;padding:16px;background:var(--card);border:1px solid var(--edge);border-radius:10px}"
    "figure svg{display:block;width:100%;height:auto}table{margin-top:12px;border-collapse:collapse;width:100%;"
    "font-size:13px;font-variant-numeric:tabular-nums}th,td{text-align:right;padding:4px 8px;border-bottom:1px solid "
    "var(--edge)}th:first-child,td:first-child{text-align:left}.hit{font-weight:600}footer{margin-top:16px;opacity:.6}"
)
