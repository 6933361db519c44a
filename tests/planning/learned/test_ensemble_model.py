"""The learned model: decoding, thresholds, disagreement, masks and the cache of predictions, on crafted ensembles."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from packtrain.acting.inference import Inference
from packtrain.envs.hanoi import Hanoi
from packtrain.errors import ConfigError, EnvSetupError
from packtrain.hashing import mix
from packtrain.networks.ensembles import EnsembleMlp
from packtrain.networks.world_model import WorldModel
from packtrain.planning.best_first import BestFirstSearchAgent
from packtrain.planning.deterministic_mcts import DeterministicMCTSAgent
from packtrain.planning.learned import EnsembleModel, LearnedModel
from packtrain.planning.learned.ensemble_model import PredictionCache
from packtrain.planning.planner import Agent, Roots
from packtrain.testing.path_hash import settle
from packtrain.types import Request

SPACE = gym.spaces.Box(0, 2, (3,), np.float32)
ACTIONS = gym.spaces.Discrete(2)


class World:
    """What a model looks at: spaces."""

    def __init__(self, observation_space: gym.Space = SPACE):
        self.observation_space, self.action_space = observation_space, ACTIONS


def model(members: int = 4, mask_size: int | None = None, **more) -> EnsembleModel:
    return LearnedModel(members, mask_size, **{"cache": False, **more}).build(World(), seed=0)


def guess(own: EnsembleModel, obs: np.ndarray, columns: np.ndarray, **answer: np.ndarray):
    own.begin(columns, 0)
    asking = own.step(own.roots(columns, obs), np.zeros(len(obs), int), np.random.default_rng(0))
    request = next(asking)
    assert isinstance(request, Request) and request.network == "model"
    np.testing.assert_array_equal(request.inputs["obs"], obs)
    with pytest.raises(StopIteration) as end:
        asking.send(answer)
    return end.value.value


def test_decoding_by_hand() -> None:
    """Mean change, clipped, rounded with halves up; rewards and ends by the mean belief; the members' deviation.

    Mutations: NumPy's half-to-even rounding (1.5 and 0.5 would both give 2 and 0); the mean of logits, not of beliefs.
    """
    obs = np.array([[1, 0, 2]], np.float32)
    delta = np.array([[[0.5, 0.5, 0.9], [0.5, 0.5, 0.9], [0.5, 0.5, -0.1], [0.5, 0.5, -0.1]]], np.float32)
    logits = np.array([[9.0, -1.0, -1.0, -1.0]], np.float32)  # mean logit above 0, mean belief 0.45
    got = guess(model(), obs, np.array([0]), delta=delta, reward=-logits, terminated=logits)
    np.testing.assert_array_equal(got.states["obs"], [[2, 1, 2]])
    assert (got.rewards[0], got.terminated[0], got.solved[0]) == (1.0, False, False)
    assert got.bonus[0] == pytest.approx((0 + 0 + 0.5) / 3)


def test_members_that_agree_have_no_disagreement() -> None:
    """Identical members: 0, whatever they say."""
    delta = np.broadcast_to(np.array([0.3, -0.2, 0.1], np.float32), (2, 4, 3))
    zeros = np.zeros((2, 4), np.float32)
    got = guess(model(), np.ones((2, 3), np.float32), np.arange(2), delta=delta, reward=zeros, terminated=zeros)
    np.testing.assert_allclose(got.bonus, 0, atol=1e-7)


def test_masks_are_drawn_per_column_and_episode_without_replacement() -> None:
    """Only masked members count. Mutation: one mask for all environments."""
    own = model(8, 4)
    columns = np.arange(200)
    own.begin(columns, 0)
    masks = own.roots(columns, np.zeros((200, 3)))["mask"].copy()
    assert masks.shape == (200, 4) and all(len(set(mask)) == 4 for mask in masks.tolist())
    assert len({tuple(mask) for mask in masks.tolist()}) > 50
    counts = np.bincount(masks.ravel(), minlength=8)
    assert counts.min() > 70 and counts.max() < 130
    own.begin(columns[:100], 1)
    again = own.roots(columns, np.zeros((200, 3)))["mask"]
    np.testing.assert_array_equal(again[100:], masks[100:])
    assert (again[:100] != masks[:100]).any(axis=1).mean() > 0.8
    delta = np.zeros((1, 8, 3), np.float32)
    delta[0, [m for m in range(8) if m not in again[5]]] = 100.0
    zeros = np.zeros((1, 8), np.float32)
    asking = own.step(own.roots(np.array([5]), np.zeros((1, 3))), np.zeros(1, int), np.random.default_rng(0))
    next(asking)
    with pytest.raises(StopIteration) as end:
        asking.send({"delta": delta, "reward": zeros, "terminated": zeros})
    assert end.value.value.states["obs"].max() == 0 and end.value.value.bonus[0] == 0


def test_keys_are_those_of_observations() -> None:
    """Negative zero is zero, and the mask does not matter."""
    own = model(8, 4)
    own.begin(np.arange(2), 0)
    keys = own.keys(own.roots(np.arange(2), np.array([[0.0, 1, 2], [-0.0, 1, 2]])))
    assert keys[0] == keys[1]


def test_bad_settings_are_refused() -> None:
    """With one line."""
    with pytest.raises(ConfigError, match="mask_size"):
        LearnedModel(4, 5)
    with pytest.raises(EnvSetupError, match="vector"):
        LearnedModel().build(World(gym.spaces.Box(0, 1, (3, 3))), 0)


# -- the cache: an input is sent to the network once, until the network learns or there is no more room


class Squares:
    """A network that writes down what it is asked."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __call__(self, answers: PredictionCache, numbers: list[int]) -> list[list[int]]:
        """What is kept of the answers to these questions."""
        inputs = np.array(numbers)
        keys = mix(inputs.astype(np.uint64) + np.uint64(1))
        kept, rows = settle(answers.ask("net", keys, {"number": inputs}), self.answer)
        return kept["square"][rows].tolist()

    def answer(self, request: Request) -> dict[str, np.ndarray]:
        """n² and n² + 1."""
        assert request.network == "net"
        self.asked.append(request.inputs["number"].tolist())
        return {"square": request.inputs["number"][:, None] ** 2 + np.arange(2)}


