"""Q-networks: shapes and sizes, what they read and what they ignore, one row at a time and all at once."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from packtrain import trees
from packtrain.acting.actor_state import RowActorState, RowPolicy
from packtrain.errors import ConfigError, EnvSetupError
from packtrain.networks.perception import Conv
from packtrain.networks.q_network import QNetwork
from packtrain.types import Row, Spec

T, B, A = 6, 3, 4
VECTOR = Spec(Box(-9, 9, (5,)), Discrete(A))
STACKED = Spec(gym.spaces.Dict(speed=Box(-9, 9, (2,)), picture=Box(0, 255, (6, 6), np.uint8)), Discrete(A))
FRAMES = Conv(frames=3, channels=(4,), kernels=(3,), strides=(1,))
EVERYTHING = {"use_last_intrinsic": True, "arms": 3, "separate_intrinsic": True}


def build(spec=VECTOR, seed=0, **sizes):
    torch.manual_seed(seed)
    return QNetwork(**{"hidden_sizes": (8,), "lstm_size": 7, "dueling_size": 6, **sizes}).build(spec)


def rows(network, steps=T, batch=B, seed=0, resets=0.0):
    """Arguments of forward by name, with a carry that is not zero."""
    generator = torch.Generator().manual_seed(seed)
    count = network.context + steps

    def leaf(space):
        if space.dtype == np.uint8:
            return torch.randint(256, (count, batch, *space.shape), dtype=torch.uint8, generator=generator)
        return torch.randn(count, batch, *space.shape, generator=generator)

    space = network.obs_space
    obs = {k: leaf(v) for k, v in space.spaces.items()} if isinstance(space, gym.spaces.Dict) else leaf(space)
    return {
        "obs": obs,
        "first": torch.rand(count, batch, generator=generator) < resets,
        "last_action": torch.randint(A, (steps, batch), generator=generator),
        "last_reward": torch.rand(steps, batch, generator=generator) * 2 - 1,
        "carry": trees.map(lambda s: torch.randn(s.shape, generator=generator), network.initial_carry(batch)),
        "last_intrinsic": torch.rand(steps, batch, generator=generator) * 9,
        "arm": torch.randint(3, (steps, batch), generator=generator),
    }


def cut(network, given, begin, end, columns=slice(None)):
    """Rows begin … end − 1 with their context, without the carry."""
    wide = slice(begin, end + network.context)
    part = {name: leaf[begin:end, columns] for name, leaf in given.items() if name not in ("obs", "first", "carry")}
    return part | {
        "obs": trees.map(lambda leaf: leaf[wide, columns], given["obs"]),
        "first": given["first"][wide, columns],
    }


def assert_same(one, other):
    torch.testing.assert_close(one.values, other.values)
    torch.testing.assert_close(one.intrinsic_values, other.intrinsic_values) if one.intrinsic_values is not None else 0
    trees.map(torch.testing.assert_close, one.carry, other.carry)


KINDS = {
    "feed-forward": (VECTOR, {"recurrent": False}),
    "lstm": (VECTOR, {}),
    "two lstms": (VECTOR, EVERYTHING),
    "two feed-forward": (VECTOR, {**EVERYTHING, "recurrent": False}),
    "stacks": (STACKED, {"perception": FRAMES, **EVERYTHING}),
    "one layer": (VECTOR, {"dueling_size": None, "hidden_sizes": ()}),
}
kinds = pytest.mark.parametrize("spec, sizes", KINDS.values(), ids=KINDS)


@kinds
def test_shapes_and_gradients(spec, sizes):
    network = build(spec, **sizes)
    output = network(**rows(network))
    both = [output.values] + [output.intrinsic_values] * bool(sizes.get("separate_intrinsic"))
    assert all(values.shape == (T, B, A) and values.dtype == torch.float32 for values in both)
    assert (output.intrinsic_values is None) == (len(both) == 1)
    assert trees.map(lambda s: s.shape, output.carry) == trees.map(lambda s: s.shape, network.initial_carry(B))
    weights = torch.arange(1.0, A + 1)  # a plain sum would not reach the advantages
    sum((values * weights).sum() for values in both).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name


def test_carries():
    assert build(recurrent=False).initial_carry(4) == () == build(recurrent=False, **EVERYTHING).initial_carry(4)
    assert [s.shape for s in build().initial_carry(4)] == [(4, 1, 7)] * 2
    both = build(**EVERYTHING).initial_carry(4)
    assert set(both) == {"extrinsic", "intrinsic"} and [s.shape for s in both["intrinsic"]] == [(4, 1, 7)] * 2
    assert not any(leaf.any() for leaf in trees.flatten(both))


def test_values_are_the_value_plus_what_each_action_has_over_the_mean():
    """By arithmetic on the streams' own outputs. Mutations: the mean not taken away, or taken over the batch."""
    network = build(recurrent=False)
    seen = {}
    network.extrinsic.value.register_forward_hook(lambda *a: seen.update(value=a[2]))
    network.extrinsic.advantage.register_forward_hook(lambda *a: seen.update(advantage=a[2]))
    with torch.no_grad():
        values = network(**rows(network)).values
    for t in range(T):
        for b in range(B):
            advantages = [float(x) for x in seen["advantage"][t, b]]
            mean = sum(advantages) / A
            want = [float(seen["value"][t, b, 0]) + advantage - mean for advantage in advantages]
            torch.testing.assert_close(values[t, b], torch.tensor(want))


