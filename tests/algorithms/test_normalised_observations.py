"""Normalised observations of SAC, TD3, DDPG and the Q-learners: learning does not depend on their scale and offset."""

import gymnasium as gym
import numpy as np
import pytest
import torch

import packtrain
from packtrain.acting.epsilon_greedy import ActionValues
from packtrain.acting.noise import Control
from packtrain.algorithms.batched_updates import ReplayLearner
from packtrain.algorithms.q_learning import QLearning
from packtrain.errors import EnvSetupError
from packtrain.memory.sequence_settings import Sequences
from packtrain.networks.normaliser import RunningNormaliser, StackedNormaliser
from packtrain.networks.q_network import QNetwork
from packtrain.networks.stacked import join
from packtrain.testing.plain_value_expansion import CRITICS, SPEC, inputs, learner_of, settings
from packtrain.types import Row, Spec

CORES = ("ddpg", "td3", "sac")


def far_away(obs):
    """The same observations in other units, 1,000 away from 0."""
    return 8 * obs + 1000


def control_learner(core, normalise, seed=0):
    torch.manual_seed(seed)
    policy = Control(6, 1, CRITICS, stochastic=core == "sac", normalise_obs=normalise)
    return learner_of(policy.build_network(SPEC), settings(core=core, learning_rate=0.01, publish_period=None))


def moved(batch):
    return {name: far_away(leaf) if name in ("obs", "after") else leaf for name, leaf in batch.items()}


def weights_of(learner):
    return {name: leaf.detach().clone() for name, leaf in learner.network.named_parameters()}


def differ(one, other):
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize("core", CORES)
def test_updates_of_control_do_not_depend_on_units(core):
    """Mutations: critics, the target networks or the policy's loss see raw observations; statistics never updated."""
    for normalise in (True, False):
        plain, far = (control_learner(core, normalise) for _ in range(2))
        for seed in range(3):
            plain.update(inputs(plain, 4, seed))
            far.update(moved(inputs(far, 4, seed)))
        assert (differ(weights_of(plain), weights_of(far)) < 2e-3) == normalise


@pytest.mark.parametrize("core", CORES)
def test_what_acts_sees_what_learning_saw(core):
    """Actors receive the statistics with the policy's weights. Mutation: the normaliser outside the published part."""
    learner = control_learner(core, True)
    batch = moved(inputs(learner, 4))
    learner.update(batch)
    published = Control.acting_network(None, learner.network).state_dict()
    mean = batch["obs"].flatten(0, 1).double().mean(0)
    torch.testing.assert_close(published["normaliser.mean"][0], mean)
    actor = control_learner(core, True, seed=1).network
    actor.behaviour.load_state_dict(published)
    obs = batch["obs"][:1]
    torch.testing.assert_close(actor.act(actor.behaviour, obs), learner.network.act(learner.network.policy, obs))


def test_joined_runs_have_statistics_of_their_own():
    """Mutations: moments of run 0 for all; buffers that are no views of the joint ones."""
    apart, together = ([control_learner("sac", True, seed) for seed in (1, 2)] for _ in range(2))
    ReplayLearner.join([[learner] for learner in together])
    works = [inputs(apart[0], 3, 5), moved(inputs(apart[1], 3, 6))]
    for learner, work in zip(apart, works, strict=True):
        learner.update(work)
    together[0].apply(works)
    for alone, joint in zip(apart, together, strict=True):
        assert differ(weights_of(alone), weights_of(joint)) < 1e-4
        torch.testing.assert_close(alone.network.normaliser.mean, joint.network.normaliser.mean)


def test_a_stacked_normaliser_is_one_for_each_run():
    x = 3 + torch.randn(2, 5, 4, 3)
    singles = [RunningNormaliser(3) for _ in range(2)]
    stacked = join([StackedNormaliser(3) for _ in range(2)])
    torch.testing.assert_close(stacked(x), x.clamp(-10, 10))
    stacked.add(x.flatten(1, 2))
    for run, single in enumerate(singles):
        single.add(x[run].flatten(0, 1))
        torch.testing.assert_close(stacked(x)[run], single(x[run].flatten(0, 1)).unflatten(0, (5, 4)))
        torch.testing.assert_close(stacked(x[:, 0])[run], single(x[run, 0]))


def filled_memory(recurrent):
    """A memory of short episodes of 2 environments, with padding in front and behind."""
    sizes = Sequences(
        200,
        4 if recurrent else 1,
        2 if recurrent else 0,
        2 if recurrent else 1,
        2,
        16,
        extras=("behaviour_prob", "arm"),
    )
    memory, rng = sizes.build([2], 0, torch.device("cpu")), np.random.default_rng(0)
    state = torch.zeros(2, 8)
    for t in range(60):
        first, over = np.full(2, t % 7 == 0), np.full(2, t % 7 == 6)
        row = Row(
            rng.normal(size=(2, 3)).astype(np.float32),
            first,
            rng.integers(0, 2, 2) * ~first,
            {"train": (rng.normal(size=2) * ~first).astype(np.float32)},
            over,
            np.zeros(2, bool),
        )
        extras = {"behaviour_prob": np.ones(2, np.float32), "arm": np.zeros(2, np.int64)}
        memory.writer(0).add(row, (state[:, None], state[:, None]) if recurrent else (), extras)
    return memory


