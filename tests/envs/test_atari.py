"""Atari games through ALE's vector environment: frames, lives, clocks, starts, sticky actions, and what is refused."""

import gc
import re
import threading
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from packtrain import knobs, trees
from packtrain.cli import main
from packtrain.envs.atari import AleVectorEnv, Atari, Game, find_game, is_atari
from packtrain.envs.environment import Environment
from packtrain.envs.stream import Stream
from packtrain.errors import ConfigError, EnvError, EnvSetupError
from packtrain.runtime import preparation

ale_py = pytest.importorskip("ale_py")
vector_env = pytest.importorskip("ale_py.vector_env")

# A game that begins in the same way each time, and goes on as the actions say.
PLAIN = {"noop_max": 0, "fire_reset": False, "sticky_actions": 0.0}


class Tape(list):
    """What ALE said of each row behind the columns' back, reset first: lives, the emulator's clock, reward."""

    lives = property(lambda self: np.stack([info["lives"] for info, _ in self]))  # [T+1, B]
    frames = property(lambda self: np.stack([info["episode_frame_number"] for info, _ in self]))  # [T+1, B]
    reward = property(lambda self: np.stack([reward for _, reward in self]))  # [T+1, B]

    def resets(self):
        """[T+1, B] Where the emulator began a game: its two clocks, of all games and of this one, grew apart."""
        apart = np.stack([info["frame_number"] for info, _ in self]) - self.frames
        return np.concatenate([np.ones_like(apart[:1], bool), apart[1:] != apart[:-1]])

    def lives_lost(self):
        """[T+1, B] Where a life went and the game did not, counted as in Baselines: not the step down to zero."""
        lives = self.lives
        fell = np.concatenate([np.zeros_like(lives[:1], bool), (lives[1:] < lives[:-1]) & (lives[1:] > 0)])
        return fell & ~self.resets()


@pytest.fixture
def tape(monkeypatch):
    """Records every answer of ALE; for one group at a time."""
    tape = Tape()
    reset, recv = vector_env.AtariVectorEnv.reset, vector_env.AtariVectorEnv.recv

    def recorded_reset(self, **kwargs):
        obs, info = reset(self, **kwargs)
        tape.clear()
        tape.append((trees.map(np.copy, info), np.zeros(len(obs))))
        return obs, info

    def recorded_recv(self):
        answer = recv(self)
        tape.append((trees.map(np.copy, answer[-1]), np.copy(answer[1])))
        return answer

    monkeypatch.setattr(vector_env.AtariVectorEnv, "reset", recorded_reset)
    monkeypatch.setattr(vector_env.AtariVectorEnv, "recv", recorded_recv)
    return tape


def open_stream(name, size=1, seed=3, **fields):
    environment = Environment(name, atari=Atari(**{"num_threads": 1, **fields}))
    return Stream(environment.open(size, seed, environment.probe()), size)


def random_actions(stream, steps, seed=0):
    return np.random.default_rng(seed).integers(stream.columns.action_space.n, size=(steps, stream.size))


def play(stream, actions):
    """The rows of actions [T, B] as one tree of arrays [T+1, B, ...], the row of the reset in front."""
    rows = [trees.map(np.copy, stream.start())]
    for action in actions:
        stream.send(action)
        rows.append(trees.map(np.copy, stream.recv()))
    return trees.map(lambda *leaves: np.stack(leaves), *rows)


def idle(steps, size=1):
    return np.zeros((steps, size), np.int64)


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(trees.flatten(one), trees.flatten(other), strict=True))


# -- frames


