"""Heat maps: charts of the worlds, colours at known states, and PNG files read back."""

import io
import sys

import numpy as np
import pytest

from packtrain import trees
from packtrain.envs.catch import Catch
from packtrain.envs.hanoi import Hanoi
from packtrain.envs.state_graph import StateGraph
from packtrain.envs.toy_mr import CHART_COLOURS, ToyMR
from packtrain.errors import ConfigError, EnvSetupError, MissingExtraError, RunFolderError
from packtrain.metrics.heat_map import EMPTY, MARGIN, RAMPS, UNVISITED, VISITED, colours, heat_map, write_png

Image = pytest.importorskip("PIL.Image")

APART = """
room 3 5
#######
#..@...
#.K...#
#######

room 4 5
#######
....^.#
#.....#
###D###

goal 4 6
"""


def decoded(data):
    """The picture in a PNG file."""
    image = Image.open(io.BytesIO(data))
    assert image.format == "PNG" and image.mode == "RGB"
    return np.asarray(image)


def pixel(core, picture, state, scale, panel=(0, 0)):
    """The colour in the middle of a state's place, where the panel's chart begins at `panel`."""
    row, column = core.chart(state)[0] * scale + scale // 2
    return tuple(picture[panel[0] + row, panel[1] + column].tolist())


# Charts.


