"""The actor_state: what a policy that looks back is shown, and that a learner sees of an unroll what the policy saw."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from packtrain import trees
from packtrain.acting.actor_state import RowActorState, RowPolicy
from packtrain.acting.sampling import ActorCritic, SamplingPolicy
from packtrain.envs.stream import Stream
from packtrain.envs.vector_env import Outcome
from packtrain.memory.unroll import Unrolls
from packtrain.networks.frames import stack_frames
from packtrain.networks.perception import Conv
from packtrain.runtime import checkpoint
from packtrain.types import Spec

SPEC = Spec(Box(0, 255, (5, 4), np.uint8), Discrete(3))
POISON = 99  # what the film shows of a frame that is no longer valid


class Film:
    """Environments that show noise, with all ends that can happen: by the task, the clock, of a life, at a reset.

    It shows every frame in the same memory, and spoils it as soon as the next step begins.
    """

    action_space = SPEC.action
    reward_channels = ("train",)

    def __init__(self, size, seed, rows=200):
        rng = np.random.default_rng(seed)
        self.obs = rng.integers(256, size=(rows, size, *SPEC.obs.shape), dtype=np.uint8)
        self.reward = rng.normal(size=(rows, size)).astype(np.float32)
        self.first, self.terminated, self.truncated, self.over = (np.zeros((rows, size), bool) for _ in range(4))
        self.first[0] = True
        for row in range(1, rows):
            draw = rng.random(size)
            first = self.first[row] = self.over[row - 1]
            self.reward[row][first] = 0
            self.terminated[row] = (draw < 0.25) & ~first  # half of them lives lost, and the game goes on
            self.truncated[row] = (0.25 < draw) & (draw < 0.32)  # on a row of a reset too: given up at its start
            self.over[row] = self.terminated[row] & (draw < 0.12) | self.truncated[row]
        self._shown = np.empty_like(self.obs[0])
        self._row = 0

    def reset(self):
        self._row = 0
        return self._outcome()

    def send(self, actions):
        self._shown[...] = POISON

    def recv(self):
        self._row += 1
        return self._outcome()

    def _outcome(self):
        row = self._row
        self._shown[...] = self.obs[row]
        ends = self.terminated[row].copy(), self.truncated[row].copy()
        rewards = {"train": self.reward[row].copy()}
        lives = self.terminated[row] | self.truncated[row]
        return Outcome(self._shown, self.first[row].copy(), rewards, *ends, None, self.over[row], lives)

    def stack(self, row, column, count):
        """The last `count` frames of a column at a row: one step back at a time, but never over a reset."""
        frames = []
        for _ in range(count):
            frames.insert(0, self.obs[row, column])
            row -= not self.first[row, column]
        return np.stack(frames)


def walk(actor_state, film, turns):
    """The row, as it was given, and the decision of each turn, copied: both are valid until the next one only."""
    stream = Stream(film, film.obs.shape[1])
    row, walked = stream.start(), []
    for turn in range(turns):
        decision = actor_state.act(row)
        copies = trees.map(lambda leaf: torch.as_tensor(leaf).clone(), (row._asdict(), decision._asdict()))
        walked.append(copies)
        stream.send(decision.action)
        if turn < turns - 1:
            row = stream.recv()
    return walked


def network_policy(frames=4, use_lstm=False, seed=0):
    torch.manual_seed(0)
    perception = Conv(frames=frames, channels=(4,), kernels=(3,), strides=(1,))
    network = ActorCritic(perception, hidden_size=8, use_lstm=use_lstm, lstm_size=8, lstm_layers=2).build_network(SPEC)
    with torch.no_grad():  # far from uniform, so that a wrong input shows
        network.policy.weight *= 5
        network.body[0].weight *= 3
    return SamplingPolicy(network, seed)


class Watching(RowPolicy):
    """Keeps what it is shown; its carry counts rows."""

    device = torch.device("cpu")

    def __init__(self, context):
        self.context = context
        self.shown, self.carries = [], []

    def initial_carry(self, batch):
        return {"rows": torch.zeros(batch, dtype=torch.int64)}

    def act(self, rows, carry):
        self.shown.append(trees.map(torch.clone, rows))
        self.carries.append(carry["rows"].tolist())
        size = rows.first.shape[1]
        number = carry["rows"] + torch.arange(size)
        return number % 3, {"rows": carry["rows"] + 1}, {"number": number.double()}


# -- the window


@pytest.mark.parametrize("context", [0, 1, 3])
def test_a_policy_is_shown_the_last_frames_of_each_column(context):
    """Mutations: a window that keeps views of what the environments overwrite; oldest last; one row short."""
    policy, film = Watching(context), Film(3, seed=1)
    walk(RowActorState(policy, 3), film, 120)
    assert len(policy.shown) == 120
    for turn, rows in enumerate(policy.shown):
        assert rows.obs.shape == (context + 1, 3, 5, 4)
        stacks = stack_frames(rows.obs, rows.first, context + 1)[0]
        for column in range(3):
            assert np.array_equal(stacks[column], film.stack(turn, column, context + 1)), (turn, column)
    assert film.first[1:120].sum() > 10
    assert (film.terminated & ~film.over)[:120].any(0).all(), "every column loses a life"


def test_a_window_holds_whole_rows_and_zeros_before_the_first():
    """Mutation: only observations pushed on."""
    policy, film = Watching(2), Film(2, seed=2)
    walked = walk(RowActorState(policy, 2), film, 30)
    rows = [trees.map(torch.zeros_like, walked[0][0])] * 2 + [row for row, _ in walked]
    for turn, shown in enumerate(policy.shown):
        want = trees.map(lambda *leaves: torch.stack(leaves), *rows[turn : turn + 3])
        got = shown._asdict()
        assert got.keys() == want.keys()
        for name, leaf in trees.named_leaves(want).items():
            assert torch.equal(trees.named_leaves(got)[name], leaf), (turn, name)


def test_a_decision_has_the_row_as_it_came_and_the_carry_before_it():
    """For the memory. Mutation: the carry after the row."""
    actor_state, film = RowActorState(Watching(3), 2), Film(2, seed=3)
    for turn, (row, decision) in enumerate(walk(actor_state, film, 12)):
        assert torch.equal(decision["row"].obs, torch.from_numpy(film.obs[turn]))
        assert torch.equal(decision["row"].first, row["first"])
        assert decision["carry"]["rows"].tolist() == [turn, turn]
        assert decision["action"].tolist() == [turn % 3, (turn + 1) % 3]
        assert decision["extras"]["number"].tolist() == [turn, turn + 1]


def test_decisions_are_arrays():
    decision = RowActorState(network_policy(), 2).act(Stream(Film(2, seed=0), 2).start())
    assert isinstance(decision.action, np.ndarray) and decision.action.dtype == np.int64
    assert list(decision.extras) == ["behaviour_log_prob"]
    assert isinstance(decision.extras["behaviour_log_prob"], np.ndarray)
    assert all(isinstance(leaf, np.ndarray) for leaf in trees.flatten(decision.row))


def test_a_reset_clears_the_window_and_the_recurrent_state():
    """By what the policy is given, since a first row hides both from a network. Mutation: one of them kept."""
    policy, film = Watching(2), Film(2, seed=4)
    actor_state = RowActorState(policy, 2)
    walk(actor_state, film, 5)
    assert policy.carries[-1] == [4, 4] and policy.shown[-1].obs[:2].any()
    actor_state.begin()
    walk(actor_state, film, 2)
    fresh, second = policy.shown[-2:]
    assert policy.carries[-2:] == [[0, 0], [1, 1]]
    assert not any(leaf[:2].any() for leaf in trees.flatten(fresh))
    assert np.array_equal(fresh.obs[2], film.obs[0])
    assert np.array_equal(second.obs[1:], film.obs[:2]) and not second.obs[0].any()


def test_actor_states_of_one_policy_do_not_share_what_they_remember():
    """Mutation: window or carry kept by the policy."""
    together, films = Watching(3), [Film(2, seed=5), Film(2, seed=6)]
    actor_states, streams = [RowActorState(together, 2) for _ in films], [Stream(film, 2) for film in films]
    rows = [stream.start() for stream in streams]
    for _ in range(20):
        for group, (actor_state, stream) in enumerate(zip(actor_states, streams, strict=True)):
            stream.send(actor_state.act(rows[group]).action)
            rows[group] = stream.recv()
    for group, film in enumerate(films):
        alone = Watching(3)
        walk(RowActorState(alone, 2), film, 20)
        for one, other in zip(together.shown[group::2], alone.shown, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(trees.flatten(one), trees.flatten(other), strict=True))


# -- saving


def go_on(actor_state, rows):
    """Decisions for a list of rows, copied."""
    return [trees.map(lambda leaf: torch.as_tensor(leaf).clone(), actor_state.act(row)._asdict()) for row in rows]


def assert_same(got, want):
    got, want = trees.named_leaves(got), trees.named_leaves(want)
    assert got.keys() == want.keys()
    for name in want:
        assert torch.equal(got[name], want[name]), name


@pytest.mark.parametrize("frames", [1, 4])
@pytest.mark.parametrize("use_lstm", [False, True], ids=["feed-forward", "lstm"])
@pytest.mark.parametrize("turns", [0, 1, 2, 9])
def test_a_restored_actor_state_goes_on_bit_for_bit(frames, use_lstm, turns, tmp_path):
    """Through the files of a checkpoint. Mutations: window or carry left out; a snapshot that shares their memory."""
    film = Film(3, seed=7)
    stream = Stream(film, 3)
    rows = [trees.map(np.copy, stream.start())]
    for _ in range(29):
        stream.send(np.zeros(3, np.int64))
        rows.append(trees.map(np.copy, stream.recv()))
    policy = network_policy(frames, use_lstm)
    actor_state = RowActorState(policy, 3)
    go_on(actor_state, rows[:turns])
    snapshot, noise = actor_state.snapshot(), policy.generator.get_state()
    want = go_on(actor_state, rows[turns:])
    checkpoint.save(tmp_path, turns, {"seat": snapshot})

    other = network_policy(frames, use_lstm, seed=9)
    another = RowActorState(other, 3)
    another.restore(checkpoint.load(tmp_path / str(turns))["seat"])
    other.generator.set_state(noise)
    assert_same(go_on(another, rows[turns:]), want)

    actor_state.restore(snapshot)  # and taken back, where it already went on
    policy.generator.set_state(noise)
    assert_same(go_on(actor_state, rows[turns:]), want)
    if frames == 4 and turns == 9:  # the control: without its memory it would have gone on differently
        policy.generator.set_state(noise)
        actor_state.begin()
        assert any(
            not torch.equal(one["extras"]["behaviour_log_prob"], two["extras"]["behaviour_log_prob"])
            for one, two in zip(go_on(actor_state, rows[turns:]), want, strict=True)
        )


# -- what the policy saw is what the learner sees


class Path:
    """Two groups at one policy, each with its state, into one queue, and every value the network gave while acting."""

    def __init__(self, frames, use_lstm, length, seed, groups=(2, 1)):
        self.policy = network_policy(frames, use_lstm, seed)
        self.network, self.length = self.policy.network, length
        self.films = [Film(size, 10 * seed + group) for group, size in enumerate(groups)]
        self.streams = [Stream(film, size) for film, size in zip(self.films, groups, strict=True)]
        self.actor_states = [RowActorState(self.policy, size) for size in groups]
        self.queue = Unrolls(length, batch_size=3).build(list(groups), self.network.context, torch.device("cpu"))
        self.values = [[] for _ in groups]  # by group and row: [B]
        self._said = []
        self.network.register_forward_hook(lambda module, given, output: self._said.append(output.value[0].clone()))

    def samples(self, rows):
        taken = []
        current = [stream.start() for stream in self.streams]
        for row in range(rows):
            for group, (stream, actor_state) in enumerate(zip(self.streams, self.actor_states, strict=True)):
                decision = actor_state.act(current[group])
                self.values[group].append(self._said.pop())
                marks = {"row": row, "group": group, "weights_version": 0}
                extras = {name: np.full(stream.size, mark) for name, mark in marks.items()}
                extras = {**decision.extras, **extras, "column": np.arange(stream.size)}
                self.queue.writer(group).add(decision.row, decision.carry, extras)
                stream.send(decision.action)
                current[group] = stream.recv()
            while (sample := self.queue.sample(version=0)) is not None:
                taken.append(sample.trajectory)
        return taken

    @torch.no_grad()
    def learn(self, trajectory, **changed):
        """(log-probabilities [T, B], values [T+1, B]) of one pass over an unroll, as a learner makes it."""
        trajectory = trajectory._replace(**changed)
        action, reward = (leaf[self.network.context :] for leaf in trajectory.last_inputs())
        output = self.network(trajectory.obs, trajectory.first, action, reward, trajectory.carry)
        return self.network.distribution.log_prob(output.parameters[:-1], trajectory.action), output.value

    def acted(self, trajectory):
        """The values [T+1, B] that acting gave for the rows of an unroll."""
        marks = zip(*(trajectory.extras[name][0].tolist() for name in ("group", "row", "column")), strict=True)
        spans = [(self.values[group][row : row + self.length + 1], column) for group, row, column in marks]
        return torch.stack([torch.stack([value[column] for value in rows]) for rows, column in spans], 1)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("length", [1, 2, 7], ids=["1 step", "shorter than the window", "longer"])
@pytest.mark.parametrize("use_lstm", [False, True], ids=["feed-forward", "lstm"])
@pytest.mark.parametrize("frames", [1, 4])
def test_a_learner_sees_what_the_policy_saw(frames, use_lstm, length, seed):
    """The central property: one pass over an unroll gives the values and probabilities of acting row by row.

    Mutations: context rows of another unroll; frames stacked over a reset, or not stacked over a lost life; a carry
    forgotten at a lost life, or taken one row late; an actor state that keeps what the environment has overwritten.
    """
    path = Path(frames, use_lstm, length, seed)
    trajectories = path.samples(60)
    context = path.network.context
    resets = lives = 0
    unrolls = set()
    for trajectory in trajectories:
        assert trajectory.obs.shape[:2] == (context + length + 1, 3)
        log_prob, value = path.learn(trajectory)
        torch.testing.assert_close(value, path.acted(trajectory), atol=1e-5, rtol=1e-4)
        stored = ~trajectory.first[context + 1 :]  # an action that a reset dropped is not
        torch.testing.assert_close(
            log_prob[stored], trajectory.extras["behaviour_log_prob"][stored], atol=1e-5, rtol=1e-4
        )
        resets += int((~stored).sum())
        lives += int((trajectory.terminated[:-1] & stored[1:]).sum())  # terminated, and no reset follows
        marks = (trajectory.extras[name][0].tolist() for name in ("group", "column", "row"))
        unrolls |= set(zip(*marks, strict=True))
    assert resets > 10 and (lives > 3 or length == 1)
    for group, column in ((0, 0), (0, 1), (1, 0)):  # consecutive unrolls of every column, from its first on
        rows = sorted(row for *where, row in unrolls if where == [group, column])
        assert rows == list(range(rows[0], rows[0] + length * len(rows), length)) and len(rows) >= 5


@pytest.mark.parametrize(
    "use_lstm, change",
    [
        (False, lambda t: {"obs": torch.cat([torch.zeros_like(t.obs[:3]), t.obs[3:]])}),
        (False, lambda t: {"first": torch.zeros_like(t.first)}),
        (False, lambda t: {"first": t.first | torch.cat([torch.zeros_like(t.first[:4]), t.terminated])}),
        (True, lambda t: {"carry": trees.map(torch.zeros_like, t.carry)}),
    ],
    ids=["no context", "no resets", "a lost life as a reset", "no carry"],
)
def test_a_learner_that_sees_something_else_is_noticed(use_lstm, change):
    """The negative control of the test above: each of these would make the learner wrong, and it would show."""
    path = Path(4, use_lstm, 7, 0)
    differences = [
        (path.learn(trajectory, **change(trajectory))[1] - path.acted(trajectory)).abs().max()
        for trajectory in path.samples(60)
    ]
    assert max(differences) > 1e-3


@pytest.mark.parametrize("sizes", [(3, 3), (1, 4, 2)])
def test_several_groups_decide_together_as_they_would_alone(sizes):
    """With an LSTM and stacked frames. Mutations: parts of another group; the carry before is that after."""
    settings = ActorCritic(perception=Conv(frames=3, channels=(4,), kernels=(3,), strides=(1,)), use_lstm=True)
    torch.manual_seed(1)
    network = settings.build_network(SPEC)
    policy = SamplingPolicy(network, seed=0, greedy=True)
    alone, together = ([RowActorState(policy, size) for size in sizes] for _ in range(2))
    films = [Stream(Film(size, seed), size) for seed, size in enumerate(sizes)]
    rows = [film.start() for film in films]
    for step in range(12):
        rows = [trees.map(np.array, row) for row in rows]
        if step % 4 == 3:  # the first group is late
            alone[0].act(rows[0])
            together[0].act(rows[0])
        begin = 1 if step % 4 == 3 else 0
        expected = [state.act(row) for state, row in zip(alone[begin:], rows[begin:], strict=True)]
        found = together[begin].act_together(together[begin + 1 :], rows[begin:])
        for one, other in zip(expected, found, strict=True):
            assert np.array_equal(one.action, other.action) and one.row is other.row
            for leaf, same in zip(trees.flatten(one.carry), trees.flatten(other.carry), strict=True):
                torch.testing.assert_close(leaf, same)
        for film, decision in zip(films[begin:], found, strict=True):
            film.send(decision.action)
        rows = [*rows[:begin], *(film.recv() for film in films[begin:])]
    assert any(trees.flatten(state.snapshot()["carry"])[0].abs().sum() > 0 for state in together)
