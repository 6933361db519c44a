"""The Q-learner: values of a known chain, the actor's own values after burn-in, novelty, and what is saved."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch

from packtrain import trees
from packtrain.acting.arms import Arms
from packtrain.acting.epsilon_greedy import (
    INTRINSIC,
    ActionValues,
    EpsilonGreedyPolicy,
    EpsilonGreedyState,
    GroupPolicy,
)
from packtrain.acting.epsilons import Epsilons
from packtrain.algorithms import agent57, dqn, ngu, r2d2
from packtrain.algorithms.ngu import exploiting, novelty_losses
from packtrain.algorithms.q_learning import QLearning
from packtrain.algorithms.q_sequences import unroll
from packtrain.equations.boundaries import boundaries
from packtrain.equations.priorities import item_priority
from packtrain.equations.q_learning import n_step_q_targets
from packtrain.equations.rescale import rescale
from packtrain.errors import ConfigError
from packtrain.interfaces import learn
from packtrain.memory.sequence_settings import Sequences
from packtrain.networks.action_values import Novelty
from packtrain.networks.embedding import ControllableEmbedding
from packtrain.networks.novelty import RandomDistillation
from packtrain.networks.perception import Conv
from packtrain.networks.q_network import QNetwork
from packtrain.types import Row, Spec

CPU = torch.device("cpu")
SPEC = Spec(gym.spaces.Box(-9, 9, (2,), np.float32), gym.spaces.Discrete(2))
VECTOR = QNetwork(hidden_sizes=(16,), lstm_size=16, dueling_size=16)
NOVEL = Novelty(
    ControllableEmbedding(hidden_sizes=(16,), size=4, inverse_size=16), RandomDistillation((8,), (8,), 4), 8, 1
)


def value_loss(network, trajectory, weight, settings, exploits=None):
    """The loss of the algorithm that a network and settings make up."""
    if network.sizes.novelty is None:
        if dqn.are_transitions(network, trajectory, settings.n_step):
            return dqn.loss(network, trajectory, weight, settings.as_dqn)
        return r2d2.loss(network, trajectory, weight, settings.as_r2d2)
    exploits = torch.zeros(len(weight), dtype=torch.bool) if exploits is None else exploits
    if network.sizes.network.separate_intrinsic:
        return agent57.loss(network, trajectory, weight, exploits, settings.as_agent57)
    return ngu.loss(network, trajectory, weight, exploits, settings.as_ngu)


def play(policy, memory, step, steps, columns, obs, seed=0):
    """Let a policy act in a world of arrays: step(state, action, rng) → state, reward, terminated, truncated."""
    actor_state = EpsilonGreedyState(GroupPolicy(policy, 0, columns), columns)
    rng = np.random.default_rng(seed)
    state, first = np.zeros(columns, np.int64), np.ones(columns, bool)
    action, reward = np.zeros(columns, np.int64), np.zeros(columns, np.float32)
    terminated, truncated = np.zeros(columns, bool), np.zeros(columns, bool)
    for _ in range(steps):
        row = Row(obs(state), first, action.copy(), {"train": reward}, terminated, truncated)
        decision = actor_state.act(row)
        memory.writer(0).add(decision.row, decision.carry, decision.extras)
        over = terminated | truncated
        moved, gained, ended, cut = step(state, decision.action, rng)
        state, first = np.where(over, 0, moved), over
        reward = np.where(over, 0, gained).astype(np.float32)
        action = np.where(over, 0, decision.action)
        terminated, truncated = ended & ~over, cut & ~over & ~ended


def chain(state, action, rng):
    """State 0: action 0 stays for 0, action 1 goes to state 1 for 1. State 1: action 0 ends for 2, 1 returns for 0."""
    ended = (state == 1) & (action == 0)
    reward = np.where(state == 0, action == 1, 2.0 * (action == 0))
    return np.where(state == 0, action, 1 - action), reward, ended, np.zeros_like(ended)


def one_hot(state):
    return np.eye(2, dtype=np.float32)[state]


def true_values(discount):
    """Q*[state, action] of the chain, by value iteration."""
    q = np.zeros((2, 2))
    for _ in range(2000):
        best = q.max(1)
        q = np.array([[discount * best[0], 1 + discount * best[1]], [2.0, discount * best[0]]])
    return q


@pytest.mark.parametrize("returns", ["n_step", "retrace", "peng"])
@pytest.mark.parametrize("recurrent", [True, False], ids=["lstm", "plain"])
def test_it_learns_the_values_of_a_chain_that_ends(returns, recurrent):
    """Mutations: bootstrapping through the end; the discount left out; the target network ranks and never moves."""
    torch.manual_seed(0)
    discount, columns = 0.9, 8
    blind = {"use_last_action": False, "use_last_reward": False}
    network = QNetwork(recurrent=recurrent, hidden_sizes=(32,), lstm_size=32, dueling_size=32, **blind)
    description = ActionValues(network, Epsilons(base=0.7, alpha=0.0), rescaling=None)
    module = description.build_network(SPEC)
    policy = EpsilonGreedyPolicy(description, module, 1, columns)
    n = 2 if returns == "retrace" else 1  # without correction, longer returns are those of the actor
    sizes = Sequences(4000, 6, 2 if recurrent else 0, 3, n, 32, extras=("behaviour_prob", "arm"))
    memory = sizes.build([columns], 0, CPU)
    play(policy, memory, chain, 300, columns, one_hot)
    numbers = QLearning(discount, returns, n, 0.0 if returns == "peng" else 0.9, learning_rate=0.003, target_period=10)
    learner = numbers.build(module, 1)
    losses = [float(learn([learner], [memory], 1)[0].metrics["total_loss"]) for _ in range(500)]
    obs = torch.from_numpy(one_hot(np.arange(2))).unsqueeze(0)
    blank = torch.zeros(1, 2)
    first = torch.ones(1, 2, dtype=torch.bool)
    found = module.acting.values(obs, first, blank.long(), blank, module.acting.values.initial_carry(2)).values[0]
    want = true_values(discount)
    # A core that has seen nothing else is asked about state 1 out of nowhere: it is held against state 0 alone.
    checked = slice(0, 1) if recurrent else slice(0, 2)
    np.testing.assert_allclose(found.detach().numpy()[checked], want[checked], atol=0.25)
    assert found[0, 1] > found[0, 0] + 0.1 and losses[-1] < losses[0] / 5


def long_walk(state, action, rng):
    """Episodes of 3 to 7 steps, some cut off; every reward is another small number."""
    long = state + 1 + action
    ended, cut = (long >= 5) & (action == 0), (long >= 7) & (action == 1)
    return long, rng.random(len(state)) / 2, ended, cut


def counted(state):
    return np.stack([state / 8, np.sin(state)], 1).astype(np.float32)


PICTURES = Spec(gym.spaces.Box(0, 255, (6, 6), np.uint8), gym.spaces.Discrete(2))


def drawn(state):
    picture = np.zeros((len(state), 6, 6), np.uint8)
    picture[np.arange(len(state)), state % 6, state // 6] = 255
    return picture


@pytest.mark.parametrize("kind", ["vectors", "stacks", "two networks"])
def test_after_burn_in_it_says_what_the_actor_said(kind, monkeypatch):
    """With unchanged weights, values of replayed rows are those that the actor saw: stored state, burn-in, inputs.

    Mutations: the carry after the row; the last action or intrinsic reward of another row; a reset forgotten.
    """
    torch.manual_seed(1)
    columns = 5
    options = {"use_last_intrinsic": True, "arms": 3}
    if kind == "stacks":
        conv = Conv(channels=(4,), kernels=(3,), strides=(1,), frames=3)
        network, obs, spec = QNetwork(conv, lstm_size=8, dueling_size=8, **options), drawn, PICTURES
        embedding = ControllableEmbedding(Conv(channels=(2,), kernels=(3,), strides=(2,)), size=3)
        novelty = Novelty(embedding, None, 16, 2)
    else:
        network = QNetwork(
            hidden_sizes=(8,), lstm_size=8, dueling_size=8, separate_intrinsic=kind == "two networks", **options
        )
        obs, spec, novelty = counted, SPEC, NOVEL
    description = ActionValues(network, Epsilons(base=0.8, alpha=0.0), novelty, Arms(3))
    module = description.build_network(spec)
    policy = EpsilonGreedyPolicy(description, module, 4, columns)
    seen: dict[float, torch.Tensor] = {}
    rewards: list[torch.Tensor] = []
    original = GroupPolicy.act

    def recording(self, rows, carry):
        rewards.append(rows.last_reward["train"][-1].clone())
        return original(self, rows, carry)

    def choosing(self, q, allowed):
        for reward, value in zip(rewards[-1], q, strict=True):
            if float(reward):
                seen[float(reward)] = value.clone()
        return unchanged(self, q, allowed)

    unchanged = GroupPolicy._choose
    monkeypatch.setattr(GroupPolicy, "act", recording)
    monkeypatch.setattr(GroupPolicy, "_choose", choosing)
    sizes = Sequences(2000, 4, 3, 2, 2, 64, extras=("arm", "behaviour_prob"))
    memory = sizes.build([columns], module.context, CPU)
    play(policy, memory, long_walk, 80, columns, obs)
    sample = memory.sample()
    arm = sample.trajectory.extras["arm"][0]
    said = unroll(module.acting.values, module, sample.trajectory, arm, learns=True)
    values = said.values.detach()
    if kind == "two networks":
        from packtrain.equations.q_learning import combined_q

        beta = description.arms.weights()[sample.trajectory.extras["arm"][0]].expand(len(values), -1)
        values = combined_q(values, said.intrinsic_values.detach(), beta, description.rescaling)
    compared = 0
    for t in range(len(sample.trajectory.reward)):
        for b in range(64):
            # Row t+1 answers action t: its reward names it. It is there if the step is no padding.
            reward = float(sample.trajectory.reward[t, b])
            if reward:
                torch.testing.assert_close(values[t + 1, b], seen[reward], rtol=1e-4, atol=1e-5)
                compared += 1
    assert compared > 150


def batch(novelty=None, arms=None, steps=120, seed=0, device=CPU, **options):
    torch.manual_seed(seed)
    network = QNetwork(
        hidden_sizes=(16,), lstm_size=16, dueling_size=16, arms=arms.count if arms else 0,
        use_last_intrinsic=novelty is not None, **options,
    )  # fmt: skip
    description = ActionValues(network, Epsilons(base=0.9, alpha=0.0), novelty, arms)
    module = description.build_network(SPEC).to(device)
    sizes = Sequences(2000, 5, 2, 2, 2, 16, extras=("behaviour_prob", "arm"))
    memory = sizes.build([4], 0, device)
    play(EpsilonGreedyPolicy(description, module, 2, 4), memory, long_walk, steps, 4, counted)
    return module, memory


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("kind", ["vectors", "stacks"])
def test_errors_of_transitions_are_equal_from_two_rows_and_from_all(kind, n):
    """The same losses, priorities and gradients. Mutations: row n though the episode was cut off before; a stack that
    reaches one row too far; values of the row acted in taken for the target.
    """
    torch.manual_seed(3)
    conv = Conv(channels=(4,), kernels=(3,), strides=(1,), frames=3) if kind == "stacks" else None
    network = QNetwork(conv, recurrent=False, hidden_sizes=(16,), dueling_size=16)
    description = ActionValues(network, Epsilons(base=0.9, alpha=0.0))
    module = description.build_network(PICTURES if conv else SPEC)
    torch.nn.init.normal_(module.target.extrinsic.advantage[-1].bias)  # so that the two networks differ
    memory = Sequences(2000, 1, 0, 1, n, 128).build([4], module.context, CPU)
    play(EpsilonGreedyPolicy(description, module, 2, 4), memory, long_walk, 120, 4, drawn if conv else counted)
    sample, settings = memory.sample(), QLearning(n_step=n)
    assert (sample.trajectory.truncated.any(0) & ~sample.trajectory.truncated[-1]).any() or n == 1
    results = []
    for loss_of, numbers in ((dqn.loss, settings.as_dqn), (r2d2.loss, settings.as_r2d2)):
        loss, found = loss_of(module, sample.trajectory, sample.importance_weight, numbers)
        results.append((loss, found["priorities"], *torch.autograd.grad(loss, list(module.acting.parameters()))))
    for mine, plain in zip(*results, strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("recurrent", [True, False], ids=["lstm", "plain"])
def test_a_new_sequence_has_the_priority_that_the_learner_would_give_it(recurrent):
    """With the same weights, actor and learner compute the same errors for sequences far from an end.

    Mutations: the error of another step; the largest error; another η.
    """
    torch.manual_seed(0)
    description = ActionValues(
        QNetwork(recurrent=recurrent, hidden_sizes=(16,), lstm_size=16), Epsilons(0.9, alpha=0.0)
    )
    module = description.build_network(SPEC)
    policy = EpsilonGreedyPolicy(description, module, 2, 4)
    sizes = Sequences(
        2000, 3, 1, 1, 2, 64, priority_exponent=1.0, new_priority="given", eta=0.6, extras=("behaviour_prob", "arm")
    )
    settings = QLearning(n_step=2, eta=0.6, reward_clipping="symlog")
    settings.check(sizes, description)
    settings.prepare_policy(policy, sizes)
    memory = sizes.build([4], 0, CPU)
    play(policy, memory, long_walk, 120, 4, counted)
    sample = memory.sample()
    slots = memory.index.generations.slots(sample.keys)
    priorities = value_loss(module, sample.trajectory, torch.ones(64), settings)[1]["priorities"]
    whole = memory.index.where(slots)[3] == sizes.steps
    assert 10 < int(whole.sum()) < 64
    given = memory.index.tree.priorities(slots)
    torch.testing.assert_close(given[whole], item_priority(priorities[whole].double(), 1.0), rtol=1e-4, atol=1e-5)


def test_targets_squash_and_clip():
    """The priorities are |y − Q| of squashed values. Mutations: a target that is not squashed; the clip left out."""
    module, memory = batch()
    sample = memory.sample()
    big = sample.trajectory._replace(reward=torch.full_like(sample.trajectory.reward, 50.0))
    ones = torch.ones(16)
    numbers = QLearning(0.0, n_step=2, eta=1.0)
    _, found = value_loss(module, big, ones, numbers)
    _, clipped = value_loss(module, big, ones, QLearning(0.0, n_step=2, eta=1.0, reward_clipping="abs_one"))
    assert found["priorities"].max() == pytest.approx(float(rescale(torch.tensor(50.0))), abs=1.0)
    assert clipped["priorities"].max() < 2


def test_one_update_with_summed_losses_is_that_of_the_sum_written_out():
    """½ δ² summed over the steps of a sequence, weighted by its importance, averaged over sequences.

    Mutations: the mean over steps; the sum over sequences too; padding counted.
    """
    module, memory = batch()
    sample = memory.sample()
    trajectory, counts = sample.trajectory, sample.trajectory.extras["weight"]
    weight = torch.linspace(0.2, 1.0, 16)
    twin = copy.deepcopy(module)
    settings = QLearning(discount=0.9, n_step=2, reduction="sum", learning_rate=1e-3, adam_epsilon=1e-3)
    learner = settings.build(module, 1)
    loss = float(learner.update(sample._replace(importance_weight=weight))["total_loss"])
    arm = torch.zeros(16, dtype=torch.int64)
    online, target = (
        unroll(values, twin, trajectory, arm, learns).values
        for values, learns in ((twin.acting.values, True), (twin.target, False))
    )
    ends = boundaries(trajectory.first[2:], trajectory.terminated, trajectory.truncated, 0.9)
    rows = trajectory.reward, ends.discount_t, ends.continue_t, ends.weight_t
    targets = n_step_q_targets(online.detach(), target, *rows, n=2, rescaling=1e-3)
    total = torch.zeros(())
    for b in range(16):
        for t in range(len(trajectory.reward)):
            if counts[t, b]:
                total = total + weight[b] * 0.5 * (targets[t, b] - online[t, b, trajectory.action[t, b]]) ** 2
    total = total / 16
    assert loss == pytest.approx(float(total.detach()), rel=1e-5) and counts.sum() < 16 * 5  # some are short
    optimiser = torch.optim.Adam(twin.acting.values.parameters(), lr=1e-3, eps=1e-3)
    total.backward()
    torch.nn.utils.clip_grad_norm_(twin.acting.values.parameters(), 40.0)
    optimiser.step()
    for mine, written_out in zip(module.acting.values.parameters(), twin.acting.values.parameters(), strict=True):
        torch.testing.assert_close(mine, written_out, rtol=1e-5, atol=1e-7)


def test_the_mean_over_steps_is_the_sum_over_their_number():
    module, memory = batch()
    sample = memory.sample()
    valid = sample.trajectory.extras["weight"].sum(0)
    alone = torch.eye(16)
    for b in range(16):
        total, mean = (
            value_loss(module, sample.trajectory, alone[b], QLearning(n_step=2, reduction=reduction))[0].item()
            for reduction in ("sum", "mean")
        )
        assert total == pytest.approx(mean * float(valid[b]), rel=1e-5)


def test_importance_weights_weigh_sequences():
    module, memory = batch()
    sample = memory.sample()
    numbers = QLearning(n_step=2)
    each = [value_loss(module, sample.trajectory, torch.eye(16)[b], numbers)[0] for b in range(16)]
    whole = value_loss(module, sample.trajectory, torch.arange(16.0), numbers)[0]
    torch.testing.assert_close(whole, sum(weight * one for weight, one in enumerate(each)))


def test_nothing_is_learned_from_padding():
    """What stands in rows of padding changes neither losses nor gradients. Mutations: weights of 1 everywhere."""
    module, memory = batch(NOVEL, Arms(3))
    sample = memory.sample()
    trajectory = sample.trajectory
    padding = trajectory.first.clone()
    padding[: memory.context + 1] = False  # behind the end; rows in front are zeros that a reset follows
    assert padding.any()
    noise = torch.where(padding.unsqueeze(-1), torch.full_like(trajectory.obs, 7.0), trajectory.obs)
    numbers = QLearning(n_step=2, returns="retrace")
    found = []
    for obs in (trajectory.obs, noise):
        module.acting.count_observations(torch.zeros(1, 2), torch.ones(1))
        loss, parts = value_loss(module, trajectory._replace(obs=obs), torch.ones(16), numbers)
        losses = novelty_losses(module, trajectory._replace(obs=obs), numbers.novelty_steps)
        found.append((loss.detach(), parts["priorities"], losses["embedding"].detach()))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_novelty_learns_and_its_target_does_not():
    """Mutations: the random network learns; observations are not counted; the loss of another head."""
    module, memory = batch(NOVEL, Arms(3))
    learner = QLearning(
        n_step=2, returns="retrace", embedding_learning_rate=0.003, distillation_learning_rate=0.003
    ).build(module, 1)
    target = [leaf.clone() for leaf in module.acting.distillation.target.parameters()]
    found = [learn([learner], [memory], 1)[0].metrics for _ in range(300)]
    for name in ("embedding_loss", "distillation_loss"):
        begin, end = (sum(float(one[name]) for one in span) / 10 for span in (found[:10], found[-10:]))
        assert end < 0.8 * begin, (name, begin, end)
    assert all(torch.equal(a, b) for a, b in zip(target, module.acting.distillation.target.parameters(), strict=True))
    assert float(module.acting.obs_moments.number) > 150 * 16
    assert 0 < float(found[-1]["intrinsic_reward"])


def test_two_networks_learn_two_rewards():
    module, memory = batch(NOVEL, Arms(3), separate_intrinsic=True)
    learner = QLearning(n_step=2, learning_rate=0.003).build(module, 1)
    before = trees.map(torch.clone, dict(module.acting.values.intrinsic.named_parameters()))
    first = learn([learner], [memory], 1)[0].metrics
    for _ in range(100):
        last = learn([learner], [memory], 1)[0].metrics
    assert float(last["intrinsic_value_loss"]) < float(first["intrinsic_value_loss"])
    assert not torch.equal(before["value.0.weight"], module.acting.values.intrinsic.value[0].weight)
    assert memory.sample().trajectory.extras[f"reward/{INTRINSIC}"].abs().sum() > 0


def test_half_of_the_sequences_are_learned_as_if_arm_0_had_made_them():
    """Mutations: the same share at the front of the batch; the network's arm input left unchanged."""
    module, memory = batch(NOVEL, Arms(3, 0.5))
    trajectory = memory.sample().trajectory
    numbers = QLearning(n_step=2, returns="retrace")
    zero = trajectory._replace(extras={**trajectory.extras, "arm": torch.zeros_like(trajectory.extras["arm"])})
    half, own, greedy = (
        value_loss(module, given, torch.ones(16), numbers, exploits)[1]["priorities"]
        for given, exploits in ((trajectory, exploiting(0, 16, 0.5)), (trajectory, None), (zero, None))
    )
    torch.testing.assert_close(half[1::2], greedy[1::2])
    torch.testing.assert_close(half[::2], own[::2])
    assert not torch.allclose(half[1::2], own[1::2]) and not torch.allclose(half[::2], greedy[::2])


