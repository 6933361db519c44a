"""Who acts by values: ε of each column, arms and their bandit, and rewards for novelty against slow twins."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from packtrain.acting.arms import Arms, Bandit
from packtrain.acting.epsilon_greedy import (
    INTRINSIC,
    ActionValues,
    EpsilonGreedyPolicy,
    EpsilonGreedyState,
    GroupPolicy,
)
from packtrain.acting.epsilons import Epsilons
from packtrain.equations.novelty import MeanDistance, episodic_novelty, no_mean_distance
from packtrain.errors import ConfigError
from packtrain.networks.action_values import Novelty
from packtrain.networks.embedding import ControllableEmbedding
from packtrain.networks.novelty import RandomDistillation
from packtrain.networks.q_network import QNetwork
from packtrain.types import Row, Spec

SPEC = Spec(gym.spaces.Box(-9, 9, (3,), np.float32), gym.spaces.Discrete(4))
SMALL = {"recurrent": False, "hidden_sizes": (8,), "dueling_size": None}


def make(columns=8, greedy=False, network=None, seed=3, **options):
    torch.manual_seed(0)
    description = ActionValues(network=QNetwork(**{**SMALL, **(network or {})}), **options)
    return EpsilonGreedyPolicy(description, description.build_network(SPEC), seed, columns, greedy)


def group(policy, size=None, begin=0):
    return GroupPolicy(policy, begin, size or policy.columns)


def rows(obs, first=None, reward=None, action=None):
    """Rows [1, B]."""
    columns = len(obs)
    no = torch.zeros(1, columns, dtype=torch.bool)
    first = no if first is None else torch.tensor(first).view(1, columns)
    reward = torch.zeros(1, columns) if reward is None else torch.tensor(reward).view(1, columns)
    return Row(obs.unsqueeze(0), first, torch.zeros(1, columns, dtype=torch.int64), {"train": reward}, no, no)


def same(columns):
    return torch.tensor([0.5, -1.0, 2.0]).expand(columns, 3)


def test_each_column_has_its_own_chance_of_a_random_action():
    """Mutations: one ε for all; random actions that never are the greedy one; ε of another group's columns."""
    columns, tries = 4, 4000
    policy = make(columns, epsilons=Epsilons(base=0.5, alpha=2.0))
    one = group(policy, 2, begin=2)  # the second group: columns 2 and 3
    counts = torch.zeros(2, 4)
    probabilities = set()
    for _ in range(tries):
        action, _, extras = one.act(rows(same(2)), ())
        counts[torch.arange(2), action] += 1
        probabilities |= {round(float(p), 6) for p in extras["behaviour_prob"]}
    epsilons = [0.5 ** (1 + 2 * i / 3) for i in (2, 3)]
    for column, epsilon in enumerate(epsilons):
        share = float(counts[column].max()) / tries
        assert share == pytest.approx(1 - epsilon + epsilon / 4, abs=0.025)
        assert {round(epsilon / 4, 6), round(1 - epsilon + epsilon / 4, 6)} <= probabilities
    assert counts.min() > 0


def test_epsilons_move_with_the_learner_and_have_a_floor():
    policy = make(3, epsilons=Epsilons(base=0.8, base_end=0.2, alpha=1.0, updates=100, least=0.3))
    torch.testing.assert_close(policy.epsilons, torch.tensor([0.8, 0.8**1.5, 0.64]))
    policy.version = 50
    torch.testing.assert_close(policy.epsilons, torch.tensor([0.5, 0.5**1.5, 0.3]))
    policy.version = 1000
    torch.testing.assert_close(policy.epsilons, torch.full((3,), 0.3))


def test_an_evaluation_is_greedy():
    """Mutation: the training columns' ε in evaluations."""
    policy = make(400, greedy=True)
    obs = torch.randn(400, 3)
    action, _, extras = group(policy).act(rows(obs), ())
    blank = torch.zeros(1, 400)
    said = policy.network.acting.values(obs.unsqueeze(0), blank.bool(), blank.long(), blank, ())
    assert action.tolist() == said.values[0].argmax(-1).tolist()
    assert extras["behaviour_prob"].unique().tolist() == [1.0]


def test_it_can_act_at_random():
    policy = make(2000, epsilons=Epsilons(base=0.0))
    policy.random = True
    action, _, extras = group(policy).act(rows(same(2000)), ())
    assert action.bincount(minlength=4).min() > 400 and extras["behaviour_prob"].unique().tolist() == [0.25]


NOVEL = Novelty(ControllableEmbedding(hidden_sizes=(), size=3, inverse_size=4), None, memory=6, neighbours=2)


