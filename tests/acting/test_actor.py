"""The actor: whose turn it is, which weights decide, and going on from where it was."""

import threading

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

from packtrain import trees
from packtrain.acting.actor import Actor
from packtrain.acting.sampling import ActorCritic, SamplingPolicy
from packtrain.envs.catch import Catch
from packtrain.envs.functional_vector_env import FunctionalVectorEnv
from packtrain.envs.stream import Stream
from packtrain.networks.actor_critic import Output
from packtrain.networks.distributions import Categorical
from packtrain.networks.perception import Conv
from packtrain.runtime.weights import Weights
from packtrain.testing.abilities import Counting, Memory
from packtrain.testing.scripted import ScriptedPolicy
from packtrain.types import Spec


class Told:
    """Environments that record every call in a list."""

    def __init__(self, name, tape, size=2):
        self._inner = FunctionalVectorEnv(Counting(length=3), size, 5, "raise", name)
        self._name, self._tape = name, tape

    def __getattr__(self, name):
        if name in ("reset", "send", "recv"):
            self._tape.append(f"{name} {self._name}")
        return getattr(self._inner, name)


class Sink:
    """Keeps copies of its inputs, and records the calls."""

    def __init__(self, name="", tape=None):
        self._name, self._tape = name, [] if tape is None else tape
        self.items = []

    def add(self, row, carry, extras):
        row, extras = trees.map(torch.as_tensor, row), trees.map(torch.as_tensor, extras)
        self._tape.append(f"store {self._name}")
        self.items.append(trees.map(lambda leaf: leaf.clone(), (row._asdict(), carry, extras)))


def scripted(groups, refresh=lambda: 0, **core):
    core = Counting(**{"length": 3, **core})
    streams = [Stream(FunctionalVectorEnv(core, 2, g, "raise", "Counting"), 2) for g in range(groups)]
    sinks = [Sink() for _ in streams]
    return Actor(streams, ScriptedPolicy(core.action_space), sinks, refresh), sinks


def assert_same(got, want):
    got, want = trees.named_leaves(got), trees.named_leaves(want)
    assert got.keys() == want.keys()
    for name in want:
        assert np.array_equal(got[name], want[name]), name  # arrays in snapshots, tensors from policies


# -- order


class TapedPolicy(ScriptedPolicy):
    def __init__(self, tape):
        super().__init__(Discrete(2))
        self._tape = tape

    def act(self, rows, carry):
        self._tape.append("act")
        return super().act(rows, carry)


def taped(groups):
    tape = []
    streams = [Stream(Told(name, tape), 2) for name in "ABC"[:groups]]
    sinks = [Sink(name, tape) for name in "ABC"[:groups]]

    def refresh():
        tape.append("refresh")
        return 0

    return Actor(streams, TapedPolicy(tape), sinks, refresh), tape


def test_two_groups_are_served_in_turn():
    """Ping-pong. Mutations: waiting for a group right after sending to it; weights refreshed inside a decision."""
    actor, tape = taped(2)
    for _ in range(4):
        actor.turn()
    assert tape == [
        *("reset A", "reset B"),
        *("refresh", "act", "store A", "send A"),
        *("refresh", "act", "store B", "send B"),
        *("recv A", "refresh", "act", "store A", "send A"),
        *("recv B", "refresh", "act", "store B", "send B"),
    ]


def test_one_group_is_served_alone():
    actor, tape = taped(1)
    actor.turn()
    actor.turn()
    assert tape == ["reset A", "refresh", "act", "store A", "send A", "recv A", "refresh", "act", "store A", "send A"]


def test_rows_that_last_are_stored_after_the_environments_have_begun():
    """Mutation: storing first always, which keeps native environments waiting."""
    actor, tape = taped(1)
    actor._streams[0].columns._inner.rows_last = True
    actor.turn()
    assert tape == ["reset A", "refresh", "act", "send A", "store A"]


def test_nothing_starts_before_the_first_turn():
    actor, tape = taped(2)
    assert tape == [] and actor.steps == 0
    actor.settle()
    assert tape == [] and actor.snapshot() is None