@pytest.mark.parametrize(
    "game, steps, skip, size",
    [
        ("Breakout", 600, 4, 84),
        pytest.param("Pong", 1000, 4, 84, marks=pytest.mark.slow),
        pytest.param("SpaceInvaders", 700, 4, 84, marks=pytest.mark.slow),
        pytest.param("Riverraid", 600, 4, 84, marks=pytest.mark.slow),
        ("RoadRunner", 300, 3, 84),
        ("RoadRunner", 800, 1, 84),
        ("Breakout", 600, 2, 50),
    ],
)
def test_frames_and_rewards_are_those_of_gymnasiums_wrapper(game, steps, skip, size, tape):
    """Bit by bit: ALE's palette is cv2's grey, its area interpolation is cv2's, at game over too.

    Mutations: frames stacked, clipped rewards, the last frame alone in place of a maximum, a skip of always 4.
    """
    pytest.importorskip("cv2")
    name = f"{game}NoFrameskip-v4"
    stream = open_stream(name, **PLAIN, frame_skip=skip, frame_size=size)
    wrapped = gym.wrappers.AtariPreprocessing(
        gym.make(name), noop_max=0, frame_skip=skip, screen_size=size, grayscale_obs=True
    )
    actions = random_actions(stream, steps)
    rows = play(stream, actions)
    assert rows.obs.shape == (steps + 1, 1, size, size) and rows.obs.dtype == np.uint8
    assert wrapped.action_space.n == stream.columns.action_space.n

    obs, info = wrapped.reset(seed=0)
    assert np.array_equal(rows.obs[0, 0], obs) and tape.lives[0, 0] == info["lives"]
    over, games, lives = False, 0, info["lives"]
    for t, action in enumerate(actions[:, 0], start=1):
        if over:
            (obs, info), reward, terminated = wrapped.reset(), 0.0, False
            over = False
        else:
            obs, reward, over, truncated, info = wrapped.step(action)
            terminated = over or info["lives"] < lives
            assert not truncated
            games += over
        lives = info["lives"]
        assert np.array_equal(rows.obs[t, 0], obs), f"step {t}: {np.abs(rows.obs[t, 0].astype(int) - obs).max()}"
        assert rows.last_reward["train"][t, 0] == reward, t
        assert rows.terminated[t, 0] == terminated, t
        assert tape.lives[t, 0] == lives, t
    assert games  # game overs were among them


def area_weights(source, target):
    """[target, source] The share of each source pixel in each target pixel."""
    edges = np.linspace(0, source, target + 1)
    overlap = np.minimum(edges[1:, None], np.arange(1, source + 1)) - np.maximum(edges[:-1, None], np.arange(source))
    return overlap.clip(0) * target / source


def test_a_frame_is_the_grey_maximum_of_the_last_two_screens_by_area(tape):
    """From the emulator's own colours, without cv2: within rounding. Mutations: another skip, another interpolation."""
    stream = open_stream("SpaceInvadersNoFrameskip-v4", **PLAIN)
    actions = random_actions(stream, 60)
    rows = play(stream, actions)
    emulator = gym.make("SpaceInvadersNoFrameskip-v4").unwrapped
    screen = emulator.reset(seed=0)[0]
    rows_by_area, columns_by_area = area_weights(210, 84), area_weights(160, 84)
    shown = [screen @ [0.2989, 0.5870, 0.1140]]
    for action in actions[:, 0]:
        greys = [emulator.step(int(action))[0] @ [0.2989, 0.5870, 0.1140] for _ in range(4)]
        shown.append(np.maximum(greys[2], greys[3]))
    wanted = np.stack([rows_by_area @ grey.round() @ columns_by_area.T for grey in shown])
    difference = np.abs(rows.obs[:, 0] - wanted)
    assert difference.max() <= 0.51, difference.max()
    assert len({frame.tobytes() for frame in rows.obs}) > 20  # something moved


# -- lives and games


CLASSIC = {"name": "AsterixNoFrameskip-v4", "life_loss": True}
STICKY = {"name": "ALE/Asterix-v5", "life_loss": False}
WHOLE = {"name": "AsterixNoFrameskip-v4", "life_loss": False, "fields": {"life_loss": False}}


