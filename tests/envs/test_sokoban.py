"""Sokoban: moves by hand, XSB there and back, generated boards against a solver that only pushes."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from packtrain import trees
from packtrain.envs.functional import FunctionalEnv
from packtrain.envs.functional_vector_env import FunctionalVectorEnv
from packtrain.envs.sokoban import DOWN, LEFT, RIGHT, UP, Sokoban
from packtrain.envs.sokoban_levels import (
    Level,
    format_levels,
    generate_level,
    parse_levels,
    read_levels,
)
from packtrain.errors import EnvSetupError

CORRIDOR = """\
#######
#@ $ .#
#######
"""


def core_for(*rows, **kwargs):
    return Sokoban(levels=[Level(rows)], **kwargs)


def start(core):
    return core.initial(1, np.random.default_rng(0))


def one_step(rows, action, **kwargs):
    """Rows after one action, reward, terminated, solved."""
    core = core_for(*rows, **kwargs)
    states, reward, terminated, extras = core.step(start(core), np.array([action]), np.random.default_rng(0))
    return core.render(states, "ansi").splitlines(), float(reward[0]), bool(terminated[0]), bool(extras["solved"][0])


def fewest_pushes(rows):
    """Pushes of the shortest solution by search forwards over sets of cells; None if there is none."""
    cells = {(r, c): symbol for r, row in enumerate(rows) for c, symbol in enumerate(row) if symbol != "#"}
    goals = {cell for cell, symbol in cells.items() if symbol in ".*+"}
    boxes = frozenset(cell for cell, symbol in cells.items() if symbol in "$*")
    (player,) = (cell for cell, symbol in cells.items() if symbol in "@+")

    def reach(boxes, player):
        found, todo = {player}, [player]
        while todo:
            r, c = todo.pop()
            for cell in ((r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)):
                if cell in cells and cell not in boxes and cell not in found:
                    found.add(cell)
                    todo.append(cell)
        return found

    layer, seen, pushes = [(boxes, reach(boxes, player))], {(boxes, min(reach(boxes, player)))}, 0
    while layer:
        if any(boxes <= goals for boxes, _ in layer):
            return pushes
        following = []
        for boxes, found in layer:
            for r, c in boxes:
                for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
                    to = r + down, c + right
                    if (r - down, c - right) in found and to in cells and to not in boxes:
                        moved = boxes - {(r, c)} | {to}
                        after = reach(moved, (r, c))
                        if (moved, min(after)) not in seen:
                            seen.add((moved, min(after)))
                            following.append((moved, after))
        layer, pushes = following, pushes + 1
    return None


def random_steps(core, states, steps, seed):
    """States visited by random actions, as one batch."""
    rng, visited = np.random.default_rng(seed), [states]
    for _ in range(steps):
        states, *_ = core.step(states, rng.integers(4, size=len(states["player"])), rng)
        visited.append(states)
    return {leaf: np.concatenate([state[leaf] for state in visited]) for leaf in states}


OPEN = ["#######", "#     #", "#     #", "#  @  #", "#     #", "#   $.#", "#######"]


@pytest.mark.parametrize(
    ("action", "row", "column"),
    [(UP, 2, 3), (DOWN, 4, 3), (LEFT, 3, 2), (RIGHT, 3, 4)],
    ids=["up", "down", "left", "right"],
)
def test_moves(action, row, column):
    """Fails if directions are swapped or rows and columns are."""
    rows, reward, terminated, solved = one_step(OPEN, action)
    assert rows[row][column] == "@"
    assert "".join(rows).count("@") == 1 and rows[5] == "#   $.#"
    assert (reward, terminated, solved) == (pytest.approx(-0.1), False, False)


@pytest.mark.parametrize(
    ("before", "after", "reward"),
    [
        ("#@  $.#", "# @ $.#", -0.1),  # walk
        ("#@$ . #", "# @$. #", -0.1),  # push onto floor
        ("#@$.$.#", "# @*$.#", 0.9),  # push onto a goal
        ("#@* $.#", "# +$$.#", -1.1),  # push off a goal, and stand on it
        ("#@*.$.#", "# +*$.#", -0.1),  # from goal to goal
        ("#@.$.$#", "# +$.$#", -0.1),  # step onto a goal
        ("#+ $.$#", "#.@$.$#", -0.1),  # step off a goal
        ("#. .@$#", "#. .@$#", -0.1),  # a wall behind the box
        ("#@$$..#", "#@$$..#", -0.1),  # a box behind the box
        ("#@$*..#", "#@$*..#", -0.1),  # a box on a goal behind the box
        ("#$. .@#", "#$. .@#", -0.1),  # a wall ahead
        ("#  @$.#", "#   @*#", 10.9),  # solved: step, box and end
        ("# @$..#", "#  @*.#", 10.9),  # more goals than boxes
    ],
)
def test_a_step_to_the_right_and_its_mirror_images(before, after, reward):
    """Each line played to the right, left, down and up; fails for a double push, a lost goal, a wrong reward."""
    for action, turn in (
        (RIGHT, lambda board: board),
        (LEFT, np.fliplr),
        (DOWN, np.transpose),
        (UP, lambda b: b.T[::-1]),
    ):
        rows, want = (
            ["".join(line) for line in turn(np.array([list("#" * 7), list(line), list("#" * 7)]))]
            for line in (before, after)
        )
        got, paid, terminated, solved = one_step(rows, action)
        assert got == want
        assert paid == pytest.approx(reward, abs=1e-6)
        assert terminated is solved is (reward > 10)


def test_rewards_are_options():
    rows = ["#####", "#@$.#", "#####"]
    *_, terminated, solved = one_step(rows, RIGHT)
    assert terminated and solved
    _, paid, *_ = one_step(rows, RIGHT, step_reward=-0.5, box_reward=2, solved_reward=100)
    assert paid == 101.5


def test_a_solved_board_stays_and_pays_nothing():
    """A planner may step dead states along with live ones; fails if the box can be pushed off again."""
    core, rng = core_for("######", "#@$. #", "######"), np.random.default_rng(0)
    states, *_ = core.step(start(core), np.array([RIGHT]), rng)
    after, reward, terminated, extras = core.step(states, np.array([RIGHT]), rng)
    assert (reward[0], terminated[0], extras["solved"][0]) == (0, True, False)
    assert core.render(after, "ansi") == core.render(states, "ansi") == "######\n# @* #\n######\n"


def test_an_episode_cut_by_the_clock_is_not_solved():
    env = FunctionalEnv(core_for("#####", "#@$.#", "#####", max_steps=2))
    env.reset(seed=0)
    env.step(UP)
    *_, terminated, truncated, info = env.step(UP)
    assert (terminated, truncated, bool(info["solved"])) == (False, True, False)
    assert Sokoban(max_steps=None).max_steps is None


def test_observations_are_the_seven_planes():
    """Fails if planes are permuted: wall, floor, goal, box on goal, box, player, player on goal."""
    core = core_for("#######", "#@ .*$#", "#######")
    states = start(core)
    observations = core.observe(states)
    assert (observations.shape, observations.dtype) == ((1, 3, 7, 7), np.float32)
    assert observations[0].argmax(axis=-1).tolist() == [[0] * 7, [0, 5, 1, 2, 3, 4, 0], [0] * 7]
    np.testing.assert_array_equal(observations.sum(axis=-1), 1)
    assert set(np.unique(observations)) == {0, 1}
    on_goal = core_for("####", "#+$#", "####")
    assert on_goal.observe(start(on_goal))[0, 1].argmax(axis=-1).tolist() == [0, 6, 4, 0]
    assert core.observation_space.contains(observations[0])


def test_observations_give_the_state_back():
    core = Sokoban(7, 7, 2, boards=6)
    states = random_steps(core, core.initial(6, np.random.default_rng(1)), 40, seed=2)
    back = core.states_of(core.observe(states) * 0.4 + 0.3)  # a model's planes need not be zeros and ones
    for leaf in states:
        np.testing.assert_array_equal(back[leaf], states[leaf])
        assert back[leaf].dtype == states[leaf].dtype


def test_step_is_pure_and_a_batch_is_a_loop():
    """Fails if an argument is written to, if results share its memory, or if states of a batch mix."""
    core, rng = Sokoban(7, 7, 2, boards=8, action_noise=0.3), np.random.default_rng(3)
    states = random_steps(core, core.initial(8, rng), 20, seed=4)
    actions = rng.integers(4, size=len(states["player"]))
    kept = trees.map(np.copy, states)
    after, rewards, terminated, extras = core.step(states, actions, np.random.default_rng(5))
    rng = np.random.default_rng(5)  # single states draw in order, as the batch does
    for leaf in states:
        np.testing.assert_array_equal(states[leaf], kept[leaf])
        assert not np.shares_memory(states[leaf], after[leaf])
        assert after[leaf].dtype == states[leaf].dtype and after[leaf].shape == states[leaf].shape
    assert (rewards.dtype, terminated.dtype, extras["solved"].dtype) == (np.float32, bool, bool)
    assert len(set(rewards.tolist())) > 1, "boxes were moved onto goals and off"
    for n in range(len(actions)):
        single = {leaf: array[n : n + 1] for leaf, array in states.items()}
        one, reward, end, extra = core.step(single, actions[n : n + 1], rng)
        for leaf in one:
            np.testing.assert_array_equal(one[leaf][0], after[leaf][n])
        assert (reward[0], end[0], extra["solved"][0]) == (rewards[n], terminated[n], extras["solved"][n])
        np.testing.assert_array_equal(core.observe(one)[0], core.observe(after)[n])


def test_boxes_and_walls_are_kept_by_random_play():
    core = Sokoban(8, 8, 3, boards=5)
    states = random_steps(core, core.initial(5, np.random.default_rng(0)), 200, seed=1)
    assert (states["boxes"].sum(axis=(1, 2)) == 3).all()
    assert not (states["boxes"] & states["walls"]).any()
    player = np.arange(64) == states["player"][:, None]
    occupied = (states["boxes"] | states["walls"]).reshape(-1, 64)
    assert not (occupied & player).any()


def test_action_noise_replaces_actions_at_its_rate():
    """Up is replaced by one of four actions in 40 % of the steps, so 10 % each go elsewhere."""
    core = core_for(*OPEN, action_noise=0.4)
    n = 8000
    states = core.initial(n, np.random.default_rng(0))
    after, *_ = core.step(states, np.full(n, UP), np.random.default_rng(0))
    shares = [np.mean(after["player"] == 3 * 7 + 3 + offset) for offset in (-7, 7, -1, 1)]
    np.testing.assert_allclose(shares, [0.7, 0.1, 0.1, 0.1], atol=0.02)


COLLECTION = """\
A collection; its levels have titles in several ways.
Author: nobody

