"""Batches in which steps of the model replace real ones: against a slow twin, and what is refused."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from packtrain.acting.noise import Control
from packtrain.algorithms.model_rollouts import ModelRollouts, with_rollouts
from packtrain.algorithms.value_expansion import ValueExpansion
from packtrain.errors import ConfigError
from packtrain.memory.replay import Replay
from packtrain.networks.dynamics import Dynamics, EndOutside
from packtrain.networks.stacked import join
from packtrain.types import Spec

OBS, ACTIONS, RUNS, ROWS, MEMBERS = 3, 2, 2, 8, 3
SPEC = Spec(gym.spaces.Box(-np.inf, np.inf, (OBS,)), gym.spaces.Box(-1, 1, (ACTIONS,)))


def build(seed=0, stochastic=False, **options):
    """A network of one run whose parts are not copies of each other."""
    torch.manual_seed(seed)
    sizes = {"transitions": MEMBERS, "rewards": 2, "hidden_size": 5, "num_layers": 1, "aux_hidden_size": 4}
    dynamics = Dynamics(**sizes, aux_num_layers=1, **options)
    network = Control(6, 1, 2, stochastic=stochastic, dynamics=dynamics).build_network(SPEC)
    with torch.no_grad():
        for leaf in network.parameters():
            leaf.add_(0.5 * torch.randn_like(leaf))
        for name in ("obs_mean", "change_mean", "obs_std", "change_std", "reward_scale"):
            if network.frozen.sizes.normalise:
                buffer = getattr(network.frozen, name)
                buffer.copy_(torch.rand_like(buffer) + 0.5)
    return network


def scene(settings, stochastic=False, **options):
    """R joined runs and a batch with all that is random, in float64."""
    network = join([build(seed, stochastic, **options).double() for seed in range(RUNS)])
    generator = torch.Generator().manual_seed(5)
    normal = lambda *shape: torch.randn(RUNS, ROWS, *shape, generator=generator, dtype=torch.float64)  # noqa: E731
    batch = {
        "obs": normal(OBS),
        "action": torch.tanh(normal(ACTIONS)),
        "reward": normal(),
        "after": normal(OBS),
        "terminated": torch.zeros(RUNS, ROWS, dtype=torch.uint8),
    }
    drawn = settings.draws(RUNS, ROWS, network, generator)
    return network, {**batch, **{n: leaf.double() if leaf.is_floating_point() else leaf for n, leaf in drawn.items()}}


def twin(network, settings, batch, run, number, row):
    """One row: roll out step by step until the step that is taken, and return that."""
    model, stochastic = network.frozen, network.sizes.stochastic
    obs = batch["obs"][run, row]
    every = lambda x: x.expand(RUNS, 1, -1)  # noqa: E731  (all runs get the row; `run` is looked at)
    for t in range(settings.length):
        noise = batch["rollout_actions"][run, t, number]
        if stochastic:
            action = network.draw(network.policy, every(obs), every(noise))[0][run, 0]
        else:
            action = (network.act(network.policy, every(obs))[run, 0] + settings.action_std * noise).clamp(-1, 1)
        member = int(batch["rollout_member"][run, number])
        guess = model.guess(every(obs), every(action))
        mean = guess.mean[run, member, 0]
        if guess.log_variance is not None:
            deviation = (0.5 * guess.log_variance[run, member, 0]).exp()
            mean = mean + batch["rollout_model"][run, t, number] * deviation
        after = obs + model.change_mean[run, 0] + mean * model.change_std[run, 0]
        steps = (every(obs), every(action), every(after))
        reward = model.judge(model.reward, *steps)[run, :, 0].mean() * model.reward_scale[run, 0]
        if model.sizes.known_end is not None:
            ended = bool(model.sizes.known_end.ended(obs, action, after))
        else:
            ended = float(model.judge(model.termination, *steps)[run, member, 0]) > 0
        if ended or t == int(batch["rollout_depth"][run, number]):
            return obs, action, reward, after, ended
        obs = after
    raise AssertionError("no step was taken")


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"probabilistic": True, "normalise": True}, {"known_end": EndOutside(most=2.0)}]
)
@pytest.mark.parametrize("settings", [ModelRollouts(0.5, 1), ModelRollouts(0.4, 3), ModelRollouts(1.0, 2)])
def test_replaced_rows_are_those_of_the_slow_twin_and_the_others_stay(settings, options, stochastic):
    """Mutations: the next state's action, another member after the first step, going on after an end, shifted rows."""
    network, batch = scene(settings, stochastic, **options)
    found = with_rollouts(network, settings, batch)
    rows = settings.rows(ROWS, torch.device("cpu")).tolist()
    assert len(rows) == round(settings.share * ROWS)
    with torch.no_grad():
        for run in range(RUNS):
            for row in range(ROWS):
                got = [found[name][run, row] for name in ("obs", "action", "reward", "after", "terminated")]
                if row not in rows:
                    assert all(torch.equal(a, batch[n][run, row]) for a, n in zip(got, found, strict=False))
                    continue
                for mine, theirs in zip(got, twin(network, settings, batch, run, rows.index(row), row), strict=True):
                    torch.testing.assert_close(mine.double(), torch.as_tensor(theirs, dtype=torch.float64))