@kinds
def test_one_row_at_a_time_is_all_at_once(spec, sizes):
    """Resets included. Mutation: the two carries exchanged, or one handed to both."""
    network = build(spec, **sizes)
    given = rows(network, resets=0.3)
    together = network(**given)
    carry = given["carry"]
    for t in range(T):
        output = network(**cut(network, given, t, t + 1), carry=carry)
        carry = output.carry
        torch.testing.assert_close(output.values[0], together.values[t])
        if output.intrinsic_values is not None:
            torch.testing.assert_close(output.intrinsic_values[0], together.intrinsic_values[t])
    trees.map(torch.testing.assert_close, carry, together.carry)


@kinds
def test_a_sequence_cut_at_a_reset_is_two_pieces(spec, sizes):
    """Whatever the second piece is given of the first: another carry, another context, another last action.

    Mutations: the carry kept over a reset; what came last not filled with zeros there.
    """
    network = build(spec, **sizes)
    given = rows(network)
    given["first"][network.context + 2] = True
    together = network(**given)
    piece = cut(network, given, 2, T)
    other = rows(network, seed=7)
    trees.map(lambda mine, its: mine[: network.context].copy_(its[: network.context]), piece["obs"], other["obs"])
    piece["last_action"][0] = other["last_action"][0]
    piece["last_reward"][0], piece["last_intrinsic"][0] = float("nan"), float("nan")
    alone = network(**piece, carry=other["carry"])
    torch.testing.assert_close(alone.values, together.values[2:])
    trees.map(torch.testing.assert_close, alone.carry, together.carry)
    given["first"][:] = False
    if network.initial_carry(1) or network.context:  # the negative control
        assert not torch.allclose(network(**given).values[2:], alone.values)


@kinds
def test_columns_and_padding_do_not_matter(spec, sizes):
    """What stands behind the rows of a column, and in other columns, changes nothing. Mutation: [T, B] as [B, T]."""
    network = build(spec, **sizes)
    given = rows(network, resets=0.2)
    together = network(**given)
    short = cut(network, given, 0, 4, slice(1, 2))
    alone = network(**short, carry=trees.map(lambda s: s[1:2], given["carry"]))
    torch.testing.assert_close(alone.values, together.values[:4, 1:2])
    if together.intrinsic_values is not None:
        torch.testing.assert_close(alone.intrinsic_values, together.intrinsic_values[:4, 1:2])


INPUTS = {
    "last_action": ("use_last_action", True),
    "last_reward": ("use_last_reward", True),
    "last_intrinsic": ("use_last_intrinsic", True),
    "arm": ("arms", 3),
}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("used", [True, False], ids=["used", "not used"])
def test_inputs_beside_the_features_are_read_if_asked_for(name, used):
    """Only the row changes; at a reset only the arm is read."""
    option, on = INPUTS[name]
    network = build(
        recurrent=False, **{"use_last_action": False, "use_last_reward": False} | {option: on if used else type(on)()}
    )
    given = rows(network)
    given["first"][4] = True
    before = network(**given).values
    change = {"last_reward": lambda x: x / 2, "last_intrinsic": lambda x: x / 2, "last_action": lambda x: (x + 1) % A}
    other = change.get(name, lambda x: (x + 1) % 3)
    for row, read in ((1, used), (4, used and name == "arm")):
        leaf = given[name].clone()
        leaf[row, 2] = other(leaf[row, 2])
        changed = (network(**{**given, name: leaf}).values != before).any(-1)
        assert changed.nonzero().tolist() == ([[row, 2]] if read else [])