def q_learner(recurrent, normalise):
    torch.manual_seed(0)
    network = QNetwork(
        hidden_sizes=(8,),
        lstm_size=8,
        dueling_size=8,
        recurrent=recurrent,
        normalise_obs=normalise,
        use_last_action=False,
    )
    policy = ActionValues(network, rescaling=None)
    space = gym.spaces.Box(-9, 9, (3,), np.float32)
    module = policy.build_network(Spec(space, gym.spaces.Discrete(2)))
    return QLearning(0.9, n_step=2, learning_rate=0.01, target_period=2).build(module, 100)


@pytest.mark.parametrize("recurrent", [False, True], ids=["dqn", "r2d2"])
def test_updates_of_q_learners_do_not_depend_on_units(recurrent):
    """Mutations: padding, which is 0, counts in the statistics; the target network has older statistics."""
    memory = filled_memory(recurrent)
    samples = [memory.sample() for _ in range(5)]
    for normalise in (True, False):
        plain, far = (q_learner(recurrent, normalise) for _ in range(2))
        for sample in samples:
            plain.update(sample)
            steps = sample.trajectory
            far.update(sample._replace(trajectory=steps._replace(obs=far_away(steps.obs))))
        assert (differ(weights_of(plain), weights_of(far)) < 2e-3) == normalise


def test_images_are_not_normalised():
    space = gym.spaces.Box(0, 255, (3, 36, 36), np.uint8)
    with pytest.raises(EnvSetupError, match=r"perception = @Flatten"):
        QNetwork(normalise_obs=True).build(Spec(space, gym.spaces.Discrete(2)))


class Far(gym.Env):
    """Observations around 1,000; episodes of 10 steps."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space: gym.Space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.seen(), {}

    def seen(self):
        return np.array([1000 + self.steps, 1000 - self.np_random.random()], np.float32)

    def step(self, action):
        self.steps += 1
        return self.seen(), 100 * float(np.ravel(action)[0]), False, self.steps == 10, {}


class FarDiscrete(Far):
    """The same with two actions."""

    action_space = gym.spaces.Discrete(2)


TINY = {"eval_every": 0, "progress": False, "num_actors": 1, "batch_size": 8, "normalise_obs": True, "log_every": 50}
RUNS = {
    "sac/gym": (Far, "Pendulum-v1", {"hidden_size": 8, "warm_up": 50}),
    "dqn/gym": (FarDiscrete, "CartPole-v1", {"hidden_sizes": (8,), "dueling_size": 8, "warm_up": 50}),
}


@pytest.mark.parametrize("family", RUNS)
def test_statistics_are_those_of_the_run_after_a_resume(family, tmp_path):
    """A run in two parts is the run in one. Mutations: running returns or moments that are not in the checkpoint."""
    _, env, more = RUNS[family]
    given = {**TINY, **more, "env": env, "normalise_rewards": True, "runtime": "serial"}
    whole = packtrain.train(family, output_dir=tmp_path / "whole", total_steps=120, **given)
    packtrain.train(family, output_dir=tmp_path / "parts", total_steps=85, **given)
    parts = packtrain.train(family, output_dir=tmp_path / "parts", total_steps=120, **given)
    one, two = (packtrain.load(run).network.state_dict() for run in (whole, parts))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("family", RUNS)
def test_a_loaded_policy_has_the_statistics_of_training(family, tmp_path):
    """Mutation: a loaded or exported network whose statistics are those of no observation."""
    env, _, more = RUNS[family]
    run = packtrain.train(family, env=env, output_dir=tmp_path / "run", total_steps=120, **{**TINY, **more})
    policy = packtrain.load(run)
    found = policy.network.state_dict()
    (mean,) = [name for name in found if name.endswith("normaliser.mean") and "target" not in name]
    assert found[mean].flatten()[0] == pytest.approx(1004.5, abs=1)
    obs = np.array([[1000, 999.1], [1009, 999.9]], np.float32)
    seen = values_of(policy.network, obs)
    assert (seen[0] - seen[1]).abs().max() > 1e-4
    for part in ("number", "mean", "m2"):
        found[mean.removesuffix("mean") + part].zero_()  # no statistics: both are clipped to 10
    blind = values_of(policy.network, obs)
    assert torch.equal(blind[0], blind[1])


def values_of(network, obs):
    """What a network puts out for observations [2, D]: [2, ...]."""
    rows = torch.from_numpy(obs)[None]
    if hasattr(network, "behaviour"):
        return network.before_tanh(network.policy, rows)[0].detach()
    none = torch.zeros(1, 2)
    return network.acting.values(rows, none.bool(), none.long(), none, ()).values[0].detach()