def test_replaced_rows_are_spread_over_the_critics_shares():
    """Mutation: the first rows, all of which one critic would learn from where rows are split."""
    assert ModelRollouts(0.5).rows(8, torch.device("cpu")).tolist() == [0, 2, 4, 6]
    assert ModelRollouts(0.25).rows(16, torch.device("cpu")).tolist() == [0, 4, 8, 12]


def test_real_steps_stay_where_the_model_diverges():
    settings = ModelRollouts(1.0, 2)
    network, batch = scene(settings)
    with torch.no_grad():
        for leaf in network.frozen.transition.parameters():
            leaf.fill_(float("nan"))
    found = with_rollouts(network, settings, batch)
    for name in ("obs", "action", "reward", "after", "terminated"):
        assert torch.equal(found[name], batch[name])


def test_an_update_learns_from_the_imagined_steps():
    """With all rows imagined the reward of the real steps has no influence; without augmentation it has."""
    losses = {}
    for augmentation in (None, ModelRollouts(1.0)):
        for reward in (0.0, 5.0):
            network = build()
            settings = ValueExpansion(core="ddpg", batch_size=ROWS, augmentation=augmentation)
            rule = settings.build(network, 0).rule
            drawn = rule.draws(1, torch.Generator().manual_seed(0))
            _, batch = scene(ModelRollouts())
            real = {n: leaf[:1] for n, leaf in batch.items() if not n.startswith("rollout_")}
            real = {n: leaf.float() if leaf.is_floating_point() else leaf for n, leaf in real.items()}
            real["reward"] = torch.full_like(real["reward"], reward)
            losses[augmentation is None, reward] = float(rule.step({**real, **drawn}, True)[0, 0])
    assert losses[False, 0.0] == losses[False, 5.0] and losses[True, 0.0] != losses[True, 5.0]


def test_augmentation_needs_a_model_and_single_steps():
    numbers = ValueExpansion(core="ddpg", augmentation=ModelRollouts())
    network = Control(6, 1, 2).build_network(SPEC)
    with pytest.raises(ConfigError, match="augmentation needs a world model"):
        numbers.build(network, 0)
    with pytest.raises(ConfigError, match="n_step = 3 and ValueExpansion.augmentation do not fit"):
        numbers.check(Replay(1000, 512, n_step=3), Control(6, 1, 2))
    with pytest.raises(ConfigError, match="share = 0 has no effect"):
        ModelRollouts(0.0)
    with pytest.raises(ConfigError, match="length = 0 must be at least 1"):
        ModelRollouts(length=0)