@pytest.mark.parametrize("case", [CLASSIC, STICKY, WHOLE], ids=["classic", "sticky", "classic whole games"])
def test_a_lost_life_and_a_lost_game(case, tape):
    """Against the emulator's clocks, which alone know of resets.

    Mutations: ALE's own episodic life (a reset after each), the last life taken for one of many (and the other way
    round), a filler row with the reward or the action of the last step, clipped rewards (Asterix pays 50 a time).
    """
    stream = open_stream(case["name"], 3, **case.get("fields", {}))
    actions = random_actions(stream, 500)
    rows = play(stream, actions)
    over = np.concatenate([tape.resets()[1:], np.zeros((1, 3), bool)])  # the last row's own fate is unknown
    lost = tape.lives_lost()
    assert over.sum() >= 3 and lost.sum() >= 6 and tape.reward.max() > 1

    assert np.array_equal(rows.first, tape.resets())
    wanted = over | lost if case["life_loss"] else over
    assert np.array_equal(rows.terminated[:-1], wanted[:-1])
    assert not rows.truncated.any()
    assert np.array_equal(rows.last_reward["train"], tape.reward)
    first = rows.first
    assert not rows.last_reward["train"][first].any() and not rows.last_action[first].any()
    assert np.array_equal(rows.last_action[1:][~first[1:]], actions[~first[1:]])
    assert not rows.terminated[first].any()


@pytest.mark.parametrize("name", ["AsterixNoFrameskip-v4", "ALE/Asterix-v5"])
def test_the_books_of_games_and_lives(name, tape):
    """Mutations: a life's return in place of a game's, a filler row in the length, the return not reset."""
    stream = open_stream(name)
    play(stream, random_actions(stream, 900))
    finished = stream.drain_finished()
    episodes = [episode for entry in finished for episode in entry.episodes()]
    life_returns = [entry.life_returns.tolist() for entry in finished]

    games, lives = [], []  # (return, length) of games, [return] of lives
    starts = np.nonzero(tape.resets()[:, 0])[0]
    assert len(starts) >= 3
    for since, end in zip(starts, starts[1:], strict=False):
        reward = tape.reward[since:end, 0]
        games.append((reward.sum(), end - 1 - since))  # the row of the reset is not a step
        deaths = np.nonzero(tape.lives_lost()[since:end, 0])[0]
        lives += [[piece.sum()] for piece in np.split(reward, deaths + 1)]
        assert len(deaths) == tape.lives[since:end].max() - 1
    assert [(episode.returns["train"], episode.length) for episode in episodes[: len(games)]] == games
    assert life_returns[: len(lives)] == lives
    assert sum(value for (value,) in lives) == sum(value for value, _ in games) > 0
    assert all(np.isnan(episode.solved) and episode.column == 0 for episode in episodes)
    assert stream.steps == 900 - (len(starts) - 1)


def test_the_action_of_a_filler_row_goes_nowhere():
    """Mutation: the game begins with an action that was meant for the last one."""
    stream = open_stream("AsterixNoFrameskip-v4", 2)
    actions = random_actions(stream, 600)
    rows = play(stream, actions)
    fillers = rows.first[1:]
    assert fillers.any()
    again = open_stream("AsterixNoFrameskip-v4", 2)
    assert same(rows, play(again, np.where(fillers, (actions + 3) % 9, actions)))


def test_a_game_that_ends_unannounced_stops_the_run():
    """Whatever the reason: its last row would be mistaken for a step. Mutation: the clock is not looked at."""

    class Unannounced:
        """Two columns. The second begins a new game although the last one was not said to be over."""

        def __init__(self):
            self.frames = iter([[100, 100], [104, 103], [108, 5]])
            self.lives = iter([[3, 2], [3, 1], [3, 3]])
            self.ended = iter([[False, False], [False, False]])

        def info(self):
            return {"lives": np.array(next(self.lives)), "episode_frame_number": np.array(next(self.frames))}

        def reset(self, *, seed):
            assert len(seed) == 2
            return np.zeros((2, 1, 84, 84), np.uint8), self.info()

        def send(self, actions):
            pass

        def recv(self):
            ended = np.array(next(self.ended))
            return np.zeros((2, 1, 84, 84), np.uint8), np.zeros(2, np.int32), ended, np.zeros(2, bool), self.info()

    columns = AleVectorEnv("PongNoFrameskip-v4", Atari(num_threads=1), 2, 7, "raise")
    columns._envs = Unannounced()
    columns.reset()
    columns.send(np.zeros(2, np.int64))
    columns.recv()
    columns.send(np.zeros(2, np.int64))
    with pytest.raises(EnvError, match=r"environment 1 \(PongNoFrameskip-v4, group seed 7\) at its step 2 began a new"):
        columns.recv()


