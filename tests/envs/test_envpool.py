"""envpool behind the columns: order, resets, lives, clocks and what is refused. First with a fake, then with itself."""

import re
import sys
import types
from collections import namedtuple
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from packtrain import config, trees
from packtrain.cli import main
from packtrain.envs.atari import Atari
from packtrain.envs.environment import Environment
from packtrain.envs.envpool import WITHOUT_FIRE, EnvpoolVectorEnv
from packtrain.envs.stream import Stream
from packtrain.errors import ConfigError, EnvError, EnvSetupError, MissingExtraError
from packtrain.runtime.experiment import Streams

PLAIN = "num_envs num_threads max_num_players seed env_seed max_episode_steps file scale"
GAME = PLAIN + " stack_num frame_skip noop_max episodic_life reward_clip repeat_action_probability full_action_space"
TINY = np.finfo(np.float32).tiny  # what envpool writes for "no lower bound"


class FakePool:
    """The gymnasium face of envpool for environments that count.

    Environment b terminates after b + 2 steps, and games lose a life at every third step of an episode of 3 lives.
    The answers come in an order that turns with every step, as in envpool's asynchronous mode.
    """

    def __init__(self, task, num_envs, seed, max_episode_steps=1000, **options):
        self.task, self.size, self.options = task, num_envs, options
        self.limit = max_episode_steps
        self.config = {"max_num_players": 2 if task == "Duel-v0" else 1}
        self.action_space = Dict() if task == "Orders-v0" else Discrete(3)
        if task == "Whole-v0":
            self.action_space = Box(np.array([0, 2], np.int32), np.array([3, 2], np.int32), dtype=np.int32)
        self.observation_space = Box(TINY, np.finfo(np.float32).max, (5,), np.float32)
        self.rng = np.random.default_rng(seed)
        self.seeds = np.asarray(seed)
        self.elapsed = np.zeros(num_envs, np.int32)
        self.lives = np.full(num_envs, 3, np.int32)
        self.episodes = np.zeros(num_envs, np.int32)
        self.over = np.zeros(num_envs, bool)
        self.turn = 0
        self.sent = None

    def answer(self, action):
        ids = np.roll(np.arange(self.size, dtype=np.int32), self.turn)
        self.turn += 1
        obs = np.stack([ids, self.elapsed[ids], self.episodes[ids], action[ids], -self.rng.random(self.size)], axis=1)
        obs = obs.astype(np.float32)
        if self.task == "Game-v5":
            edge = self.options["img_height"]
            obs = np.repeat(obs[:, :1].astype(np.uint8), edge * edge, axis=1).reshape(-1, 1, edge, edge)
        if self.task == "State-v0":
            obs = obs[:, 1:2].astype(np.int32)
        info = {"env_id": ids, "players": {"env_id": ids}, "elapsed_step": self.elapsed[ids]}
        if self.task == "Game-v5":
            info["lives"] = self.lives[ids]
        return ids, obs, info

    def reset(self):
        self.elapsed[:], self.lives[:] = 0, 3
        _, obs, info = self.answer(np.zeros(self.size))
        return obs, info

    def send(self, action):
        self.sent = np.asarray(action)

    def recv(self):
        was_over = self.over
        self.elapsed = np.where(was_over, 0, self.elapsed + 1).astype(np.int32)
        if self.task == "Liar-v0":
            self.elapsed[(self.elapsed == 2) & (np.arange(self.size) == 1)] = 0
        if self.task == "Stuck-v0":
            self.elapsed[was_over] = 5
        self.episodes = self.episodes + was_over
        self.lives = np.where(was_over, 3, self.lives - ((self.elapsed > 0) & (self.elapsed % 3 == 0)))
        if self.task == "Game-v5":
            ended = ~was_over & (self.lives == 0)
        else:
            ended = ~was_over & (self.elapsed >= np.arange(self.size) + 2)
        truncated = ~was_over & (self.elapsed >= self.limit) & ~ended
        self.over = ended | truncated
        ids, obs, info = self.answer(np.where(was_over, 9, self.sent if self.sent.ndim == 1 else 0))
        reward = np.where(was_over, 99, 10 * np.arange(self.size) + self.elapsed)  # 99: must not be shown
        return obs, reward[ids].astype(np.float32), ended[ids], truncated[ids], info