def test_settling_waits_for_everybody_once():
    actor, tape = taped(2)
    for _ in range(3):
        actor.turn()
    del tape[:]
    actor.settle()
    assert tape == ["recv A", "recv B"] or tape == ["recv B", "recv A"]
    actor.settle()
    assert len(tape) == 2
    actor.turn()
    assert tape[2:] == ["refresh", "act", "store B", "send B"]


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_settling_changes_nothing(groups):
    """Mutation: settling that acts, or that loses a row."""
    plain, settled = scripted(groups), scripted(groups)
    for turn in range(20):
        plain[0].turn()
        settled[0].turn()
        if turn % 3 == 0:
            settled[0].settle()
    plain[0].settle()
    settled[0].settle()
    for one, other in zip(plain[1], settled[1], strict=True):
        assert_same(one.items, other.items)
    assert plain[0].steps == settled[0].steps
    one, other = (
        [(e.returns, e.length, e.column) for e in [e for f in actor.drain_finished() for e in f.episodes()]]
        for actor, _ in (plain, settled)
    )
    assert one == other and one


def test_rows_reach_the_sink_with_the_carry_before_them_and_their_own_extras():
    """Mutation: the carry after the row would count one row too many."""
    actor, (sink,) = scripted(1)
    for _ in range(6):
        actor.turn()
    for turn, (row, carry, extras) in enumerate(sink.items):
        assert carry["rows"].tolist() == [turn, turn] == extras["row"].tolist()
        if turn and not row["first"].any():  # the script of (7·r + 3·b) modulo 2, chosen in the row before
            assert row["last_action"].tolist() == [(7 * (turn - 1)) % 2, (7 * (turn - 1) + 3) % 2]
        elif turn:
            assert row["first"].all() and row["last_action"].tolist() == [0, 0]


def test_steps_and_episodes_of_all_groups_are_counted():
    actor, _ = scripted(2)
    for _ in range(2 * 9):  # per group: start, 3 steps, filler, 3 steps, and one row that is still under way
        actor.turn()
    actor.settle()
    assert actor.settled_steps == 2 * 2 * (9 - 2)
    episodes = [e for f in actor.drain_finished() for e in f.episodes()]
    assert [episode.returns["train"] for episode in episodes] == [6.0] * 8
    assert [e for f in actor.drain_finished() for e in f.episodes()] == []


# -- saving


def networked(use_lstm=True, groups=2, seed=0, network_seed=0):
    """Actors over a task with memory, and an LSTM that uses it."""
    core = Memory(delay=2)
    torch.manual_seed(network_seed)
    spec = Spec(core.observation_space, core.action_space)
    network = ActorCritic(hidden_size=8, lstm_size=8, use_lstm=use_lstm).build_network(spec)
    streams = [Stream(FunctionalVectorEnv(core, 3, g, "raise", "Memory"), 3) for g in range(groups)]
    sinks = [Sink() for _ in streams]
    return Actor(streams, SamplingPolicy(network, seed), sinks, lambda: 0), sinks


class Grey(Catch):
    """Catch as one grey picture [H, W], which can be stacked."""

    def __init__(self):
        super().__init__(rows=5)
        self.observation_space = Box(0, 255, (5, 5), np.uint8)

    def observe(self, states):
        return super().observe(states)[:, 0]


def looking_back(use_lstm):
    """Actors whose network looks at three frames."""
    core = Grey()
    torch.manual_seed(0)
    conv = Conv(frames=3, channels=(4,), kernels=(3,), strides=(1,))
    network = ActorCritic(conv, hidden_size=8, lstm_size=8, use_lstm=use_lstm).build_network(
        Spec(core.observation_space, core.action_space)
    )
    streams = [Stream(FunctionalVectorEnv(core, 3, g, "raise", "Grey"), 3) for g in range(2)]
    sinks = [Sink() for _ in streams]
    return Actor(streams, SamplingPolicy(network, 0), sinks, lambda: 0), sinks


@pytest.mark.parametrize(
    "make",
    [
        lambda: scripted(2),
        lambda: networked(),
        lambda: networked(use_lstm=False),
        lambda: looking_back(use_lstm=False),
        lambda: looking_back(use_lstm=True),
    ],
    ids=["scripted", "lstm", "feed-forward", "frames", "frames and lstm"],
)
@pytest.mark.parametrize("turns", [1, 2, 7, 12])
def test_a_restored_actor_goes_on_bit_for_bit(make, turns):
    """Mutations: the generator, the carries, the windows, the rows under way or whose turn it is left out."""
    actor, sinks = make()
    for _ in range(turns):
        actor.turn()
    snapshot = actor.snapshot()
    stored = [len(sink.items) for sink in sinks]
    for _ in range(15):
        actor.turn()
    want = [sink.items[count:] for sink, count in zip(sinks, stored, strict=True)]

    other, others = make()
    other._policy.generator.manual_seed(99)
    other.restore(snapshot)
    assert other._next == turns % 2
    for _ in range(15):
        other.turn()
    for got, expected in zip(others, want, strict=True):
        assert_same(got.items, expected)
    assert other.steps == actor.steps