# -- the clock


@pytest.mark.parametrize("max_frames, length, last", [(400, 100, 4), (401, 101, 1), (402, 101, 2), (3, 1, 3)])
@pytest.mark.parametrize("name", ["PongNoFrameskip-v4", "ALE/Pong-v5"])
def test_the_clock_counts_frames_of_play(name, max_frames, length, last, tape):
    """The last step lasts the frames that are left; no-ops at the start do not count.

    Mutations: the limit taken as steps, a truncation shown as a termination, a game cut without a row of a reset.
    """
    stream = open_stream(name, 3, max_frames=max_frames)
    rows = play(stream, idle(2 * length + 2, 3))
    ends = np.zeros((2 * length + 3, 3), bool)
    ends[[length, 2 * length + 1]] = True
    assert np.array_equal(rows.truncated, ends) and not rows.terminated.any()
    assert np.array_equal(rows.first[1:], ends[:-1]) and rows.first[0].all()
    assert np.array_equal(rows.first, tape.resets())
    frames = np.diff(tape.frames, axis=0)
    assert (frames[: length - 1] == 4).all() and (frames[length - 1] == last).all()
    episodes = stream.drain_episodes()
    assert [(episode.length, episode.column) for episode in episodes] == [(length, c) for c in (0, 1, 2)] * 2


def test_a_life_lost_does_not_wind_the_clock_back(tape):
    """Mutation: the limit counts from the last life."""
    stream = open_stream("BreakoutNoFrameskip-v4", max_frames=600)
    rows = play(stream, random_actions(stream, 151))
    assert tape.lives_lost()[:151].any() and rows.truncated[150, 0] and rows.first[151, 0]
    assert not rows.first[1:151].any()


# -- starts and seeds


def test_no_ops_make_starts_differ_and_seeds_repeat_them(tape):
    """Mutations: one seed for all columns, the seed of the group not used, a reset that goes on with the generator."""
    actions = idle(25, 5)
    stream = open_stream("PongNoFrameskip-v4", 5, seed=5)
    rows = play(stream, actions)
    starts = tape.frames[0]
    assert 1 <= starts.min() and starts.max() <= 30 and len(set(starts)) > 2
    assert len({rows.obs[:, column].tobytes() for column in range(5)}) > 2
    stream.restart()
    assert same(rows, play(stream, actions))
    assert same(rows, play(open_stream("PongNoFrameskip-v4", 5, seed=5), actions))
    assert np.array_equal(tape.frames[0], starts)
    other = play(open_stream("PongNoFrameskip-v4", 5, seed=6), actions)
    assert not np.array_equal(tape.frames[0], starts) and not np.array_equal(rows.obs, other.obs)


def test_without_no_ops_all_games_begin_alike(tape):
    """The control of the test above."""
    rows = play(open_stream("PongNoFrameskip-v4", 4, **PLAIN), idle(40, 4))
    assert (tape.frames[0] == 0).all()
    assert len({rows.obs[:, column].tobytes() for column in range(4)}) == 1


def test_later_games_of_a_column_differ_too(tape):
    """Mutation: the generator of the no-ops set back at each reset."""
    play(open_stream("PongNoFrameskip-v4", 2, max_frames=8), idle(30, 2))
    starts = tape.frames[tape.resets()[:, 0], 0]
    assert len(starts) == 11 and len(set(starts)) > 4


@pytest.mark.parametrize("name", ["AsterixNoFrameskip-v4", "ALE/Asterix-v5"])
def test_the_number_of_threads_changes_nothing(name):
    """Through resets with no-ops or sticky actions. Mutation: one generator for all columns."""
    streams = [open_stream(name, 3, num_threads=threads, max_frames=160) for threads in (1, 2, 3)]
    actions = random_actions(streams[0], 100)
    rows, *others = [play(stream, actions) for stream in streams]
    assert rows.first[1:].any()
    assert all(same(rows, other) for other in others)