def doubled(answer: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"square": 2 * answer["square"]}


def want(numbers: list[int]) -> list[list[int]]:
    return [[2 * n * n, 2 * n * n + 2] for n in numbers]


def test_a_question_is_put_once_and_equal_ones_together() -> None:
    """Mutations: equal questions of a batch put twice, or answered with each other's row; known ones put again."""
    answers, net = PredictionCache(doubled), Squares()
    for numbers in ([3, 5, 3, 3, 7], [7, 8, 3, 8], [5, 7], list(range(3000)), [2999, 0, 8]):
        assert net(answers, numbers) == want(numbers)
    assert net.asked == [[3, 5, 7], [8], [n for n in range(3000) if n not in (3, 5, 7, 8)]]
    assert (answers.asked, answers.passed_on) == (5 + 4 + 2 + 3000 + 3, 3000)


def test_all_is_forgotten_on_demand_and_when_there_is_no_more_room() -> None:
    """At most 10 questions are kept. Mutations: no limit; forget after the answer, and with it what was asked for."""
    answers, net = PredictionCache(doubled, most=10), Squares()
    assert net(answers, [1, 2, 3]) == want([1, 2, 3])
    answers.forget()
    assert net(answers, [1, 2, 3]) == want([1, 2, 3])
    assert net(answers, [4, 5, 6, 7, 8, 9]) == want([4, 5, 6, 7, 8, 9])
    assert net(answers, [1, 10]) == want([1, 10])  # 9 known and 2 more could be 11
    assert net.asked == [[1, 2, 3], [1, 2, 3], [4, 5, 6, 7, 8, 9], [1, 10]]


