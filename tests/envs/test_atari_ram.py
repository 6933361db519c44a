"""Atari games with their memory: rows as ALE's vector environment gives them, memory as the emulator has it."""

import os
import signal
import time

import numpy as np
import pytest

from packtrain.envs import river_raid
from packtrain.envs.atari import SCREEN, AleVectorEnv, Atari, find_game
from packtrain.envs.atari_ram import AreaMean, AtariRamVectorEnv, Console, area_taps, draw_below
from packtrain.envs.rewards import RewardedVectorEnv, Rewards
from packtrain.errors import ConfigError, EnvError

ale_py = pytest.importorskip("ale_py")

RIVER_RAID = "RiverraidNoFrameskip-v4"
# A game that begins in the same way each time, and goes on as the actions say.
PLAIN = {"noop_max": 0, "fire_reset": False, "sticky_actions": 0.0}
FIELDS = ("obs", "first", "terminated", "truncated", "over", "life_over")


@pytest.fixture
def open_columns():
    """Opens groups, and ends their processes after the test."""
    opened = []

    def open_one(name=RIVER_RAID, size=2, seed=7, processes=1, **fields):
        opened.append(AtariRamVectorEnv(name, Atari(num_threads=processes, **fields), size, seed, "raise"))
        return opened[-1]

    yield open_one
    for columns in opened:
        columns.close()


@pytest.fixture(scope="module")
def plain():
    """Three games in two processes, for tests that begin with a reset."""
    columns = AtariRamVectorEnv(RIVER_RAID, Atari(num_threads=2, **PLAIN), 3, 7, "raise")
    yield columns
    columns.close()


def step(columns, actions):
    columns.send(np.asarray(actions))
    return columns.recv()


# -- the same rows


@pytest.mark.parametrize(
    "name, steps, fields",
    [
        (RIVER_RAID, 300, {}),
        ("BreakoutNoFrameskip-v4", 250, {}),
        ("PongNoFrameskip-v4", 65, {"max_frames": 103, "frame_size": 50}),
        pytest.param("ALE/RoadRunner-v5", 900, {"frame_skip": 1}, marks=pytest.mark.slow),
        pytest.param("ALE/Asterix-v5", 600, {"noop_max": 30}, marks=pytest.mark.slow),
        pytest.param("BreakoutNoFrameskip-v4", 600, {"frame_skip": 3, "frame_size": 96}, marks=pytest.mark.slow),
        pytest.param(RIVER_RAID, 1500, {"life_loss": False}, marks=pytest.mark.slow),
    ],
)
def test_rows_are_those_of_ales_vector_environment(open_columns, name, steps, fields):
    """Bit by bit, no-ops, FIRE, lost lives and the ends of games included; of River Raid again after a reset.

    Mutations: FIRE after the no-ops, one no-op more, the last frame of a game shown, the last frame alone in place of
    a maximum, rows summed before columns in the mean, a clock that counts no-ops, a seed for all, columns swapped.
    """
    theirs = AleVectorEnv(name, Atari(num_threads=1, **fields), 2, 7, "raise")
    ours = open_columns(name, processes=2, **fields)
    assert ours.observation_space == theirs.observation_space and ours.action_space == theirs.action_space
    rng = np.random.default_rng(3)
    ends, frames = 0, set()
    for length in (steps, 20) if name == RIVER_RAID else (steps,):
        wanted, got = theirs.reset(), ours.reset()
        for t in range(length):
            for field in FIELDS:
                assert np.array_equal(getattr(got, field), getattr(wanted, field)), (field, t)
            assert np.array_equal(got.rewards["train"], wanted.rewards["train"]), t
            assert got.obs.dtype == np.uint8 and got.rewards["train"].dtype == np.float32
            ends += int(wanted.life_over.sum())
            frames.add(got.obs[0].tobytes())
            if t % 5 == 0:  # held for a while, which soon meets a bank
                actions = rng.integers(theirs.action_space.n, size=2)
            theirs.send(actions)
            wanted, got = theirs.recv(), step(ours, actions)
    assert len(frames) > 20 and ends >= 2


# -- memory