@pytest.mark.parametrize("fire_reset", [True, False])
def test_fire_is_pressed_at_the_start_and_after_each_lost_life(fire_reset, tape):
    """Breakout starts no ball until FIRE is pressed, which only the environment does here. Control: without it.

    Mutation: only at the start, which leaves four lives for ever.
    """
    stream = open_stream("BreakoutNoFrameskip-v4", 4, fire_reset=fire_reset)
    rows = play(stream, idle(300, 4))
    assert (tape.lives.min(axis=0) == (0 if fire_reset else 5)).all()
    assert (rows.terminated.sum(axis=0) >= 5).all() if fire_reset else not rows.terminated.any()


# -- sticky actions and protocols


def test_sticky_actions_stick_and_repeat():
    """The same actions in every column. Mutations: the probability not passed on, or one generator for all columns."""

    def roll(probability, seed):
        stream = open_stream("PongNoFrameskip-v4", 2, seed, **{**PLAIN, "sticky_actions": probability})
        return play(stream, np.repeat(random_actions(stream, 80)[:, :1], 2, axis=1))

    def kinds(rows):
        return len({rows.obs[:, column].tobytes() for column in range(2)})

    never, sticky, again, other = roll(0.0, 3), roll(0.25, 3), roll(0.25, 3), roll(0.25, 4)
    assert kinds(never) == 1 and kinds(sticky) == 2
    assert same(sticky, again)
    assert not np.array_equal(sticky.obs, never.obs) and not np.array_equal(sticky.obs, other.obs)


WHOLE_GAMES = {"full_action_space": True, "life_loss": False, "noop_max": 0, "fire_reset": False}
AS_MNIH = {"full_action_space": False, "life_loss": True, "noop_max": 30, "fire_reset": True}


@pytest.mark.parametrize(
    "name, protocol, wanted",
    [
        ("PongNoFrameskip-v4", None, {"protocol": "classic", "sticky_actions": 0.0, **AS_MNIH}),
        ("PongNoFrameskip-v0", None, {"protocol": "classic", "sticky_actions": 0.25, **AS_MNIH}),
        ("ALE/Pong-v5", None, {"protocol": "sticky", "sticky_actions": 0.25, **WHOLE_GAMES}),
        ("PongNoFrameskip-v4", "sticky", {"protocol": "sticky", "sticky_actions": 0.25, **WHOLE_GAMES}),
        ("PongNoFrameskip-v0", "classic", {"protocol": "classic", "sticky_actions": 0.0, **AS_MNIH}),
        ("ALE/Pong-v5", "classic", {"protocol": "classic", "sticky_actions": 0.0, **AS_MNIH}),
        ("ALE/Pong-v5", "sticky", {"protocol": "sticky", "sticky_actions": 0.25, **WHOLE_GAMES}),
    ],
)
def test_a_protocol_follows_the_id_unless_it_is_set(name, protocol, wanted, monkeypatch):
    """And it arrives in ALE. Mutations: a -v0 without sticky actions; a protocol in the id that wins over the knob."""
    resolved = Atari(protocol=protocol).resolve(find_game(name))
    assert {field: getattr(resolved, field) for field in wanted} == wanted

    given = {}
    build = vector_env.AtariVectorEnv.__init__

    def recorded(self, *args, **kwargs):
        given.update(kwargs)
        build(self, *args, **kwargs)

    monkeypatch.setattr(vector_env.AtariVectorEnv, "__init__", recorded)
    spec = Environment(name, atari=Atari(protocol=protocol)).probe()
    assert spec.action.n == (18 if wanted["full_action_space"] else 6) and spec.frames_per_step == 4
    assert spec.obs == gym.spaces.Box(0, 255, (84, 84), np.uint8)
    assert given["repeat_action_probability"] == wanted["sticky_actions"]
    assert given["noop_max"] == wanted["noop_max"] and given["use_fire_reset"] == wanted["fire_reset"]