@pytest.fixture
def fake(monkeypatch):
    """A package called envpool; `fake.made` are the pools it made, in order."""
    module = types.ModuleType("envpool")
    module.made, module.given = [], []
    tasks = ["Count-v0", "State-v0", "Game-v5", "Duel-v0", "Orders-v0", "Whole-v0", "Liar-v0", "Stuck-v0", "Broken-v0"]

    def make(task_id, env_type, **options):
        assert env_type == "gymnasium"
        module.given.append(options)
        if (
            unknown := set(options)
            - set((GAME + " img_height img_width gray_scale use_fire_reset").split())
            - {"zero_discount_on_life_loss"}
        ):
            raise TypeError(f"unexpected {sorted(unknown)[0]!r}\nand more")
        pool = FakePool(task_id, **options)
        if task_id == "State-v0":
            pool.observation_space = Discrete(9)
        module.made.append(pool)
        return pool

    def make_spec(task_id):
        if task_id == "Broken-v0":
            raise ImportError("a library is missing\napt install it")
        fields = GAME if task_id == "Game-v5" else PLAIN
        return types.SimpleNamespace(config=namedtuple("Config", fields)(*fields.split()))

    module.make, module.make_spec, module.list_all_envs = make, make_spec, lambda: tasks
    monkeypatch.setitem(sys.modules, "envpool", module)
    return module


def open_stream(task, size=3, seed=7, atari=None, **fields):
    environment = Environment(f"envpool:{task}", atari=atari or Atari(), **fields)
    return Stream(environment.open(size, seed, environment.probe()), size)


def play(stream, actions):
    """The rows of actions [T, B] as one tree of arrays [T+1, B, ...], the row of the reset in front."""
    rows = [stream.start()]  # kept as they are: rows last
    for action in actions:
        stream.send(action)
        rows.append(stream.recv())
    return trees.map(lambda *leaves: np.stack(leaves), *rows)


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(trees.flatten(one), trees.flatten(other), strict=True))


# -- columns and resets, with the fake


def test_games_are_drawn_in_grey_and_nothing_else_is(fake):
    """Mutation: the picture of another column; that of the row before."""
    stream = open_stream("Game-v5")
    stream.start()
    stream.send(np.zeros(3, np.int64))
    row = stream.recv()
    for column in range(3):
        shown = stream.columns.picture(column)
        assert shown.shape == (84, 84, 3) and (shown == np.asarray(row.obs)[column][:, :, None]).all()
    assert stream.columns.pictures_per_second() == 15
    other = open_stream("Count-v0")
    other.start()
    with pytest.raises(EnvSetupError, match="cannot be drawn"):
        other.columns.picture(0)


