"""Learning world models: losses by arithmetic, who learns from which row, moments, elites, and that it learns."""

import itertools
import math

import gymnasium as gym
import numpy as np
import pytest
import torch

from packtrain.acting.noise import Control
from packtrain.algorithms.batched_updates import transitions
from packtrain.algorithms.dynamics import DynamicsLearning, DynamicsRule, _shares, held_out_errors, losses, take_moments
from packtrain.algorithms.value_expansion import ValueExpansion
from packtrain.errors import ConfigError
from packtrain.memory.replay import Replay
from packtrain.networks.dynamics import NARROWEST, WIDEST, Dynamics
from packtrain.networks.stacked import join
from packtrain.types import Spec

OBS, ACTIONS, RUNS, ROWS, MEMBERS = 3, 2, 2, 12, 3
SPEC = Spec(gym.spaces.Box(-np.inf, np.inf, (OBS,)), gym.spaces.Box(-1, 1, (ACTIONS,)))
PROBABILISTIC = {"probabilistic": True, "normalise": True}


def build(seed=0, **options):
    """A network of one run whose model has biases and, where it normalises, moments that count."""
    torch.manual_seed(seed)
    sizes = {"transitions": MEMBERS, "rewards": MEMBERS, "hidden_size": 6, "num_layers": 1, "aux_hidden_size": 4}
    dynamics = Dynamics(**{**sizes, "aux_num_layers": 1, **options})
    network = Control(4, 1, 2, dynamics=dynamics).build_network(SPEC)
    with torch.no_grad():
        for leaf in network.model.parameters():
            leaf.add_(0.2 * torch.randn_like(leaf))
        if dynamics.normalise:
            for name in ("obs_mean", "change_mean", "obs_std", "change_std", "reward_scale"):
                buffer = getattr(network.model, name)
                buffer.copy_(torch.rand_like(buffer) + 0.5)
    return network


def steps(front, seed=0):
    """Real steps [*front, ...], of which about a third ended the task."""
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*front, *shape, generator=generator)  # noqa: E731
    ended = (torch.rand(front, generator=generator) < 0.3).to(torch.uint8)
    return {
        "obs": normal(OBS),
        "action": torch.tanh(normal(ACTIONS)),
        "reward": normal(),
        "after": normal(OBS),
        "terminated": ended,
        "truncated": torch.zeros_like(ended),
        "row": torch.randint(10**6, front, generator=generator),
    }


def double(batch):
    return {name: leaf.double() if leaf.is_floating_point() else leaf for name, leaf in batch.items()}


def memory_of(batch, size=ROWS):
    memory = Replay(100_000, size).build([1], 0, torch.device("cpu"))
    more(memory, batch)
    return memory


def more(memory, batch):
    memory.add({name: leaf.numpy() for name, leaf in batch.items() if name != "row"})
    memory.steps = memory.count


# -- the loss, one member and one row at a time


def ask(network, run, member, x):
    k = run * network.members + member
    for layer, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        x = x @ weight[k].detach().numpy() + bias[k, 0].detach().numpy()
        x = np.maximum(x, 0) if layer + 1 < len(network.weights) else x
    return x


def softplus(x):
    return np.logaddexp(0, x)


