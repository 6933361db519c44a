"""Heat maps: visit counts over the chart of an environment, as an image, and as a PNG file (extra `plot`).

A core that can be drawn has `chart(states)`, the row and column of a pixel for each state, and `chart_shape()`. It may
have `chart_background()`, an image of the environment without counts, and `chart_mark`, the pixels that a state covers
in each direction.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from packtrain.envs.functional import Core
from packtrain.errors import ConfigError, MissingExtraError, RunFolderError
from packtrain.files import write_whole
from packtrain.metrics.console import amount
from packtrain.metrics.letters import EMPTY, LINE, blank, text_line
from packtrain.trees import Tree

NARROWEST, WIDEST = 400, 1200  # limits of a picture's width in pixels
UNVISITED = (56, 56, 62)
VISITED = (96, 96, 104)  # in a panel of flags: visited, but never flagged
# Lightness increases along each ramp from a level that differs from UNVISITED, so it prints well in grey. The first is
# for visits, the others for flags.
RAMPS = (
    ((70, 52, 170), (138, 54, 172), (214, 66, 126), (250, 128, 66), (254, 196, 90), (255, 246, 190)),
    ((20, 96, 120), (20, 160, 176), (120, 232, 226), (226, 255, 250)),
    ((36, 110, 44), (92, 178, 52), (188, 232, 92), (248, 255, 206)),
    ((140, 44, 40), (214, 78, 62), (252, 150, 124), (255, 230, 216)),
)
WIDE = 1.5  # panels wider than this times their height are placed below one another
MARGIN = 12  # pixels around a panel
STRIP = 12  # pixels of the legend's height
SET_OFF = 6  # places of at least this many pixels are separated by dark lines, on charts without a background


def heat_map(
    core: Core,
    states: Tree,
    counts: np.ndarray,
    marks: Mapping[str, tuple[Tree, np.ndarray]] | None = None,
) -> np.ndarray:
    """Return an image of counts over the core's chart, 400 to 1200 pixels wide: uint8 [H, W, 3].

    Counts of states at the same position are added. The colour follows the logarithm of the count, from 1 to the
    largest, which the legend shows. States that were never visited are dark grey, or as in the core's background.
    Marks have separate panels and colours, with the visited positions in light grey.

    Args:
      core: an environment with a chart.
      states: [N, ...], the states to show, including unvisited ones.
      counts: [N], 0 or more.
      marks: {name: (states [M, ...], counts [M])}: other events to show, such as wrong predictions.
    """
    if not hasattr(core, "chart"):
        raise ConfigError(f"heat_map({type(core).__name__}): this environment has no chart")
    layers = {"visits": (states, counts), **(marks or {})}
    paper = _Paper(core, states, len(layers))
    grids = [paper.sums(*layer) for layer in layers.values()]
    panels = []
    for number, (name, grid) in enumerate(zip(layers, grids, strict=True)):
        ramp = RAMPS[0] if number == 0 else RAMPS[1 + (number - 1) % (len(RAMPS) - 1)]
        ground = paper.ground()
        if number > 0:
            ground[grids[0] > 0] = VISITED
        panels.append(paper.panel(ground, grid, ramp, name if marks else ""))
    return paper.composed(panels)


def colours(counts: np.ndarray, largest: float, ramp: tuple[tuple[int, int, int], ...]) -> np.ndarray:
    """Return the colours of counts of 1 or more, uint8 [..., 3]: by logarithm along the ramp."""
    shares = np.log(counts) / np.log(largest) if largest > 1 else np.ones(np.shape(counts))
    places = np.linspace(0, 1, len(ramp))
    channels = [np.interp(shares, places, channel) for channel in zip(*ramp, strict=True)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def write_png(path: str | Path, picture: np.ndarray) -> None:
    """Write an image uint8 [H, W, 3] as a PNG file: to a temporary file, which is then renamed."""
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or not picture.size:
        raise ValueError(f"a picture is uint8 [H, W, 3], not {picture.dtype} {list(picture.shape)}")
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("a picture", "pillow", "plot") from None
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG", optimize=True)
    target = Path(path)
    try:
        write_whole(target, file.getvalue())
    except OSError as error:
        raise RunFolderError(f"cannot write the picture to {target}: {error.strerror}") from error


class _Paper:
    """Positions of a chart on the image, and the layout of the panels.

    Panels are next to each other; those of a wide chart are below one another.
    """

    def __init__(self, core: Any, states: Tree, panels: int):
        self._core = core
        rows, columns = core.chart_shape()
        self._stacked = columns > WIDE * rows
        across = 1 if self._stacked else panels
        room = (WIDEST - (across + 1) * MARGIN) // across  # maximum width and height of a chart
        self._shrink = -(-max(rows, columns) // room)  # chart pixels per picture pixel; usually 1
        self._rows, self._columns = -(-rows // self._shrink), -(-columns // self._shrink)
        self._scale = room // max(self._rows, self._columns)
        self._mark = max(1, getattr(core, "chart_mark", 1) // self._shrink)
        least = -(-(NARROWEST - (across + 1) * MARGIN) // across)
        self._width = max(self._columns * self._scale, least)
        self._at = core.chart(states) // self._shrink  # [N, 2]
        background = getattr(core, "chart_background", None)
        self._background = None if background is None else background()[:: self._shrink, :: self._shrink]

    def sums(self, states: Tree, counts: np.ndarray) -> np.ndarray:
        """Return the counts by position on the chart, float64 [rows, columns]."""
        counts = np.asarray(counts)
        if (counts < 0).any():
            raise ValueError("counts of a heat map must be 0 or more")
        return self._spread(self._core.chart(states) // self._shrink, counts)

    def _spread(self, at: np.ndarray, counts: np.ndarray) -> np.ndarray:
        sums = np.zeros((self._rows, self._columns))
        for down in range(self._mark):
            for right in range(self._mark):
                rows, columns = np.minimum(at + (down, right), (self._rows - 1, self._columns - 1)).T
                np.add.at(sums, (rows, columns), counts)
        return sums

    def ground(self) -> np.ndarray:
        """Return the chart without counts, uint8 [rows, columns, 3]."""
        if self._background is not None:
            return self._background.copy()
        ground = blank(self._rows, self._columns)
        ground[self._spread(self._at, np.ones(len(self._at))) > 0] = UNVISITED
        return ground

    def panel(self, ground: np.ndarray, counts: np.ndarray, ramp: Any, name: str) -> np.ndarray:
        """Return a chart with its name above, if it has one, and its legend below."""
        largest = counts.max()
        ground[counts > 0] = colours(counts[counts > 0], largest, ramp)
        chart = ground.repeat(self._scale, axis=0).repeat(self._scale, axis=1)
        if self._background is None and self._mark * self._scale >= SET_OFF:
            top, left = self._at.T * self._scale
            side = self._mark * self._scale
            for pixel in range(side):  # a dark line along the right and the lower edge of every place
                chart[top + pixel, left + side - 1] = EMPTY
                chart[top + side - 1, left + pixel] = EMPTY
        left = (self._width - chart.shape[1]) // 2
        parts = [self._padded(text_line(name)), self._padded(chart, left), self._legend(largest, ramp)]
        return np.concatenate([_with_gap(part) for part in parts[not name :]])

    def composed(self, panels: list[np.ndarray]) -> np.ndarray:
        """Return the image: panels with margins around them."""
        if self._stacked:
            panels = [np.concatenate(panels)]
        gap = blank(len(panels[0]), MARGIN)
        row = np.concatenate([gap, *(part for panel in panels for part in (panel, gap))], axis=1)
        return np.concatenate([blank(MARGIN, row.shape[1]), row])

    def _legend(self, largest: float, ramp: Any) -> np.ndarray:
        """Draw the colour of no visit, then the ramp between the count 1 and the largest."""
        none = blank(STRIP, STRIP)
        none[:] = UNVISITED
        labels = [text_line(text) for text in ("0", "1", amount(largest) if largest else "0")]
        gap = blank(STRIP, STRIP // 2)
        zero, one, most = (np.concatenate([_centred(label), gap], axis=1) for label in labels)
        used = sum(part.shape[1] for part in (none, gap, zero, gap, one, gap, most))
        length = max(self._width - used, STRIP)
        strip = np.broadcast_to(
            colours(np.geomspace(1, max(largest, 1), length), max(largest, 1), ramp), (STRIP, length, 3)
        )
        return self._padded(np.concatenate([none, gap, zero, gap, one, strip, gap, most], axis=1))

    def _padded(self, part: np.ndarray, left: int = 0) -> np.ndarray:
        """Pad or cut a part of a panel to the panel's width."""
        wide = blank(len(part), self._width)
        kept = part[:, : self._width - left]
        wide[:, left : left + kept.shape[1]] = kept
        return wide


def _with_gap(part: np.ndarray) -> np.ndarray:
    """Add the space below a part of a panel."""
    return np.concatenate([part, blank(MARGIN, part.shape[1])])


def _centred(text: np.ndarray) -> np.ndarray:
    """Return a line of text, vertically centred in the legend."""
    line = blank(STRIP, text.shape[1])
    line[(STRIP - LINE) // 2 :][:LINE] = text
    return line