def test_episodic_novelty_is_that_of_the_equation_column_by_column():
    """Mutations: the embedding put in before it is asked about; memories not emptied at a reset; one scale for all."""
    policy = make(2, novelty=NOVEL)
    one = group(policy)
    generator = torch.Generator().manual_seed(1)
    memories: list[list[torch.Tensor]] = [[], []]
    scale = no_mean_distance(2)
    for step in range(20):
        first = [step == 0, step in (0, 7)]
        obs = torch.rand(2, 3, generator=generator)
        _, _, extras = one.act(rows(obs, first), ())
        no_reset = torch.zeros(1, 2, dtype=torch.bool)
        embedding = policy.network.acting.embedding.embed(obs.unsqueeze(0), no_reset)[0].detach()
        for column in range(2):
            if first[column]:
                memories[column] = []
            kept = memories[column][-6:]
            memory = torch.zeros(1, 6, 3)
            for place, known in enumerate(kept):
                memory[0, place] = known
            want, after = episodic_novelty(
                embedding[column : column + 1],
                memory,
                torch.tensor([len(kept)]),
                torch.tensor([float(not first[column])]),
                MeanDistance(scale.number[column : column + 1], scale.mean[column : column + 1]),
                neighbours=2,
            )
            assert float(extras[INTRINSIC][column]) == pytest.approx(float(want), rel=1e-5)
            scale.number[column], scale.mean[column] = after.number, after.mean
            memories[column].append(embedding[column])
    assert float(extras[INTRINSIC].min()) > 0


def test_novelty_is_lower_where_the_distillation_error_is_small():
    """Mutations: errors not divided by their spread; rewards given at a reset."""
    policy = make(4, novelty=Novelty(None, RandomDistillation((), (), 8)))
    one = group(policy)
    policy.network.acting.count_observations(torch.randn(100, 3), torch.ones(100))
    assert one.act(rows(same(4), [True] * 4), ())[2][INTRINSIC].tolist() == [0.0] * 4
    for _ in range(30):
        reward = one.act(rows(torch.randn(4, 3)), ())[2][INTRINSIC]
    spread = (one.own["error_m2"] / one.own["error_number"]).sqrt()
    error = policy.network.acting.distillation_error(same(4)).detach()
    reward = one.act(rows(same(4)), ())[2][INTRINSIC]
    assert float(reward[0]) == pytest.approx(float(error[0] / spread), rel=0.1) and reward.min() > 0


@pytest.mark.parametrize("columns", [1, 4])
def test_errors_that_do_not_differ_are_no_reward(columns):
    """Alike, their deviation is 0, and dividing by it made rewards of 10¹⁰. Mutation: dividing by 1e-8 then."""
    policy = make(columns, novelty=Novelty(None, RandomDistillation((), (), 8)))
    policy.network.acting.count_observations(torch.randn(100, 3), torch.ones(100))
    one = group(policy)
    for _ in range(150):
        assert one.act(rows(same(columns)), ())[2][INTRINSIC].abs().max() == 0
    for _ in range(50):
        reward = one.act(rows(torch.randn(columns, 3)), ())[2][INTRINSIC]
    assert 0 < float(reward.max()) < 100


@pytest.mark.parametrize("embedding", [None, ControllableEmbedding()])
def test_errors_count_from_when_a_scale_of_observations_is_known(embedding):
    """Before the first update they are of another size, and the usual error would remember it for long.

    Mutations: counting them; multiplying the novelty of an episode by what they say.
    """
    policy = make(4, novelty=Novelty(embedding, RandomDistillation((), (), 8), neighbours=1))
    alone = make(4, novelty=Novelty(embedding, None, neighbours=1)) if embedding else None
    one, other = group(policy), alone and group(alone)
    for _ in range(20):
        shown = rows(torch.randn(4, 3))
        reward = one.act(shown, ())[2][INTRINSIC]
        expected = other.act(shown, ())[2][INTRINSIC] if other else torch.zeros(4)
        torch.testing.assert_close(reward, expected)
    assert float(one.own["error_number"]) == 0
    policy.network.acting.count_observations(torch.randn(100, 3), torch.ones(100))
    one.act(rows(torch.randn(4, 3)), ())
    assert float(one.own["error_number"]) == 4