def errors_by_hand(model, batch, run, b):
    """Of each ensemble, what every member's error is on one row."""
    s, a, after = (batch[name][run, b].numpy() for name in ("obs", "action", "after"))
    unit, change, scale = (lambda x: x), after - s, 1.0
    if model.sizes.normalise:
        mean, std = model.obs_mean[run, 0].numpy(), model.obs_std[run, 0].numpy()
        unit = lambda x: (x - mean) / std  # noqa: E731
        change = (change - model.change_mean[run, 0].numpy()) / model.change_std[run, 0].numpy()
        scale = model.reward_scale[run, 0].item()
    over, paid = float(batch["terminated"][run, b]), batch["reward"][run, b].item() / scale
    found = {"observation": [], "reward": [], "terminated": []}
    for member in range(MEMBERS):
        said = ask(model.transition, run, member, np.concatenate([unit(s), a]))
        if model.sizes.probabilistic:
            said, wide = said[:OBS], said[OBS:]
            wide = NARROWEST + softplus(WIDEST - softplus(WIDEST - wide) - NARROWEST)
            found["observation"].append(0.5 * sum((change - said) ** 2 / np.exp(wide) + wide))
        else:
            found["observation"].append(0.5 * sum((change - said) ** 2))
        step = np.concatenate([unit(after), unit(s), a])  # where it really led
        found["reward"].append(0.5 * (ask(model.reward, run, member, step)[0] - paid) ** 2)
        logit = ask(model.termination, run, member, step)[0]
        likely = 1 / (1 + math.exp(-logit))
        found["terminated"].append(-over * math.log(likely) - (1 - over) * math.log(1 - likely))
    return found


PICKED = {"observation": "member/transition", "reward": "member/reward", "terminated": "member/termination"}


