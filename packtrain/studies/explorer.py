"""Write one self-contained HTML page about recorded searches: trees, graphs and sequences, decision by decision.

The page loads nothing. Its scripts, d3-hierarchy among them, are allowed by their hashes. Traces may come from an
untrusted run folder: `trace_files.py` checks every value, and the page shows texts as text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import packtrain
from packtrain.errors import ConfigError
from packtrain.files import write_whole
from packtrain.studies.chart import escape, printable
from packtrain.studies.html_page import STYLE, html_page
from packtrain.studies.trace_files import Trace, read_traces

SCRIPTS = ("d3-hierarchy.min.js", "explorer_data.js", "explorer_ink.js", "explorer_view.js", "explorer.js")
MOST_PAGE = 40 * 2**20  # bytes of the traces in a page


class Source(NamedTuple):
    """The traces of one run that a page shows, all of them or those of one checkpoint."""

    run: Path
    checkpoint: int | None = None


def write_explorer(sources: Sequence[Source], out: Path | None = None) -> Path:
    """Write the page about these traces, and return its path.

    Args:
      sources: one, or two that are shown side by side.
      out: file to write, or a folder for explorer.html; None: explorer.html in the first run.
    """
    page = explorer_page(sources)
    target = sources[0].run / "explorer.html" if out is None else out
    if target.is_dir():
        target = target / "explorer.html"
    try:
        write_whole(target, page.encode())
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}") from None
    return target


def explorer_page(sources: Sequence[Source]) -> str:
    """Return the page as HTML."""
    episodes, lines, room = list[str](), list[str](), MOST_PAGE
    environments: dict[str, None] = {}
    for group, source in enumerate(sources):
        found, wrong = read_traces(source.run, source.checkpoint)
        lines += wrong
        name, left_out = _name(source, sources), 0
        for trace in found:
            text = _json(_episode(trace, group, name if len(sources) > 1 else ""))
            if len(text) > room // (len(sources) - group) and episodes:
                left_out += 1
                continue
            room -= len(text)
            episodes.append(text)
            environments[trace.environment] = None
        if left_out:
            lines.append(
                f"{left_out} episodes of {name} are left out: a page has at most {MOST_PAGE >> 20} MiB of traces"
            )
    groups = _json([_name(source, sources) for source in sources])
    data = f'{{"groups":{groups},"episodes":[{",".join(episodes)}]}}'
    title = " and ".join(dict.fromkeys(_name(source, sources) for source in sources))
    warnings = "".join(f"<p class=warning>{escape(line)}</p>" for line in lines[:20])
    body = (
        f"<div class=head><h1>Search explorer</h1><p class=facts><b>{escape(title)}</b> · "
        f"{escape(', '.join(environments))} · {len(episodes)} episode{'s' * (len(episodes) != 1)}</p></div>{warnings}"
        f'<div id="panes"></div>{_LEGEND}'
        f"<footer>packtrain {escape(packtrain.__version__)} · layout of trees: d3-hierarchy 3.1.3 (ISC)</footer>"
        f'<script type="application/json" id="data">{data}</script>'
    )
    scripts = [_asset(name) for name in SCRIPTS]
    return html_page(
        f"{title} – packtrain explore", body, STYLE + _asset("explorer.css"), script=scripts, controls=_CONTROLS
    )


_CONTROLS = """<section id="controls" aria-label="Controls of the page" hidden>
<label><span class="unseen">Search states and actions</span>
<input id="find" type="search" placeholder="Find a state, an action or #number ( / )" autocomplete="off"></label>
<span id="found" role="status"></span>
<button id="compare" type="button" aria-pressed="false">Side by side</button>
<label id="togetherLabel" hidden><input id="together" type="checkbox"> Step together</label>
<button id="theme" type="button">Theme: auto</button>
</section>
"""
_LEGEND = """<ul class="legend" aria-label="Legend">
<li>N visits, Q value, P prior, σ disagreement, r reward</li>
<li class="path"><i></i>plan: the best path</li>
<li class="wrong"><i></i>wrong prediction ✗, such as a false loop</li>
<li class="seen">✓ verified by a real step</li>
<li>★ solved&ensp;■ terminal&ensp;◎ target</li>
<li class="mark"><i></i>decision that verifies</li></ul>
<p id="keys">Keys in the drawing: <kbd>←</kbd> <kbd>→</kbd> <kbd>↑</kbd> <kbd>↓</kbd> move along the search,
<kbd>Enter</kbd> expand or collapse, <kbd>b</kbd> follow the plan, <kbd>+</kbd> <kbd>−</kbd> zoom, <kbd>f</kbd> fit,
<kbd>Shift</kbd> with an arrow pans, <kbd>n</kbd> <kbd>p</kbd> next and previous decision, <kbd>Home</kbd> root,
<kbd>/</kbd> find.</p>
"""


def _name(source: Source, sources: Sequence[Source]) -> str:
    """Return the name of a source in the page: the run's, with its checkpoint if that tells it apart."""
    name = printable(source.run.resolve().name)
    return name if source.checkpoint is None else f"{name} at step {source.checkpoint:,}"


def _episode(trace: Trace, group: int, name: str) -> dict[str, Any]:
    """Return a trace as the page's script reads it."""
    made = f"evaluation at step {trace.checkpoint:,}" if trace.source == "eval" and trace.checkpoint is not None else ""
    made = made or f"epoch {trace.epoch}, environment {trace.column}"
    total = sum(step["reward"] or 0 for step in trace.steps)
    title = f"{name}: " * bool(name) + f"{made} · {len(trace.steps)} decisions, return {total:g}{' · cut' * trace.cut}"
    return {
        "title": title,
        "group": group,
        "start": trace.start,
        "actions": trace.actions,
        "states": trace.states,
        "steps": trace.steps,
    }


def _json(value: Any) -> str:
    """Return JSON that is safe inside HTML: it cannot end the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
