"""Media of a report: charts that studies have drawn, and films of episodes.

All are embedded as data addresses, which a browser shows without running or loading anything.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence

from packtrain.metrics.reading import number
from packtrain.studies.chart import escape
from packtrain.studies.report_data import Run, Seed, read_bytes
from packtrain.studies.report_tables import number_text

_PICTURE_BYTES = 2 * 1024 * 1024
_MOST_PICTURES = 6
_FILM_BYTES = 6 * 1024 * 1024  # total size of all films
_MOST_FILMS = 6
_FILM = re.compile(r"(\d{1,18})(_sampled)?_episode_(\d{1,9})\.(png|mp4)")
_FILM_STARTS = {"png": b"\x89PNG\r\n\x1a\n", "mp4": b"ftyp"}  # signatures in their first bytes


def pictures(runs: Sequence[Run]) -> str:
    """Return the charts that studies have drawn."""
    folders = {run.where(seed): seed.folder for run in runs if run.is_study for seed in run.seeds}
    found = [(name, path) for name, folder in folders.items() for path in sorted(folder.glob("*.svg"))]
    cards = []
    for name, path in found[:_MOST_PICTURES]:
        data = read_bytes(path, 0, _PICTURE_BYTES + 1)
        if len(data) <= _PICTURE_BYTES:
            source = f"data:image/svg+xml;base64,{base64.b64encode(data).decode()}"
            caption = f"<figcaption class=note>{escape(name)}</figcaption>" * (len(found) > 1)
            cards.append(f'<figure><img src="{source}" alt="{escape(f"{name}: {path.name}")}">{caption}</figure>')
    return f'<section class="grid large">{"".join(cards)}</section>' if cards else ""


def films(runs: Sequence[Run]) -> str:
    """Return the films of `packtrain eval --video`, newest checkpoint first, up to the size limit."""
    cards: list[str] = []
    named: list[str] = []  # films that are only listed
    left = _FILM_BYTES
    for run in runs:
        for seed in run.seeds:
            where = run.where(seed)
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
    """Return eval.json's data about the episode of a film, if that evaluation made the film."""
    videos = seed.evaluation.get("videos")
    for video in videos if isinstance(videos, list) else []:
        if isinstance(video, dict) and video.get("file") == f"videos/{file}":
            length, score = number(video.get("length")), number(video.get("return"))
            return "" if length is None or score is None else f", {length:,.0f} steps, return {number_text(score)}"
    return ""