def test_large_rewards_are_squashed():
    """Rewards to [−1, 1]; intrinsic ones by their logarithm, so that 100 is not 10."""
    network = build(recurrent=False, use_last_intrinsic=True)
    given = rows(network)

    def values(**changed):
        return network(**{**given, **{k: torch.full((T, B), v) for k, v in changed.items()}}).values

    assert torch.equal(values(last_reward=1.0), values(last_reward=50.0))
    assert not torch.equal(values(last_intrinsic=10.0), values(last_intrinsic=100.0))
    inputs = network._beside(given["first"], given["last_action"], given["last_reward"], torch.full((T, B), -3.0), None)
    torch.testing.assert_close(inputs[-1], torch.full((T, B, 1), -math.log(4)))  # −log(1 + 3)


def test_the_two_networks_share_nothing():
    """Mutation: the same module for both."""
    network = build(**EVERYTHING)
    mine, its = ({id(p): p for p in part.parameters()} for part in (network.extrinsic, network.intrinsic))
    assert not mine.keys() & its.keys()
    assert [p.shape for p in mine.values()] == [p.shape for p in its.values()]
    given = rows(network)
    before = network(**given)
    with torch.no_grad():
        for parameter in its.values():
            parameter.mul_(1.5)
    carry = {**given["carry"], "intrinsic": trees.map(lambda s: s + 1, given["carry"]["intrinsic"])}
    after = network(**{**given, "carry": carry})
    assert torch.equal(before.values, after.values)
    assert not torch.allclose(before.intrinsic_values, after.intrinsic_values)


PIXELS = Spec(Box(0, 255, (84, 84), np.uint8), Discrete(6))
NATURE4 = Conv(frames=4, channels=(32, 64, 64), kernels=(8, 4, 3), strides=(4, 2, 1))
PLAIN = {"use_last_action": False, "use_last_reward": False}
TORSO1 = 32 * 64 + 32 + 64 * 32 * 16 + 64 + 64 * 64 * 9 + 64  # over one frame
STREAMS = 2 * (512 * 512 + 512) + 512 * 6 + 6 + 512 + 1


@pytest.mark.parametrize(
    "sizes, spec, count",
    [
        ({"perception": NATURE4, "lstm_size": 128, "dueling_size": 128, **PLAIN}, PIXELS, 1_784_103),
        ({"perception": NATURE4, "recurrent": False, "dueling_size": 128, **PLAIN}, PIXELS, 1_816_359),
        ({}, PIXELS, TORSO1 + 4 * 512 * (3136 + 6 + 1 + 512) + 8 * 512 + STREAMS),
        (
            {"hidden_sizes": (32, 128), "lstm_size": 128, "dueling_size": 32, **PLAIN},
            Spec(Box(-1, 1, (3,)), Discrete(2)),
            3 * 32 + 32 + 32 * 128 + 128 + 4 * 128 * 256 + 8 * 128 + 2 * (128 * 32 + 32) + 32 * 2 + 2 + 32 + 1,
        ),
    ],
    ids=["marltas recurrent", "marltas feed-forward", "R2D2", "marltas vector"],
)
def test_sizes_are_those_of_the_paper_and_of_the_original(sizes, spec, count):
    """The first two counts are published with the original; the others by arithmetic."""
    network = QNetwork(**sizes).build(spec)
    assert sum(parameter.numel() for parameter in network.parameters()) == count


def test_vectors_get_a_layer_of_their_own_by_default():
    for recurrent in (True, False):
        network = QNetwork(recurrent=recurrent).build(VECTOR)
        assert [layer.out_features for layer in network.extrinsic.torso.body[::2]] == [512]
    assert len(QNetwork(recurrent=False).build(PIXELS).extrinsic.torso.body) == 2


