"""AtariSimulator on real games: equal to the games as streams play them, exact replay, the trap of the old screen."""

import sys

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("ale_py")
import cv2

import packtrain.envs.registration  # noqa: F401  (registers)
from packtrain.envs.atari import AleVectorEnv, Atari
from packtrain.envs.atari_simulator import AtariSimulator, area_weights
from packtrain.errors import ConfigError, EnvSetupError, MissingExtraError
from packtrain.planning.model import CoreModel

PONG, BREAKOUT = "PongNoFrameskip-v4", "BreakoutNoFrameskip-v4"


@pytest.fixture(scope="module")
def pong():
    return AtariSimulator(PONG)


@pytest.fixture(scope="module")
def breakout():
    return AtariSimulator(BREAKOUT, noop_max=0)


def batch(core, n, seed):
    return np.random.default_rng(seed).integers(core.action_space.n, size=n)


def replay(core, states, steps, seed):
    """Observations, rewards, ends and keys of some random steps."""
    answers = []
    for step in range(steps):
        states, rewards, terminated, _ = core.step(states, batch(core, len(states["lives"]), seed + step), None)
        answers.append((core.observe(states), rewards, terminated, states["key"], states["lives"]))
    return answers


def assert_same(left, right):
    for one, other in zip(left, right, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("game", "steps"), [(PONG, 120), (BREAKOUT, 250)])
def test_games_are_those_that_streams_play(game, steps):
    """Frame by frame to one grey level, lost lives and FIRE after them included; Breakout until the game is over.

    Fails if the maximum is over other frames, if FIRE is not pressed at the start, or with bilinear shrinking.
    """
    atari = Atari(noop_max=0)
    columns, core = AleVectorEnv(game, atari, 1, 0, "raise"), AtariSimulator(game, atari)
    assert columns.action_space == core.action_space and columns.observation_space == core.observation_space
    outcome, states, serves = columns.reset(), core.initial(1, np.random.default_rng(0)), 0
    for step in range(steps):
        difference = np.abs(outcome.obs.astype(int) - core.observe(states)).max()
        assert difference <= 1, f"step {step}"
        actions = batch(core, 1, step)
        columns.send(actions)
        outcome = columns.recv()
        states, rewards, terminated, _ = core.step(states, actions, None)
        assert rewards[0] == outcome.rewards["train"][0]
        assert terminated[0] == outcome.over[0]
        serves += int(states["serve"][0])
        if terminated[0]:
            break
    columns.close()
    assert (serves, bool(terminated[0])) == ((4, True) if game == BREAKOUT else (0, False))


@pytest.mark.parametrize("game", ["pong", "breakout"])
def test_restored_states_replay_exactly(game, request):
    """Fails if anything that steps depend on stays behind in the emulator."""
    core = request.getfixturevalue(game)
    states = core.initial(3, np.random.default_rng(0))
    for step in range(10):
        states, *_ = core.step(states, batch(core, 3, step), None)
    first = replay(core, states, 12, seed=50)
    replay(core, core.initial(3, np.random.default_rng(5)), 3, seed=90)  # the emulator goes somewhere else
    assert_same(replay(core, states, 12, seed=50), first)
    assert any((frames != first[0][0]).any() for frames, *_ in first)


def test_batch_equals_looped(pong):
    states = pong.initial(4, np.random.default_rng(1))
    for step in range(6):
        actions = batch(pong, 4, step)
        following, rewards, terminated, extras = pong.step(states, actions, None)
        for i in range(4):
            alone, reward, ended, _ = pong.step(
                {name: leaf[i : i + 1] for name, leaf in states.items()}, actions[i : i + 1], None
            )
            for name in ("frames", "lives", "key", "over"):
                np.testing.assert_array_equal(alone[name][0], following[name][i])
            assert (reward[0], ended[0]) == (rewards[i], terminated[i])
        states = following
    assert extras == {}
    assert (rewards.dtype, terminated.dtype) == (np.float32, bool)


def test_searching_leaves_states_as_they_were(pong):
    """Fails if a step writes into its argument or if an emulator's state is not a copy."""
    root = pong.initial(2, np.random.default_rng(2))
    kept, emulated = {name: leaf.copy() for name, leaf in root.items() if name != "ale"}, list(root["ale"])
    serialised = [state.__getstate__() for state in emulated]
    for leaf in root.values():
        leaf.flags.writeable = False
    states = root
    for step in range(8):
        states, *_ = pong.step(states, batch(pong, 2, step), None)
        assert all(leaf.flags.writeable for leaf in states.values())
    for name, leaf in kept.items():
        np.testing.assert_array_equal(root[name], leaf)
    assert [state.__getstate__() for state in root["ale"]] == serialised
    assert not np.shares_memory(pong.observe(root), root["frames"])