def test_memory_is_the_emulators_after_each_step(plain):
    """Three games, each beside an emulator of its own.

    Mutations: memory of the row before; of the other column; frame rewards not set back.
    """
    columns = plain
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    emulators = [ale_py.ALEInterface() for _ in range(3)]
    for emulator in emulators:
        emulator.setFloat("repeat_action_probability", 0.0)
        emulator.loadROM(ale_py.roms.get_rom_path("riverraid"))
        emulator.reset_game()
    outcome = columns.reset()
    assert outcome.info["ram"].shape == (3, 128) and outcome.info["ram"].dtype == np.uint8
    actions = np.random.default_rng(1).choice([1, 10, 11, 12], size=(150, 3))  # FIRE, mostly
    scored, before = 0, outcome.info["ram"]
    for t in range(151):
        ram = np.stack([emulator.getRAM() for emulator in emulators])
        assert np.array_equal(outcome.info["ram"], ram), t
        assert np.array_equal(outcome.info["ram_before"], before), t
        if t == 150:
            break
        before = ram
        outcome = step(columns, actions[t])
        paid = [[one.act(int(a)) for _ in range(4)] for one, a in zip(emulators, actions[t], strict=True)]
        assert outcome.info["frame_rewards"].tolist() == paid
        assert outcome.rewards["train"].tolist() == np.sum(paid, axis=1).tolist()
        scored += np.sum(paid)
    assert scored and len(np.unique(outcome.info["ram"], axis=0)) == 3


def test_a_step_cut_short_is_paid_for_its_own_frames():
    """Mutation: what the frames of the step before were paid, where this one has none."""
    rom = str(ale_py.roms.get_rom_path("riverraid"))
    console = Console(rom, [0], Atari(max_frames=3).resolve(find_game(RIVER_RAID)))
    console.reset(7)
    console._rewards[:] = 80
    console.step(0)
    assert console.truncated and not console.terminated and not console._rewards.any()


def test_the_first_row_of_a_game_looks_back_at_nothing_else(open_columns):
    """The memory before a new game is its own, not the last one's; rows outlive the next send.

    Mutation: what was kept of the row before, whatever it was; views of the shared memory.
    """
    columns = open_columns(max_frames=100, **PLAIN)
    columns.reset()
    last = [step(columns, [11, 11]) for _ in range(25)][-1]
    kept = last.obs.copy(), last.info["ram"].copy()
    assert last.truncated.all() and not last.terminated.any()
    outcome = step(columns, [11, 11])
    assert outcome.first.all() and np.array_equal(outcome.info["ram"], outcome.info["ram_before"])
    assert not np.array_equal(outcome.info["ram"], kept[1]) and not outcome.info["frame_rewards"].any()
    assert np.array_equal(last.obs, kept[0]) and np.array_equal(last.info["ram"], kept[1])


def test_a_reward_function_reads_the_memory(plain):
    """`Rewards` hands `info` on. Mutation: an outcome without it."""
    proxies = {"calm": river_raid.PacifistProxy(), "move": river_raid.MoveProxy()}
    columns = RewardedVectorEnv(plain, Rewards(train="calm", functions=proxies))
    columns.reset()
    outcomes = [step(columns, [0, 1, 0]) for _ in range(30)]
    train, true = (np.stack([outcome.rewards[name] for outcome in outcomes]) for name in ("train", "true"))
    assert (train[:, 0] == 10).all() and set(train[:, 1]) == {0.0, 10.0}
    assert true[:, 0].sum() == 0 and columns.reward_channels == ("train", "true", "calm", "move")


# -- starting the plane


@pytest.mark.parametrize("start", [False, True])
def test_a_plane_that_is_started_does_not_wait(plain, open_columns, start):
    """Only no-ops. Without it the plane waits forever; with it planes are lost, the later ones too.

    Nor does the protocol press anything. Mutations: UP at the start of a game only; UP whatever was chosen.
    """
    columns = open_columns(idle_start=False, size=1, **PLAIN) if start else plain
    idle = np.zeros(len(columns.reset().first), np.int64)
    waiting, lives = [], 0
    for _ in range(330 if start else 120):
        outcome = step(columns, idle)
        waiting.append(bool(river_raid.waits(outcome.info["ram"])[0]))
        lives += int(outcome.life_over[0])
    if start:
        assert lives >= 2 and sum(waiting) == lives + 1  # one row of each plane
    else:
        assert not lives and not any(waiting[:18]) and all(waiting[20:])


def test_a_plane_that_is_played_is_left_alone(plain, open_columns):
    """Mutation: UP in place of what was chosen."""
    started = open_columns(idle_start=False, size=1, **PLAIN)
    assert np.array_equal(plain.reset().obs[:1], started.reset().obs)
    for t in range(40):
        action = 0 if t < 20 else 3
        wanted, got = step(plain, [action] * 3), step(started, [action])
        assert np.array_equal(got.info["ram"], wanted.info["ram"][:1])
        assert river_raid.waits(got.info["ram"])[0] == (t == 19)
    assert river_raid.plane_x(got.info["ram"])[0] > river_raid.MIDDLE


# -- smaller pictures


@pytest.mark.parametrize("size", [84, 42, 50, 80, 105, 11, 160])
def test_means_over_areas_are_cv2s_to_the_bit(size):
    """Noise, which has ties everywhere. Mutations: rows first; float64; rounding up; one tap less."""
    cv2 = pytest.importorskip("cv2")
    pictures = np.random.default_rng(size).integers(256, size=(6, *SCREEN)).astype(np.uint8)
    shrink = AreaMean(SCREEN, size)
    for picture in pictures:
        wanted = cv2.resize(picture, (size, size), interpolation=cv2.INTER_AREA)
        assert np.array_equal(shrink(picture), wanted)


