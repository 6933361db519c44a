"""One self-contained HTML page about one or several runs.

The page asks for nothing from outside and runs no script: charts are inline SVG, a content policy forbids the rest, and
everything that comes out of a run folder is escaped, because the folder may be someone else's.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import packtrain
from packtrain.errors import RunFolderError
from packtrain.files import write_whole
from packtrain.metrics.reading import (
    METRICS_FILE,
    metric_names,
    number,
)
from packtrain.studies.chart import curve_colour, escape, human, line_chart
from packtrain.studies.html_page import html_page
from packtrain.studies.reported import (
    EVALUATION_RETURN,
    TRAINING_RETURN,
    Metric,
    Run,
    Score,
    Seed,
    curve_of,
    distinct_names,
    final_score,
    last_value,
    load,
    over_seeds,
    read_bytes,
    seed_scores,
    tail,
)

MODEL_USE: Metric = ("train", "model_use")

# What is shown above the fold, in this order, with its title and unit. Other losses follow total_loss.
_HEADINGS: dict[Metric, tuple[str, str]] = {
    EVALUATION_RETURN: ("Evaluation return", "mean return of evaluation episodes"),
    TRAINING_RETURN: ("Training return", "mean return of the episodes that ended since the last row"),
    ("eval", "return_greedy_mean"): ("Evaluation return, greedy", "mean return of greedy episodes"),
    ("eval", "return_sampled_mean"): ("Evaluation return, sampled", "mean return of episodes with sampled actions"),
    ("eval", "solved"): ("Solved in evaluations", "share of episodes"),
    ("train", "solved"): ("Solved while training", "share of episodes"),
    ("train", "total_loss"): ("Total loss", ""),
    ("train", "pg_loss"): ("Policy-gradient loss", ""),
    ("train", "baseline_loss"): ("Baseline loss", ""),
    ("train", "entropy_loss"): ("Entropy loss", ""),
    ("train", "entropy"): ("Policy entropy", ""),
    MODEL_USE: ("Model use", "share of the target that comes from imagined steps"),
    ("train", "policy_lag_mean"): ("Policy lag", "learner versions, mean"),
    ("train", "steps_per_second"): ("Speed", "steps per second"),
}
_LARGE_POINTS = 300  # a curve of the two large charts
_SMALL_POINTS = 160
_MOST_CHARTS = 150  # beyond it the page would be too slow to open
_PICTURE_BYTES = 2 * 1024 * 1024
_MOST_PICTURES = 6
_FILM_BYTES = 6 * 1024 * 1024  # of all films together
_MOST_FILMS = 6
_FILM = re.compile(r"(\d{1,18})(_sampled)?_episode_(\d{1,9})\.(png|mp4)")
_FILM_STARTS = {"png": b"\x89PNG\r\n\x1a\n", "mp4": b"ftyp"}  # in its first bytes
_DEPTH = re.compile(r"weight/depth_(\d{1,3})")
_ENVIRONMENT = re.compile(r"""^[\w./]*\benv(?:ironment)?(?:_?(?:id|name))?\s*=\s*(['"])(.+?)\1""", re.MULTILINE)


def write_report(runs: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the page about these runs and return its path.

    Args:
      runs: run folders, ordinary ones or with a seed_K folder a seed. Several are drawn in the same charts.
      out: file to write, or a folder for report.html; if not given, report.html in the first run.
    """
    if not runs:
        raise RunFolderError("a report needs at least one run folder")
    paths = list(dict.fromkeys(Path(run).resolve() for run in runs))  # the same folder twice is one curve
    loaded = [
        load(path, name, index) for index, (path, name) in enumerate(zip(paths, distinct_names(paths), strict=True))
    ]
    target = paths[0] / "report.html" if out is None else Path(out)
    if target.is_dir():
        target = target / "report.html"
    _write(target, _page(loaded))
    return target


def _page(runs: list[Run]) -> str:
    names = ", ".join(run.name for run in runs)
    main, other = _split(_all_metrics(runs))
    drawn = _MOST_CHARTS - len(main)
    sections = [
        _warnings(runs),
        _pictures(runs),
        _films(runs),
        _charts(runs, main),
        _other_charts(runs, other[:drawn], left_out=len(other[drawn:]), opened=not main),
        _last_values(runs, main + other),
        _seed_table(runs),
        _differences(runs),
        _texts("Configuration", [(run.name, run.config) for run in runs]),
        _texts("Log, last lines", _logs(runs)),
    ]
    return html_page(
        f"{names} – packtrain report",
        f"""{_header(runs)}
{"".join(sections)}
<footer>Written by packtrain {escape(packtrain.__version__)} from {METRICS_FILE}. {_explanation(runs)}</footer>""",
    )


def _explanation(runs: list[Run]) -> str:
    text = (
        f"Curves of more than {_LARGE_POINTS} rows ({_SMALL_POINTS} in small charts) show means of neighbouring rows."
    )
    if any(len(run.seeds) > 1 for run in runs):
        text += " Shaded: 95 % Student-t interval of the mean over seeds."
    return text


def _header(runs: list[Run]) -> str:
    if len(runs) > 1:
        return (
            f"<header><h1>{len(runs)} runs compared</h1><p class=facts>{_facts(runs)}</p>"
            f'<div class="tiles wide">{"".join(_run_tile(run) for run in runs)}</div></header>'
        )
    run = runs[0]
    several = len(run.seeds) > 1
    tiles = [
        *([] if run.is_study else [_score_tile(run)]),
        _tile("Steps", human(_steps(run)), f"{_steps(run):,}" + " a seed" * several),
        _tile("Wall time", _duration(_wall(run)), "longest seed" * several),
    ]
    speed = _speed(run)
    if speed is not None:
        tiles.append(_tile("Speed", human(speed), "steps per second" + ", a seed" * several))
    if several:
        tiles.append(_tile("Seeds", str(len(run.seeds)), "intervals are over seeds"))
    return (
        f"<header><h1>{escape(run.name)}</h1><p class=facts>{_facts(runs)}</p>"
        f"<div class=tiles>{''.join(tiles)}</div></header>"
    )


def _facts(runs: list[Run]) -> str:
    """The environments and the date of the last row, in one line."""
    environments = dict.fromkeys(match[2] for run in runs if (match := _ENVIRONMENT.search(run.config)))
    facts = [f"<b>{escape(environment)}</b>" for environment in environments]
    written = [
        path.stat().st_mtime for run in runs for seed in run.seeds if (path := seed.folder / METRICS_FILE).is_file()
    ]
    if written:
        facts.append("last row " + time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(max(written))))
    return " · ".join(facts)


def _score_tile(run: Run) -> str:
    score = final_score(run)
    if score is None:
        return _tile("Final return", "–", "no episode has ended yet", look="main")
    return _tile("Final return", _number(score.mean), _interval(score) + score.source, look="main")


def _run_tile(run: Run) -> str:
    """One run in a comparison: its colour, its score, and the rest in small."""
    score = final_score(run)
    seeds = f"{len(run.seeds)} seeds" if len(run.seeds) > 1 else "1 seed"
    facts = [seeds, f"{human(_steps(run))} steps", _duration(_wall(run))]
    speed = _speed(run)
    if speed is not None:
        facts.append(f"{human(speed)} steps/s")
    value = _number(score.mean) if score else "–"
    note = _interval(score) + score.source if score else "no episode has ended yet"
    scored = f"<div class=value>{value} <small>final return</small></div><div class=note>{escape(note)}</div>"
    return (
        f'<div class="tile run" style="border-left-color:{curve_colour(run.colour)}"><div class=label>'
        f"{escape(run.name)}</div>{'' if run.is_study else scored}"
        f"<div class=note>{escape(' · '.join(facts))}</div></div>"
    )


def _tile(label: str, value: str, note: str, look: str = "") -> str:
    return (
        f'<div class="tile {look}"><div class=label>{escape(label)}</div><div class=value>{escape(value)}</div>'
        f"<div class=note>{escape(note)}</div></div>"
    )


def _interval(score: Score) -> str:
    if score.interval is None or score.interval[0] >= score.interval[1]:
        return ""
    return f"95 % over {score.over}: {_number(score.interval[0])} to {_number(score.interval[1])}; "


def _steps(run: Run) -> int:
    return max(seed.steps for seed in run.seeds)


def _wall(run: Run) -> float:
    return max(seed.wall_s for seed in run.seeds)


def _speed(run: Run) -> float | None:
    """Steps per second of one seed, over all of its time."""
    rates = [seed.steps / seed.wall_s for seed in run.seeds if seed.wall_s > 0]
    return sum(rates) / len(rates) if rates else None


def _warnings(runs: list[Run]) -> str:
    texts = [text for run in runs for text in run.warnings]
    return "".join(f"<p class=warning>{escape(text)}</p>" for text in texts)


def _all_metrics(runs: list[Run]) -> list[Metric]:
    return list(dict.fromkeys(metric for run in runs for seed in run.seeds for metric in metric_names(seed.rows)))


def _split(metrics: list[Metric]) -> tuple[list[Metric], list[Metric]]:
    """The metrics shown at once, in the order of the headings, and the others, in the order of their names."""
    known = list(_HEADINGS)
    losses = sorted(metric for metric in metrics if metric[1].endswith("loss") and metric not in _HEADINGS)
    place = known.index(("train", "entropy"))
    main = [metric for metric in [*known[:place], *losses, *known[place:]] if metric in metrics]
    depths = sorted((m for m in metrics if _is_depth(m)), key=lambda metric: int(metric[1].rpartition("_")[2]))
    if MODEL_USE in main:
        place = main.index(MODEL_USE) + 1
        main[place:place] = depths
    return main, sorted(metric for metric in metrics if metric not in main)


def _pictures(runs: list[Run]) -> str:
    """What studies have drawn. A page shows an image in a data address without running or fetching anything in it."""
    folders = {
        f"{run.name}/{seed.folder.name}" if len(run.seeds) > 1 else run.name: seed.folder
        for run in runs
        if run.is_study
        for seed in run.seeds
    }
    found = [(name, path) for name, folder in folders.items() for path in sorted(folder.glob("*.svg"))]
    cards = []
    for name, path in found[:_MOST_PICTURES]:
        data = read_bytes(path, 0, _PICTURE_BYTES + 1)
        if len(data) <= _PICTURE_BYTES:
            source = f"data:image/svg+xml;base64,{base64.b64encode(data).decode()}"
            caption = f"<figcaption class=note>{escape(name)}</figcaption>" * (len(found) > 1)
            cards.append(f'<figure><img src="{source}" alt="{escape(f"{name}: {path.name}")}">{caption}</figure>')
    return f'<section class="grid large">{"".join(cards)}</section>' if cards else ""


def _films(runs: list[Run]) -> str:
    """What `packtrain eval --video` has left, the newest checkpoint first, as many as a page can hold."""
    cards: list[str] = []
    named: list[str] = []  # those that are not shown
    left = _FILM_BYTES
    for run in runs:
        for seed in run.seeds:
            where = f"{run.name}/{seed.folder.name}" if len(run.seeds) > 1 else run.name
            found = [(path, match) for path in seed.folder.glob("videos/*") if (match := _FILM.fullmatch(path.name))]
            found.sort(key=lambda one: (-int(one[1][1]), bool(one[1][2]), int(one[1][3]), one[1][4]))
            for path, match in found:
                data = read_bytes(path, 0, left + 1) if len(cards) < _MOST_FILMS else b""
                name = f"{where}/videos/{path.name}"
                if not data or len(data) > left:
                    named.append(name)
                elif _FILM_STARTS[match[4]] in data[:12]:
                    left -= len(data)
                    text = f"{where}: episode {match[3]} at step {int(match[1]):,}{_told(seed, path.name)}"
                    caption = f"<figcaption class=note>{escape(text)}</figcaption>"
                    cards.append(f"<figure>{_film(data, match[4], name)}{caption}</figure>")
    shown = f'<section class="grid small">{"".join(cards)}</section>' if cards else ""
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    rest = f"<p class=note>Not in this page, which would be too large: {escape(', '.join(named[:3]) + more)}.</p>"
    return shown + rest * bool(named)


def _film(data: bytes, form: str, name: str) -> str:
    encoded = base64.b64encode(data).decode()
    if form == "png":
        return f'<img src="data:image/png;base64,{encoded}" alt="{escape(name)}">'
    return f'<video src="data:video/mp4;base64,{encoded}" title="{escape(name)}" controls loop muted></video>'


def _told(seed: Seed, file: str) -> str:
    """What eval.json says of the episode in a film, if it is the evaluation that made it."""
    videos = seed.evaluation.get("videos")
    for video in videos if isinstance(videos, list) else []:
        if isinstance(video, dict) and video.get("file") == f"videos/{file}":
            length, score = number(video.get("length")), number(video.get("return"))
            return "" if length is None or score is None else f", {length:,.0f} steps, return {_number(score)}"
    return ""


def _charts(runs: list[Run], metrics: list[Metric]) -> str:
    large = [metric for metric in metrics if metric in (EVALUATION_RETURN, TRAINING_RETURN)]
    small = [metric for metric in metrics if metric not in large]
    return _grid(runs, large, "large") + _grid(runs, small, "small")


def _grid(runs: list[Run], metrics: Iterable[Metric], size: str) -> str:
    width, height, points = (560, 330, _LARGE_POINTS) if size == "large" else (370, 230, _SMALL_POINTS)
    cards = []
    depths = [metric for metric in metrics if _is_depth(metric)]
    for metric in metrics:
        if metric in depths:  # all of them share one chart a run
            cards += [_depth_chart(run, depths, points, len(runs) > 1) for run in runs if metric == depths[0]]
            continue
        curves = [curve for run in runs if (curve := curve_of(run, metric, points))]
        if curves:
            title, unit = _HEADINGS.get(metric, (metric[1] if metric[0] == "train" else "/".join(metric), ""))
            chart = line_chart(
                curves, title, "steps", unit, width=width, height=height, legend=len(runs) > 1 and size == "large"
            )
            cards.append(f"<figure>{chart}</figure>")
    return f'<section class="grid {size}">{"".join(cards)}</section>' if cards else ""


def _is_depth(metric: Metric) -> bool:
    return metric[0] == "train" and _DEPTH.fullmatch(metric[1]) is not None


def _depth_chart(run: Run, metrics: list[Metric], points: int, named: bool) -> str:
    """How much of a target comes from each depth of a value expansion."""
    found = [(f"depth {metric[1].rpartition('_')[2]}", curve_of(run, metric, points)) for metric in metrics]
    curves = [replace(curve, name=name, colour=place) for place, (name, curve) in enumerate(found) if curve]
    title = "Weight by depth" + f", {run.name}" * named
    chart = line_chart(curves, title, "steps", "share of the target", width=370, height=230)
    return f"<figure>{chart}</figure>" if curves else ""


def _other_charts(runs: list[Run], metrics: list[Metric], left_out: int, opened: bool) -> str:
    grid = _grid(runs, metrics, "small")
    if not grid:
        return ""
    more = f"<p class=warning>{left_out} more metrics are not drawn.</p>" if left_out else ""
    count = f"{len(metrics)} " + "more " * (not opened) + "metric" + "s" * (len(metrics) != 1)
    return f"<details{' open' * opened}><summary>{count}</summary>{more}{grid}</details>"


def _last_values(runs: list[Run], metrics: list[Metric]) -> str:
    """One line a metric, one column a run; what `packtrain eval` said comes first."""
    lines = []
    for name in _evaluation_names(runs):
        cells = [
            _cell(over_seeds([flat[name] for seed in run.seeds if name in (flat := _flat(seed.evaluation))]))
            for run in runs
        ]
        lines.append(f"<tr><td>eval.json</td><th>{escape(name)}</th>{''.join(cells)}</tr>")
    for metric in metrics[: 2 * _MOST_CHARTS]:
        cells = [_cell(last_value(run, metric)) for run in runs]
        lines.append(f"<tr><td>{escape(metric[0])}</td><th>{escape(metric[1])}</th>{''.join(cells)}</tr>")
    if not lines:
        return ""
    heads = "".join(f"<th>{escape(run.name)}</th>" for run in runs)
    return (
        "<section class=card><h2>Last values</h2><div class=scroll><table><thead><tr><th>kind</th><th>metric</th>"
        f"{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div></section>"
    )


def _cell(value: tuple[float, tuple[float, float] | None] | None) -> str:
    if value is None:
        return "<td>–</td>"
    mean, interval = value
    text = ""
    if interval and interval[0] < interval[1]:
        text = f" <small>{_number(interval[0])} to {_number(interval[1])}</small>"
    return f"<td>{_number(mean)}{text}</td>"


def _evaluation_names(runs: list[Run]) -> list[str]:
    names = dict.fromkeys(name for run in runs for seed in run.seeds for name in _flat(seed.evaluation))
    return list(names)[:_MOST_CHARTS]


def _flat(evaluation: dict[str, Any]) -> dict[str, float]:
    """The numbers of an evaluation by name; those of an inner object as outer/inner."""
    flat = {}
    for name, value in evaluation.items():
        inner = {f"{name}/{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
        flat.update({key: found for key, part in inner.items() if (found := number(part)) is not None})
    return flat


def _seed_table(runs: list[Run]) -> str:
    if all(len(run.seeds) == 1 for run in runs):
        return ""
    lines = []
    for run in runs:
        for seed in run.seeds:
            source, value = next(iter(seed_scores(seed).items()), ("–", None))
            score = "–" if value is None else _number(value)
            lines.append(
                f"<tr><td>{escape(run.name)}</td><th>{escape(seed.folder.name)}</th><td>{score}</td><td>{source}</td>"
                f"<td>{seed.steps:,}</td><td>{_duration(seed.wall_s)}</td></tr>"
            )
    return (
        "<details><summary>Each seed</summary><div class=scroll><table><thead><tr><th>run</th><th>seed</th>"
        "<th>final return</th><th>from</th><th>steps</th><th>wall time</th></tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div></details>"
    )


def _differences(runs: list[Run]) -> str:
    """The settings that are not the same in all runs of a comparison."""
    settings = [_settings(run.config) for run in runs]
    names = dict.fromkeys(name for setting in settings for name in setting)
    lines = []
    for name in names:
        values = [setting.get(name) for setting in settings]
        if len(set(values)) > 1:
            cells = "".join(
                "<td>–</td>" if value is None else f"<td><code>{escape(value)}</code></td>" for value in values
            )
            lines.append(f"<tr><th>{escape(name)}</th>{cells}</tr>")
    if not lines:
        return ""
    heads = "".join(f"<th>{escape(run.name)}</th>" for run in runs)
    return (
        "<section class=card><h2>Settings that differ</h2><div class=scroll><table class=settings><thead><tr>"
        f"<th>setting</th>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div></section>"
    )


def _settings(config: str) -> dict[str, str]:
    """The `name = value` lines of a configuration, knobs looked up; a value may go on in indented lines."""
    settings: dict[str, str] = {}
    name = ""
    for line in config.splitlines():
        if line[:1].isspace() and name and line.strip():
            settings[name] = f"{settings[name]} {line.strip()}".replace("\\ ", "")
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if name.startswith("#") or not equals or not name:
            name = ""
        else:
            settings[name] = value.partition("  # ")[0]
    return {name: settings.get(value[1:], value) if value[:1] == "%" else value for name, value in settings.items()}


def _logs(runs: list[Run]) -> list[tuple[str, str]]:
    logs = []
    for run in runs:
        for folder in dict.fromkeys([run.path, *(seed.folder for seed in run.seeds)]):
            name = run.name if folder == run.path else f"{run.name}/{folder.name}"
            logs.append((name, tail(folder / "log.txt")))
    return logs


def _texts(heading: str, texts: list[tuple[str, str]]) -> str:
    """Folded text files, each under its name; nothing where all are empty."""
    filled = [(name, text) for name, text in texts if text.strip()]
    if not filled:
        return ""
    if len(filled) == 1:
        return f"<details><summary>{heading}</summary><pre>{escape(filled[0][1])}</pre></details>"
    inner = "".join(
        f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>" for name, text in filled
    )
    return f"<details><summary>{heading}</summary>{inner}</details>"


def _number(value: float) -> str:
    """Four significant digits, thousands apart."""
    rounded = float(f"{value:.4g}")
    if rounded == 0 or 1e-3 <= abs(rounded) < 1000:
        return f"{rounded:.4g}".replace("-", "−")
    return f"{value:,.0f}".replace("-", "−") if 1000 <= abs(value) < 1e7 else human(value, 4)


def _duration(seconds: float) -> str:
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600:,} h {seconds % 3600 // 60} min"


def _write(target: Path, page: str) -> None:
    """Write beside the target and rename, so that a reader sees the old page or the new one."""
    try:
        write_whole(target, page.encode())
    except OSError as error:
        raise RunFolderError(f"cannot write the report to {target}: {error.strerror}; choose another --out") from error