@pytest.mark.parametrize("disks", [1, 2, 3, 5])
def test_towers_form_a_triangle(disks):
    """Every legal move is one step of the triangle's grid. Fails if the corners of a third are not exchanged."""
    graph = StateGraph(Hanoi(disks))
    places = graph.core.chart(graph.states)
    assert places.shape == (3**disks, 2)
    assert len(np.unique(places, axis=0)) == 3**disks, "no two states share a place"
    rows, columns = graph.core.chart_shape()
    assert places.min() == 0 and (places <= (rows - 2, columns - 2)).all(), "a mark of 2 pixels fits"
    steps = np.abs(places[graph.edges] - places[:, None])  # [N, A, 2]
    moves = graph.edges != np.arange(len(graph))[:, None]
    assert {tuple(step) for step in steps[moves].tolist()} <= {(0, 2), (2, 1)}
    corners = np.repeat([[0], [1], [2]], disks, axis=1)
    side = 2 ** (disks + 1) - 2
    assert graph.core.chart(corners).tolist() == [[side, 0], [0, side // 2], [side, side]]


def test_the_shortest_solution_is_the_base():
    graph = StateGraph(Hanoi(4))
    base = graph.from_start + graph.to_goal == 15
    places = graph.core.chart(graph.states)[base]
    assert (places[:, 0] == 30).all() and sorted(places[:, 1].tolist()) == list(range(0, 32, 2))


def test_other_towers_have_no_chart():
    with pytest.raises(EnvSetupError, match=r"Hanoi\(pegs=4\): only the states of 3 pegs can be drawn"):
        Hanoi(3, pegs=4).chart_shape()


def test_rooms_lie_at_their_places(tmp_path):
    """Fails if x and y are exchanged, or rooms are counted from 0 0."""
    (tmp_path / "apart.txt").write_text(APART)
    core = ToyMR(str(tmp_path / "apart.txt"))
    assert core.chart_shape() == (8, 14)
    states = core.initial(1, np.random.default_rng(0))
    places = [core.chart(states)[0].tolist()]
    for action in (1, 1, 1, 1):
        states, *_ = core.step(states, np.array([action]), np.random.default_rng(0))
        places.append(core.chart(states)[0].tolist())
    assert places == [[1, 3], [1, 4], [1, 5], [1, 6], [1, 7]]
    background = core.chart_background()
    assert background.shape == (8, 14, 3)
    for place, letter in (((0, 0), "#"), ((1, 3), "."), ((2, 2), "K"), ((1, 11), "^"), ((3, 10), "D"), ((5, 9), "G")):
        assert tuple(background[place].tolist()) == CHART_COLOURS[letter], letter
    assert tuple(background[5, 3].tolist()) == CHART_COLOURS[" "], "no room is there"


def test_far_rooms_come_closer(tmp_path):
    """A gap of 9000 rooms is drawn as one. The map has no path there: an unreachable goal."""
    text = "unsolvable\nroom 0 0\n###\n#@#\n###\n\ngoal 9000 1\n"
    (tmp_path / "far.txt").write_text(text)
    assert ToyMR(str(tmp_path / "far.txt")).chart_shape() == (6, 9)


def test_every_state_of_the_full_map_is_on_floor():
    core = ToyMR()
    graph = StateGraph(core)
    rows, columns = core.chart(graph.states).T
    shown = core.chart_background()[rows, columns]
    assert not (shown == CHART_COLOURS["#"]).all(axis=1).any() and not (shown == CHART_COLOURS["^"]).all(axis=1).any()


# Pictures.


def test_colours_follow_the_logarithm():
    ramp = ((0, 0, 0), (100, 50, 0), (200, 100, 40))
    got = colours(np.array([1, 10, 100, 1000, 10_000]), 10_000, ramp)
    assert got.tolist() == [[0, 0, 0], [50, 25, 0], [100, 50, 0], [150, 75, 20], [200, 100, 40]]
    assert colours(np.array([1]), 1, ramp).tolist() == [[200, 100, 40]], "a single count is the largest"


def test_ramps_grow_lighter():
    """Lightness by the luminance of sRGB, so that a picture printed in grey says the same."""
    for ramp in RAMPS:
        light = colours(np.geomspace(1, 1000, 50), 1000, ramp) @ np.array([0.2126, 0.7152, 0.0722])
        assert (np.diff(light) > 0).all()
        assert np.abs(np.array(ramp[0]) - UNVISITED).max() > 30


def test_counts_are_seen_at_their_states():
    """Fails if rows and columns are exchanged or a state's mark is in another place."""
    core = Hanoi(3)
    graph = StateGraph(core)
    counts = np.zeros(27, np.int64)
    counts[[0, 5, 9]] = [100, 10, 1]
    picture = heat_map(core, graph.states, counts)
    scale = (1200 - 2 * MARGIN) // 16
    assert picture.dtype == np.uint8 and picture.shape[1] == 16 * scale + 2 * MARGIN
    for number in range(27):
        want = {0: RAMPS[0][-1], 9: RAMPS[0][0]}.get(number, UNVISITED)
        if number == 5:
            want = tuple(colours(np.array([10]), 100, RAMPS[0])[0].tolist())
        state = graph.states[number : number + 1]
        assert pixel(core, picture, state, scale, (MARGIN, MARGIN)) == want, number
    assert tuple(picture[MARGIN + 1, MARGIN + 1].tolist()) == EMPTY


def test_places_are_set_off_where_there_is_room():
    core = Hanoi(2)
    graph = StateGraph(core)
    picture = heat_map(core, graph.states, np.ones(9))
    scale = (1200 - 2 * MARGIN) // 8
    row, column = core.chart(graph.states[:1])[0] * scale + MARGIN
    place = picture[row : row + 2 * scale, column : column + 2 * scale]
    assert (place[:-1, :-1] == RAMPS[0][-1]).all()
    assert (place[-1] == EMPTY).all() and (place[:, -1] == EMPTY).all()


def test_states_that_share_a_cell_are_added_up():
    core = ToyMR("two_rooms")
    graph = StateGraph(core)
    states = {name: leaf.copy() for name, leaf in trees.map(lambda leaf: leaf[[0, 0, 1]], graph.states).items()}
    states["keys"][1] = 0
    picture = heat_map(core, states, np.array([6, 4, 1]))
    rows, columns = core.chart_shape()
    scale = (1200 - 2 * MARGIN) // max(rows, columns)
    left = MARGIN + (picture.shape[1] - 2 * MARGIN - columns * scale) // 2
    first, other = (trees.map(lambda leaf, n=n: leaf[n : n + 1], states) for n in (0, 2))
    assert pixel(core, picture, first, scale, (MARGIN, left)) == RAMPS[0][-1]
    assert pixel(core, picture, other, scale, (MARGIN, left)) == RAMPS[0][0], "1 of 10 is the lowest colour"
    even = heat_map(core, states, np.array([6, 4, 10]))
    assert pixel(core, even, first, scale, (MARGIN, left)) == pixel(core, even, other, scale, (MARGIN, left))
    unvisited = trees.map(lambda leaf: leaf[5:6], graph.states)
    assert pixel(core, picture, unvisited, scale, (MARGIN, left)) == CHART_COLOURS["."]


def test_marks_have_panels_and_colours_of_their_own():
    core = Hanoi(3)
    graph = StateGraph(core)
    counts = np.zeros(27)
    counts[:4] = 5
    marks = {"wrong": (graph.states[2:4], np.array([1, 8])), "verified": (graph.states[3:4], np.array([2]))}
    picture = heat_map(core, graph.states, counts, marks)
    scale = (1200 - 4 * MARGIN) // 3 // 16
    assert 400 <= picture.shape[1] == 3 * (16 * scale + MARGIN) + MARGIN <= 1200
    top = MARGIN + 10 + MARGIN  # below the names
    seen = [
        [
            pixel(
                core, picture, graph.states[number : number + 1], scale, (top, MARGIN + panel * (16 * scale + MARGIN))
            )
            for number in (1, 2, 3, 7)
        ]
        for panel in range(3)
    ]
    assert seen[0] == [RAMPS[0][-1], RAMPS[0][-1], RAMPS[0][-1], UNVISITED]
    assert seen[1] == [VISITED, RAMPS[1][0], RAMPS[1][-1], UNVISITED]
    assert seen[2] == [VISITED, VISITED, RAMPS[2][-1], UNVISITED]


def test_panels_of_a_wide_map_are_stacked():
    core = ToyMR()
    states = core.initial(1, np.random.default_rng(0))
    one = heat_map(core, states, np.array([1]))
    three = heat_map(core, states, np.array([1]), {"a": (states, np.array([1])), "b": (states, np.array([1]))})
    assert three.shape[1] == one.shape[1] and three.shape[0] > 3 * (one.shape[0] - MARGIN)


@pytest.mark.parametrize("core", [Hanoi(1), Hanoi(6), Hanoi(9), Hanoi(11), ToyMR("hall_way"), ToyMR("one_room_50")])
def test_pictures_are_of_a_handy_size(core):
    """Large charts shrink. Fails at eleven disks, whose triangle is 4096 wide, if they do not."""
    states = core.initial(3, np.random.default_rng(0))
    for marks in (None, {"wrong": (states, np.zeros(3))}):
        height, width, _ = heat_map(core, states, np.array([2, 0, 1]), marks).shape
        assert 400 <= width <= 1200 and 100 <= height <= 1300


def test_nothing_visited_is_a_picture_too():
    core = Hanoi(3)
    graph = StateGraph(core)
    picture = heat_map(core, graph.states, np.zeros(27))
    chart = picture[MARGIN : -3 * MARGIN]
    assert np.unique(chart[::5, ::5].reshape(-1, 3), axis=0).tolist() == [list(EMPTY), list(UNVISITED)]


def test_worlds_without_a_chart_and_counts_below_zero_are_refused():
    with pytest.raises(ConfigError, match=r"heat_map\(Catch\): this environment has no chart"):
        heat_map(Catch(), np.zeros((1, 1)), np.zeros(1))
    with pytest.raises(ValueError, match="counts of a heat map must be 0 or more"):
        heat_map(Hanoi(2), np.zeros((1, 2), np.uint8), np.array([-1]))


# Files.


def test_a_png_file_holds_the_picture(tmp_path):
    """Fails if width and height are exchanged, or a line lacks its filter."""
    picture = np.random.default_rng(0).integers(0, 256, (7, 11, 3)).astype(np.uint8)
    path = tmp_path / "deep" / "picture.png"
    write_png(path, picture)
    np.testing.assert_array_equal(decoded(path.read_bytes()), picture)
    write_png(str(path), picture[:3])
    np.testing.assert_array_equal(decoded(path.read_bytes()), picture[:3])
    assert list(path.parent.iterdir()) == [path], "no temporary file is left"


def test_a_heat_map_survives_its_file(tmp_path):
    core = Hanoi(4)
    graph = StateGraph(core)
    picture = heat_map(core, graph.states, np.arange(81))
    write_png(tmp_path / "a.png", picture)
    np.testing.assert_array_equal(decoded((tmp_path / "a.png").read_bytes()), picture)


def test_what_is_no_picture_or_no_place_is_refused(tmp_path):
    for wrong in (np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((0, 4, 3), np.uint8)):
        with pytest.raises(ValueError, match="a picture is uint8"):
            write_png(tmp_path / "a.png", wrong)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot write the picture to"):
        write_png(tmp_path / "file" / "a.png", np.zeros((1, 1, 3), np.uint8))
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunFolderError):
        write_png(tmp_path / "folder", np.zeros((1, 1, 3), np.uint8))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


def test_without_pillow_the_extra_is_named(tmp_path, monkeypatch):
    """Mutation: Pillow imported at the top of the module."""
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"packtrain\[plot\]"):
        write_png(tmp_path / "a.png", np.zeros((1, 1, 3), np.uint8))
