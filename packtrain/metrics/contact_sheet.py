"""Contact sheets: many small pictures with a few words below each, as one image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from packtrain.metrics.letters import LINE, blank, text_line

SIDE = 96  # maximum width and height of a picture in pixels
WIDTH = 1200  # of a sheet
GAP = 8  # pixels between tiles, and between a picture and its words


class Tile(NamedTuple):
    """One or more pictures side by side, and lines of words below them."""

    pictures: Sequence[np.ndarray]  # uint8 [H, W, 3]
    words: Sequence[str]


def contact_sheet(tiles: Sequence[Tile]) -> np.ndarray:
    """Return an image with the tiles row by row, uint8 [H, W, 3]. All tiles get the size of the largest."""
    drawn = [_drawn(tile) for tile in tiles]
    height, width = (max(tile.shape[side] for tile in drawn) for side in (0, 1))
    across = max(1, min(len(drawn), (WIDTH - GAP) // (width + GAP)))
    rows = -(-len(drawn) // across)
    sheet = blank(GAP + rows * (height + GAP), GAP + across * (width + GAP))
    for number, tile in enumerate(drawn):
        top, left = GAP + number // across * (height + GAP), GAP + number % across * (width + GAP)
        _put(sheet, tile, top, left)
    return sheet


def fitted(picture: np.ndarray) -> np.ndarray:
    """Return a picture of at most SIDE pixels a side; small ones are enlarged by a whole factor."""
    step = -(-max(picture.shape[:2]) // SIDE)
    factor = max(1, SIDE // max(picture.shape[:2]))
    return picture[::step, ::step].repeat(factor, axis=0).repeat(factor, axis=1)


def _drawn(tile: Tile) -> np.ndarray:
    pictures, lines = [fitted(picture) for picture in tile.pictures], [text_line(words) for words in tile.words]
    top = max((picture.shape[0] for picture in pictures), default=0)
    across = sum(picture.shape[1] for picture in pictures) + GAP * (len(pictures) - 1)
    image = blank(top + len(lines) * (LINE + 4) + 4, max([across, *(line.shape[1] for line in lines)]))
    left = 0
    for picture in pictures:
        _put(image, picture, 0, left)
        left += picture.shape[1] + GAP
    for number, line in enumerate(lines):
        _put(image, line, top + 4 + number * (LINE + 4), 0)
    return image


def _put(image: np.ndarray, part: np.ndarray, top: int, left: int) -> None:
    image[top : top + part.shape[0], left : left + part.shape[1]] = part