def test_an_actor_under_way_can_be_taken_back():
    """Mutation: rows and answers under way from before the restore would be served as if they came after it."""
    actor, sinks = scripted(2)
    for _ in range(5):
        actor.turn()
    snapshot = actor.snapshot()
    lives = []
    for _ in range(3):
        for sink in sinks:
            sink.items = []
        for _ in range(9):
            actor.turn()
        lives.append([sink.items for sink in sinks])
        actor.restore(snapshot)
    assert [len(items) for items in lives[0]] == [4, 5]
    assert_same(lives[1], lives[0])
    assert_same(lives[2], lives[0])


def test_an_actor_can_be_saved_right_after_it_was_restored():
    """Mutation: one that only saves after a turn loses its environments when a resumed run is stopped at once."""
    actor, _ = scripted(2)
    for _ in range(5):
        actor.turn()
    snapshot = actor.snapshot()
    other, _ = scripted(2)
    other.restore(snapshot)
    again = other.snapshot()
    assert again["next"] == snapshot["next"]
    assert_same(again["seats"], snapshot["seats"])
    one, two = ([stream["row"] for stream in saved["streams"]] for saved in (again, snapshot))
    assert_same(one, two)


def test_environments_that_cannot_be_saved_make_no_snapshot():
    actor, _ = scripted(2)
    actor.turn()
    actor._streams[1].columns.snapshot = lambda: None
    assert actor.snapshot() is None


def test_closing_closes_every_group():
    tape = []
    actor, _ = scripted(2)
    for stream in actor._streams:
        stream.columns.close = lambda: tape.append("close")
    actor.close()
    assert tape == ["close", "close"]


# -- weights


def test_the_version_that_decided_is_stored():
    """Mutation: the version read after the decision."""
    versions = iter(range(10, 20))
    actor, sinks = scripted(2, refresh=lambda: next(versions))
    for _ in range(6):
        actor.turn()
    stamped = [[extras["weights_version"].tolist() for *_, extras in sink.items] for sink in sinks]
    assert stamped == [[[10, 10], [12, 12], [14, 14]], [[11, 11], [13, 13], [15, 15]]]


class Version(nn.Module):
    """A network whose every parameter is the number of its version, and that says what it sees of them."""

    context = 0

    def __init__(self):
        super().__init__()
        self.layers = nn.ParameterList(nn.Parameter(torch.zeros(500)) for _ in range(20))
        self.value = nn.Linear(1, 1)
        self.distribution = Categorical(2)
        self.seen = []

    def become(self, version):
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(version)

    def initial_carry(self, batch):
        return ()

    def forward(self, obs, first, last_action, last_reward, carry):
        seen = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters()])
        self.seen.append((seen.min().item(), seen.max().item()))
        return Output(torch.zeros(*first.shape, 2), torch.zeros(first.shape), ())


def test_no_decision_is_made_with_a_mixture_of_versions():
    """Torn reads (specs/impala.md 1.1). Mutation: a copy into the policy without the publisher's lock."""
    learner, acting, weights = Version(), Version(), Weights()
    learner.become(0)
    weights.publish("policy", learner, 0)
    have = [-1]

    def refresh():
        have[0] = weights.pull("policy", acting, have[0])
        return have[0]

    stream = Stream(FunctionalVectorEnv(Counting(), 2, 0, "raise", "Counting"), 2)
    sink = Sink()
    actor = Actor([stream], SamplingPolicy(acting, 0), [sink], refresh)
    over = threading.Event()

    def publish():
        version = 0
        while not over.is_set():
            version += 1
            learner.become(version)
            weights.publish("policy", learner, version)

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    try:
        while len(acting.seen) < 100 or acting.seen[-1][0] < 50:
            actor.turn()
            assert len(acting.seen) < 100_000, "no new version arrives"
    finally:
        over.set()
        thread.join(10)
    stamped = [extras["weights_version"][0].item() for *_, extras in sink.items]
    assert [(version, version) for version in stamped] == acting.seen
    assert stamped == sorted(stamped) and len(set(stamped)) > 3


