"""Write one self-contained HTML page about one or several runs.

The page loads nothing. Its charts are drawn by one built-in script, which the content policy allows by its hash.
Everything that comes from a run folder is escaped, because the folder may be untrusted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import packtrain
from packtrain.errors import RunFolderError
from packtrain.files import write_whole
from packtrain.metrics.reading import METRICS_FILE
from packtrain.studies import comparison, report_tables
from packtrain.studies.chart import escape, human, line_chart
from packtrain.studies.html_page import STYLE, html_page
from packtrain.studies.report_charts import (
    LARGE_POINTS,
    Chart,
    Numbers,
    budget_of,
    charts_of,
    metrics_of,
    text_json,
)
from packtrain.studies.report_data import Run, by_environment, distinct_names, final_score, group_by, load, run_folders
from packtrain.studies.report_media import films, pictures
from packtrain.studies.report_tables import duration, number_text

_MOST_STATIC = 30  # maximum number of lines of a chart that is also included as an image, for readers without scripts


def write_report(runs: Sequence[str | Path], out: str | Path | None = None, compare: str | None = None) -> Path:
    """Write the page about these runs and return its path.

    Args:
      runs: run folders, ordinary ones or with a folder seed_K per seed, or folders that contain such run folders. Each
        environment is a section of the page.
      out: file to write, or a folder for report.html; None: report.html in the first run.
      compare: name of a setting; runs with the same value of it are drawn as one curve.
    """
    paths = _paths(runs)
    page = report_page(paths, compare)
    target = Path(runs[0]).resolve() / "report.html" if out is None else Path(out)
    if target.is_dir():
        target = target / "report.html"
    _write(target, page)
    return target


def report_page(runs: Sequence[str | Path], compare: str | None = None, live_secs: float | None = None) -> str:
    """Return the page about these runs as HTML.

    Args:
      runs: as in `write_report`.
      compare: as in `write_report`.
      live_secs: interval at which the page reloads itself; None: never.
    """
    paths = _paths(runs)
    loaded = [load(path, name, 0) for path, name in zip(paths, distinct_names(paths), strict=True)]
    drawn = loaded if compare is None else group_by(loaded, compare)
    warnings = [text for run in drawn for text in run.warnings]
    environments = by_environment(drawn)
    numbers, points = Numbers(), budget_of(list(environments.values()))
    sections = [
        _section(place, name, runs, numbers, points, alone=len(environments) == 1)
        for place, (name, runs) in enumerate(environments.items())
    ]
    everything = _over_environments(environments, compare is not None, len(sections), numbers)
    if everything is not None:
        sections.append(everything)
    data = f'{{"x":{numbers.axes()},"sections":[{",".join(section.data for section in sections)}]}}'
    body = [
        _header(loaded, environments, compare),
        "".join(f"<p class=warning>{escape(text)}</p>" for text in warnings),
        sections[-1].html * (everything is not None),  # what concerns all comes first
        "".join(section.html for section in sections[: len(environments)]),
        report_tables.differences(loaded),
        report_tables.seeds([run for runs in environments.values() for run in runs]),
        _texts(loaded),
        f"<footer>{_footer(environments)}</footer>",
        f'<script type="application/json" id="data">{data}</script>',
    ]
    names = f"{len(loaded)} runs" if len(loaded) > 3 else ", ".join(run.name for run in loaded)
    return html_page(
        f"{names} – packtrain report",
        "\n".join(body),
        STYLE + _asset("report.css"),
        script=_asset("report.js"),
        controls=_CONTROLS,
        live_secs=live_secs,
    )


@cache
def _asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _paths(runs: Sequence[str | Path]) -> list[Path]:
    if not runs:
        raise RunFolderError("a report needs at least one run folder")
    found = [folder for run in runs for folder in run_folders(Path(run).resolve())]
    return list(dict.fromkeys(found))  # the same folder twice is one curve


_CONTROLS = """<section id="controls" aria-label="Controls of all charts" hidden>
<label class="grow"><span class="unseen">Search charts</span>
<input id="search" type="search" placeholder="Search charts ( / )" autocomplete="off"></label>
<span id="found" role="status"></span>
<label>Axis <select id="axis"><option value="0">steps</option><option value="1">wall time</option></select></label>
<label>Smoothing <input id="smooth" type="range" min="0" max="0.98" step="0.02" value="0">
<output id="smoothness" for="smooth">0.00</output></label>
<label><input id="seeds" type="checkbox" checked> Seeds</label>
<label><input id="log" type="checkbox"> Log scale</label>
<button id="theme" type="button">Theme: auto</button>
<span id="live" role="status"></span>
</section>
"""


class _Section:
    """The HTML and the numbers of one environment, or of all environments together."""

    def __init__(self, html: str, runs: Sequence[tuple[str, int]], charts: str):
        members = ",".join(f'{{"n":{text_json(name)},"c":{colour}}}' for name, colour in runs)
        self.html, self.data = html, f'{{"runs":[{members}],"charts":{charts}}}'


def _section(place: int, name: str, runs: list[Run], numbers: Numbers, points: int, alone: bool) -> _Section:
    """Return the section about the runs of one environment."""
    charts = charts_of(runs, points)
    methods = comparison.methods_of(runs)
    best = comparison.best_of(methods)
    compared = [comparison.profile_chart(best, "final return")] if len(best) > 1 else []
    every = [*charts.main, *charts.folded, *compared]
    frames = [_figure(f"{place}.{index}", chart) for index, chart in enumerate(every)]
    large = [frame for frame, chart in zip(frames, charts.main, strict=False) if chart.large]
    small = [frame for frame, chart in zip(frames, charts.main, strict=False) if not chart.large]
    folded = frames[len(charts.main) : len(charts.main) + len(charts.folded)]
    parts = [
        "" if alone else f"<h2>{escape(name or 'Environment unknown')}</h2>",
        _lacking([chart for chart in every if chart.lacks_mean]),
        _tiles(runs[0]) if len(runs) == 1 else report_tables.results(runs, {one.name: one for one in methods}),
        pictures(runs),
        films(runs),
        f'<div class=legend data-legend="{place}"></div>' * (len(runs) > 1 and bool(every)),
        _grid("large", large),
        _grid("small", small),
    ]
    if compared:
        parts.append(f"<div class=pair>{report_tables.improvements(best)}{_grid('small', frames[-1:])}</div>")
    if folded:
        count = f"{len(folded)} {'more ' * bool(charts.main)}metric{'s' * (len(folded) != 1)}"
        more = f"<p class=warning>{charts.left_out} more metrics are not drawn.</p>" * bool(charts.left_out)
        inner = f"<summary>{count}</summary>{more}{_grid('small', folded)}"
        is_open = " open" * (not charts.main)
        parts.append(f'<details class=fold data-fold="more {place}"{is_open}>{inner}</details>')
    if len(runs) <= report_tables.MOST_SHOWN:
        parts.append(report_tables.last_values(runs, metrics_of(runs)))
    html = f'<section class=environment id="environment-{place}">{"".join(parts)}</section>'
    return _Section(html, [(run.name, run.colour) for run in runs], numbers.charts(every))


def _lacking(charts: Sequence[Chart]) -> str:
    """Return a line that names charts in which a mean is missing."""
    if not charts:
        return ""
    named = ", ".join(chart.title for chart in charts[:5]) + f" and {len(charts) - 5} more" * (len(charts) > 5)
    text = f"Runs that share no step have no mean over them, and are drawn one by one: {named}."
    return f"<p class=warning>{escape(text)}</p>"


def _over_environments(
    environments: Mapping[str, list[Run]], compared: bool, place: int, numbers: Numbers
) -> _Section | None:
    """Return statistics over several environments, if there are any."""
    methods = comparison.methods_over(environments, compared)
    atari = report_tables.atari(comparison.atari_scores(environments, compared))
    if not atari and not methods:
        return None
    best = comparison.best_of(methods)
    normalised = "human-normalised return" if atari else "normalised return"
    charts = [comparison.profile_chart(best, normalised)] if len(best) > 1 else []
    parts = [atari]
    if len(methods) > 1:
        parts.append(report_tables.overall(methods, atari=bool(atari)))
    if charts:
        grid = _grid("small", [_figure(f"{place}.0", charts[0])])
        parts.append(f"<div class=pair>{report_tables.improvements(best)}{grid}</div>")
    heading = "<h2>All environments</h2>" * (len(environments) > 1)
    return _Section(f"<section class=environment>{heading}{''.join(parts)}</section>", [], numbers.charts(charts))


def _figure(key: str, chart: Chart) -> str:
    """Return a chart's element, its title, and an image of large charts for readers without scripts."""
    static = ""
    if chart.large and len(chart.lines) <= _MOST_STATIC:
        static = line_chart(chart.curves(), chart.title, "steps", "", width=560, height=320, heading=False)
    unit = f" <span class=note>{escape(chart.unit)}</span>" if chart.unit else ""
    return (
        f'<figure data-chart="{key}"><figcaption><span class=title>{escape(chart.title)}{unit}</span></figcaption>'
        f"<div class=plot>{static}</div></figure>"
    )


