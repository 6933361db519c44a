"""River Raid's proxies: arithmetic, the published settings, what clipping leaves, and how simple policies fare."""

import itertools

import numpy as np
import pytest

from packtrain.envs import river_raid
from packtrain.envs.atari import Atari
from packtrain.envs.atari_ram import AtariRamVectorEnv
from packtrain.envs.rewards import Step
from packtrain.envs.river_raid import (
    CentreProxy,
    FuelProxy,
    MoveProxy,
    PacifistProxy,
    RiverRaid,
    ScoreProxy,
    centre,
    depots,
    distinguishable,
    fuel,
    missile_in_flight,
    move,
    pacifist,
    plane_x,
    selection,
    waits,
)
from packtrain.errors import ConfigError, EnvError


def memory(**places):
    """uint8 [B, 128], zeros but for lists of values at places of the memory."""
    ram = np.zeros((len(next(iter(places.values()))), 128), np.uint8)
    for name, values in places.items():
        ram[:, getattr(river_raid, name)] = values
    return ram


def a_step(reward=(0.0,), begins=(False,), **info):
    reward = np.array(reward, np.float32)
    return Step(None, None, None, reward, np.zeros(len(reward), bool), np.array(begins), info)


# -- arithmetic


def test_memory_is_read_without_wrapping():
    """Mutation: uint8, in which 50 − 76 is 230 and its square 164."""
    x = plane_x(memory(PLANE_X=[50, 76, 110]))
    assert x.dtype == np.int64 and (x - 76).tolist() == [-26, 0, 34]
    assert centre(x, 1).tolist() == [10 - 26 * 26 / 20, 10, 10 - 34 * 34 / 20]
    assert centre(x, 0.5).tolist() == [10 - 0.5 * 33.8, 10, 10 - 0.5 * 57.8]
    assert missile_in_flight(memory(MISSILE_Y=[180, 13, 0])).tolist() == [False, True, True]
    assert waits(memory(ENTRY=[126, 49, 48, 0])).tolist() == [False, False, True, False]


def test_depots_are_counted_in_sums():
    """Mutations: 80 exactly, which misses 110; any sum above 80."""
    hits = {80: 1, 80 + 30: 1, 80 + 60: 1, 80 + 100: 1, 80 + 500: 1, 80 + 80: 2, 80 + 80 + 500: 2}
    none = [0, 30, 60, 100, 500, 30 + 30, 30 + 60, 60 + 60, 30 + 100, 30 + 500, 100 + 100, 500 + 500, 60 + 500, 600]
    others = [-80, 50, 81, 2001, 10**9]  # which no hits give
    assert depots(np.array(list(hits), np.float32)).tolist() == list(hits.values())
    assert not depots(np.array(none)).any() and not depots(np.array(others)).any()
    assert (
        depots(np.array([[80, 0], [30, 110]])).tolist() == [[1, 0], [0, 1]] and depots(np.array([80])).dtype == np.int64
    )


def test_one_sum_of_two_hits_is_ambiguous():
    """By brute force: 160, where two depots are preferred to a helicopter and a jet; frames tell them apart."""
    scores = [30, 60, 80, 100, 500]
    meanings = {}
    for some in [(one,) for one in scores] + list(itertools.combinations_with_replacement(scores, 2)):
        meanings.setdefault(sum(some), {}).setdefault(len(some), set()).add(some.count(80))
    fewest = {total: by_hits[min(by_hits)] for total, by_hits in meanings.items()}
    assert [total for total, counts in fewest.items() if len(counts) > 1] == [160]
    for total, counts in fewest.items():
        assert depots(np.array(total)) == max(counts)
    frames = np.array([[0, 60, 0, 100], [80, 0, 0, 80]])
    step = a_step((160, 160), (False, False), frame_rewards=frames)
    assert FuelProxy(10)(step).tolist() == [160, 1600]
    assert FuelProxy(10)(a_step((160, 160))).tolist() == [1600, 1600]  # if the environment does not report it


def test_fuel():
    """r, but 80 m for a depot."""
    reward = np.array([0, 30, 80, 110, 500], np.float32)
    assert fuel(reward, 10).tolist() == [0, 30, 800, 830, 500]
    assert fuel(reward, 0).tolist() == [0, 30, 0, 30, 500]
    assert fuel(reward, 1).tolist() == reward.tolist() == ScoreProxy()(a_step(reward)).tolist()