def test_an_evaluation_measures_novelty_as_training_has_come_to():
    """Mutations: scales that are reset, so that the network gets other inputs than it was trained on."""
    network = {"use_last_intrinsic": True}
    options = {"novelty": Novelty(ControllableEmbedding(), RandomDistillation((), (), 8), neighbours=1)}
    policy, greedy = make(6, network=network, **options), make(3, True, network=network, **options)
    for one in (policy, greedy):
        one.network.acting.count_observations(torch.ones(50, 3).cumsum(0), torch.ones(50))
    actor_state, other = EpsilonGreedyState(group(policy), 6), EpsilonGreedyState(group(greedy), 3)
    for _ in range(20):
        actor_state._policy.act(rows(5 * torch.randn(6, 3)), ())
    other.begin()
    other.load_evaluation_state({"own": actor_state.lasting_state()})
    mine, theirs = other._policy.own, actor_state._policy.own
    for name in ("error_number", "error_mean", "error_m2"):
        assert float(mine[name]) == float(theirs[name]) > 0
    torch.testing.assert_close(mine["distance_mean"], theirs["distance_mean"].mean().expand(3))
    assert int(mine["number"].max()) == 0, "what an episode remembers stays its own"


def test_other_groups_follow_environments_by_index():
    """After a resume with 5 environments in place of 2 + 1. Mutations: groups in place of environments; arms that a
    bandit does not choose kept; novelty of episodes under way kept."""
    options = {
        "novelty": Novelty(ControllableEmbedding(), RandomDistillation((), (), 8), neighbours=1),
        "arms": Arms(3, bandit=Bandit(8)),
        "network": {"arms": 3},
    }
    old = make(3, **options)
    old.network.acting.count_observations(torch.ones(50, 3).cumsum(0), torch.ones(50))
    before = [EpsilonGreedyState(group(old, size, begin), size) for begin, size in ((0, 2), (2, 1))]
    for state, size in zip(before, (2, 1), strict=True):
        for step in range(12):
            state._policy.act(rows(5 * torch.randn(size, 3), [step % 3 == 0] * size, [float(step)] * size), ())
    state = EpsilonGreedyState(group(make(5, **options)), 5)
    state.adopt([state.lasting_part(one.snapshot()) for one in before], [2, 1], np.array([0, 1, 2, 0, 1]))
    mine, owns = state._policy.own, [one._policy.own for one in before]
    for name in ("window_arm", "window_value", "window_number", "distance_mean", "distance_number"):
        each = torch.cat([own[name] for own in owns])
        assert each.any() and torch.equal(mine[name], each[[0, 1, 2, 0, 1]]), name
    assert float(mine["error_mean"]) == float(owns[0]["error_mean"]) != 0
    assert not mine["number"].any() and not mine["returns"].any() and not mine["begun"].any()
    fixed = {**options, "arms": Arms(3)}
    fixed_state = EpsilonGreedyState(group(make(5, **fixed)), 5)
    left = EpsilonGreedyState(group(make(2, **fixed)), 2)
    fixed_state.adopt([left.lasting_part(left.snapshot())], [2], np.array([0, 1, 0, 1, 0]))
    assert fixed_state._policy.own["arm"].tolist() == [0, 1, 2, 0, 1], "by the new index"


def test_a_window_that_holds_no_more_episodes_than_there_are_arms_is_refused():
    """It would forget each arm before it could be chosen again."""
    Arms(4, bandit=Bandit(5))
    with pytest.raises(ConfigError, match="Bandit.window = 4 episodes must be larger than Arms.count = 4"):
        Arms(4, bandit=Bandit(4))


def test_without_a_bandit_columns_have_fixed_arms():
    policy = make(10, novelty=NOVEL, arms=Arms(4), network={"arms": 4})
    extras = group(policy, 6, begin=4).act(rows(torch.randn(6, 3), [True] * 6), ())[2]
    assert extras["arm"].tolist() == [0, 1, 2, 3, 0, 1]
    evaluated = group(make(3, greedy=True, novelty=NOVEL, arms=Arms(4), network={"arms": 4}))
    found = evaluated.act(rows(torch.randn(3, 3), [True] * 3), ())[2]
    assert found["arm"].tolist() == [0, 0, 0] and INTRINSIC not in found


@pytest.mark.parametrize("rule", ["ucb1_tuned", "agent57"])
def test_the_bandit_finds_the_better_arm_and_finds_it_again(rule):
    """Arm 2 pays, then arm 1. Mutations: the arm of the next episode is credited; the window does not slide."""
    columns, window = 6, 24
    bandit = Bandit(window, rule, explore=0.1)
    policy = make(columns, novelty=NOVEL, arms=Arms(3, bandit=bandit), network={"arms": 3})
    one = group(policy)
    first = [True] * columns
    share = []
    arm = one.act(rows(same(columns), first), ())[2]["arm"]
    for better in (2, 1):
        chosen = []
        for _ in range(160):  # episodes of one step
            reward = torch.where(arm == better, 1.0, 0.2) + 0.1 * torch.randn(columns)
            one.act(rows(same(columns), None, reward.tolist()), ())
            arm = one.act(rows(same(columns), first), ())[2]["arm"]
            chosen.append((arm == better).float().mean())
        share.append(float(torch.stack(chosen[-40:]).mean()))
    assert min(share) > 0.6, share  # 1/3 by chance