def test_what_is_set_wins_over_the_protocol():
    """A frame skip is no part of a protocol. Mutation: defaults of the protocol written over what was said."""
    game = Game("pong", "sticky", 0.25)
    said = Atari(sticky_actions=0.0, full_action_space=False, life_loss=True, noop_max=7, fire_reset=True, frame_skip=2)
    assert said.resolve(game) == Atari(
        protocol="sticky",
        sticky_actions=0.0,
        full_action_space=False,
        life_loss=True,
        noop_max=7,
        fire_reset=True,
        frame_skip=2,
    )


@pytest.mark.parametrize(
    "name, protocol, actions", [("ALE/Pong-v5", "classic", 6), ("PongNoFrameskip-v4", "sticky", 18)]
)
def test_the_shipped_config_has_a_knob_for_the_protocol(name, protocol, actions):
    path, _ = knobs.find_config("impala/atari")
    _, experiment, spec = preparation.prepare([path], [], {"env": name, "protocol": protocol}, 0, True)
    assert spec.action.n == actions and experiment.streams.environment.atari.protocol == protocol


def test_a_frame_skip_is_a_fact_of_the_spec():
    """Frames are counted with it. Mutation: always 4."""
    spec = Environment("PongNoFrameskip-v4", atari=Atari(frame_skip=2, frame_size=42)).probe()
    assert spec.frames_per_step == 2 and spec.obs.shape == (42, 42)


# -- what is refused


@pytest.mark.parametrize(
    "name, near",
    [
        ("PnogNoFrameskip-v4", "PongNoFrameskip-v4"),
        ("ALE/Brekout-v5", "ALE/Breakout-v5"),
        ("SpaceInvaderNoFrameskip-v0", "SpaceInvadersNoFrameskip-v0"),
    ],
)
def test_an_unknown_game_names_its_nearest(name, near):
    assert is_atari(name)
    for ask in (find_game, lambda name: Environment(name).probe()):
        with pytest.raises(EnvSetupError, match=f"^unknown Atari game {name!r} .did you mean {near!r}") as error:
            ask(name)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["Pong-v4", "Pong", "ALE/Pong-v4", "packtrain/Catch-v0", "PongNoFrameskip-v5"])
def test_other_ids_are_not_ours(name):
    assert not is_atari(name)


