"""Animated PNG as Pillow decodes it, palettes, and pictures brought to size."""

import io
import sys

import numpy as np
import pytest

from packtrain.errors import MissingExtraError
from packtrain.metrics.animation import COLOURS, Packed, animated_png, fitted, mp4, need_mp4, need_png

Image = pytest.importorskip("PIL.Image")


def decode(data):
    """Pictures and their milliseconds."""
    image = Image.open(io.BytesIO(data))
    assert image.info.get("loop", 0) == 0
    pictures, shown = [], []
    for index in range(getattr(image, "n_frames", 1)):
        image.seek(index)
        pictures.append(np.asarray(image.convert("RGB")))
        shown.append(image.info.get("duration"))
    return pictures, shown


def test_few_colours_come_out_as_they_went_in():
    """A moving square, a picture twice in a row, and noise in a corner.

    Mutations: a palette of each picture's own; the first picture twice; durations in seconds.
    """
    rng = np.random.default_rng(0)
    pictures = [np.zeros((20, 30, 3), np.uint8) for _ in range(8)]
    for step, picture in enumerate(pictures):
        picture[3 * (step // 2) :][:4, 3 * step :][:, :4] = (250, 10, step)
        picture[:5, 20:] = 16 * rng.integers(4, size=(5, 10, 1))
    pictures.insert(3, pictures[2])
    got, shown = decode(animated_png(pictures, [0.05] * 8 + [1.0]))
    assert shown == [50.0, 50.0, 100.0, *[50.0] * 4, 1000.0], "a picture twice in a row is one frame"
    assert np.array_equal(got, pictures[:3] + pictures[4:])


def test_exactly_as_many_colours_as_a_palette_holds_are_kept_and_one_more_is_not():
    """Mutation: a table for one colour too many, so that the last one has the place of the first."""
    colours = np.random.default_rng(1).integers(256, size=(COLOURS + 1, 3)).astype(np.uint8)
    colours[:2] = [(8, 8, 8), (9, 9, 9)]  # alike: 5 bits a channel do not tell them apart
    exact = colours[:-1].reshape(1, -1, 3)
    assert np.array_equal(decode(animated_png([exact], [1.0]))[0][0], exact)
    more = decode(animated_png([colours.reshape(1, -1, 3)], [1.0]))[0][0]
    assert len(np.unique(more.reshape(-1, 3), axis=0)) <= COLOURS
    assert np.abs(more.astype(int) - colours).max() <= 32


def test_shades_stay_close_and_a_still_background_costs_nothing():
    """Mutation: a palette of the first colours that come; whole pictures each time."""
    across, down = np.meshgrid(np.linspace(0, 255, 200), np.linspace(0, 255, 100))
    background = np.stack([across, down, 255 - across], axis=2).astype(np.uint8)
    pictures = [background.copy() for _ in range(20)]
    for step, picture in enumerate(pictures):
        picture[40:50, 5 * step : 5 * step + 10] = (255, 255, 255)
    data = animated_png(pictures, [0.1] * 20)
    got, _ = decode(data)
    for mine, theirs in zip(got, pictures, strict=True):
        assert np.abs(mine.astype(float) - theirs).mean() < 5
    assert len(data) < 3 * len(animated_png(pictures[:1], [0.1]))


@pytest.mark.parametrize(
    "shape, want",
    [
        ((480, 480), (480, 480)),
        ((481, 100), (240, 50)),
        ((1500, 3), (375, 3)),
        ((84, 84), (168, 168)),
        ((16, 80), (48, 240)),
    ],
)
def test_pictures_are_brought_to_size_by_whole_factors(shape, want):
    picture = np.random.default_rng(0).integers(256, size=(*shape, 3)).astype(np.uint8)
    got = fitted(picture)
    assert got.shape == (*want, 3) and got.dtype == np.uint8
    if shape == (481, 100):
        assert got[0, 0].tolist() == picture[:2, :2].reshape(4, 3).mean(axis=0).round().tolist()
    if shape == (84, 84):
        assert np.array_equal(got[1::2, ::2], picture)


def test_packed_pictures_come_back_and_are_halved():
    pictures = np.random.default_rng(0).integers(256, size=(5, 4, 6, 3)).astype(np.uint8)
    packed = Packed()
    for picture in pictures:
        packed.add(picture)
    assert np.array_equal(list(packed), pictures) and np.array_equal(list(packed), pictures), "twice"
    packed.halve()
    assert np.array_equal(list(packed), pictures[::2])
    assert packed.smaller().shape == (2, 3, 3)
    with pytest.raises(ValueError, match="image size changes"):
        packed.add(pictures[0, :3])


def test_png_without_pillow_names_the_extra(monkeypatch):
    """Mutation: Pillow imported at the top of the module."""
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "PIL.Image", raising=False)
    with pytest.raises(MissingExtraError, match=r"packtrain\[video\]"):
        need_png()


def test_mp4_without_its_encoder_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(MissingExtraError, match=r"packtrain\[video\]"):
        need_mp4()


def test_mp4_holds_all_pictures(tmp_path):
    """Odd sides are padded. Mutation: the last picture not held."""
    reader = pytest.importorskip("imageio_ffmpeg")
    pictures = [np.full((17, 33, 3), 20 * step, np.uint8) for step in range(10)]
    (tmp_path / "film.mp4").write_bytes(mp4(pictures, 0.1, 1.0, tmp_path))
    frames = reader.read_frames(str(tmp_path / "film.mp4"))
    size = next(frames)["size"]
    assert size == (34, 18)
    values = [np.frombuffer(frame, np.uint8).mean() for frame in frames]
    assert len(values) == 19 and values == pytest.approx([*range(0, 200, 20), *[180] * 9], abs=6)
    assert [path.name for path in tmp_path.iterdir()] == ["film.mp4"]