def test_vectors_go_in_as_they_are():
    """Negative and large numbers count. Mutation: cast to bytes, divided by 255."""
    network = build(recurrent=False)
    given = rows(network)
    before = network(**given).values
    for change in (-0.5, 300.0, 0.001):
        assert not torch.equal(network(**{**given, "obs": given["obs"] + change}).values, before)


def test_in_bfloat16_only_the_torso_computes():
    network = build(STACKED, perception=FRAMES)
    given = rows(network)
    exact = network(**given)
    seen = {}
    parts = {"body": network.extrinsic.torso.body, "core": network.extrinsic.core.lstm, "head": network.extrinsic.value}
    for name, module in parts.items():
        module.register_forward_hook(lambda module, _, out, name=name: seen.update({name: trees.front(out).dtype}))
    network.precision = torch.bfloat16
    rough = network(**given)
    assert seen == {"body": torch.bfloat16, "core": torch.float32, "head": torch.float32}
    torch.testing.assert_close(rough.values, exact.values, atol=0.05, rtol=0.05)
    assert not torch.equal(rough.values, exact.values)


def test_orthogonal_weights():
    network = build(hidden_sizes=(8, 8), initialisation="orthogonal")
    middle, last = network.extrinsic.torso.body[2].weight, network.extrinsic.value[-1].weight
    torch.testing.assert_close(middle @ middle.T, 2 * torch.eye(8), atol=1e-5, rtol=0)
    torch.testing.assert_close(last @ last.T, torch.eye(1), atol=1e-5, rtol=0)
    assert not network.extrinsic.torso.body[2].bias.any()
    assert build(hidden_sizes=(8, 8)).extrinsic.torso.body[2].bias.any()


class Greedy(RowPolicy):
    """As little of a policy as an actor state needs."""

    def __init__(self, network):
        self.network, self.context, self.device = network, network.context, network.device
        self.initial_carry = network.initial_carry

    @torch.inference_mode()
    def act(self, rows, carry):
        latest = slice(self.context, None)
        rest = rows.last_action[latest], rows.last_reward["train"][latest], carry
        output = self.network(rows.obs, rows.first, *rest)
        return output.values[0].argmax(-1), output.carry, {"values": output.values[0]}


def test_an_actor_state_acts_as_the_sequence_says():
    """Window and carry of acting: T single decisions are the network over all T rows, with both LSTMs."""
    network = build(STACKED, perception=FRAMES, separate_intrinsic=True)
    given = rows(network, resets=0.2)
    given["first"][: network.context + 1] = True
    actor_state, said = RowActorState(Greedy(network), B), []
    for t in range(T):
        row = network.context + t
        said.append(
            actor_state.act(
                Row(
                    trees.map(lambda leaf, row=row: leaf[row].numpy(), given["obs"]),
                    given["first"][row].numpy(),
                    given["last_action"][t].numpy(),
                    {"train": given["last_reward"][t].numpy()},
                    np.zeros(B, bool),
                    np.zeros(B, bool),
                )
            )
        )
    together = network(**{**given, "carry": network.initial_carry(B)})
    torch.testing.assert_close(torch.from_numpy(np.stack([d.extras["values"] for d in said])), together.values)
    trees.map(torch.testing.assert_close, actor_state.snapshot()["carry"], together.carry)


@pytest.mark.parametrize("space", [Box(-1, 1, (2,)), MultiDiscrete([2, 3])], ids=str)
def test_only_a_choice_of_actions_can_be_valued(space):
    with pytest.raises(
        EnvSetupError, match="DQN, R2D2 and NGU need discrete actions, but the action space is"
    ) as error:
        QNetwork().build(Spec(VECTOR.obs, space))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("sizes", [{"hidden_sizes": (8, 0)}, {"lstm_size": 0}, {"dueling_size": 0}, {"arms": -1}])
def test_impossible_sizes_are_refused_by_name(sizes):
    with pytest.raises(ConfigError, match=rf"QNetwork\.{next(iter(sizes))} = "):
        QNetwork(**sizes)


def test_a_missing_input_is_noticed():
    network = build(**EVERYTHING)
    given = rows(network)
    for name in ("arm", "last_intrinsic"):
        with pytest.raises(AssertionError, match="needs the"):
            network(**{**given, name: None})