def test_every_column_stays_with_its_environment(fake):
    """The fake answers in turning order. Mutation: observations, rewards, ends or clocks taken as they come."""
    rows = play(open_stream("Count-v0"), np.arange(24).reshape(8, 3) % 3)
    assert (rows.obs[:, :, 0] == [0, 1, 2]).all()
    lengths = np.array([2, 3, 4])
    t = np.arange(9)[:, None]
    within = t % (lengths + 1)  # a row of the reset, then the steps
    assert np.array_equal(rows.obs[:, :, 1], within)
    assert np.array_equal(rows.obs[:, :, 2], t // (lengths + 1))
    assert np.array_equal(rows.first, within == 0)
    assert np.array_equal(rows.terminated, within == lengths) and not rows.truncated.any()
    assert np.array_equal(rows.last_reward["train"], np.where(within == 0, 0, 10 * np.arange(3) + within))


def test_the_row_of_a_reset_has_no_reward_and_no_action(fake):
    """Mutation: the reward of 99 that the fake gives with a reset passes."""
    actions = np.full((6, 2), 2)
    stream = open_stream("Count-v0", 2)
    rows = play(stream, actions)
    assert rows.first[1:].sum() == 3 and rows.last_reward["train"].max() < 99
    assert not rows.last_action[rows.first].any() and (rows.last_action[~rows.first] == 2).all()
    assert stream.steps == 12 - 3
    episodes = stream.drain_episodes()
    assert [(e.column, e.length, e.returns["train"]) for e in episodes] == [(0, 2, 3), (1, 3, 36), (0, 2, 3)]


def test_a_limit_is_a_truncation(fake):
    """Mutation: both flags in one. The option arrives as it was given."""
    rows = play(open_stream("Count-v0", kwargs={"max_episode_steps": 3}), np.zeros((4, 3), np.int64))
    assert rows.truncated[3].tolist() == [False, False, True] and rows.terminated[3].tolist() == [False, True, False]
    assert rows.first[4].tolist() == [False, True, True]
    assert fake.given[-1]["max_episode_steps"] == 3


def test_an_environment_outside_the_order_is_noticed(fake):
    stream = open_stream("Count-v0")
    stream.start()
    fake.made[-1].answer = lambda action: (
        np.arange(3),
        np.zeros((3, 5)),
        {"env_id": np.array([0, 0, 2]), "elapsed_step": np.ones(3)},
    )
    stream.send(np.zeros(3, np.int64))
    with pytest.raises(EnvError, match=r"answered for the environments \[0, 0, 2\], not once for each of 3"):
        stream.recv()


@pytest.mark.parametrize(
    "task, text",
    [
        ("Liar-v0", r"environment 1 \(envpool:Liar-v0, group seed 7\) at its step 2 began a new episode unsaid"),
        ("Stuck-v0", r"environment 0 .* at its step 3 did not begin a new episode after the last one"),
    ],
)
def test_a_clock_that_does_not_agree_stops_the_run(fake, task, text):
    """Mutations: the clock not looked at, or only one way."""
    with pytest.raises(EnvError, match=text):
        play(open_stream(task), np.zeros((4, 3), np.int64))


def test_a_second_reset_begins_the_same_stream_again(fake):
    """envpool takes seeds only when a pool is made. Mutation: a reset of the old pool."""
    stream = open_stream("Count-v0")
    actions = np.ones((5, 3), np.int64)
    rows = play(stream, actions)
    stream.restart()
    assert same(rows, play(stream, actions))
    other = open_stream("Count-v0", seed=8)
    assert not np.array_equal(rows.obs, play(other, actions).obs)
    seeds = fake.made[-1].seeds
    assert len(set(seeds.tolist())) == 3 and seeds.min() >= 0 and seeds.max() < 2**31
    assert len(fake.made) == 5  # two probes, two streams, one reset


# -- spaces, with the fake


def test_no_lower_bound_is_not_the_smallest_number(fake):
    """The fake shows negative numbers. Mutation: the bound as it is; they would be refused."""
    assert Environment("envpool:Count-v0").probe().obs == Box(-np.inf, np.inf, (5,), np.float32)


def test_axes_of_one_and_narrow_integers_follow_the_space(fake):
    """The fake shows states as int32 [B, 1]. Mutation: they pass as they are."""
    rows = play(open_stream("State-v0"), np.zeros((4, 3), np.int64))
    assert rows.obs.shape == (5, 3) and rows.obs.dtype == np.int64
    assert rows.obs[:3, 2].tolist() == [0, 1, 2]


def test_whole_numbers_in_a_box_are_counted(fake):
    """Policies count from 0, the environment's second number is always 2. Mutation: a Box, for which there is none."""
    stream = open_stream("Whole-v0")
    assert stream.columns.action_space == MultiDiscrete([4, 1], start=[0, 2])
    play(stream, np.array([[[3, 0]] * 3]))
    assert fake.made[-1].sent.tolist() == [[3, 2]] * 3


@pytest.mark.parametrize(
    "task, text",
    [
        ("Duel-v0", "'envpool:Duel-v0' is a task for several players"),
        ("Orders-v0", "'envpool:Orders-v0' is a task for several players"),
        ("Broken-v0", "'envpool:Broken-v0' cannot be made: ImportError: a library is missing$"),
        ("Cuont-v0", "envpool has no task 'Cuont-v0' .did you mean 'Count-v0'"),
    ],
)
def test_tasks_that_cannot_be_played(fake, task, text):
    with pytest.raises(EnvSetupError, match=text) as error:
        Environment(f"envpool:{task}").probe()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kwargs, text", [({"scale": 2}, None), ({"gravity": 2}, "TypeError: unexpected 'gravity'$")])
def test_options_reach_envpool(fake, kwargs, text):
    environment = Environment("envpool:Count-v0", kwargs)
    if text is None:
        environment.probe()
        assert fake.given[-1]["scale"] == 2
    else:
        with pytest.raises(EnvSetupError, match=f"'envpool:Count-v0' cannot be made: {text}"):
            environment.probe()


def test_a_bad_first_observation_is_refused_before_the_run(fake, monkeypatch):
    monkeypatch.setattr(
        FakePool, "reset", lambda self: (np.full((1, 5), np.nan, np.float32), self.answer(np.zeros(1))[2])
    )
    with pytest.raises(
        EnvSetupError, match=r"the first reset of 'envpool:Count-v0': .* NaN that is outside its space$"
    ):
        Environment("envpool:Count-v0").probe()


def test_a_bad_value_can_be_clipped(fake):
    stream = open_stream("Count-v0", on_bad_value="clip")
    stream.start()
    stream.send(np.zeros(3, np.int64))
    fake.made[-1].rng = types.SimpleNamespace(random=lambda size: np.full(size, np.nan))
    assert (stream.recv().obs[:, 4] == 0).all() and stream.columns.boundary.clipped == 3


# -- games, with the fake


def test_options_of_a_game_reach_envpool(fake):
    """Mutations: envpool's own stacks, clips, lives and limits; a noop_max of 0, with which its reset hangs."""
    spec = Environment("envpool:Game-v5", atari=Atari(max_frames=401, num_threads=1)).probe()
    assert spec.obs == Box(0, 255, (84, 84), np.uint8) and spec.frames_per_step == 4
    given = {name: value for name, value in fake.given[-1].items() if name not in ("seed", "num_envs", "num_threads")}
    assert given == {
        "stack_num": 1,
        "frame_skip": 4,
        "noop_max": 30,
        "use_fire_reset": True,
        "img_height": 84,
        "img_width": 84,
        "gray_scale": True,
        "full_action_space": False,
        "repeat_action_probability": 0.0,
        "max_episode_steps": 101,
        "episodic_life": False,
        "zero_discount_on_life_loss": False,
        "reward_clip": False,
    }
    sticky = Atari(protocol="sticky", frame_skip=2, frame_size=42, num_threads=3)
    spec = Environment("envpool:Game-v5", atari=sticky).probe()
    assert spec.obs.shape == (42, 42) and spec.frames_per_step == 2
    wanted = {"full_action_space": True, "repeat_action_probability": 0.25, "noop_max": 1, "use_fire_reset": False}
    assert wanted.items() <= fake.given[-1].items() and fake.given[-1]["max_episode_steps"] == 54_000


@pytest.mark.parametrize("life_loss", [True, False])
def test_a_lost_life_terminates_without_a_reset(fake, life_loss):
    """Lives go at steps 3 and 6, the game at 9. Mutations: a `first` after a life, the last life as one of many."""
    stream = open_stream("Game-v5", 2, atari=Atari(life_loss=life_loss, num_threads=1))
    rows = play(stream, np.zeros((13, 2), np.int64))
    assert (rows.obs[:, 0] == 0).all() and (rows.obs[:, 1] == 1).all() and rows.obs.shape == (14, 2, 84, 84)
    lives = [3, 6, 9, 13] if life_loss else [9]
    assert all(np.nonzero(rows.terminated[:, column])[0].tolist() == lives for column in (0, 1))
    assert all(np.nonzero(rows.first[:, column])[0].tolist() == [0, 10] for column in (0, 1))
    assert not rows.truncated.any()
    finished = stream.drain_finished()
    assert [entry.length.tolist() for entry in finished] == [[], [], [9, 9], []]
    first_column = [entry.life_returns[0] for entry in finished]
    assert first_column == [1 + 2 + 3, 4 + 5 + 6, 7 + 8 + 9, 1 + 2 + 3]
    assert finished[2].returns["train"].tolist() == [45, 45 + 90]


@pytest.mark.parametrize(
    "fields, pressed", [({}, True), ({"fire_reset": False}, False), ({"protocol": "sticky", "life_loss": True}, False)]
)
def test_fire_is_pressed_after_a_lost_life(fake, fields, pressed):
    """In that column only, and for one step. Mutations: after a lost game too, in all columns, or for ever."""
    stream = open_stream("Game-v5", 2, atari=Atari(num_threads=1, **fields))
    stream.start()
    pool = fake.made[-1]
    pool.elapsed[1] = 1  # one step ahead: its lives go one step earlier
    sent = []
    for _ in range(11):
        stream.send(np.full(2, 2))
        sent.append(pool.sent.tolist())
        row = stream.recv()
        assert (row.last_action[~row.first] == 2).all()  # what was chosen
    fires = [[t + 1 for t, actions in enumerate(sent) if actions[column] == 1] for column in (0, 1)]
    assert fires == ([[4, 7], [3, 6]] if pressed else [[], []])


def test_lives_that_are_not_lost(fake):
    """Mutations: the step down to zero, a life that goes with the game, fewer lives in the next game: all as losses."""
    table = [  # lives, elapsed, ended, truncated → terminated, life_over
        (3, 1, False, False, False, False),
        (2, 2, False, False, True, True),
        (0, 3, False, False, False, False),  # some games play on for a while
        (0, 4, True, False, True, True),
        (3, 0, False, False, False, False),
        (2, 1, False, True, False, True),  # the clock, and a life in the same step
        (1, 0, False, False, False, False),  # a game with fewer lives
        (1, 1, False, False, False, False),
    ]
    columns = EnvpoolVectorEnv("envpool:Game-v5", {}, Atari(num_threads=1), 1, 0, "raise")
    columns.reset()
    rows = iter(table)

    def recv():
        lives, elapsed, ended, truncated, *_ = next(rows)
        info = {"env_id": np.zeros(1, np.int32), "elapsed_step": np.array([elapsed]), "lives": np.array([lives])}
        return np.zeros((1, 1, 84, 84), np.uint8), np.ones(1), np.array([ended]), np.array([truncated]), info

    columns._envs.recv = recv
    for t, (_, elapsed, ended, truncated, terminated, life_over) in enumerate(table):
        columns.send(np.zeros(1, np.int64))
        outcome = columns.recv()
        assert outcome.terminated[0] == terminated and outcome.life_over[0] == life_over, t
        assert outcome.over[0] == (ended or truncated) and outcome.truncated[0] == truncated, t
        assert outcome.first[0] == (elapsed == 0), t


@pytest.mark.slow
def test_which_games_have_no_fire():
    """As ALE tells it, of all that are listed and of some that are not. Mutation: one more, one fewer."""
    ale_py = pytest.importorskip("ale_py")
    from ale_py.roms import get_rom_path

    played = "Breakout Pong SpaceInvaders Seaquest Qbert BeamRider Riverraid Asteroids MontezumaRevenge Enduro".split()
    for game in sorted(WITHOUT_FIRE) + [f"{name}-v5" for name in played]:
        ale = ale_py.ALEInterface()
        ale.loadROM(get_rom_path(re.sub(r"(?<!^)([A-Z])", r"_\1", game.removesuffix("-v5")).lower()))
        assert (ale.getMinimalActionSet()[1] != ale_py.Action.FIRE) == (game in WITHOUT_FIRE), game


def test_a_truncated_game_is_over(fake):
    """And its last life with it. Mutation: `over` from the lives alone."""
    stream = open_stream("Game-v5", 1, atari=Atari(max_frames=16, num_threads=1))
    rows = play(stream, np.zeros((6, 1), np.int64))
    assert np.nonzero(rows.truncated)[0].tolist() == [4] and np.nonzero(rows.first)[0].tolist() == [0, 5]
    assert np.nonzero(rows.terminated)[0].tolist() == [3]  # a life
    assert [entry.life_returns.tolist() for entry in stream.drain_finished()] == [[1 + 2 + 3], [4]]


@pytest.mark.parametrize("key", ["stack_num", "reward_clip", "max_episode_steps", "num_threads"])
def test_what_the_atari_description_says_is_said_once(fake, key):
    with pytest.raises(ConfigError, match=f"must not contain '{key}' for 'envpool:Game-v5': use Atari.frame_skip"):
        Environment("envpool:Game-v5", {key: 1}).probe()


# -- what is refused, and threads


@pytest.mark.parametrize("key", ["env_type", "num_envs", "batch_size", "seed", "env_seed", "task", "max_num_players"])
def test_what_packtrain_says_cannot_be_said_again(key, capsys, tmp_path, monkeypatch):
    """Needs no package: in code, and in one line on the terminal."""
    with pytest.raises(ConfigError, match=f"^Environment.kwargs must not contain '{key}' for 'envpool:CartPole-v1'"):
        Environment("envpool:CartPole-v1", {key: 1})
    monkeypatch.chdir(tmp_path)
    binding = f"Environment.kwargs = {{'{key}': 1}}"
    assert main(["train", "impala/gym", "--env", "envpool:CartPole-v1", "--config", binding]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("packtrain: error: ") and f"must not contain '{key}'" in line


@pytest.mark.parametrize("threads", [0, -1, True, 2.0, "2"])
def test_threads_are_counted(threads):
    with pytest.raises(ConfigError, match="num_threads = .* must be a whole number of at least 1"):
        Environment("envpool:CartPole-v1", {"num_threads": threads})


@pytest.mark.parametrize(
    "fields, text",
    [({"processes": True}, "processes does not apply"), ({"on_bad_value": "drop"}, "on_bad_value = 'drop' does not")],
)
def test_what_envpool_cannot_do(fields, text):
    with pytest.raises(ConfigError, match=f"Environment.{text}"):
        Environment("envpool:CartPole-v1", **fields)


def test_a_task_needs_no_trust_but_text_in_its_options_does(fake, monkeypatch):
    """Options such as Doom's vzd_path name a program to be run. Mutation: only ids are looked at, or lists not."""
    text = [{"file": "program"}, {"file": ["program"]}, {"file": None}, {"file": (1, ("program",))}, {"file": {}}]
    for kwargs in text:
        Environment("envpool:Count-v0", kwargs)
    monkeypatch.setattr(config, "_state", config.Configuration(trusted=False))
    Environment("envpool:Count-v0", {"scale": 2.5, "file": [1, (2, True)]})
    for kwargs in text:
        with pytest.raises(ConfigError, match="'file' is not a number, .* run folder.*--trust-config"):
            Environment("envpool:Count-v0", kwargs)
    for name in ("envpool.python:Count-v0", "envpoolx:Count-v0"):  # modules
        with pytest.raises(ConfigError, match="names code outside packtrain"):
            Environment(name)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    environment = Environment("envpool:CartPole-v1")
    for ask in (environment.probe, environment.registered_id, lambda: environment.open(1, 0, None)):
        with pytest.raises(MissingExtraError, match=r"'envpool'; try: pip install 'packtrain\[envpool\]'") as error:
            ask()
        assert error.value.exit_code == 2


def test_groups_overlap_as_with_atari(fake):
    """Mutation: one group, so that envpool waits while a policy thinks; or threads for all cores in each group."""
    environment = Environment("envpool:Count-v0", {"num_threads": 5})
    assert environment.overlaps() and not environment.is_functional() and not environment.is_atari()
    assert Streams(environment, 8).group_sizes() == [4, 4]
    columns = environment.open(8, 0, environment.probe())
    assert columns.overlaps and not columns.savable and columns.snapshot() is None
    assert fake.given[-1]["num_threads"] == 5


def test_threads_are_shared_among_groups(fake, monkeypatch):
    monkeypatch.setattr("packtrain.envs.envpool.available_cores", lambda: 12)
    for size, groups, threads in ((8, 2, 6), (4, 2, 4), (8, 1, 8), (8, 24, 1)):
        EnvpoolVectorEnv("envpool:Count-v0", {}, Atari(), size, 0, "raise", groups)
        assert fake.given[-1]["num_threads"] == threads, (size, groups)
    EnvpoolVectorEnv("envpool:Game-v5", {}, Atari(num_threads=3), 8, 0, "raise", 2)
    assert fake.given[-1]["num_threads"] == 3


def test_a_module_imports_no_envpool():
    """An import costs two seconds. Mutation: `import envpool` at the top."""
    import packtrain.envs.envpool as module

    assert not re.search(r"^(import|from) envpool", Path(module.__file__).read_text(), re.M)


# -- the package itself


@pytest.fixture
def real():
    return pytest.importorskip("envpool")


def random_actions(stream, steps, seed=0):
    return np.random.default_rng(seed).integers(stream.columns.action_space.n, size=(steps, stream.size))


def test_cartpole_is_gymnasiums(real):
    """The same physics from the same start. Mutation: a step too many or too few around the reset."""
    stream = open_stream("CartPole-v1")
    actions = random_actions(stream, 150)
    rows = play(stream, actions)
    assert rows.first[1:].sum() > 6 and np.array_equal(rows.first[1:], rows.terminated[:-1])
    env = gym.make("CartPole-v1").unwrapped
    env.reset()
    for column in range(3):
        for t in range(150):
            if rows.terminated[t, column]:
                continue
            env.state, env.steps_beyond_terminated = rows.obs[t, column].astype(np.float64), None
            obs, reward, terminated, *_ = env.step(int(actions[t, column]))
            np.testing.assert_allclose(rows.obs[t + 1, column], obs, atol=1e-5)
            assert rows.last_reward["train"][t + 1, column] == reward and rows.terminated[t + 1, column] == terminated
    assert not rows.last_reward["train"][rows.first].any() and (np.abs(rows.obs[rows.first]) <= 0.05).all()


def test_the_action_of_a_filler_row_goes_nowhere(real):
    """Mutation: an episode that begins with an action meant for the last one. Seeds repeat, threads do not matter."""
    stream = open_stream("CartPole-v1", kwargs={"num_threads": 1})
    actions = random_actions(stream, 120)
    rows = play(stream, actions)
    assert rows.first[1:].any()
    others = np.where(rows.first[1:], 1 - actions, actions)
    assert same(rows, play(open_stream("CartPole-v1", kwargs={"num_threads": 3}), others))
    stream.restart()
    assert same(rows, play(stream, actions))
    assert not np.array_equal(rows.obs, play(open_stream("CartPole-v1", seed=8), actions).obs)
    assert len({rows.obs[0, column].tobytes() for column in range(3)}) == 3


def test_a_real_limit_is_a_truncation(real):
    stream = open_stream("CartPole-v1", 2, kwargs={"max_episode_steps": 4})
    rows = play(stream, np.tile([[0], [1]], (6, 2)))
    assert np.nonzero(rows.truncated[:, 0])[0].tolist() == [4, 9] and not rows.terminated.any()
    assert np.nonzero(rows.first[:, 1])[0].tolist() == [0, 5, 10]


@pytest.mark.parametrize(
    "task, obs, action",
    [
        ("FrozenLake-v1", Discrete(16), Discrete(4)),
        ("LunarLander-v3", Box(-np.inf, np.inf, (8,), np.float32), Discrete(4)),
        ("Pendulum-v1", None, Box(-2, 2, (1,), np.float32)),
        ("Blackjack-v1", None, Discrete(2)),
        ("MiniGrid-Empty-5x5-v0", None, Discrete(7)),
        ("Tetris-v0", None, MultiDiscrete([4, 10])),
    ],
)
def test_other_tasks(real, task, obs, action):
    """Values inside their spaces, resets where they belong: the columns raise otherwise."""
    stream = open_stream(task)
    columns = stream.columns
    assert columns.action_space == action and (obs is None or columns.observation_space == obs)
    rng = np.random.default_rng(0)
    whole = not isinstance(action, Box)
    high = getattr(action, "nvec", getattr(action, "n", None))
    shape = (60, 3, *action.shape)
    rows = play(stream, rng.integers(high, size=shape) if whole else rng.uniform(-1, 1, shape))
    one = trees.map(lambda leaf: leaf[7, 1], rows.obs)
    assert columns.observation_space.contains(int(one) if isinstance(columns.observation_space, Discrete) else one)


def test_tasks_for_two_and_unknown_ones(real):
    with pytest.raises(EnvSetupError, match="'envpool:Go9x9-v1' is a task for several players"):
        Environment("envpool:Go9x9-v1").probe()
    with pytest.raises(EnvSetupError, match="envpool has no task 'CartPol-v1' .did you mean 'CartPole-v"):
        Environment("envpool:CartPol-v1").probe()
    with pytest.raises(EnvSetupError, match="'envpool:CartPole-v1' cannot be made: .*gravity"):
        Environment("envpool:CartPole-v1", {"gravity": 1}).probe()


@pytest.mark.parametrize("life_loss", [True, False])
def test_real_lives(real, life_loss, monkeypatch):
    """Against the lives and clocks that envpool told behind the columns' back."""
    tape = []
    stream = open_stream("Breakout-v5", 2, atari=Atari(life_loss=life_loss, num_threads=1))
    pool = stream.columns._envs
    recv = pool.recv

    def recorded(*arguments, **options):
        answer = recv(*arguments, **options)
        tape.append((answer[-1]["lives"].copy(), answer[-1]["elapsed_step"].copy()))
        return answer

    monkeypatch.setattr(pool, "recv", recorded)
    rows = play(stream, random_actions(stream, 400))
    lives, elapsed = (np.stack(column) for column in zip(*tape, strict=True))
    assert rows.obs.shape == (401, 2, 84, 84) and rows.obs.dtype == np.uint8
    assert np.array_equal(rows.first, elapsed == 0) and rows.first[1:].sum() >= 2
    fell = np.concatenate([np.zeros((1, 2), bool), lives[1:] < lives[:-1]])
    assert np.array_equal(rows.terminated, fell if life_loss else fell & (lives == 0))
    assert not rows.truncated.any() and fell.sum() > 8


@pytest.mark.parametrize("game", ["Breakout", "SpaceInvaders"])
@pytest.mark.parametrize("skip", [4, 1])
def test_frames_and_rewards_are_ales(real, game, skip):
    """Bit by bit, from a start without no-ops, through lost lives; but for the last frame of a game.

    Mutations: stacks, clipped rewards, another interpolation, no FIRE after a lost life.
    """
    pytest.importorskip("ale_py")
    atari = Atari(noop_max=0, fire_reset=True, frame_skip=skip, num_threads=1)
    ours, theirs = (
        Stream(environment.open(1, 3, environment.probe()), 1)
        for environment in (
            Environment(f"{game}NoFrameskip-v4", atari=atari),
            Environment(f"envpool:{game}-v5", atari=atari),
        )
    )
    actions = random_actions(ours, 1500 // skip + 300)
    assert ours.columns.action_space.n == theirs.columns.action_space.n
    one, other = play(ours, actions), play(theirs, actions)
    assert one.last_reward["train"].any() and one.terminated.any()
    ends = np.concatenate([one.first[1:], [[False]]])
    assert same(one._replace(obs=one.obs[~ends]), other._replace(obs=other.obs[~ends]))


def test_real_games_without_no_ops_begin(real):
    """envpool's own reset does not return with a noop_max of 0. Sticky games take all 18 actions."""
    stream = open_stream("Pong-v5", 2, atari=Atari(protocol="sticky", num_threads=1, max_frames=20))
    assert stream.columns.action_space.n == 18
    rows = play(stream, random_actions(stream, 7))
    assert np.nonzero(rows.truncated[:, 0])[0].tolist() == [5] and rows.first[6].all()


STATUS = Path("/proc/self/status")


@pytest.mark.skipif(not STATUS.exists(), reason="counts threads as Linux tells them")
def test_closing_ends_the_threads_even_while_they_work(real):
    """Mutation: close keeps the pool."""

    def threads():
        return int(re.search(r"Threads:\s+(\d+)", STATUS.read_text())[1])

    before = threads()
    columns = EnvpoolVectorEnv("envpool:Pong-v5", {}, Atari(num_threads=2), 4, 0, "raise")
    columns.reset()
    assert threads() >= before + 2
    columns.send(np.zeros(4, np.int64))
    columns.close()
    assert threads() <= before
