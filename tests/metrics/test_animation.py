"""Animated PNG as a decoder that is not ours sees it, palettes, and pictures brought to size."""

import io
import struct
import sys
import zlib

import numpy as np
import pytest

from packtrain.errors import MissingExtraError
from packtrain.metrics.animation import COLOURS, Packed, animated_png, fitted, median_cut, mp4, need_mp4

Image = pytest.importorskip("PIL.Image")


def decode(data):
    """Pictures and their milliseconds."""
    image = Image.open(io.BytesIO(data))
    assert image.info["loop"] == 0
    pictures, shown = [], []
    for index in range(image.n_frames):
        image.seek(index)
        pictures.append(np.asarray(image.convert("RGB")))
        shown.append(image.info["duration"])
    return pictures, shown


def chunks(data):
    """(kind, content) of each, their checksums checked."""
    found, place = [], 8
    while place < len(data):
        size, kind = struct.unpack(">I4s", data[place : place + 8])
        content = data[place + 8 : place + 8 + size]
        assert struct.unpack(">I", data[place + 8 + size :][:4]) == (zlib.crc32(kind + content),)
        found.append((kind, content))
        place += size + 12
    return found


def test_few_colours_come_out_as_they_went_in():
    """A moving square, a picture twice in a row, and noise in a corner: rectangles of every kind.

    Mutations: a transparent pixel where something changed; left and top exchanged; the box one short.
    """
    rng = np.random.default_rng(0)
    pictures = [np.zeros((20, 30, 3), np.uint8) for _ in range(8)]
    for step, picture in enumerate(pictures):
        picture[3 * (step // 2) :][:4, 3 * step :][:, :4] = (250, 10, step)
        picture[:5, 20:] = 16 * rng.integers(4, size=(5, 10, 1))
    pictures.insert(3, pictures[2])
    data = animated_png(pictures, [0.05] * 8 + [1.0])
    got, shown = decode(data)
    assert np.array_equal(got, pictures) and shown == [50.0] * 8 + [1000.0]
    kinds = [kind for kind, _ in chunks(data)]
    assert kinds[:4] == [b"IHDR", b"acTL", b"PLTE", b"tRNS"] and kinds[-1] == b"IEND"
    ordered = [struct.unpack(">I", content[:4])[0] for kind, content in chunks(data) if kind in (b"fcTL", b"fdAT")]
    assert ordered == list(range(9 + 8)), "browsers refuse a file whose numbers are not in order"


def test_exactly_as_many_colours_as_a_palette_holds_are_kept_and_one_more_is_not():
    """Mutation: room for one colour too many, so that the last one is transparent."""
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


def test_median_cut_parts_what_is_apart():
    """Two clusters far apart, one of them rare, and single colours that cannot be cut."""
    colours = np.array([[0, 0, 0], [4, 0, 0], [200, 0, 0], [203, 1, 0]], float)
    groups = median_cut(colours, np.array([1000, 1000, 1, 1]), 2)
    assert sorted(sorted(group.tolist()) for group in groups) == [[0, 1], [2, 3]]
    assert sorted(np.concatenate(groups).tolist()) == [0, 1, 2, 3], "every colour is in one group"
    assert len(median_cut(colours, np.ones(4), 99)) == 4


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
    with pytest.raises(ValueError, match="change their size"):
        packed.add(pictures[0, :3])


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