; 1

   ####
####  #
#@-$_.#
#######

Title: The first
; 2
#####
#+$ #
#  *#
#####
Title: The second
Author: somebody
Comment:
a remark

; last

#######
#@ $ .#
#######
"""


def test_reading_a_collection():
    first, second, third = parse_levels(COLLECTION)
    assert first.rows == ("   ####", "####  #", "#@ $ .#", "#######")
    assert (first.title, third.title) == ("The first", "last")
    assert second.title == "The second"
    assert (second.height, second.width, second.num_boxes, second.solved) == (4, 5, 2, False)
    assert str(third) == CORRIDOR


def test_titles_in_front_of_boards():
    """Fails if a title that stands before its board is given to the board above."""
    levels = parse_levels(f"Title: one\n{CORRIDOR}\nTitle: two\n{CORRIDOR}\n; three\n{CORRIDOR}")
    assert [level.title for level in levels] == ["one", "two", "three"]


def test_a_missing_corner_leaves_the_wall_closed():
    """Moves are never diagonal, and published levels leave corners out."""
    (level,) = parse_levels(" ###\n#@$.#\n ###\n")
    assert level.planes()["walls"].tolist() == [[1] * 5, [1, 0, 0, 0, 1], [1] * 5]


def test_there_and_back(tmp_path):
    """Text, levels, text: rows, titles and pushes survive."""
    levels = parse_levels(COLLECTION) + [generate_level(np.random.default_rng(i), 7, 8, 2) for i in range(5)]
    levels += [Level(("#####", "#@$.#", "#####"), pushes=9, exact=False)]
    assert parse_levels(format_levels(levels)) == levels
    (tmp_path / "levels.xsb").write_text(format_levels(levels))
    assert read_levels(tmp_path / "levels.xsb") == levels
    core = Sokoban(levels=levels[1:2])
    assert core.render(start(core), "ansi") == str(levels[1])


def test_every_level_of_a_file_is_played(tmp_path):
    """Smaller boards are filled up with wall, and so is what lies outside a wall."""
    (tmp_path / "levels.xsb").write_text(format_levels(parse_levels(COLLECTION)))
    core = Sokoban(levels=str(tmp_path / "levels.xsb"))
    assert core.observation_space.shape == (4, 7, 7)
    states = core.initial(200, np.random.default_rng(0))
    boards = {core.render(trees.map(lambda leaf, n=n: leaf[n : n + 1], states), "ansi") for n in range(200)}
    assert boards == {
        "#######\n####  #\n#@ $ .#\n#######\n",
        "#######\n#+$ ###\n#  *###\n#######\n",
        "#######\n#@ $ .#\n#######\n#######\n",
    }
    assert (
        Sokoban(levels=CORRIDOR).render(Sokoban(levels=CORRIDOR).initial(1, np.random.default_rng(0)), "ansi")
        == CORRIDOR
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#####\n# $.#\n#####", "line 1: .*needs one player .* has none"),
        ("#####\n#@$+#\n#####", "line 1: .*needs one player .* has 2"),
        ("\n; x\n#####\n#@$ #\n#####", "line 3: .*goal per box, but this one has 0 goals for 1 boxes"),
        ("#####\n#@ .#\n#####", "line 1: .*needs a box"),
        ("#####\n#@$.#\n#x  #\n#####", "line 1: unknown character 'x' in row 3, column 2"),
        ("#####\nq@$.#\n#####", "line 1: unknown character 'q' in row 2, column 1"),
        ("#####\n#@$. \n#####", r"line 1: the wall .* must be closed, but '@' in row 2, column 2"),
        ("#####\n#@$.#\n## ##", "line 1: the wall .* must be closed"),
        (f"{CORRIDOR}\n#####\n#@$.#\n#  ##", "line 5: the wall"),
        ("nothing here\n", "no Sokoban level found"),
        ("", "no Sokoban level found"),
    ],
)
def test_levels_that_cannot_be_played(text, message):
    with pytest.raises(EnvSetupError, match="levels.xsb(, |: )" + message) as error:
        parse_levels(text, "levels.xsb")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": "absent.xsb"}, "cannot read Sokoban levels from 'absent.xsb'"),
        ({"levels": []}, "XSB file"),
        ({"levels": CORRIDOR, "num_boxes": 2}, "num_boxes.* cannot be combined with levels"),
        ({"levels": "####\n#@*#\n####\n"}, "already solved"),
        ({"height": 2}, "height must be a whole number, 3 or more"),
        ({"num_boxes": 0}, "num_boxes must be"),
        ({"min_pushes": 0}, "min_pushes must be"),
        ({"min_pushes": 5, "max_pushes": 4}, "max_pushes must be a whole number, 5 or more"),
        ({"boards": 0}, "boards must be"),
        ({"board_seed": -1}, "board_seed must be"),
        ({"step_reward": float("nan")}, "step_reward must be a finite number"),
        ({"action_noise": 1.5}, "action_noise must be"),
        ({"max_steps": 0}, "max_steps must be"),
    ],
)
def test_options_that_cannot_be_meant(options, message):
    with pytest.raises(EnvSetupError, match=message) as error:
        Sokoban(**options)
    assert "\n" not in str(error.value)


def test_a_board_that_cannot_be_made():
    with pytest.raises(EnvSetupError, match="none of .* 5×5 .* needs 40 pushes"):
        Sokoban(5, 5, 1, min_pushes=40).level(0)


def test_the_solver_of_these_tests():
    assert fewest_pushes(["#######", "#@ $ .#", "#######"]) == 2
    assert fewest_pushes(["#######", "#@ $  #", "# .   #", "#######"]) is None, "along the upper wall for ever"
    assert fewest_pushes(["######", "#@   #", "# $. #", "#    #", "######"]) == 1


@pytest.mark.parametrize(("height", "width", "num_boxes"), [(5, 5, 1), (6, 6, 2), (5, 9, 2), (7, 6, 3)])
def test_generated_boards_are_whole_and_solvable(height, width, num_boxes):
    """Fails if reverse play pulls through walls or boxes, or counts pulls wrongly."""
    for seed in range(12):
        level = generate_level(np.random.default_rng(seed), height, width, num_boxes)
        text = "".join(level.rows)
        assert (level.height, level.width, level.num_boxes) == (height, width, num_boxes)
        assert text.count("@") + text.count("+") == 1
        assert sum(text.count(symbol) for symbol in ".*+") == num_boxes
        assert level.exact
        assert fewest_pushes(level.rows) == level.pushes > 0


def test_reverse_play_starts_on_both_sides_of_a_box():
    """In a corridor the solved box parts the room in two; fails if the player starts on one side of it only."""
    to_the_right = set()
    for seed in range(30):
        row = generate_level(np.random.default_rng(seed), 3, 10, 1).rows[1].replace("+", ".")
        left, right = row.strip("#").split(".")
        if len(left) >= 2 and len(right) >= 2:  # the box may have come from either side
            to_the_right.add("$" in left)
    assert to_the_right == {True, False}


def test_the_same_seed_makes_the_same_boards():
    one, two, other = (Sokoban(7, 7, 2, board_seed=seed) for seed in (0, 0, 1))
    assert [one.level(i) for i in range(8)] == [two.level(i) for i in (0, 1, 2, 3, 4, 5, 6, 7)]
    assert two.level(3) == Sokoban(7, 7, 2).level(3), "whatever was drawn before"
    assert len({level.rows for level in map(one.level, range(8))}) == 8
    assert not {one.level(i).rows for i in range(8)} & {other.level(i).rows for i in range(8)}
    with pytest.raises(EnvSetupError, match="no Sokoban board 1000"):
        one.level(1000)


@pytest.mark.parametrize("boards", [50, None])
def test_starts_come_from_the_environments_generator(boards):
    """The fault of old: all workers saw the same boards. Fails if `initial` draws from the board seed alone."""
    core = Sokoban(7, 7, 2, boards=boards)
    again = Sokoban(7, 7, 2, boards=boards)
    starts = [core.initial(6, np.random.default_rng(seed))["walls"] for seed in (0, 1)]
    assert (starts[0] != starts[1]).any()
    np.testing.assert_array_equal(starts[0], again.initial(6, np.random.default_rng(0))["walls"])
    walls = {board.tobytes() for board in Sokoban(7, 7, 2, boards=2).initial(30, np.random.default_rng(0))["walls"]}
    assert len(walls) == 2


def test_min_pushes_makes_boards_hard():
    """8×8 with 2 boxes: the pushes said are those of the shortest solution, and the knob sets their least number."""
    means = {}
    for min_pushes in (1, 6, 12):
        levels = [generate_level(np.random.default_rng([9, i]), 8, 8, 2, min_pushes) for i in range(8)]
        pushes = [fewest_pushes(level.rows) for level in levels]
        assert pushes == [level.pushes for level in levels]
        assert min(pushes) >= min_pushes
        means[min_pushes] = np.mean(pushes)
    print("mean pushes of the shortest solution by min_pushes:", means)
    assert means[1] < means[6] < means[12]
    hard = [generate_level(np.random.default_rng([9, i]), 8, 8, 2, 15) for i in range(3)]
    assert all(fewest_pushes(level.rows) == level.pushes >= 15 for level in hard)
    between = [generate_level(np.random.default_rng([9, i]), 8, 8, 2, 3, 4).pushes for i in range(20)]
    assert set(between) == {3, 4}


def test_large_boards_say_that_their_pushes_are_a_bound():
    level = generate_level(np.random.default_rng(0), 10, 10, 4, min_pushes=25)
    assert level.pushes >= 25 and not level.exact
    assert "Pushes: at most" in format_levels([level])
    easy = generate_level(np.random.default_rng(0), 10, 10, 4, max_pushes=2)
    assert easy.exact and fewest_pushes(easy.rows) == easy.pushes <= 2


def test_render_shows_state_zero():
    core = Sokoban(levels=parse_levels(COLLECTION))
    states = core.states([core.level(2), core.level(0)])
    assert core.render(states, "ansi") == CORRIDOR + "#######\n"
    picture = core.render(states, "rgb_array")
    assert picture.shape == (4 * 16, 7 * 16, 3) and picture.dtype == np.uint8
    cells = picture[8::16, 8::16]
    assert len({tuple(cell) for cell in cells[1]}) == 5, "wall, player, floor, box and goal differ in colour"
    assert (cells[0] == cells[0, 0]).all() and (picture[:16, :16] == cells[0, 0]).all()
    with pytest.raises(EnvSetupError, match="render_mode"):
        core.render(states, "human")


def test_both_faces_play_it():
    core = Sokoban(6, 6, 1, boards=5, max_steps=20)
    env = FunctionalEnv(core, render_mode="ansi")
    check_env(env, skip_render_check=True)
    columns = FunctionalVectorEnv(core, 4, 0, "raise", "Sokoban")
    first = columns.reset()
    assert first.obs.shape == (4, 6, 6, 7)
    rng, solved = np.random.default_rng(0), 0
    for _ in range(300):
        columns.send(rng.integers(4, size=4))
        outcome = columns.recv()
        solved += int((outcome.solved & outcome.terminated).sum())
    assert solved > 0