def _grid(size: str, frames: Sequence[str]) -> str:
    return f'<div class="grid {size}">{"".join(frames)}</div>' if frames else ""


def _header(loaded: list[Run], environments: Mapping[str, list[Run]], compare: str | None) -> str:
    names = [name for name in environments if name]
    facts = [f"<b>{escape(name)}</b>" for name in names[:6]]
    if len(names) > 1:
        facts = [
            f'<a href="#environment-{place}">{escape(name)}</a>' for place, name in enumerate(environments) if name
        ]
    written = [
        path.stat().st_mtime for run in loaded for seed in run.seeds if (path := seed.folder / METRICS_FILE).is_file()
    ]
    if written:
        facts.append("last row " + time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(max(written))))
    title = loaded[0].name if len(loaded) == 1 else f"{len(loaded)} runs compared"
    if compare is not None:
        title = f"{len(loaded)} run{'s' * (len(loaded) != 1)} compared by {compare}"
    return f"<header><h1>{escape(title)}</h1><p class=facts>{' · '.join(facts)}</p></header>"


def _tiles(run: Run) -> str:
    """Return the numbers of a single run in large type."""
    several = len(run.seeds) > 1
    steps, wall, speed = report_tables.steps_of(run), report_tables.wall_of(run), report_tables.speed_of(run)
    tiles = [
        *([] if run.is_study else [_score_tile(run)]),
        _tile("Steps", human(steps), (report_tables.steps_range(run) or f"{steps:,}") + " a seed" * several),
        _tile("Wall time", duration(wall), "longest seed" * several),
    ]
    if speed is not None:
        tiles.append(_tile("Speed", human(speed), "steps per second" + ", a seed" * several))
    if limit := report_tables.bottleneck_of(run):
        name, _, advice = limit.partition(": ")
        tiles.append(_tile("Bottleneck", name, advice))
    if several:
        tiles.append(_tile("Seeds", str(len(run.seeds)), "intervals are over seeds"))
    return f"<div class=tiles>{''.join(tiles)}</div>"


