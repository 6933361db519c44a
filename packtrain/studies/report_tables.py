"""The tables of a report as HTML: results, seeds, last values, settings that differ, and the texts of a run folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from packtrain.metrics.bottleneck import bottleneck
from packtrain.metrics.reading import number
from packtrain.studies.chart import curve_colour, escape, human
from packtrain.studies.comparison import AtariScores, Estimate, Method, central, improvement
from packtrain.studies.report_charts import MOST_CHARTS
from packtrain.studies.report_data import Metric, Run, Score, final_score, last_value, over_seeds, seed_scores, tail

MOST_SHOWN = 10  # maximum number of runs whose configuration, log and last values are shown
_MOST_SETTINGS = 60
_BOOKKEEPING = {
    *("env_steps", "updates", "frames", "epoch", "checkpoint", "seed", "replay_steps", "replay_size"),
    *("episodes", "episodes_greedy", "episodes_sampled", "weights_version", "rss_mb", "gpu_mb"),
}
"""Metrics that are not in the table of last values: counters, and what a machine uses."""
_MANY_SETTINGS = 15  # number of settings from which the table is folded


def results(runs: Sequence[Run], methods: Mapping[str, Method]) -> str:
    """Return a table with one row per run: final return with intervals, seeds, steps, time and speed."""
    with_iqm = any(method.has_seeds for method in methods.values())
    iqm_head = ["Interquartile mean"] * with_iqm
    lines = []
    for run in runs:
        score, method = final_score(run), methods.get(run.name)
        middle = []
        if with_iqm:
            middle = [estimate_cell(central(method, len(methods))) if method and method.has_seeds else "<td>–</td>"]
        speed = speed_of(run)
        cells = [
            _value_cell(score),
            *middle,
            _cell(str(len(run.seeds)), len(run.seeds)),
            _cell(human(steps_of(run)), steps_of(run), steps_range(run)),
            _cell(duration(wall_of(run)), wall_of(run)),
            "<td>–</td>" if speed is None else _cell(human(speed), speed),
            f"<td class=note>{escape(score.source) if score else 'no episode has ended yet'}</td>",
        ]
        swatch = f'<i class=swatch style="background:{curve_colour(run.colour)}"></i>'
        lines.append(
            f'<tr><th scope=row data-v="{escape(run.name)}">{swatch}{escape(run.name)}</th>{"".join(cells)}</tr>'
        )
    heads = ["Run", "Final return", *iqm_head, "Seeds", "Steps", "Wall time", "Steps/s", "From"]
    return card("Results", _table(heads, lines, "sortable"))


def _value_cell(score: Score | None) -> str:
    if score is None:
        return "<td>–</td>"
    return _cell(number_text(score.mean), score.mean, interval_text(score))


def _cell(text: str, value: float, small: str = "") -> str:
    more = f" <small>{escape(small)}</small>" if small else ""
    return f'<td data-v="{value:.10g}">{escape(text)}{more}</td>'


def estimate_cell(estimate: Estimate, scale: float = 1.0, unit: str = "") -> str:
    """Return a cell with a statistic and its bootstrap interval."""
    value, interval = estimate
    small = ""
    if interval is not None:
        small = f"{number_text(scale * interval[0])} to {number_text(scale * interval[1])}{unit}"
    return _cell(f"{number_text(scale * value)}{unit}", value, small)


def interval_text(score: Score) -> str:
    """Return the interval of a final return; empty if there is none, or if all values are equal."""
    if score.interval is None or score.interval[0] >= score.interval[1]:
        return ""
    return f"95 % over {score.over}: {number_text(score.interval[0])} to {number_text(score.interval[1])}"


def improvements(methods: Sequence[Method]) -> str:
    """Return the probability of improvement for each pair of methods, row over column."""
    lines = []
    for row in methods:
        cells = "".join("<td>–</td>" if row is col else estimate_cell(improvement(row, col)) for col in methods)
        lines.append(f"<tr><th scope=row>{escape(row.name)}</th>{cells}</tr>")
    heads = ["row over column", *(method.name for method in methods)]
    return card("Probability of improvement", _table(heads, lines))


def overall(methods: Sequence[Method], atari: bool) -> str:
    """Return the interquartile means of methods over all environments."""
    scale, unit = (100, " %") if atari else (1, "")
    lines = [
        f"<tr><th scope=row>{escape(method.name)}</th>{estimate_cell(central(method, len(methods)), scale, unit)}</tr>"
        for method in methods
    ]
    return card("Interquartile mean of normalised returns", _table(["Method", "All environments"], lines, "sortable"))


def atari(scores: Sequence[AtariScores]) -> str:
    """Return human-normalised scores of each game, and available estimates of the median over 57 games."""
    if not scores:
        return ""
    heads = "".join(f"<th scope=col>{escape(one.method)}</th>" for one in scores)
    lines = []
    for subset in scores[0].estimates:
        cells = [one.estimates[subset] for one in scores]
        if any(value is not None for value in cells):
            text = "".join("<td>–</td>" if value is None else f"<td><b>{percent(value)}</b></td>" for value in cells)
            lines.append(f"<tr><th scope=row>{escape(subset)} estimate of the median over 57 games</th>{text}</tr>")
    for game in sorted({game for one in scores for game in one.games}):
        text = "".join(f"<td>{percent(one.games[game])}</td>" if game in one.games else "<td>–</td>" for one in scores)
        lines.append(f"<tr><th scope=row>{escape(game)}</th>{text}</tr>")
    table = f"<thead><tr><th scope=col>game</th>{heads}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return card("Human-normalised Atari scores", f"<table>{table}</table>")


def percent(share: float) -> str:
    """Return a fraction as percent with four digits."""
    return f"{number_text(100 * share)} %"


def last_values(runs: Sequence[Run], metrics: Sequence[Metric]) -> str:
    """Return a table with one row per metric and one column per run; results of `packtrain eval` come first."""
    lines = []
    for name in _evaluation_names(runs):
        values = [[flat[name] for seed in run.seeds if name in (flat := _flat(seed.evaluation))] for run in runs]
        found = [over_seeds(each) for each in values]
        if found == [last_value(run, ("eval", name)) for run in runs]:  # as scheduled evaluations have it
            continue
        cells = "".join(_mean_cell(each) for each in found)
        lines.append(f"<tr><td>packtrain eval</td><th scope=row>{escape(name)}</th>{cells}</tr>")
    shown = [metric for metric in metrics if not _is_bookkeeping(metric[1])]
    for metric in shown[: 2 * MOST_CHARTS]:
        cells = "".join(_mean_cell(last_value(run, metric)) for run in runs)
        lines.append(f"<tr><td>{escape(metric[0])}</td><th scope=row>{escape(metric[1])}</th>{cells}</tr>")
    if not lines:
        return ""
    return fold("Last values", scroll(_table(["kind", "metric", *(run.name for run in runs)], lines)), "last")


def _is_bookkeeping(name: str) -> bool:
    """Return whether a metric counts what has happened so far or measures the machine."""
    return name in _BOOKKEEPING or name.partition("/")[0] in ("updates", "env_steps")


def _mean_cell(value: tuple[float, tuple[float, float] | None] | None) -> str:
    if value is None:
        return "<td>–</td>"
    mean, interval = value
    text = ""
    if interval and interval[0] < interval[1]:
        text = f" <small>{number_text(interval[0])} to {number_text(interval[1])}</small>"
    return f"<td>{number_text(mean)}{text}</td>"


def _evaluation_names(runs: Sequence[Run]) -> list[str]:
    names = dict.fromkeys(name for run in runs for seed in run.seeds for name in _flat(seed.evaluation))
    return [name for name in names if not _is_bookkeeping(name)][:MOST_CHARTS]


def _flat(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of an evaluation by name; those of an inner object as outer/inner."""
    flat = {}
    for name, value in evaluation.items():
        inner = {f"{name}/{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
        flat.update({key: found for key, part in inner.items() if (found := number(part)) is not None})
    return flat


def seeds(runs: Sequence[Run]) -> str:
    """Return a folded table with one row per seed; nothing if every run has one seed."""
    if all(len(run.seeds) == 1 for run in runs):
        return ""
    lines = []
    for run in runs:
        for seed in run.seeds:
            source, found = max(
                seed_scores(run, seed).items(),
                key=lambda one: (one[0] != "training", one[1].episodes),
                default=("–", None),
            )
            score = "–" if found is None else number_text(found.value)
            lines.append(
                f"<tr><td>{escape(run.name)}</td><th scope=row>{escape(seed.name)}</th><td>{score}</td>"
                f"<td>{source}</td><td>{seed.steps:,}</td><td>{duration(seed.wall_s)}</td></tr>"
            )
    heads = ["run", "seed", "final return", "from", "steps", "wall time"]
    return fold("Each seed", scroll(_table(heads, lines)), "seeds")


def differences(runs: Sequence[Run]) -> str:
    """Return the settings that differ between runs; runs are columns, or rows if there are many."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    differing = [name for name in names if len({run.settings.get(name) for run in runs}) > 1]
    if not differing:
        return ""
    left_out = len(differing) - _MOST_SETTINGS
    differing = differing[:_MOST_SETTINGS]
    if len(runs) <= 6:
        heads = ["setting", *(run.name for run in runs)]
        lines = [_code_line(name, [run.settings.get(name) for run in runs]) for name in differing]
    else:
        heads = ["run", *differing]
        lines = [_code_line(run.name, [run.settings.get(name) for name in differing]) for run in runs]
    more = f"<p class=note>{left_out} more settings differ.</p>" if left_out > 0 else ""
    table = _table(heads, lines, "settings")
    if len(differing) > _MANY_SETTINGS:
        return fold("Settings that differ", scroll(table) + more, "settings")
    return card("Settings that differ", table, more)


def _code_line(head: str, values: Iterable[str | None]) -> str:
    cells = "".join("<td>–</td>" if value is None else f"<td><code>{escape(value)}</code></td>" for value in values)
    return f"<tr><th scope=row>{escape(head)}</th>{cells}</tr>"


def logs(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return the last lines of each run's log and of its seeds' logs."""
    found = []
    for run in runs[:MOST_SHOWN]:
        folders = {run.path: run.name} | {seed.folder: run.where(seed) for seed in run.seeds}
        folders[run.path] = run.name
        found += [(name, tail(folder / "log.txt")) for folder, name in folders.items()]
    return found


def configurations(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return each distinct configuration under the names of the runs that have it."""
    names: dict[str, list[str]] = {}
    for run in runs:
        names.setdefault(run.config, []).append(run.name)
    found = [(", ".join(run_names[:3]) + ", …" * (len(run_names) > 3), text) for text, run_names in names.items()]
    return found[:MOST_SHOWN]


def texts(heading: str, found: Sequence[tuple[str, str]], left_out: int = 0) -> str:
    """Return folded text files, each under its name; nothing if all are empty."""
    filled = [(name, text) for name, text in found if text.strip()]
    if not filled:
        return ""
    if len(filled) == 1:
        return fold(heading, f"<pre tabindex=0>{escape(filled[0][1])}</pre>", heading)
    inner = "".join(
        f"<details><summary>{escape(name)}</summary><pre tabindex=0>{escape(text)}</pre></details>"
        for name, text in filled
    )
    more = f"<p class=note>{left_out} more are not shown.</p>" if left_out > 0 else ""
    return fold(heading, inner + more, heading)


# Frames


def card(heading: str, table: str, more: str = "") -> str:
    """Return a table under a heading, with horizontal scrolling."""
    return f"<section class=card><h3>{escape(heading)}</h3>{scroll(table)}{more}</section>"


def scroll(content: str) -> str:
    """Return a frame that scrolls horizontally, also by keyboard."""
    return f"<div class=scroll tabindex=0>{content}</div>"


def fold(heading: str, content: str, key: str) -> str:
    """Return content that is folded under a heading."""
    return f'<details class=fold data-fold="{escape(key)}"><summary>{escape(heading)}</summary>{content}</details>'


def _table(heads: Sequence[str], lines: Sequence[str], kind: str = "") -> str:
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name in heads)
    look = f' class="{kind}"' if kind else ""
    return f"<table{look}><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


# Numbers


def steps_of(run: Run) -> int:
    """Return the last step of any seed."""
    return max(seed.steps for seed in run.seeds)


def steps_range(run: Run) -> str:
    """Return the least and the most steps of its seeds; empty if they are equal."""
    least = min(seed.steps for seed in run.seeds)
    return "" if least == steps_of(run) else f"{least:,} to {steps_of(run):,}"


def wall_of(run: Run) -> float:
    """Return the training time of the longest seed in seconds."""
    return max(seed.wall_s for seed in run.seeds)


def speed_of(run: Run) -> float | None:
    """Return the mean steps per second of one seed."""
    rates = [seed.steps / seed.wall_s for seed in run.seeds if seed.wall_s > 0]
    return sum(rates) / len(rates) if rates else None


def bottleneck_of(run: Run) -> str:
    """Return what limits the speed of a run with workers, by the last row of its first seed; "" without workers."""
    series = run.seeds[0].series.items()
    last = {name: each.values[-1] for (kind, name), each in series if kind == "train" and len(each.values)}
    return bottleneck(last)


def number_text(value: float) -> str:
    """Return four significant digits with thousands separators."""
    rounded = float(f"{value:.4g}")
    if rounded == 0 or 1e-3 <= abs(rounded) < 1000:
        return f"{rounded:.4g}".replace("-", "−")
    return f"{value:,.0f}".replace("-", "−") if 1000 <= abs(value) < 1e7 else human(value, 4)


def duration(seconds: float) -> str:
    """Return seconds in words: 42 s, 3 min 5 s, 2 h 10 min."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600:,} h {seconds % 3600 // 60} min"