def test_a_bandit_without_differences_plays_all_arms():
    bandit = Bandit(12, explore=0.1)
    one = group(make(6, novelty=NOVEL, arms=Arms(3, bandit=bandit), network={"arms": 3}))
    arms = []
    for _ in range(150):
        arms.append(one.act(rows(same(6), [True] * 6), ())[2]["arm"])
        one.act(rows(same(6), None, torch.randn(6).tolist()), ())
    assert (torch.stack(arms).flatten().bincount(minlength=3) > 150).all()


def test_what_a_group_has_found_out_can_be_saved():
    """Mutations: the window of the bandit not saved; the episodic memory restored although new episodes begin."""
    bandit = Bandit(8)
    make_one = lambda: group(make(3, novelty=NOVEL, arms=Arms(2, bandit=bandit), network={"arms": 2}))  # noqa: E731
    one, other, anew = make_one(), make_one(), make_one()
    generator = torch.Generator().manual_seed(2)
    script = [(torch.rand(3, 3, generator=generator), [step % 4 == 0] * 3, [1.0 * step] * 3) for step in range(40)]
    for step in script[:22]:
        one.act(rows(*step), ())
    other.restore(one.snapshot())
    other.generator.set_state(one.generator.get_state())
    for step in script[22:]:
        found, again = one.act(rows(*step), ()), other.act(rows(*step), ())
        assert found[0].tolist() == again[0].tolist() and found[2][INTRINSIC].tolist() == again[2][INTRINSIC].tolist()
        assert found[2]["arm"].tolist() == again[2]["arm"].tolist()
    lasting = one.snapshot(episodes=False)
    anew.restore(lasting)
    assert anew.own["window_number"].tolist() == one.own["window_number"].tolist() and one.own["number"].min() > 0
    assert anew.own["number"].tolist() == [0, 0, 0] and not anew.own["begun"].any()


def test_two_networks_act_by_the_mixture_of_both():
    """Mutations: intrinsic values left out; the weight of another arm."""
    policy = make(2, network={"arms": 2, "separate_intrinsic": True}, novelty=NOVEL, arms=Arms(2, 5.0), rescaling=None)
    policy.epsilons.fill_(0.0)
    one = group(policy)  # columns with arms 0 and 1, weights 0 and 5
    obs = torch.tensor([[1.0, -2.0, 0.5]]).expand(2, 3)
    action, _, _ = one.act(rows(obs), ())
    values = policy.network.acting.values
    blank = torch.zeros(1, 2)
    said = values(obs.unsqueeze(0), blank.bool(), blank.long(), blank, (), arm=torch.tensor([[0, 1]]))
    mixed = said.values[0] + torch.tensor([[0.0], [5.0]]) * said.intrinsic_values[0]
    assert action.tolist() == mixed.argmax(-1).tolist()


def test_a_group_saved_without_embedding_versions_forgets_its_episodes():
    """A run folder made before there were versions: the embeddings of its episodes are of unknown weights."""
    one, other = (group(make(2, novelty=NOVEL)) for _ in range(2))
    for step in range(5):
        one.act(rows(torch.randn(2, 3), [step == 0] * 2), ())
    saved = {name: leaf for name, leaf in one.snapshot().items() if not name.startswith("embedding_")}
    other.restore(saved)
    reward = other.act(rows(same(2)), ())[2][INTRINSIC]
    assert reward.tolist() == [0.0, 0.0] and other.own["number"].tolist() == [1, 1]
    torch.testing.assert_close(other.own["distance_mean"], one.own["distance_mean"])


@pytest.mark.parametrize("precision", [torch.bfloat16, None])
def test_embeddings_are_float32_whatever_the_precision_of_the_network_is(precision):
    """Mutation: an embedding that computes as the values do."""
    policy, exact = make(64, novelty=NOVEL), make(64, novelty=NOVEL)
    policy.network.precision = precision
    obs = torch.randn(64, 3)
    for one in (policy, exact):
        one.own_group = group(one)
        one.own_group.act(rows(obs, [True] * 64), ())
    assert torch.equal(policy.own_group.own["memory"], exact.own_group.own["memory"])