def _score_tile(run: Run) -> str:
    score = final_score(run)
    if score is None:
        return _tile("Final return", "–", "no episode has ended yet", look="main")
    note = "; ".join(filter(None, [report_tables.interval_text(score), score.source]))
    return _tile("Final return", number_text(score.mean), note, look="main")


def _tile(label: str, value: str, note: str, look: str = "") -> str:
    return (
        f'<div class="tile {look}"><div class=label>{escape(label)}</div><div class=value>{escape(value)}</div>'
        f"<div class=note>{escape(note)}</div></div>"
    )


def _texts(loaded: list[Run]) -> str:
    configs, logs = report_tables.configurations(loaded), report_tables.logs(loaded)
    left_out = len({run.config for run in loaded}) - len(configs)
    return report_tables.texts("Configuration", configs, left_out) + report_tables.texts(
        "Log, last lines", logs, len(loaded) - report_tables.MOST_SHOWN
    )


def _footer(environments: Mapping[str, list[Run]]) -> str:
    runs = [run for members in environments.values() for run in members]
    text = [f"Written by packtrain {escape(packtrain.__version__)} from {METRICS_FILE}."]
    text.append(f"Curves of more than {LARGE_POINTS} rows, or fewer in small charts, show means of neighbouring rows.")
    if any(len(run.seeds) > 1 for run in runs):
        text.append("Thick: mean over seeds; thin: each seed.")
    if any(len(run.seeds) > 2 for run in runs):
        text.append(
            "Shaded: 95 % Student-t interval of the mean over seeds. Interquartile means, profiles and probabilities "
            "of improvement: Agarwal et al. 2021, with stratified bootstrap intervals over seeds, which are too narrow "
            "with fewer than about ten."
        )
    text.append("Charts: drag to zoom, double click for all; keys: arrows read values, + and − zoom, 0 shows all.")
    return " ".join(text)


def _write(target: Path, page: str) -> None:
    """Write a temporary file and rename it, so that readers see the old page or the new one."""
    try:
        write_whole(target, page.encode())
    except OSError as error:
        raise RunFolderError(f"cannot write the report to {target}: {error.strerror}; choose another --out") from error