@pytest.mark.parametrize("options", [{}, PROBABILISTIC], ids=["deterministic", "probabilistic"])
@pytest.mark.parametrize("rows", ["split", "random", "all", "own"])
def test_losses_by_hand(rows, options):
    """Each error is a mean over rows of ½ a sum over dimensions; rows belong to who is dealt them, or all of them.

    Mutations: predicted next observations as inputs of R and D; a mean over dimensions; no ½; random picks shared by
    all three ensembles; rewards in raw units; a factor K lost with the mask; runs averaged.
    """
    networks = [build(seed, **options).double() for seed in range(RUNS)]
    network, settings = join(networks), DynamicsLearning(batch_size=ROWS, rows=rows)
    rule = DynamicsRule(settings, network)
    assert rule.batch_size == (MEMBERS * ROWS if rows == "own" else ROWS)
    batch = double(steps((RUNS, rule.batch_size))) | rule.draws(RUNS, torch.Generator().manual_seed(1))
    got = losses(network.model, settings, batch)
    share = rule.batch_size // MEMBERS
    for run in range(RUNS):
        every = [errors_by_hand(network.model, batch, run, b) for b in range(rule.batch_size)]
        for name in got:
            if rows in ("split", "own"):
                want = [errors[name][b // share] for b, errors in enumerate(every)]
            elif rows == "random":
                want = [errors[name][batch[PICKED[name]][run, b]] for b, errors in enumerate(every)]
            else:
                want = [each for errors in every for each in errors[name]]
            assert got[name].shape == (RUNS,)
            np.testing.assert_allclose(got[name][run].item(), np.mean(want), rtol=1e-9)


def test_ways_to_deal_rows_agree_on_average():
    """Each in turn dealt to every member: the mean is that of `all`. Mutation: a share that is not 1 on average."""
    network = build().double()
    batch = double(steps((1, ROWS)))
    everyone = losses(network.model, DynamicsLearning(ROWS, rows="all"), batch)

    def agree(rows, batches):
        found = [losses(network.model, DynamicsLearning(ROWS, rows=rows), each) for each in batches]
        for name in everyone:
            torch.testing.assert_close(torch.stack([each[name] for each in found]).mean(0), everyone[name])

    agree("split", [{n: x.roll(turn * ROWS // MEMBERS, 1) for n, x in batch.items()} for turn in range(MEMBERS)])
    agree("own", [{n: torch.cat([x] * MEMBERS, 1) for n, x in batch.items()}])
    base = torch.randint(MEMBERS, (1, ROWS))
    turns = [{name: (base + turn) % MEMBERS for name in PICKED.values()} for turn in range(MEMBERS)]
    agree("random", [batch | turn for turn in turns])


def test_random_picks_are_uniform_and_of_each_ensemble():
    """Mutation: torch's global generator; one pick for all."""
    network = build(rewards=2)
    rule = DynamicsRule(DynamicsLearning(ROWS, rows="random"), network)
    one, other = (rule.draws(300, torch.Generator().manual_seed(4)) for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one) and set(one) == set(PICKED.values())
    for name, members in (("transition", 3), ("reward", 2), ("termination", 3)):
        counts = torch.bincount(one[f"member/{name}"].flatten(), minlength=members)
        assert one[f"member/{name}"].shape == (300, ROWS) and len(counts) == members
        assert (counts * members / 3600 - 1).abs().max() < 0.1
    assert (one["member/transition"] == one["member/termination"]).float().mean() < 0.4
    assert DynamicsRule(DynamicsLearning(ROWS), network).draws(3, torch.Generator()) == {}


@pytest.mark.parametrize("decay", [1e-4, 0.1])
def test_weight_decay_is_a_gradient_of_every_weight_and_bias(decay):
    """The gradient of decay · Σ ½ θ²: Adam's first moment is a tenth of both. Mutations: AdamW; no biases."""
    network = build()
    learner = DynamicsLearning(ROWS, weight_decay=decay).build(network, 0)
    names = [name for name, _ in network.model.named_parameters()]
    theta = [leaf.detach().clone() for leaf in network.model.parameters()]
    batch = steps((1, ROWS))
    found = losses(network.model, learner.rule.settings, batch)
    gradients = torch.autograd.grad(sum(each.sum() for each in found.values()), list(network.model.parameters()))
    metrics = learner.update(batch)
    (optimiser,) = learner.rule.optimisers.values()
    leaves = zip(names, network.model.parameters(), theta, gradients, strict=True)
    for number, (name, leaf, old, gradient) in enumerate(leaves):
        first = optimiser.state[f"{number}/exp_avg"]
        torch.testing.assert_close(first, 0.1 * (gradient + decay * old), msg=name)
        assert not torch.equal(leaf, old), name
    total = sum(metrics[f"model/{name}_loss"] for name in found)
    torch.testing.assert_close(metrics["model/total_loss"], total)
    torch.testing.assert_close(metrics["model/observation_loss"], found["observation"][0].detach())
    torch.testing.assert_close(metrics["model/terminated_loss"], found["terminated"][0].detach())


@pytest.mark.parametrize("rows", ["all", "own"])
def test_members_that_see_whole_batches_have_the_weight_decay_of_a_single_model(rows):
    """Three members with three or two reward models, and each as a model by itself on the same rows.

    Mutation: the mean of the members' losses, in which decay is K times as strong beside the data.
    """
    judges = MEMBERS if rows == "own" else 2
    ensemble = build(transitions=MEMBERS, rewards=judges)
    settings = DynamicsLearning(batch_size=ROWS, rows=rows, weight_decay=0.3, learning_rate=0.01)
    rule = DynamicsRule(settings, ensemble)
    assert ensemble.model.transition.members == MEMBERS and ensemble.model.reward.members == judges
    alone = []
    for member in range(judges):
        network = build(transitions=1, rewards=1)
        for name, leaf in network.model.named_parameters():
            leaf.data.copy_(ensemble.model.get_parameter(name).data[member : member + 1])
        alone.append((network, DynamicsRule(settings, network)))
    for update in range(30):
        batch = steps((1, rule.batch_size), seed=update)
        rule.step(batch, None)
        for member, (_, own) in enumerate(alone):
            part = slice(member * ROWS, (member + 1) * ROWS) if rows == "own" else slice(None)
            own.step({name: leaf[:, part] for name, leaf in batch.items()}, None)
    for member, (network, _) in enumerate(alone):
        for name, leaf in network.model.named_parameters():
            found = ensemble.model.get_parameter(name)[member : member + 1]
            torch.testing.assert_close(found, leaf, rtol=1e-3, atol=1e-4, msg=f"{name} of member {member}")


def test_an_update_moves_the_model_alone():
    network = build()
    before = {name: leaf.clone() for name, leaf in network.state_dict().items()}
    DynamicsLearning(ROWS).build(network, 0).update(steps((2, ROWS)))
    changed = {name.partition(".")[0] for name, leaf in network.state_dict().items() if not leaf.equal(before[name])}
    assert changed == {"model"}


# -- bootstrap


def test_bootstrap_hides_another_half_from_each_member():
    """Fixed for row and member, wherever in a batch they meet.

    Mutations: a new draw; the same half for all; halves that follow the parity of the row; a share that is not 2.
    """
    members, rows = 5, 20_000
    settings = DynamicsLearning(rows, rows="all", bootstrap=True)
    batch = {"row": torch.arange(rows)[None]}
    shares = _shares(torch.zeros(1, members, rows), "transition", settings, batch)
    assert shares.shape == (1, members, rows) and set(shares.unique().tolist()) == {0.0, 2.0}
    seen = shares[0] / 2
    assert (seen.mean(-1) - 0.5).abs().max() < 0.02
    for one, other in itertools.combinations(range(members), 2):
        assert abs((seen[one] * seen[other]).mean() - 0.25) < 0.02, (one, other)
    for step in (1, 2, 8, 10, 64):  # neighbours in time are independent too
        assert (torch.stack([(row[step:] == row[:-step]).float().mean() for row in seen]) - 0.5).abs().max() < 0.03
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    again = _shares(torch.zeros(1, members, rows), "reward", settings, {"row": order[None]})
    assert torch.equal(again, shares[..., order])
    high = _shares(torch.zeros(1, members, rows), "reward", settings, {"row": batch["row"] + 9_990_000})
    assert (high.mean((0, 2)) - 1).abs().max() < 0.04  # no overflow in a large memory


@pytest.mark.parametrize("rows", ["split", "all", "random", "own"])
def test_a_hidden_row_teaches_nothing(rows):
    """A batch of one row over and over: members that may not see it have no gradient. Mutation: `random` rows that
    forget the bootstrap.
    """
    network = build()
    settings = DynamicsLearning(ROWS, rows=rows, bootstrap=True)
    rule = DynamicsRule(settings, network)
    masks = set()
    for row in range(8):
        batch = steps((1, rule.batch_size)) | rule.draws(1, torch.Generator().manual_seed(row))
        batch["row"].fill_(row)
        if rows == "random":  # everyone has some
            batch |= {name: torch.arange(ROWS)[None] % MEMBERS for name in PICKED.values()}
        mask = _shares(torch.zeros(1, MEMBERS, 1), "reward", DynamicsLearning(rows="all", bootstrap=True), batch)
        mask = (mask[0, :, 0] > 0).tolist()
        masks.add(tuple(mask))
        loss = sum(each.sum() for each in losses(network.model, settings, batch).values())
        for part in (network.model.transition, network.model.reward, network.model.termination):
            (gradient,) = torch.autograd.grad(loss, [part.biases[-1]], retain_graph=True)
            assert (gradient.abs().amax((1, 2)) > 0).tolist() == mask
    assert len(masks) > 3


def test_a_random_member_learns_from_a_row_it_may_see():
    """Mutations: everyone from every row that is not hidden; hidden rows too."""
    network, settings = build().double(), DynamicsLearning(ROWS, rows="random", bootstrap=True)
    batch = double(steps((1, ROWS))) | DynamicsRule(settings, network).draws(1, torch.Generator().manual_seed(1))
    all_rows = DynamicsLearning(ROWS, rows="all", bootstrap=True)
    seen = _shares(torch.zeros(1, MEMBERS, ROWS), "reward", all_rows, batch)[0]  # 0 or 2
    for name, got in losses(network.model, settings, batch).items():
        picked = batch[PICKED[name]][0].tolist()
        every = [errors_by_hand(network.model, batch, 0, b)[name] for b in range(ROWS)]
        want = np.mean([seen[k, b].item() * every[b][k] for b, k in enumerate(picked)])
        np.testing.assert_allclose(got.item(), want)


# -- what is known of all data


def test_held_out_steps_are_never_learned_from():
    """The critic has no reason to leave them. Mutation: a switch on the memory, which one learner sets for the other,
    and which a resume would forget.
    """
    network, memory = build(), memory_of(steps((995,)))
    learner = DynamicsLearning(ROWS, holdout=True).build(network, 0)
    other = ValueExpansion(batch_size=ROWS).build(network, 0)
    rows = learner.draw(memory, 2000)["row"]
    assert rows.shape == (2000, ROWS) and not (rows // 16 % 10 == 9).any() and len(rows.unique()) == 995 - 96
    assert len(other.draw(memory, 2000)["row"].unique()) == 995
    plain = DynamicsLearning(ROWS).build(build(), 0)
    assert (plain.draw(memory, 100)["row"] // 16 % 10 == 9).any()


def test_elites_are_those_that_err_least_on_held_out_steps():
    """Every so many updates, and by held-out steps alone. Mutations: the worst; all steps; at every draw."""
    network = build(transitions=4, num_layers=0, elites=2)
    batch = steps((500,))
    batch["after"] = batch["obs"] + 1.0
    batch["after"][torch.arange(500) // 16 % 10 == 3] += 9  # seen in training, where a bias of 3.0 would do best
    memory = memory_of(batch)

    def say(biases):
        with torch.no_grad():
            network.model.transition.weights[0].zero_()
            network.model.transition.biases[0].copy_(torch.tensor(biases).reshape(4, 1, 1).expand(4, 1, OBS))

    learner = DynamicsLearning(ROWS, holdout=True, validation_period=5, learning_rate=1e-9).build(network, 0)
    say([1.9, 0.9, 3.0, 1.2])
    errors = held_out_errors(network.model, transitions(memory.view("held_out", most=4096)))
    torch.testing.assert_close(errors, torch.tensor([0.81, 0.01, 4.0, 0.04]))
    batch = learner.draw(memory, 4)
    assert network.model.elites.tolist() == [[1, 3]]
    metrics = learner.update(batch)
    torch.testing.assert_close(metrics["model/held_out_error"], errors.mean())
    torch.testing.assert_close(metrics["model/held_out_error_elites"], torch.tensor(0.025))
    say([1.0, 5.0, 1.1, 5.0])
    assert "model/held_out_error" not in learner.update(learner.draw(memory, 4))  # there is no newer one
    assert network.model.elites.tolist() == [[1, 3]]  # 4 updates are not 5
    learner.draw(memory, 1)
    assert network.model.elites.tolist() == [[0, 2]]
    network.frozen.take_elites(network.model)
    torch.testing.assert_close(network.frozen.transition.biases[0][:, 0, 0], torch.tensor([1.0, 1.1]))


def test_what_weight_decay_pulls_at_is_reported():
    """0.5 · decay · Σ θ² of all members, looked at now and then. Mutations: weights alone; at every draw."""
    network, memory = build(), memory_of(steps((50,)))
    learner = DynamicsLearning(ROWS, weight_decay=0.01, validation_period=3).build(network, 0)
    squares = lambda: sum(leaf.square().sum().item() for leaf in network.model.parameters())  # noqa: E731
    want = [0.005 * squares()]
    first, second = (learner.update(learner.draw(memory, 2)) for _ in range(2))
    want.append(0.005 * squares())
    third = learner.update(learner.draw(memory, 2))
    assert "model/l2_loss" not in second
    assert [one["model/l2_loss"].item() for one in (first, third)] == pytest.approx(want) and want[0] != want[1]
    bare = DynamicsLearning(ROWS, weight_decay=0.0).build(build(), 0)
    assert "model/l2_loss" not in bare.update(bare.draw(memory, 1))


def test_nothing_is_chosen_before_anything_is_held_out():
    """Mutation: members ranked by the mean of no errors, and a metric that is not a number."""
    network, memory = build(elites=2), memory_of(steps((144,)))
    learner = DynamicsLearning(ROWS, holdout=True).build(network, 0)
    assert "model/held_out_error" not in learner.update(learner.draw(memory, 2))
    more(memory, steps((1,)))
    assert learner.update(learner.draw(memory, 2))["model/held_out_error"].isfinite()


def test_moments_are_those_of_the_data():
    """Mutations: moments of `after`; a deviation of 0 for what never changes, which divides by it."""
    batch = {name: leaf.double() for name, leaf in steps((400,)).items()}
    batch["obs"] = 5 * batch["obs"] + 100
    batch["after"] = batch["obs"] + 0.1 * batch["after"] - 3
    batch["obs"][:, 2] = batch["after"][:, 2] = 7.0
    model = build(normalise=True).model
    take_moments(model, batch)
    change = (batch["after"] - batch["obs"]).numpy()
    np.testing.assert_allclose(model.obs_mean[0, 0], batch["obs"].mean(0), rtol=1e-6)
    np.testing.assert_allclose(model.obs_std[0, 0], [*batch["obs"].numpy().std(0)[:2], 1.0], rtol=1e-5)
    np.testing.assert_allclose(model.change_mean[0, 0], change.mean(0), rtol=1e-5)
    np.testing.assert_allclose(model.change_std[0, 0], [*change.std(0)[:2], 1.0], rtol=1e-5)
    np.testing.assert_allclose(model.reward_scale.item(), batch["reward"].numpy().std(), rtol=1e-6)
    assert model.obs_mean.shape == (1, 1, OBS) and model.reward_scale.shape == (1, 1)
    take_moments(model, {name: leaf[:1] for name, leaf in batch.items()})
    assert all(buffer.isfinite().all() for buffer in model.buffers())  # of one step too


def test_moments_are_taken_again_when_the_data_has_grown():
    """By more than a twentieth, across a save too. Mutations: at every draw; never again."""
    network, memory = build(normalise=True), memory_of(steps((100,)))
    learner = DynamicsLearning(ROWS).build(network, 0)
    learner.draw(memory, 1)
    first = network.model.obs_mean.clone()
    shifted = lambda count, seed: {  # noqa: E731
        name: leaf + (9 if name == "obs" else 0) for name, leaf in steps((count,), seed).items()
    }
    more(memory, shifted(5, 1))
    again = DynamicsLearning(ROWS).build(network, 0)
    again.load_state_dict(learner.state_dict())
    for each in (learner, again):
        each.draw(memory, 1)
        assert torch.equal(network.model.obs_mean, first)
    more(memory, shifted(1, 2))
    again.draw(memory, 1)
    assert (network.model.obs_mean - first).min() > 0.3
    plain = build()
    DynamicsLearning(ROWS).build(plain, 0).draw(memory, 1)
    assert not plain.model.obs_mean.any() and (plain.model.change_std == 1).all()  # raw units


# -- it learns


def linear_system(count, seed):
    """x' = x + A x + B a; reward linear in x' and a; an end where the first coordinate is high."""
    generator = torch.Generator().manual_seed(seed)
    system = torch.Generator().manual_seed(99)
    drift = 0.3 * torch.randn(OBS + ACTIONS, OBS, generator=system)
    obs = torch.randn(count, OBS, generator=generator)
    action = 2 * torch.rand(count, ACTIONS, generator=generator) - 1
    after = obs + torch.cat([obs, action], -1) @ drift
    over = (after[:, 0] > 0.5).to(torch.uint8)
    return {
        "obs": obs,
        "action": action,
        "reward": after.sum(-1) - action[:, 0],
        "after": after,
        "terminated": over,
        "truncated": torch.zeros_like(over),
    }


@pytest.mark.parametrize("options", [{}, PROBABILISTIC], ids=["deterministic", "probabilistic"])
def test_it_learns_a_linear_system(options):
    """Errors on fresh steps, as shares of a constant guess's, which is 1: seen are 0.005 for observations and rewards,
    and 0.1 for ends. With targets shuffled between steps nothing can be learned, and nothing is: 1.01 or more.
    """

    def trained(data):
        network = build(hidden_size=32, aux_hidden_size=32, **options)
        learner = DynamicsLearning(96, learning_rate=0.003, bootstrap=bool(options)).build(network, 0)
        memory = memory_of(data, 96)
        for _ in range(12):
            learner.update(learner.draw(memory, 32))
        return network.model

    def shares(model):
        fresh = linear_system(500, 1)
        one = lambda name: fresh[name][None, None].expand(1, MEMBERS, *fresh[name].shape)  # noqa: E731
        after = model.move(one("obs"), one("action"))
        change = fresh["after"] - fresh["obs"]
        observation = (after[0].mean(0) - fresh["after"]).square().mean() / change.var(0).mean()
        rows = [fresh[name][None] for name in ("obs", "action", "after")]
        paid = (model.judge(model.reward, *rows) * model.reward_scale.unsqueeze(-1))[0].mean(0)
        over = fresh["terminated"].float()
        said = model.judge(model.termination, *rows)[0].mean(0)
        rate = over.mean()
        blind = -(rate * rate.log() + (1 - rate) * (1 - rate).log())
        ends = torch.nn.functional.binary_cross_entropy_with_logits(said, over) / blind
        reward = (paid - fresh["reward"]).square().mean() / fresh["reward"].var()
        return [observation.item(), reward.item(), ends.item()]

    data = linear_system(2000, 0)
    got = shares(trained(data))
    assert got[0] < 0.05 and got[1] < 0.05 and got[2] < 0.3, got
    generator = torch.Generator().manual_seed(2)
    mix = lambda rows: rows[torch.randperm(2000, generator=generator)]  # noqa: E731  each in another order
    shuffled = {**data, "after": data["obs"] + mix(data["after"] - data["obs"])}
    shuffled |= {name: mix(data[name]) for name in ("reward", "terminated")}
    control = shares(trained(shuffled))
    assert min(control) > 0.9, control


@pytest.mark.parametrize(
    "values, line",
    [
        ({"batch_size": 0}, "DynamicsLearning.batch_size = 0 must be above 0"),
        ({"validation_period": 0}, "DynamicsLearning.validation_period = 0 must be above 0"),
        ({"weight_decay": -1.0}, "DynamicsLearning.weight_decay = -1.0 must not be negative"),
    ],
)
def test_numbers_that_cannot_be_are_refused(values, line):
    with pytest.raises(ConfigError, match=line):
        DynamicsLearning(**values)


@pytest.mark.parametrize(
    "sizes, values, line",
    [
        ({}, {"batch_size": 10}, "batch_size = 10 cannot be split between Dynamics.transitions = 3"),
        ({"rewards": 5}, {"batch_size": 9}, "batch_size = 9 cannot be split between Dynamics.rewards = 5"),
        ({"elites": 2}, {"batch_size": 9}, "Dynamics.elites are chosen on held-out steps"),
        ({"rewards": 2}, {"rows": "own"}, "needs as many Dynamics.rewards as Dynamics.transitions"),
    ],
)
def test_networks_that_do_not_fit_are_refused(sizes, values, line):
    with pytest.raises(ConfigError, match=line):
        DynamicsLearning(**values).build(build(**sizes), 0)
    with pytest.raises(ConfigError, match="has nothing to learn: set Control.dynamics"):
        DynamicsLearning().build(Control().build_network(SPEC), 0)