@pytest.mark.parametrize("name", ["PongNoFrameskip-v4", "ALE/Pong-v5"])
@pytest.mark.parametrize("field, value", [("kwargs", {"frameskip": 2}), ("processes", True)])
def test_what_gymnasium_environments_take_does_not_apply(name, field, value, capsys, tmp_path, monkeypatch):
    """In code, and in one line on the terminal."""
    complaint = f"Environment.{field} does not apply to '{name}': "
    with pytest.raises(ConfigError, match=f"^{complaint}.*Atari.frame_skip"):
        Environment(name, **{field: value})
    monkeypatch.chdir(tmp_path)
    assert main(["train", "impala/atari", "--env", name, "--config", f"Environment.{field} = {value}"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("packtrain: error: ") and complaint in line


@pytest.mark.parametrize(
    "field, value, complaint",
    [
        ("protocol", "stiky", "'classic', 'sticky'"),
        ("sticky_actions", 1.0, r"must lie in \[0, 1\)"),
        ("sticky_actions", -0.1, r"must lie in \[0, 1\)"),
        ("sticky_actions", float("nan"), r"must lie in \[0, 1\)"),
        ("full_action_space", 18, "True or False"),
        ("life_loss", "no", "True or False"),
        ("noop_max", -1, "must not be negative"),
        ("noop_max", 2.5, "whole number"),
        ("fire_reset", 1, "True or False"),
        ("frame_skip", 0, "must be at least 1"),
        ("frame_skip", 4.0, "whole number"),
        ("frame_size", 0, "must be at least 1"),
        ("max_frames", 0, "must be at least 1"),
        ("max_frames", None, "whole number"),
        ("num_threads", 0, "must be at least 1"),
        ("num_threads", True, "whole number"),
    ],
)
def test_values_that_cannot_be_meant(field, value, complaint):
    with pytest.raises(ConfigError, match=f"^Atari.{field} = .*{complaint}"):
        Atari(**{field: value})


# -- threads


STATUS = Path("/proc/self/status")


def native_threads():
    return int(re.search(r"Threads:\s+(\d+)", STATUS.read_text())[1])


@pytest.mark.slow
def test_send_returns_at_once_and_recv_lets_python_run():
    """A step of 16 games takes a while here. Mutations: columns that step in send; the GIL kept while waiting."""
    columns = AleVectorEnv("PongNoFrameskip-v4", Atari(frame_skip=150, num_threads=1), 16, 0, "raise")
    columns.reset()
    count, stop = 0, threading.Event()

    def tick():
        nonlocal count
        while not stop.is_set():
            count += 1
            time.sleep(0.001)

    ticking = threading.Thread(target=tick)
    ticking.start()
    try:
        for _ in range(3):
            begin = time.monotonic()
            columns.send(np.zeros(16, np.int64))
            sent, before = time.monotonic(), count
            columns.recv()
            received, after = time.monotonic(), count
            assert sent - begin < 0.2 * (received - begin)
            assert after - before > 100 * (received - sent)  # of at most 1,000 a second
            assert received - begin > 0.05  # or nothing was measured
    finally:
        stop.set()
        ticking.join()


@pytest.mark.skipif(not STATUS.exists(), reason="counts threads as Linux tells them")
def test_closing_ends_the_threads_even_while_they_work():
    """As an actor does that stops between send and recv. Mutation: close keeps the games."""
    gc.collect()  # the groups of other tests
    before = native_threads()
    columns = AleVectorEnv("PongNoFrameskip-v4", Atari(num_threads=2, frame_skip=50), 4, 0, "raise")
    columns.reset()
    assert native_threads() > before
    columns.send(np.zeros(4, np.int64))
    columns.close()
    deadline = time.monotonic() + 10
    while native_threads() > before and time.monotonic() < deadline:  # Linux counts a joined thread a moment longer
        time.sleep(0.01)
    assert native_threads() <= before


def test_games_cannot_be_saved():
    stream = open_stream("PongNoFrameskip-v4")
    stream.start()
    assert not stream.columns.savable and stream.snapshot() is None
    assert stream.columns.overlaps and Environment("PongNoFrameskip-v4").overlaps()


def test_pictures_show_the_same_games_in_colour():
    """Sticky actions, lost lives and new games included. Mutations: another seed; FIRE not pressed in both."""
    columns = AleVectorEnv("ALE/Breakout-v5", Atari(fire_reset=True, noop_max=10), 2, 3, "raise")
    rng = np.random.default_rng(0)
    for _ in range(2):
        columns.reset()
        assert columns.picture(0).shape == (210, 160, 3)
        for step in range(200):
            columns.send(rng.integers(18, size=2))
            grey = np.asarray(columns.recv().obs, float)
            if step % 20 == 0:
                for column in range(2):
                    shown = columns.picture(column) @ (0.299, 0.587, 0.114)
                    small = shown.reshape(42, 5, 40, 4).mean(axis=(1, 3))
                    theirs = grey[column].reshape(42, 2, 84).mean(axis=1)
                    theirs = theirs[:, np.linspace(0, 83, 40).round().astype(int)]
                    assert np.corrcoef(small.ravel(), theirs.ravel())[0, 1] > 0.9
    assert columns.pictures_per_second() == 15
    columns.close()


def test_pictures_that_are_first_asked_for_in_the_middle_of_a_game_are_refused():
    columns = AleVectorEnv("PongNoFrameskip-v4", Atari(**PLAIN), 1, 0, "raise")
    columns.reset()
    columns.send(np.zeros(1, np.int64))
    columns.recv()
    with pytest.raises(EnvSetupError, match="right after a reset"):
        columns.picture(0)


def test_games_that_part_from_their_pictures_are_noticed(monkeypatch):
    columns = AleVectorEnv("PongNoFrameskip-v4", Atari(**PLAIN), 1, 0, "raise")
    columns.reset()
    columns.picture(0)
    recv = columns._twin.recv
    monkeypatch.setattr(columns._twin, "recv", lambda: (lambda o, r, *rest: (o, r + 1, *rest))(*recv()))
    columns.send(np.zeros(1, np.int64))
    with pytest.raises(EnvError, match="diverged from the original"):
        columns.recv()
