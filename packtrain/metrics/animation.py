"""Moving pictures that any browser plays: animated PNG, written here, or MP4, by the encoder of the extra `video`.

An animated PNG has one palette. Up to 255 colours are kept as they are; more are brought down to 255 by median cut
(Heckbert 1982). Each picture after the first is the rectangle that has changed, and what has not changed inside it is
transparent, so that a still background costs nothing.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from packtrain.errors import MissingExtraError, RunFolderError
from packtrain.files import write_inside

COLOURS = 255  # of a palette, beside the transparent one
LARGEST, SMALLEST = 480, 240  # pixels of the longer side that pictures are brought down and up to
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_EXACT, _COARSE = 1 << 24, 1 << 15  # how many colours there are, and how many are told apart while choosing a palette


def fitted(picture: np.ndarray) -> np.ndarray:
    """A picture uint8 [H, W, 3] that is neither huge nor tiny, scaled by a whole factor.

    Blocks of pixels become their mean; a rest at the right or lower edge that does not fill one is cut off.
    """
    longer = max(picture.shape[:2])
    if longer > LARGEST:
        return _shrunk(picture, -(-longer // LARGEST))
    factor = max(1, SMALLEST // longer)
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)


def _shrunk(picture: np.ndarray, factor: int) -> np.ndarray:
    height, width = (side // factor or side for side in picture.shape[:2])
    blocks = picture[: height * factor, : width * factor]
    down, right = blocks.shape[0] // height, blocks.shape[1] // width  # 1 along a side shorter than a block
    return blocks.reshape(height, down, width, right, 3).mean(axis=(1, 3)).round().astype(np.uint8)


def animated_png(pictures: Iterable[np.ndarray], seconds: list[float]) -> bytes:
    """An animated PNG that begins again when it is over.

    Args:
      pictures: uint8 [H, W, 3], all of one size, one or more; gone through twice.
      seconds: how long each is shown, at most a minute.
    """
    table, palette = _palette(pictures)
    clear = len(palette)  # the transparent entry
    parts: list[bytes] = []
    before: np.ndarray | None = None
    number = 0  # of the chunks that have a place in the order
    for picture, shown in zip(pictures, seconds, strict=True):
        now = table[_codes(picture, len(table))]
        if before is None:
            height, width = now.shape
            parts += [
                _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),  # 8 bits, a palette
                _chunk(b"acTL", struct.pack(">II", len(seconds), 0)),  # 0: again and again
                _chunk(b"PLTE", np.vstack([palette, np.zeros((1, 3), np.uint8)]).tobytes()),
                _chunk(b"tRNS", b"\xff" * clear + b"\x00"),
            ]
        top, left, part = (0, 0, now) if before is None else _changed(before, now, clear)
        place = struct.pack(">IIIII", number, part.shape[1], part.shape[0], left, top)
        # Shown over what was there, which stays.
        parts.append(_chunk(b"fcTL", place + struct.pack(">HHBB", round(1000 * shown), 1000, 0, before is not None)))
        number += 1
        lines = np.zeros((part.shape[0], 1 + part.shape[1]), np.uint8)  # before each line its filter: 0, none
        lines[:, 1:] = part
        data = zlib.compress(lines.tobytes(), 6)
        if before is None:
            parts.append(_chunk(b"IDAT", data))
        else:
            parts.append(_chunk(b"fdAT", struct.pack(">I", number) + data))
            number += 1
        before = now
    return _SIGNATURE + b"".join(parts) + _chunk(b"IEND", b"")


def need_mp4() -> None:
    """MissingExtraError unless the encoder of MP4 is there."""
    try:
        import imageio_ffmpeg

        imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError):  # RuntimeError: a package without its program
        raise MissingExtraError("MP4", "imageio-ffmpeg", "video") from None


def mp4(pictures: Iterable[np.ndarray], seconds: float, hold: float, folder: Path) -> bytes:
    """A film in H.264, as all browsers play it.

    Args:
      pictures: uint8 [H, W, 3], all of one size, one or more.
      seconds: how long each is shown.
      hold: how long the last one is shown.
      folder: where to write a file in between.
    """
    import imageio_ffmpeg

    writer: Any = None
    place = Path(tempfile.mkdtemp(prefix=".encoding-", dir=folder))  # a name that nothing in the folder can have taken
    file = place / "film.mp4"
    try:
        last = None
        for picture in pictures:
            height, width = picture.shape[:2]
            last = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")  # H.264 wants even sides
            if writer is None:
                size = (last.shape[1], last.shape[0])
                writer = imageio_ffmpeg.write_frames(
                    str(file), size, fps=1 / seconds, codec="libx264", quality=7, macro_block_size=1
                )
                writer.send(None)
            writer.send(np.ascontiguousarray(last))
        for _ in range(max(0, round(hold / seconds) - 1)):
            writer.send(np.ascontiguousarray(last))
        writer.close()
        return file.read_bytes()
    finally:
        shutil.rmtree(place, ignore_errors=True)


def write_film(path: Path, data: bytes) -> None:
    """Write a film into a folder of a run folder: beside its place, then renamed."""
    try:
        write_inside(path.parent.parent, f"{path.parent.name}/{path.name}", data)
    except OSError as error:
        raise RunFolderError(f"cannot write the film to {path}: {error.strerror}") from error


class Packed:
    """Pictures that can be gone through more than once, and take little memory: rendered ones shrink to a tenth."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._shape: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def shape(self) -> tuple[int, ...]:
        """[H, W, 3] of all of them."""
        assert self._shape is not None
        return self._shape

    def add(self, picture: np.ndarray) -> None:
        """One more; ValueError if it is of another size."""
        if self._shape is not None and picture.shape != self._shape:
            raise ValueError(f"its pictures change their size, from {self._shape[:2]} to {picture.shape[:2]}")
        self._shape = picture.shape
        self._parts.append(zlib.compress(picture.tobytes(), 1))

    def halve(self) -> None:
        """Keep every second one, the first among them."""
        self._parts = self._parts[::2]

    def smaller(self) -> Packed:
        """The same at half the size."""
        small = Packed()
        for picture in self:
            small.add(_shrunk(picture, 2))
        return small

    def __iter__(self) -> Iterator[np.ndarray]:
        for part in self._parts:
            yield np.frombuffer(zlib.decompress(part), np.uint8).reshape(self.shape)