def test_the_screen_after_a_restore_is_that_of_the_state(breakout):
    """The trap: the emulator's screen is not restored. Fails if `observe` reads it instead of the kept frame."""
    start = breakout.initial(1, np.random.default_rng(0))
    shown = breakout.observe(start)
    states = start
    for step in range(15):
        states, *_ = breakout.step(states, batch(breakout, 1, step), None)
    breakout._ale.restoreState(start["ale"][0])
    stale = breakout._look()
    assert np.abs(stale.astype(int) - shown[0]).max() > 50, "the trap is there"
    np.testing.assert_array_equal(breakout.observe(start), shown)


def test_a_start_shows_its_own_first_frame():
    """The same trap at a start without waiting, which is a restore too."""
    core = AtariSimulator(BREAKOUT, noop_max=0, fire_reset=False)
    first = core.initial(1, np.random.default_rng(0))
    states = first
    for step in range(15):
        states, *_ = core.step(states, batch(core, 1, step), None)
    again = core.initial(2, np.random.default_rng(3))
    for name in ("frames", "key", "lives"):
        np.testing.assert_array_equal(again[name], first[name].repeat(2, axis=0))
    assert first["frames"].any()


def test_frames_with_nothing_before_a_step_are_the_same_whatever_was_shown(breakout):
    """Fails if the maximum takes in a screen from before the restore."""
    start = breakout.initial(1, np.random.default_rng(0))
    expected = breakout.step(start, np.array([2]), None)[0]["frames"]
    for step in range(10):
        breakout.step(start, np.array([step % 4]), None)
        np.testing.assert_array_equal(breakout.step(start, np.array([2]), None)[0]["frames"], expected)


def test_waiting_at_the_start(pong):
    """0 … noop_max − 1 frames, drawn from the generator; equal draws give equal starts."""
    starts = pong.initial(60, np.random.default_rng(4))
    again = pong.initial(60, np.random.default_rng(4))
    np.testing.assert_array_equal(starts["key"], again["key"])
    waits = np.array([state.getEpisodeFrameNumber() for state in starts["ale"]])
    assert 0 <= waits.min() - 1 < 3 and 26 < waits.max() - 1 < 30  # one frame more for FIRE
    assert len(np.unique(starts["key"])) == len(np.unique(waits)) > 15


