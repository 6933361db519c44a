"""Small letters for pictures, without a font library."""

from __future__ import annotations

import numpy as np

EMPTY = (12, 12, 15)  # background
INK = (214, 214, 220)

# Bitmaps of letters, side by side; other characters are blank.
_SIZE = 2  # pixels of the picture per pixel of a letter
_ALPHABET = "0123456789.-_/ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_DRAWN = (
    "### .#. ### ### #.# ### ### ### ### ### . ... ... ..# "
    ".#. ##. .## ##. ### ### .## #.# ### ..# #.# #.. #...# #..# .#. ##. .#. ##. .## ### #.# #.# #...# #.# #.# ###",
    "#.# ##. ..# ..# #.# #.. #.. ..# #.# #.# . ... ... ..# "
    "#.# #.# #.. #.# #.. #.. #.. #.# .#. ..# #.# #.. ##.## ##.# #.# #.# #.# #.# #.. .#. #.# #.# #...# #.# #.# ..#",
    "#.# .#. ### .## ### ### ### .#. ### ### . ### ... .#. "
    "### ##. #.. #.# ##. ##. #.# ### .#. ..# ##. #.. #.#.# #.## #.# ##. #.# ##. .#. .#. #.# #.# #.#.# .#. .#. .#.",
    "#.# .#. #.. ..# ..# ..# #.# .#. #.# ..# . ... ... #.. "
    "#.# #.# #.. #.# #.. #.. #.# #.# .#. #.# #.# #.. #...# #..# #.# #.. ### #.# ..# .#. #.# #.# ##.## #.# .#. #..",
    "### ### ### ### ..# ### ### .#. ### ### # ... ### #.. "
    "#.# ##. .## ##. ### #.. .## #.# ### .#. #.# ### #...# #..# .#. #.. .## #.# ##. .#. ### .#. #...# #.# .#. ###",
)
_GLYPHS = {
    letter: np.array([list(line) for line in lines]) == "#"
    for letter, *lines in zip(_ALPHABET, *(row.split() for row in _DRAWN), strict=True)
}
LINE = 5 * _SIZE  # height of a line of text in pixels


def blank(height: int, width: int) -> np.ndarray:
    """Return an empty image, uint8 [height, width, 3]."""
    picture = np.empty((height, width, 3), np.uint8)
    picture[:] = EMPTY
    return picture


def text_line(text: str) -> np.ndarray:
    """Return a line of small letters, uint8 [5 · _SIZE, W, 3]."""
    space = np.zeros((5, 1), bool)
    glyphs = [part for letter in text.upper() for part in (_GLYPHS.get(letter, np.zeros((5, 3), bool)), space)]
    dots = np.concatenate(glyphs or [space], axis=1).repeat(_SIZE, axis=0).repeat(_SIZE, axis=1)
    line = blank(*dots.shape)
    line[dots] = INK
    return line