def _palette(pictures: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """From the code of a colour to its place in the palette, uint8 [codes], and the palette, uint8 [at most 255, 3]."""
    seen, counts, sums = np.zeros(_EXACT, bool), np.zeros(_COARSE, np.int64), np.zeros((_COARSE, 3))
    for picture in pictures:
        seen[_codes(picture, _EXACT)] = True
        codes = _codes(picture, _COARSE).ravel()
        counts += np.bincount(codes, minlength=_COARSE)
        for channel in range(3):
            sums[:, channel] += np.bincount(codes, picture[:, :, channel].ravel(), _COARSE)
    exact = np.flatnonzero(seen)
    if len(exact) <= COLOURS:
        table = np.zeros(_EXACT, np.uint8)
        table[exact] = np.arange(len(exact))
        return table, np.stack([exact >> 16, exact >> 8 & 255, exact & 255], axis=1).astype(np.uint8)
    used = np.flatnonzero(counts)
    colours = sums[used] / counts[used, None]
    groups = median_cut(colours, counts[used], COLOURS)
    table = np.zeros(_COARSE, np.uint8)
    palette = np.zeros((len(groups), 3), np.uint8)
    for place, group in enumerate(groups):
        table[used[group]] = place
        palette[place] = np.average(colours[group], axis=0, weights=counts[used][group]).round()
    return table, palette


def median_cut(colours: np.ndarray, counts: np.ndarray, most: int) -> list[np.ndarray]:
    """Colours [C, 3] that occur `counts` times in at most `most` groups of alike ones: lists of their places.

    The group that a mean stands for worst is cut at the median of its widest channel, until there are enough.
    """
    groups = [np.arange(len(colours))]
    faults = [_fault(colours, counts)]
    while len(groups) < most and max(faults) > 0:
        worst = int(np.argmax(faults))
        group = groups.pop(worst)
        faults.pop(worst)
        channel = int(np.argmax(np.ptp(colours[group], axis=0)))
        group = group[np.argsort(colours[group, channel], kind="stable")]
        below = np.cumsum(counts[group])
        cut = int(np.clip(np.searchsorted(below, below[-1] / 2) + 1, 1, len(group) - 1))
        for half in (group[:cut], group[cut:]):
            groups.append(half)
            faults.append(_fault(colours[half], counts[half]))
    return groups


def _fault(colours: np.ndarray, counts: np.ndarray) -> float:
    """The squared distances from the mean, added up; 0 of a single colour."""
    if len(colours) == 1:
        return 0.0
    mean = np.average(colours, axis=0, weights=counts)
    return float((np.square(colours - mean).sum(axis=1) * counts).sum())


def _codes(picture: np.ndarray, of: int) -> np.ndarray:
    """One number for each pixel: 8 bits a channel, or 5."""
    red, green, blue = (picture[:, :, channel].astype(np.int32) for channel in range(3))
    if of == _EXACT:
        return red << 16 | green << 8 | blue
    return red >> 3 << 10 | green >> 3 << 5 | blue >> 3


def _changed(before: np.ndarray, now: np.ndarray, clear: int) -> tuple[int, int, np.ndarray]:
    """Top, left and the rectangle that has changed; one transparent pixel if nothing has."""
    same = before == now
    rows, columns = np.flatnonzero(~same.all(axis=1)), np.flatnonzero(~same.all(axis=0))
    if not len(rows):
        return 0, 0, np.full((1, 1), clear, np.uint8)
    place = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    part = now[place]
    if same[place].mean() > 0.5:  # else it would only be a pattern in the way of the compression
        part = np.where(same[place], np.uint8(clear), part)
    return int(rows[0]), int(columns[0]), part


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