def test_an_unanswered_request_is_sent_again() -> None:
    """Who closes a search half-way may search again. Mutation: keep the questions, and others' answers are given."""
    answers, net = PredictionCache(doubled), Squares()
    net(answers, [6])
    asking = answers.ask("net", mix(np.arange(1, 5, dtype=np.uint64)), {"number": np.arange(4)})
    next(asking)
    asking.close()
    assert net(answers, [2, 0, 1, 6]) == want([2, 0, 1, 6])


CORE = Hanoi(4)
BONUS = {"expand_heuristic": "bonus", "top_level_heuristic": "solved_then_auxiliary_then_bonus"}
RULE = {"bonus_quantile_threshold": 0.8, "avoid_history_coeff": -0.2}
AGENTS = [
    BestFirstSearchAgent(n_nodes_per_step=4, **BONUS, **RULE),
    DeterministicMCTSAgent(n_passes=4, use_value_network=False, avoid_top_level_loops=False, **RULE),
]


def play(agent: Agent, cache: bool, steps: int = 12, columns: int = 5, learns: bool = False) -> tuple[list, int]:
    """What is planned in two episodes, and how many rows the network had to answer."""
    torch.manual_seed(0)
    network = WorldModel(EnsembleMlp(4, (16,))).build(CORE.observation_space, CORE.action_space)
    inference = Inference({"model": network})
    model = LearnedModel(4, 2, cache=cache).build(CORE, seed=3)
    planner = agent.build(model, columns, 3)
    every, rng, plans = np.arange(columns), np.random.default_rng(0), []
    for episode in range(2):
        model.use(episode if learns else 7)
        if learns and episode:
            with torch.no_grad():
                network.ensemble.heads["delta"].bias.add_(torch.randn(4, 1, 12))
        model.begin(every, episode)
        planner.begin(every, episode)
        states = CORE.initial(columns, rng)
        for _ in range(steps):
            obs = CORE.observe(states)
            plan = inference.run(planner.plan(Roots(every, model.roots(every, obs), obs)))
            plans.append((plan.action, *(plan.extras[name] for name in ("value", "verified"))))
            states, rewards, terminated, _ = CORE.step(states, plan.action, rng)
            planner.feedback(every, model.roots(every, CORE.observe(states)), rewards, terminated)
    return plans, inference.rows


@pytest.mark.parametrize("learns", [False, True], ids=["frozen", "learning"])
@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: type(agent).__name__)
def test_same_plans_with_and_without(agent: Agent, learns: bool) -> None:
    """With far fewer rows. Mutation: keep answers although the network has learned, and the second episode differs."""
    plans, rows = play(agent, cache=True, learns=learns)
    plain, all_rows = play(agent, cache=False, learns=learns)
    for one, other in zip(plans, plain, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert rows <= (1 + learns) * 81 * 6 and rows < all_rows / 2
    assert len({tuple(plan[0].tolist()) for plan in plans}) > 3, "something was decided"
    assert any(plan[2].any() for plan in plans), "something was verified"


def test_a_new_version_of_the_network_is_asked_again() -> None:
    """The same version keeps the cache. Mutation: clear it at every report of a version."""
    model, column, versions = LearnedModel(4, 2).build(CORE, seed=0), np.zeros(1, np.int64), []
    model.begin(column, 0)
    states = model.roots(column, CORE.observe(CORE.initial(1, np.random.default_rng(0))))
    for version in (1, 1, 2, 2, 3, 1):
        model.use(version)

        def answer(request: Request, version: int = version) -> dict[str, np.ndarray]:
            versions.append(version)
            shapes = {"delta": (1, 4, 12), "reward": (1, 4), "terminated": (1, 4)}
            return {head: np.full(shape, version, np.float32) for head, shape in shapes.items()}

        settle(model.step(states, column, np.random.default_rng(0)), answer)
    assert versions == [1, 2, 3, 1]
