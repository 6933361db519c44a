"""Updates in parts: whatever the number of ranks, gradients, metrics and priorities are those of the whole batch."""

import pytest
import torch

from packtrain import config, knobs
from packtrain.algorithms.data_parallel import SUM, Averages, divide
from packtrain.algorithms.target_network import averages_over_sequences
from packtrain.errors import ConfigError
from packtrain.interfaces import learn
from packtrain.runtime.acting import ActingOptions
from packtrain.runtime.local_acting import build_sides

CPU = torch.device("cpu")
SMALL = {"num_actors": 6, "hidden_size": 16, "unroll_length": 7}
ODD = {"num_actors": 5, "unroll_length": 9, "batch_size": 5}
PPO = {"num_actors": 12, "unroll_length": 7}
REPLAY = {"num_actors": 4, "batch_size": 7, "hidden_sizes": (16,), "dueling_size": 8}
CASES = {  # name, knobs, bindings
    "impala_sum": ("impala/catch", {**SMALL, "batch_size": 7}, ()),
    "impala_mean": ("impala/catch", {**SMALL, "batch_size": 7}, ("Impala.reduction = 'mean'",)),
    "ppo": ("tbv/ppo_hanoi", PPO, ()),
    "rnd": ("tbv/rnd_hanoi", PPO, ()),
    "ppo_steps": ("ppo/cartpole", {**ODD, "minibatches": 3, "normalise_obs": True}, ()),
    "dqn": ("dqn/catch", REPLAY, ()),
    "r2d2": ("r2d2/catch", {**REPLAY, "lstm_size": 8}, ()),
    "ngu": ("ngu/key_door", REPLAY, ()),
    "agent57": ("ngu/key_door", REPLAY, ("QNetwork.separate_intrinsic = True",)),
}


def built(case):
    """Return a learner, its memory with a batch, and what acts with the first weights until there is another."""
    name, values, bindings = CASES[case]
    path, _ = knobs.find_config(name)
    experiment = config.build(config.load([path], list(bindings), values, seed=5))
    acting, learning = build_sides(experiment, experiment.probe(), CPU, ActingOptions(exact=True))
    (use,) = experiment.learners
    memory = learning.memory_of(use)

    def act():
        while memory.wait_for_room(0) and (memory.steps < 300 if memory.replays else not memory.ready()):
            acting.act()
        assert memory.ready()

    act()
    return learning.learners[use], memory, act


class RanksHere:
    """Ranks in this process: learners with weights of their own, that receive rank 0's with each part."""

    def __init__(self, case, size):
        self.own = built(case)[0]
        self.others = [built(case)[0] for _ in range(size - 1)]
        self.size = size

    def compute(self, works, own):
        parts = [own()]
        for learner, work in zip(self.others, works[1:], strict=True):
            learner.network.load_state_dict(self.own.network.state_dict())
            parts.append(learner.part(work))
        gradients = {
            name: [sum(leaves) for leaves in zip(*(part.gradients[name] for part in parts), strict=True)]
            for name in parts[0].gradients
        }
        return gradients, parts


def updated(case, ranks, updates=3):
    """Return state, metrics and results of a learner after some updates of the same batches."""
    learner, memory, act = built(case)
    if ranks > 1:
        group = RanksHere(case, ranks)
        group.own = learner
        learner.split(group)
    found = []
    for _ in range(updates):
        act()
        (result,) = learn([learner], [memory], 1)
        found.append(result)
    return learner.state_dict(), found


def assert_close(one, other, path=""):
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for name in one:
            assert_close(one[name], other[name], f"{path}/{name}")
    elif isinstance(one, (list, tuple)):
        for place, pair in enumerate(zip(one, other, strict=True)):
            assert_close(*pair, f"{path}/{place}")
    elif one is not None and not isinstance(one, str):
        one, other = (torch.as_tensor(each).double() for each in (one, other))
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5, msg=lambda text: f"{path}: {text}")


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_a_batch_in_parts_makes_the_update_of_the_whole_batch(case, ranks):
    """Batches of 7 do not divide evenly. Mutations: shares of 1 / K; advantages or moments of each part alone."""
    state, results = updated(case, 1)
    split_state, split_results = updated(case, ranks)
    assert_close(state, split_state)
    for one, other in zip(results, split_results, strict=True):
        assert_close(one.metrics, other.metrics)
        assert_close(one.priorities, other.priorities)
        assert one.steps == other.steps


@pytest.mark.parametrize("case", ["impala_sum", "impala_mean", "dqn"])
def test_equal_shares_of_an_uneven_batch_are_noticed(case, monkeypatch):
    """The negative control of the test above."""
    state, _ = updated(case, 1)
    own = divide.__globals__["Work"]
    equal = lambda inputs, shares: own(inputs, {name: torch.full_like(one, 1 / 3) for name, one in shares.items()})  # noqa: E731
    monkeypatch.setitem(divide.__globals__, "Work", equal)
    split_state, _ = updated(case, 3)
    with pytest.raises(AssertionError):
        assert_close(state["network"], split_state["network"])


def test_shares_of_a_part_follow_the_steps_that_count():
    """Filler rows and padding do not count. Mutation: shares by the number of columns."""
    _, memory, _ = built("r2d2")
    trajectory = memory.sample().trajectory
    trajectory.extras["weight"][:, :3] = 0
    works = divide((trajectory, torch.ones(7)), 2, averages_over_sequences(2).amounts)
    assert [float(work.shares["steps"]) for work in works] == [0.0, 1.0]
    assert [float(work.shares["novelty"]) for work in works] == [0.0, 1.0]
    assert [round(float(work.shares["sequences"]) * 7) for work in works] == [3, 4]
    assert all(float(work.shares[SUM]) == 1 for work in works)


def test_a_batch_smaller_than_the_group_is_refused():
    _, memory, _ = built("impala_sum")
    with pytest.raises(ConfigError, match="--learners 8 cannot share 7"):
        divide((memory.sample().trajectory,), 8, Averages().amounts)


def test_learners_that_cannot_divide_a_batch_say_so():
    path, _ = knobs.find_config("steve/ddpg_pendulum")
    experiment = config.build(config.load([path], [], {"total_steps": 100}))
    for use in experiment.learners.values():
        network = experiment.policy.build_network(experiment.probe())
        with pytest.raises(ConfigError, match="--learners: .* cannot divide its batches"):
            use.learner.build(network, 100).split(None)