@pytest.mark.parametrize("share", [0.0, 0.25, 0.4, 0.5, 1.0])
def test_every_place_of_a_batch_is_learned_as_arm_0s_equally_often(share):
    """A batch is stratified: the same places are nearly the same sequences. Mutation: the same places every time."""
    chosen = torch.stack([exploiting(update, 16, share) for update in range(1000)]).double()
    assert (chosen.mean(0) - share).abs().max() < 0.01
    assert (chosen.sum(1) - 16 * share).abs().max() <= 1


def test_a_learner_relabels_its_share():
    """Mutation: a learner that does not."""
    module, memory = batch(NOVEL, Arms(3, 0.5))
    settings = QLearning(n_step=2, returns="retrace", exploit_share=1.0)
    learner = settings.build(module, 1)
    sample = memory.sample()
    trajectory = sample.trajectory
    zero = trajectory._replace(extras={**trajectory.extras, "arm": torch.zeros_like(trajectory.extras["arm"])})
    wanted = value_loss(module, zero, torch.ones(16), settings)[1]["priorities"]
    torch.testing.assert_close(learner.update(sample)["priorities"], wanted)


def test_the_target_follows_at_its_period():
    module, memory = batch()
    learner = QLearning(n_step=2, target_period=3, publish_period=2).build(module, 1)
    same = []
    published = []
    for _ in range(6):
        learn([learner], [memory], 1)
        faster, slower = module.acting.values.state_dict(), module.target.state_dict()
        same.append(all(torch.equal(faster[name], slower[name]) for name in faster))
        published.append(learner.publish_due)
    assert same == [False, False, True] * 2 and published == [False, True] * 3