def test_five_pixels_become_two():
    """Output 0 covers [0, 2.5), output 1 [2.5, 5)."""
    inputs, weights = area_taps(5, 2)
    assert inputs.T.tolist() == [[0, 1, 2], [2, 3, 4]]
    np.testing.assert_allclose(weights.T, [[0.4, 0.4, 0.2], [0.2, 0.4, 0.4]])
    picture = np.zeros((5, 5), np.uint8)
    picture[0, 2] = 250
    assert AreaMean((5, 5), 2)(picture).tolist() == [[20, 20], [0, 0]]  # 250 · 0.4 · 0.2
    for size, small in ((210, 84), (160, 84), (160, 33)):
        np.testing.assert_allclose(area_taps(size, small)[1].sum(axis=0), 1, rtol=1e-6)


def test_a_draw_is_the_upper_half_of_a_product():
    """2³² mod 3 is 1: a product whose lower half is 0 is drawn again. Mutation: the remainder of a division."""

    class Numbers:
        def __init__(self, *numbers):
            self.numbers = iter(numbers)

        def randint(self, below, dtype):
            assert below == 2**32 and dtype == np.uint32
            return next(self.numbers)

    assert draw_below(3, Numbers(0, 2**31)) == 1  # 0 is refused, then 3 · 2³¹ = 1.5 · 2³²
    assert draw_below(3, Numbers(2**32 - 1)) == 2
    assert draw_below(4, Numbers(0)) == 0 and draw_below(1, Numbers(12345)) == 0
    counts = np.bincount([draw_below(30, np.random.RandomState(seed)) for seed in range(3000)], minlength=30)
    assert len(counts) == 30 and counts.min() > 50 and counts.max() < 160


# -- processes


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_process_that_dies_is_noticed_and_close_ends_the_others(open_columns):
    """In one line that says who. Mutations: wait for ever; a process left behind, in the middle of a step too."""
    columns = open_columns(size=3, processes=2)
    columns.reset()
    pids = [worker.process.pid for worker in columns._workers]
    os.kill(pids[1], signal.SIGKILL)
    complaint = r"^environment 1 \(RiverraidNoFrameskip-v4, group seed 7\) at its step 0: its process, which runs "
    with pytest.raises(EnvError, match=complaint + "environments 1 to 2, ended with exit code -9$"):
        step(columns, [0, 0, 0])
    begin = time.monotonic()
    columns.close()
    assert time.monotonic() - begin < 4 and all(gone(pid) for pid in pids)
    columns.close()  # twice does no harm


def test_an_error_names_its_game_and_a_reset_goes_on(plain):
    """Mutations: the error kept; the column of the process in place of the group's; answers out of step afterwards."""
    columns = plain
    first = columns.reset()
    with pytest.raises(EnvError, match=r"^environment 2 \(.*\) at its step .* raised in step: IndexError: "):
        step(columns, [0, 0, 99])
    columns.send(np.zeros(3, np.int64))  # a step whose result is not received
    assert np.array_equal(columns.reset().obs, first.obs)


def test_pictures_are_the_screen_in_colour(plain):
    """Of each game, at any time. Mutation: always the first."""
    columns = plain
    columns.reset()
    for _ in range(30):
        outcome = step(columns, [3, 4, 0])
    pictures = [columns.picture(column) for column in range(3)]
    assert all(picture.shape == (210, 160, 3) and picture.dtype == np.uint8 for picture in pictures)
    for column, picture in enumerate(pictures):
        grey = (picture @ (0.299, 0.587, 0.114)).round().astype(np.uint8)
        apart = [np.abs(AreaMean(SCREEN, 84)(grey).astype(int) - frame).mean() for frame in outcome.obs]
        assert np.argmin(apart) == column and apart[column] < 2
    assert columns.pictures_per_second() == 15 and not columns.savable and columns.snapshot() is None


@pytest.mark.parametrize(
    "name, fields, complaint",
    [
        (
            "PongNoFrameskip-v4",
            {"idle_start": False},
            "^Atari.idle_start = False applies to River Raid only, not to 'P",
        ),
        (RIVER_RAID, {"frame_size": 10}, "^Atari.frame_size = 10 must lie between 11 and 160"),
        (RIVER_RAID, {"frame_size": 161}, "^Atari.frame_size = 161 must lie between 11 and 160"),
    ],
)
def test_what_cannot_be_played(name, fields, complaint):
    """Before any process is made."""
    with pytest.raises(ConfigError, match=complaint):
        AtariRamVectorEnv(name, Atari(**fields), 2, 7, "raise")