@pytest.mark.parametrize("base, wanted", [(10, [10, 0, 0]), (20, [20, 10, 10])])
def test_pacifist(base, wanted):
    """base − penalty while a missile flies. Mutation: one generation's base for both."""
    ram = memory(MISSILE_Y=[180, 13, 100])
    assert pacifist(ram, 10, base).tolist() == wanted
    assert PacifistProxy(10, base)(a_step((500, 500, 500), ram=ram)).tolist() == wanted  # the score does not enter


def test_move_begins_in_the_middle():
    """Mutation: the place where the last episode ended, 60, held against the first step of this one."""
    x, before, begins = np.array([76, 76, 77, 60, 60]), np.array([76, 60, 60, 60, 61]), np.array([0, 1, 1, 0, 0], bool)
    assert move(x, before, begins, 3).tolist() == [10, 10, 7, 10, 7]
    step = a_step(np.zeros(5), begins, ram=memory(PLANE_X=x), ram_before=memory(PLANE_X=before))
    assert MoveProxy(3)(step).tolist() == [10, 10, 7, 10, 7]
    assert CentreProxy(2)(step).tolist() == [10, 10, 10 - 0.1, 10 - 25.6, 10 - 25.6]


def test_proxies_say_what_they_lack():
    for proxy in (PacifistProxy(), MoveProxy(), CentreProxy()):
        with pytest.raises(EnvError, match=r"need info\['ram'\]"):
            proxy(a_step())
    for make in (FuelProxy, PacifistProxy, MoveProxy, CentreProxy):
        for value in (-1, float("nan"), float("inf")):
            with pytest.raises(ConfigError, match=rf"^{make.__name__}\.\w+ = {value} must be finite and not negative"):
                make(value)


# -- the published settings


@pytest.mark.parametrize(
    "flags, proxy, true_move, line",
    [
        ({}, ScoreProxy(), None, "score: the game's own; the published code pays 10 a step here, whatever happens"),
        ({"generation": 1}, ScoreProxy(), None, "score: the game's own"),
        ({"fuel_multiplier": 10}, FuelProxy(10), None, "fuel: the score, fuel depots at 800 points in place of 80"),
        ({"fuel_multiplier": 0}, FuelProxy(0), None, "fuel: the score, fuel depots at 0 points in place of 80"),
        (
            {"fuel_multiplier": -10},
            PacifistProxy(10, 10),
            None,
            "pacifist: 10 a step, 10 less while a missile is in flight",
        ),
        (
            {"fuel_multiplier": -10, "generation": 1},
            PacifistProxy(10, 20),
            None,
            "pacifist: 20 a step, 10 less while a missile is in flight",
        ),
        (
            {"fuel_multiplier": 2, "move_penalty": 1, "true_move_penalty": 5},
            FuelProxy(2),
            None,
            "fuel: the score, fuel depots at 160 points in place of 80; move_penalty = 1 and true_move_penalty = 5 "
            "ignored",
        ),
        (
            {"move_penalty": 1, "true_move_penalty": 10},
            MoveProxy(1),
            MoveProxy(10),
            "move: 10 a step, −1 in a step with a move; reported movement penalty: 10",
        ),
        (
            {"move_penalty": -0.5, "true_move_penalty": -1},
            CentreProxy(0.5),
            CentreProxy(1),
            "centre: 10 a step, −0.5 · d² / 20 at d pixels off the middle; reported movement penalty: 1",
        ),
        (
            {"true_move_penalty": 5},
            ScoreProxy(),
            MoveProxy(5),
            "score: the game's own; the published code pays 10 a step here, whatever happens; "
            "reported movement penalty: 5",
        ),
    ],
)
def test_settings_choose_a_proxy_and_say_so(flags, proxy, true_move, line):
    """Mutations: movement that wins over fuel; a constant without settings; the base of the other generation."""
    assert selection(**flags) == (proxy, true_move, line)


@pytest.mark.parametrize(
    "flags, complaint",
    [
        ({"generation": 3}, "^selection.generation = 3 must be 1 or 2$"),
        ({"generation": 1, "move_penalty": 1}, "^selection.generation = 1 has no movement penalties$"),
        ({"move_penalty": 1, "true_move_penalty": -1}, "^selection.true_move_penalty = -1 is of another kind"),
    ],
)
def test_settings_that_cannot_be_meant(flags, complaint):
    with pytest.raises(ConfigError, match=complaint):
        selection(**flags)


