"""Write films that any browser plays: animated PNG with Pillow, or MP4 with imageio-ffmpeg (extra `video`).

An animated PNG has one palette. Up to 256 colours are kept exactly; more are reduced to 256 by Pillow's median cut.
"""

from __future__ import annotations

import io
import itertools
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from packtrain.errors import MissingExtraError, RunFolderError
from packtrain.files import write_inside

COLOURS = 256  # colours per palette
LARGEST, SMALLEST = 480, 240  # pixels of the longer side: larger pictures are reduced, smaller ones enlarged
_EXACT = 1 << 24  # number of colours in RGB
_SAMPLES = 1 << 20  # number of pixels from which a palette is computed


def fitted(picture: np.ndarray) -> np.ndarray:
    """Return an image uint8 [H, W, 3] of moderate size, scaled by a whole factor.

    Blocks of pixels become their mean; incomplete blocks at the right or lower edge are cut off.
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
    """Return an animated PNG that repeats forever; consecutive equal images are one frame.

    Args:
      pictures: uint8 [H, W, 3], all of one size, one or more; iterated several times.
      seconds: duration of each, at most a minute.
    """
    frames = _Frames(pictures)
    first, file = next(iter(frames)), io.BytesIO()
    durations = [round(1000 * shown) for shown in seconds]
    first.save(file, "PNG", save_all=True, append_images=_AfterFirst(frames), duration=durations, loop=0)
    return file.getvalue()


def need_png() -> None:
    """Raise MissingExtraError unless Pillow is installed."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise MissingExtraError("animated PNG", "pillow", "video") from None


def need_mp4() -> None:
    """Raise a MissingExtraError unless the MP4 encoder is installed."""
    try:
        import imageio_ffmpeg

        imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError):  # RuntimeError: the package imageio-ffmpeg without its program
        raise MissingExtraError("MP4", "imageio-ffmpeg", "video") from None


def mp4(pictures: Iterable[np.ndarray], seconds: float, hold: float, folder: Path) -> bytes:
    """Return a film in H.264, which all browsers play.

    Args:
      pictures: uint8 [H, W, 3], all of one size, one or more.
      seconds: duration of each.
      hold: duration of the last one.
      folder: for a temporary file.
    """
    import imageio_ffmpeg

    writer: Any = None
    place = Path(tempfile.mkdtemp(prefix=".encoding-", dir=folder))  # a name that no other file in the folder has
    file = place / "film.mp4"
    try:
        last = None
        for picture in pictures:
            height, width = picture.shape[:2]
            last = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")  # H.264 requires even sides
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
    """Write a film to a run folder: to a temporary file, which is then renamed."""
    try:
        write_inside(path.parent.parent, f"{path.parent.name}/{path.name}", data)
    except OSError as error:
        raise RunFolderError(f"cannot write the film to {path}: {error.strerror}") from error


class Packed:
    """Images in compressed memory that can be iterated several times; rendered ones shrink to a tenth."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._shape: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return [H, W, 3] of all images."""
        assert self._shape is not None
        return self._shape

    def add(self, picture: np.ndarray) -> None:
        """Add an image; ValueError if it has another size."""
        if self._shape is not None and picture.shape != self._shape:
            raise ValueError(f"the image size changes from {self._shape[:2]} to {picture.shape[:2]}")
        self._shape = picture.shape
        self._parts.append(zlib.compress(picture.tobytes(), 1))

    def halve(self) -> None:
        """Keep every second image, beginning with the first."""
        self._parts = self._parts[::2]

    def smaller(self) -> Packed:
        """Return the images at half their size."""
        small = Packed()
        for picture in self:
            small.add(_shrunk(picture, 2))
        return small

    def __iter__(self) -> Iterator[np.ndarray]:
        for part in self._parts:
            yield np.frombuffer(zlib.decompress(part), np.uint8).reshape(self.shape)


class _Frames:
    """Images in the colours of one palette, as Pillow images, created in each iteration."""

    def __init__(self, pictures: Iterable[np.ndarray]):
        self._pictures = pictures
        seen, pixels = np.zeros(_EXACT, bool), 0
        for picture in pictures:
            seen[_codes(picture)] = True
            pixels += picture.shape[0] * picture.shape[1]
        exact = np.flatnonzero(seen)
        self._table: np.ndarray | None = None  # index in the palette, by the code of a colour
        if len(exact) <= COLOURS:
            self._table = np.zeros(_EXACT, np.uint8)
            self._table[exact] = np.arange(len(exact))
            colours = np.stack([exact >> 16, exact >> 8 & 255, exact & 255], axis=1).astype(np.uint8)
            self._palette: Any = colours.tobytes()
        else:
            every = pixels // _SAMPLES | 1  # odd: an even stride would miss every second pixel column of most pictures
            samples = np.concatenate([picture.reshape(-1, 3)[::every] for picture in pictures])
            self._palette = _image(samples[None]).quantize(COLOURS)

    def __iter__(self) -> Iterator[Any]:
        for picture in self._pictures:
            if self._table is None:
                yield _image(picture).quantize(palette=self._palette, dither=0)
            else:
                image = _image(self._table[_codes(picture)])
                image.putpalette(self._palette)
                yield image


class _AfterFirst:
    """All frames but the first; Pillow iterates twice, so it must not be an iterator."""

    def __init__(self, frames: _Frames):
        self._frames = frames

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self._frames), 1, None)


def _image(picture: np.ndarray) -> Any:
    from PIL import Image

    return Image.fromarray(picture)


def _codes(picture: np.ndarray) -> np.ndarray:
    """Return one number for each pixel, 8 bits per channel."""
    red, green, blue = (picture[:, :, channel].astype(np.int32) for channel in range(3))
    return red << 16 | green << 8 | blue