def test_sticky_actions_replay_with_their_luck():
    """Fails without the generator in the state, and if all games have the same luck."""
    core = AtariSimulator("ALE/Pong-v5", full_action_space=False)
    assert core.sticky_actions == 0.25 and core.noop_max == 0
    states = core.initial(3, np.random.default_rng(0))
    first = replay(core, states, 25, seed=0)
    assert_same(replay(core, states, 25, seed=0), first)
    same_actions = {name: leaf[:1].repeat(2, axis=0) for name, leaf in states.items()}
    twice = core.step(same_actions, np.array([2, 2]), None)[0]
    assert twice["key"][0] == twice["key"][1]
    frames = states
    for step in range(40):
        frames, *_ = core.step(frames, np.full(3, 2 + step // 4 % 2), None)
    assert (frames["frames"][0] != frames["frames"][1]).any(), "other seeds, other luck"
    assert len(np.unique(states["key"])) == 3
    np.testing.assert_array_equal(core.initial(3, np.random.default_rng(0))["key"], states["key"])


def test_without_luck_sticky_and_plain_agree():
    plain, other = AtariSimulator(PONG, noop_max=0), AtariSimulator("ALE/Pong-v5", protocol="classic", noop_max=0)
    assert other.sticky_actions == 0
    left, right = (core.initial(1, np.random.default_rng(0)) for core in (plain, other))
    assert_same(replay(plain, left, 5, seed=0), replay(other, right, 5, seed=0))


def test_keys_tell_states_apart_and_know_them_again(pong):
    model = CoreModel(pong)
    start = pong.initial(1, np.random.default_rng(0))
    twelve = states = {name: leaf.repeat(12, axis=0) for name, leaf in start.items()}
    for _ in range(4):
        states, *_ = pong.step(states, np.arange(12) // 2, None)
    keys = model.keys(states)
    assert len(np.unique(keys)) == 6 and model.keys(start)[0] not in keys
    np.testing.assert_array_equal(keys[::2], keys[1::2])
    assert len(np.unique(model.keys(twelve))) == 1
    assert model.deterministic and model.legal(states) is None


def test_lives(breakout):
    """A lost life is no end unless it is said to be; an end rests."""
    mortal = AtariSimulator(BREAKOUT, noop_max=0, life_loss=True)
    for core in (breakout, mortal):
        states, over = core.initial(1, np.random.default_rng(0)), np.zeros(1, bool)
        assert states["lives"][0] == 5
        while states["lives"][0] == 5:
            states, _, over, _ = core.step(states, np.zeros(1, int), None)
        assert bool(over[0]) == (core is mortal)
        assert bool(states["serve"][0]) == (core is breakout)
    resting, rewards, terminated, _ = mortal.step(states, np.ones(1, int), None)
    assert terminated[0] and rewards[0] == 0 and resting["ale"][0] is states["ale"][0]
    np.testing.assert_array_equal(resting["frames"], states["frames"])
    assert CoreModel(mortal).keys(resting) == CoreModel(mortal).keys(states)


@pytest.mark.parametrize(("size", "small"), [(210, 84), (160, 84), (250, 84), (84, 84), (10, 4)])
def test_area_weights_are_shares(size, small):
    weights = area_weights(size, small)
    assert weights.shape == (small, size)
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(weights.sum(axis=0), small / size, atol=1e-5)


def test_shrinking_is_that_of_opencv(pong):
    """INTER_AREA, which Gymnasium's AtariPreprocessing uses, within one grey level; fails for bilinear weights."""
    rng = np.random.default_rng(0)
    for screen in (rng.integers(0, 256, (210, 160)), np.arange(210)[:, None] + np.arange(160) % 46):
        screen = screen.astype(np.uint8)
        expected = cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA)
        difference = np.abs(pong._shrink(screen).astype(int) - expected)
        assert difference.max() <= 1 and (difference > 0).mean() < 0.01


def test_stacks_of_frames():
    one, four = AtariSimulator(PONG, noop_max=0), AtariSimulator(PONG, noop_max=0, frame_stack=4)
    assert four.observation_space.shape == (4, 84, 84)
    left, right = one.initial(1, np.random.default_rng(0)), four.initial(1, np.random.default_rng(0))
    seen = [one.observe(left)[0]] * 4
    np.testing.assert_array_equal(four.observe(right)[0], seen)
    for step in range(6):
        left, *_ = one.step(left, batch(one, 1, step), None)
        right, *_ = four.step(right, batch(one, 1, step), None)
        seen = [*seen[1:], one.observe(left)[0]]
        np.testing.assert_array_equal(four.observe(right)[0], seen)


def test_settings():
    core = AtariSimulator(PONG, frame_skip=1, frame_size=42, max_frames=101, full_action_space=True)
    assert core.max_steps == 101 and core.action_space.n == 18 and core.observation_space.shape == (42, 42)
    states = core.initial(1, np.random.default_rng(0))
    before = states["ale"][0].getEpisodeFrameNumber()
    states, *_ = core.step(states, np.array([17]), None)
    assert states["ale"][0].getEpisodeFrameNumber() == before + 1
    assert core.render(states, "rgb_array").shape == (42, 42, 3)
    assert AtariSimulator(PONG, max_frames=101).max_steps == 26


def test_it_has_an_id():
    env = gym.make("packtrain/AtariSimulator-v0", game=PONG, max_frames=8, render_mode="rgb_array")
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert [env.step(0)[3] for _ in range(2)] == [False, True]
    assert env.render().shape == (84, 84, 3)


@pytest.mark.parametrize(
    ("build", "kind", "what"),
    [
        (lambda: AtariSimulator("PongNoFrameskip-v5"), EnvSetupError, "unknown Atari game .*did you mean"),
        (
            lambda: AtariSimulator(PONG, colour=True),
            EnvSetupError,
            r"AtariSimulator\(colour=\.\.\.\): the settings are",
        ),
        (lambda: AtariSimulator(PONG, frame_skip=0), ConfigError, "Atari.frame_skip = 0 must be at least 1"),
        (lambda: AtariSimulator(PONG, frame_size=161), EnvSetupError, "frame_size must be at most 160"),
        (lambda: AtariSimulator(PONG, frame_stack=0), EnvSetupError, r"AtariSimulator\(frame_stack=0\)"),
    ],
)
def test_options_that_cannot_be_meant(build, kind, what):
    with pytest.raises(kind, match=what) as error:
        build()
    assert "\n" not in str(error.value) or kind is ConfigError  # there gin says more


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(MissingExtraError, match=r"'ale-py'; try: pip install 'packtrain\[atari\]'"):
        AtariSimulator(PONG)