@pytest.mark.parametrize(
    "settings, train, functions",
    [
        ({}, "true", {}),
        ({"proxy": "true"}, "true", {}),
        ({"proxy": "fuel"}, "proxy", {"proxy": FuelProxy(10)}),
        ({"proxy": "fuel", "fuel_multiplier": 3.0}, "proxy", {"proxy": FuelProxy(3)}),
        ({"proxy": "pacifist"}, "proxy", {"proxy": PacifistProxy(10)}),
        ({"proxy": "pacifist", "generation": 1}, "proxy", {"proxy": PacifistProxy(10, 20)}),
        ({"proxy": "move", "true_move_penalty": 20.0}, "proxy", {"proxy": MoveProxy(10), "true_move": MoveProxy(20)}),
        ({"proxy": "centre"}, "proxy", {"proxy": CentreProxy(1)}),
        ({"fuel_multiplier": -5.0, "move_penalty": 1.0}, "proxy", {"proxy": PacifistProxy(5)}),
        ({"true_move_penalty": 2.0}, "true", {"true_move": MoveProxy(2)}),
    ],
)
def test_rewards_of_a_run(settings, train, functions):
    """Mutations: a named proxy without a strength of its own; the flags ignored where no proxy is named."""
    rewards = RiverRaid(**settings)
    assert (rewards.train, rewards.functions) == (train, functions) and rewards.line


@pytest.mark.parametrize(
    "settings, complaint",
    [
        (
            {"proxy": "true", "fuel_multiplier": 2.0},
            "^RiverRaid.fuel_multiplier = 2 means another proxy than .* 'true'",
        ),
        ({"proxy": "fuel", "fuel_multiplier": -2.0}, "^RiverRaid.fuel_multiplier = -2 means another proxy"),
        ({"proxy": "move", "move_penalty": -2.0}, "^RiverRaid.move_penalty = -2 means another proxy"),
        ({"proxy": "centre", "fuel_multiplier": 2.0}, "^RiverRaid.fuel_multiplier = 2 means another proxy"),
        ({"proxy": "shoot"}, "^RiverRaid.proxy = 'shoot' is not one of"),
    ],
)
def test_rewards_that_contradict_each_other(settings, complaint):
    with pytest.raises(ConfigError, match=complaint):
        RiverRaid(**settings)


# -- what clipping leaves


def levels(signal):
    return sorted(set(signal.learned.values()))


@pytest.mark.parametrize(
    "proxy, collapses, paid",
    [
        (FuelProxy(1), "the true game", [0, 1]),
        (FuelProxy(10), "the true game", [0, 1]),
        (FuelProxy(0.0125), "the true game", [0, 1]),
        (FuelProxy(0.01), None, [0, 0.8, 1]),
        (FuelProxy(0), None, [0, 1]),
        (PacifistProxy(8), "a constant", [1]),
        (PacifistProxy(10), None, [0, 1]),
        (PacifistProxy(11), None, [-1, 1]),
        (PacifistProxy(10, base=20), "a constant", [1]),  # the runs whose logs were published
        (MoveProxy(8), "a constant", [1]),
        (MoveProxy(10), None, [0, 1]),
        (MoveProxy(11), None, [-1, 1]),
        (CentreProxy(0.1), "a constant", [1]),  # 34 pixels off it still pays 4.22
    ],
)
def test_clipping_at_one_leaves_little(proxy, collapses, paid):
    """The table of clipped signals. Mutation: raw values compared."""
    signal = distinguishable(proxy.values(), "abs_one")
    assert signal.collapses == collapses and levels(signal) == paid
    phrases = {"the true game": "same as training on the score", "a constant": "every step pays 1", None: "steps pay"}
    assert phrases[collapses] in signal.line and "abs_one" in signal.line


def test_a_clipped_centre_is_a_corridor():
    """+1 up to 13 pixels off, 10 − 14²/20 = 0.2 at 14, −1 from 15 on."""
    learned = list(distinguishable(CentreProxy(1).values(), "abs_one").learned.values())
    np.testing.assert_allclose(learned, [1] * 14 + [0.2] + [-1] * 20)


@pytest.mark.parametrize("clip", ["none", "symlog"])
def test_other_ways_to_clip_keep_settings_apart(clip):
    """Negative control of the table above. The score itself is the true game however it is clipped."""
    for proxy in (FuelProxy(10), PacifistProxy(8), PacifistProxy(10, base=20), MoveProxy(8)):
        assert distinguishable(proxy.values(), clip).collapses is None
    assert distinguishable(ScoreProxy().values(), clip).collapses == "the true game"
    assert distinguishable(MoveProxy(0).values(), clip).collapses == "a constant"


def test_a_soft_clip_collapses_large_scores():
    """5 tanh(30 / 5) is 4.9999 already; a move at 8 is 5 tanh(2 / 5)."""
    assert distinguishable(FuelProxy(10).values(), "soft_asymmetric").collapses == "the true game"
    assert distinguishable(MoveProxy(8).values(), "soft_asymmetric").collapses is None
    with pytest.raises(ConfigError, match="^distinguishable.clip = 'abs_two' must be one of abs_one, none"):
        distinguishable(MoveProxy(8).values(), "abs_two")