def test_weights_are_copied_and_not_shared():
    learner, acting, weights = Version(), Version(), Weights()
    learner.become(3)
    weights.publish("policy", learner, 1)
    assert weights.version("policy") == 1
    learner.become(4)  # an update under way is not seen before it is published
    places = [parameter.data_ptr() for parameter in acting.parameters()]
    assert weights.pull("policy", acting, -1) == 1
    assert all((parameter == 3).all() for parameter in acting.parameters())
    assert [parameter.data_ptr() for parameter in acting.parameters()] == places  # in place: compiled code sees it
    acting.become(7)
    assert weights.pull("policy", acting, 1) == 1
    assert all((parameter == 7).all() for parameter in acting.parameters())  # it has that version already
    weights.publish("policy", learner, 2)
    assert weights.pull("policy", acting, 1) == 2
    assert all((parameter == 4).all() for parameter in acting.parameters())


# -- the network's policy


def test_a_policy_acts_as_its_network_says():
    spec = Spec(Box(-1, 1, (3,)), Discrete(4))
    torch.manual_seed(0)
    network = ActorCritic(hidden_size=8).build_network(spec)
    stream = Stream(FunctionalVectorEnv(Memory(), 3, 0, "raise", "Memory"), 3)
    rows = trees.map(lambda leaf: torch.from_numpy(leaf)[None], stream.start())  # [B, ...] → [1, B, ...]
    action, carry, extras = SamplingPolicy(network, 1).act(rows, ())
    with torch.no_grad():
        output = network(rows.obs, rows.first, rows.last_action, rows.last_reward["train"], ())
        want = output.parameters[0].log_softmax(-1).gather(-1, action[:, None])[:, 0]
    torch.testing.assert_close(extras["behaviour_log_prob"], want)
    assert carry == () and action.shape == (3,) and not extras["behaviour_log_prob"].requires_grad
    greedy, _, nothing = SamplingPolicy(network, 1, greedy=True).act(rows, ())
    assert torch.equal(greedy, output.parameters[0].argmax(-1)) and nothing == {}


def test_columns_that_see_the_same_do_not_act_the_same():
    """Specs/impala.md 2.9.1, through the policy: eight columns, one observation, no two with the same actions."""
    core = Counting(length=100)
    torch.manual_seed(0)
    network = ActorCritic(hidden_size=4).build_network(Spec(core.observation_space, core.action_space))
    with torch.no_grad():
        network.policy.weight.zero_()
        network.policy.bias.zero_()
    stream, sink = Stream(FunctionalVectorEnv(core, 8, 0, "raise", "Counting"), 8), Sink()
    actor = Actor([stream], SamplingPolicy(network, 0), [sink], lambda: 0)
    for _ in range(60):
        actor.turn()
    actions = torch.stack([row["last_action"] for row, *_ in sink.items[1:]]).T  # [8, 59]
    assert len({tuple(column.tolist()) for column in actions}) == 8
    assert np.abs(np.corrcoef(actions.numpy()) - np.eye(8)).max() < 0.6


@pytest.mark.parametrize("groups", [1, 2])
def test_steps_do_not_depend_on_when_the_actor_is_settled(groups):
    """A checkpoint waits for answers before their turn. Mutation: counting them there."""
    straight, _ = scripted(groups)
    settled, _ = scripted(groups)
    for turn in range(13 * groups):
        straight.turn()
        settled.turn()
        if turn % 3 == 1:
            settled.settle()
        assert settled.steps == straight.steps, turn
    settled.settle()
    assert settled.settled_steps == settled.steps + 2 * groups == straight.steps + 2 * groups


def test_steps_go_on_as_they_would_have_after_a_restore():
    """Mutation: what was waited for counts at once in the run that goes on."""
    one, _ = scripted(1)
    for _ in range(6):
        one.turn()
    saved, before = one.snapshot(), one.steps
    other, _ = scripted(1)
    other.restore(saved)
    assert other.steps == one.steps == before
    one.turn(), other.turn()
    assert other.steps == one.steps > before