def test_a_saved_learner_goes_on_as_if_nothing_had_been():
    """Mutations: moments or the target not saved."""
    results = []
    for resumed in (False, True):
        module, memory = batch(NOVEL, Arms(3), seed=3)
        learner = QLearning(n_step=2, returns="retrace", target_period=4).build(module, 1)
        for _ in range(5):
            learn([learner], [memory], 1)
        if resumed:
            state, kept = learner.state_dict(), memory.snapshot()
            module, memory = batch(NOVEL, Arms(3), seed=4)
            learner = QLearning(n_step=2, returns="retrace", target_period=4).build(module, 1)
            learner.load_state_dict(state)
            memory.restore(kept)
        for _ in range(5):
            learn([learner], [memory], 1)
        results.append((learner.updates, learner.steps, module.state_dict()))
    assert results[0][:2] == results[1][:2]
    for name, leaf in results[0][2].items():
        assert torch.equal(leaf, results[1][2][name]), name


@pytest.mark.parametrize("two", [False, True], ids=["one network", "two networks"])
def test_a_captured_update_is_the_plain_one_on_a_gpu(two):
    """With novelty, arms and copies; acting is captured too. Mutation: a leaf of the sample that is not copied."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    results = []
    for capture in (False, True):
        module, memory = batch(NOVEL, Arms(3), device=torch.device("cuda", 0), separate_intrinsic=two)
        learner = QLearning(n_step=2, returns="retrace", target_period=4).build(module, 1)
        learner.capture = capture
        memory.reseed(5)
        found = [learn([learner], [memory], 1)[0].metrics for _ in range(12)]
        assert learner.capture == capture
        assert not capture or learner._captured.captured._graph is not None
        results.append((found[-1], module.state_dict()))
    for name, leaf in results[0][1].items():
        torch.testing.assert_close(results[1][1][name], leaf, rtol=1e-2, atol=1e-3, msg=name)
    for name, value in results[0][0].items():
        torch.testing.assert_close(results[1][0][name], value, rtol=5e-2, atol=1e-2, msg=name)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: QLearning(n_step=0), "QLearning.n_step = 0 must be at least 1"),
        (lambda: QLearning(discount=1.2), "QLearning.discount = 1.2 must lie between 0 and 1"),
        (lambda: QLearning(huber=0.0), "QLearning.huber = 0.0 must be above 0, or None"),
        (lambda: Epsilons(base=2.0), "Epsilons.base = 2.0 must lie between 0 and 1"),
        (lambda: Novelty(None, None), "Novelty.embedding and Novelty.distillation are both None"),
        (lambda: Novelty(neighbours=0), "Novelty.neighbours = 0 must lie between 1 and memory = 30000"),
        (lambda: Arms(1), "Arms.count = 1 must be at least 2"),
        (lambda: ActionValues(arms=Arms()), "Arms are weights of the intrinsic reward: set ActionValues.novelty"),
        (lambda: ActionValues(QNetwork(arms=3)), "QNetwork.arms = 3 must equal Arms.count = 0"),
    ],
)
def test_bad_numbers_are_refused(make, line):
    with pytest.raises(ConfigError, match=line.replace("(", r"\(")):
        make()


def test_retrace_evaluates_the_epsilon_greedy_policy_of_the_settings():
    """Mutation: π is greedy whatever the settings are."""
    module, memory = batch()
    trajectory = memory.sample().trajectory
    torch.nn.init.normal_(module.target.extrinsic.advantage[-1].bias)
    found = [
        value_loss(module, trajectory, torch.ones(16), QLearning(n_step=2, returns="retrace", target_epsilon=epsilon))[
            1
        ]
        for epsilon in (0.0, 0.5)
    ]
    assert (found[0]["priorities"] - found[1]["priorities"]).abs().max() > 1e-3


NAMED = {
    "r2d2": (lambda numbers: r2d2.R2D2(**numbers), {}),
    "ngu": (lambda numbers: ngu.NGU(discount=0.997, **numbers), {"novelty": NOVEL, "arms": Arms(3)}),
    "agent57": (
        lambda numbers: agent57.Agent57(discount=0.997, **numbers),
        {"novelty": NOVEL, "arms": Arms(3), "separate_intrinsic": True},
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_an_algorithm_named_itself_learns_as_under_the_shared_name(name):
    """Every weight is equal to the bit. Mutations: a number that is not handed on; the loss of another algorithm."""
    make, options = NAMED[name]
    numbers = {"n_step": 2, "returns": "retrace", "learning_rate": 0.003, "adam_epsilon": 0.01, "reduction": "sum"}
    found = []
    for settings in (make({**numbers, "target_period": 3}), QLearning(**numbers, target_period=3)):
        module, memory = batch(**options)
        learner = settings.build(module, 1)
        metrics = [learn([learner], [memory], 1)[0].metrics for _ in range(5)][-1]
        found.append({**module.state_dict(), **metrics})
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])


def sequences_of(length, **sizes):
    return Sequences(2000, length, 0, 1, 2, 16, extras=("behaviour_prob", "arm"), **sizes)


@pytest.mark.parametrize(
    ("settings", "length", "policy", "line"),
    [
        (dqn.DQN(n_step=2), 4, ActionValues(QNetwork(recurrent=False)), "DQN learns from single transitions"),
        (dqn.DQN(n_step=2), 1, ActionValues(QNetwork()), "the network neither recurrent nor rewarded"),
        (r2d2.R2D2(n_step=2), 4, ActionValues(novelty=NOVEL), "R2D2 has no reward for novelty"),
        (ngu.NGU(n_step=2, discount=0.9), 4, ActionValues(), "set ActionValues.novelty"),
        (
            ngu.NGU(n_step=2, discount=0.9),
            4,
            ActionValues(QNetwork(separate_intrinsic=True), novelty=NOVEL),
            "@Agent57.. has two",
        ),
        (agent57.Agent57(n_step=2, discount=0.9), 4, ActionValues(novelty=NOVEL), "set QNetwork.separate_intrinsic"),
        (r2d2.R2D2(n_step=3), 4, ActionValues(), "R2D2.n_step = 3 and Sequences.n_step = 2 differ"),
        (ngu.NGU(n_step=2), 4, ActionValues(novelty=NOVEL), "NGU.discount = None without arms leaves no discount"),
    ],
)
def test_an_algorithm_refuses_a_policy_or_a_memory_of_another(settings, length, policy, line):
    with pytest.raises(ConfigError, match=line):
        settings.check(sequences_of(length), policy)


def test_algorithms_accept_what_they_are_made_for():
    """A negative control of the refusals."""
    plain, novel = ActionValues(QNetwork(recurrent=False)), ActionValues(QNetwork(arms=3), novelty=NOVEL, arms=Arms(3))
    dqn.DQN(n_step=2).check(sequences_of(1), plain)
    r2d2.R2D2(n_step=2).check(sequences_of(4), plain)
    ngu.NGU().check(sequences_of(4), novel)
    with pytest.raises(ConfigError, match="R2D2.trace_lambda = 2 must lie between 0 and 1"):
        r2d2.R2D2(trace_lambda=2)