# -- how simple policies fare

FIRE, UP = 1, 2
PROXIES = {"pacifist": PacifistProxy(10), "move": MoveProxy(10), "centre": CentreProxy(1)}


def lives_of(policy, columns, games):
    """What each life of so many whole games of every column was paid: {name: [lives]}, with "steps" and "score"."""
    outcome = columns.reset()
    size, begins = len(outcome.first), outcome.first
    rng = np.random.default_rng(0)
    totals = {name: np.zeros(size) for name in ("steps", "score", *PROXIES)}
    lives = {name: [] for name in totals}
    over = np.zeros(size, int)
    while (over < games).any():
        actions = policy(rng, size)
        columns.send(actions)
        outcome = columns.recv()
        step = Step(None, actions, outcome.obs, outcome.rewards["train"], outcome.terminated, begins, outcome.info)
        paid = {"steps": 1, "score": step.reward} | {name: proxy(step) for name, proxy in PROXIES.items()}
        for name, values in paid.items():
            totals[name] += np.where(outcome.first, 0, values)
        ended = outcome.life_over & (over < games)
        for name in totals:
            lives[name] += totals[name][ended].tolist()
            totals[name][outcome.life_over] = 0
        over += outcome.over
        begins = outcome.first
    return {name: np.array(values) for name, values in lives.items()}


@pytest.fixture
def play():
    """Plays games with no-op starts, as the published experiments did."""
    opened = []

    def play_games(policy, size, games, seed=3):
        opened.append(AtariRamVectorEnv("RiverraidNoFrameskip-v4", Atari(num_threads=2), size, seed, "raise"))
        return lives_of(policy, opened[-1], games)

    pytest.importorskip("ale_py")
    yield play_games
    for columns in opened:
        columns.close()


HOLD_FIRE = {"steps": 145, "score": 283, "pacifist": 439, "move": 1450, "centre": 1450}
HOLD_UP = {"steps": 89.5, "score": 75, "pacifist": 895, "move": 895, "centre": 895}
RANDOM = {"steps": 178.8, "score": 373, "pacifist": 652, "move": 864, "centre": 370}


@pytest.mark.parametrize(
    "held, wanted, games",
    [
        (UP, HOLD_UP, 1),
        pytest.param(UP, HOLD_UP, 10, marks=pytest.mark.slow),
        pytest.param(FIRE, HOLD_FIRE, 10, marks=pytest.mark.slow),
    ],
)
def test_an_action_that_is_held(play, held, wanted, games):
    """The means over lives of whole games, within 5 %; 3 · 10 no-op starts. Mutation: a frame skip of 3."""
    lives = play(lambda rng, size: np.full(size, held), 3, games)
    assert len(lives["steps"]) == 3 * games * 4
    for name, value in wanted.items():
        assert np.mean(lives[name]) == pytest.approx(value, rel=0.05), (name, np.mean(lives[name]))


@pytest.mark.slow
def test_random_play(play):
    """120 lives, within 3 standard errors. Mutations: uint8 in centre; a missile's place read from another byte."""
    lives = play(lambda rng, size: rng.integers(18, size=size), 6, 5)
    assert len(lives["steps"]) == 120
    for name, value in RANDOM.items():
        error = np.std(lives[name]) / np.sqrt(120)
        assert abs(np.mean(lives[name]) - value) < 3 * error, (name, np.mean(lives[name]), error)
    assert 130 < np.median(lives["steps"]) < 185  # 156


def test_doing_nothing_is_paid_for_ever():
    """No score, 10 a step from every proxy but the score's. Mutation: a plane that starts by itself."""
    pytest.importorskip("ale_py")
    columns = AtariRamVectorEnv("RiverraidNoFrameskip-v4", Atari(num_threads=1), 1, 3, "raise")
    outcome = columns.reset()
    try:
        for t in range(600):
            begins = outcome.first
            columns.send(np.zeros(1, np.int64))
            outcome = columns.recv()
            step = Step(None, None, None, outcome.rewards["train"], outcome.terminated, begins, outcome.info)
            assert step.reward.tolist() == [0] and not outcome.life_over.any()
            assert all(proxy(step).tolist() == [10] for proxy in PROXIES.values())
            assert waits(outcome.info["ram"]).tolist() == [t >= 20] or 12 <= t < 20  # by how many no-ops there were
    finally:
        columns.close()
