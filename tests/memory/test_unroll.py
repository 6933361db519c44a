"""The unroll queue, by following every row of a counting environment from the stream into the samples."""

import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain import trees
from packtrain.acting.actor import Actor
from packtrain.envs.functional_vector_env import FunctionalVectorEnv
from packtrain.envs.stream import Stream
from packtrain.errors import ConfigError
from packtrain.memory.unroll import Unrolls
from packtrain.testing.abilities import Counting
from packtrain.testing.scripted import ScriptedPolicy

CPU = torch.device("cpu")


class Tape:
    """A sink that keeps a copy of everything before it hands it on: the truth that samples are compared with."""

    def __init__(self, sink):
        self._sink = sink
        self.rows, self.carries, self.extras = [], [], []

    def add(self, row, carry, extras):
        def copy(tree):
            return trees.map(lambda leaf: torch.as_tensor(leaf).detach().clone(), tree)

        self.rows.append(copy(row))
        self.carries.append(copy(carry))
        self.extras.append(copy(extras))
        self._sink.add(row, carry, extras)


class Path:
    """Streams of a counting core, an actor with a scripted policy, and an unroll queue."""

    def __init__(self, num=3, length=4, batch=2, groups=1, policy=None, core=None, refresh=None, context=0, **unrolls):
        core = core or Counting(length=5)
        self.num, self.length, self.batch = num, length, batch
        self.sizes = [(num + groups - 1 - g) // groups for g in range(groups)]
        columns = [FunctionalVectorEnv(core, size, 100 + g, "raise", "Counting") for g, size in enumerate(self.sizes)]
        self.streams = [Stream(one, size) for one, size in zip(columns, self.sizes, strict=True)]
        self.policy = policy or ScriptedPolicy(core.action_space)
        self.queue = Unrolls(unroll_length=length, batch_size=batch, **unrolls).build(self.sizes, context, CPU)
        self.tapes = [Tape(sink) for sink in self.queue.writers]
        self.actor = Actor(self.streams, self.policy, self.tapes, refresh or (lambda: 0))

    def samples(self, count, version=0, turns=10_000):
        """Act until there are `count` samples, taking each as soon as it is ready."""
        taken = []
        for _ in range(turns):
            while len(taken) < count and (sample := self.queue.sample(version=version)) is not None:
                taken.append(sample)
            if len(taken) == count:
                return taken
            assert self.queue.has_room()
            self.actor.turn()
        raise AssertionError(f"only {len(taken)} of {count} samples after {turns} turns")

    def expected(self):
        """(group, column within it, number of its row 0) of every unroll written, in the order of the queue.

        Column c of N begins its unrolls at rows c·T/N, c·T/N + T, … and each is complete with the row T later.
        """
        complete = []
        column = 0
        for group, (size, tape) in enumerate(zip(self.sizes, self.tapes, strict=True)):
            for inside in range(size):
                start = column * self.length // self.num
                while start + self.length < len(tape.rows):
                    complete.append((start + self.length, group, inside, start))
                    start += self.length
                column += 1
        return [(group, inside, start) for _, group, inside, start in sorted(complete)]


def unrolls_of(samples):
    """Each unroll of a list of samples as a tree with the batch axis removed."""
    for sample in samples:
        trajectory = sample.trajectory
        for b in range(trajectory.reward.shape[1]):
            fields = trajectory._asdict()
            carry = trees.map(lambda leaf, b=b: leaf[b], fields.pop("carry"))
            yield {**trees.map(lambda leaf, b=b: leaf[:, b], fields), "carry": carry}


def from_rows(path, group, column, start):
    """The unroll that should be in the queue: rows `start` to `start` + T of a column."""
    tape, end = path.tapes[group], start + path.length

    def pick(trees_by_row, begin, stop):
        return trees.map(lambda *rows: torch.stack([row[column] for row in rows]), *trees_by_row[begin:stop])

    rows = pick(tape.rows, start, end + 1)
    after = trees.map(lambda leaf: leaf[1:], rows)
    return {
        "obs": rows.obs,
        "first": rows.first,
        "action": after.last_action,
        "reward": after.last_reward["train"],
        "terminated": after.terminated,
        "truncated": after.truncated,
        "last_action": trees.map(lambda leaf: leaf[:1], rows.last_action),
        "last_reward": {"train": rows.last_reward["train"][:1]},
        "carry": trees.map(lambda leaf: leaf[column], tape.carries[start]),
        "extras": pick(tape.extras, start, end),
    }


def assert_equal_trees(got, want):
    got, want = trees.named_leaves(got), trees.named_leaves(want)
    assert got.keys() == want.keys()
    for name in want:
        assert got[name].dtype == want[name].dtype and torch.equal(got[name], want[name]), name


SHAPES = [
    pytest.param(1, 4, 1, 1, id="one column"),
    pytest.param(1, 1, 1, 1, id="one column, one step"),
    pytest.param(3, 4, 2, 1, id="odd columns"),
    pytest.param(2, 5, 4, 1, id="fewer columns than a batch"),
    pytest.param(7, 3, 2, 1, id="more columns than steps"),
    pytest.param(5, 1, 3, 1, id="one step"),
    pytest.param(4, 4, 2, 2, id="two groups"),
    pytest.param(5, 3, 4, 2, id="two odd groups"),
    pytest.param(7, 2, 3, 3, id="three groups, more columns than steps"),
]


@pytest.mark.parametrize("ends_as", ["termination", "truncation"])
@pytest.mark.parametrize("tree", [False, True], ids=["array", "tree"])
@pytest.mark.parametrize("num, length, batch, groups", SHAPES)
def test_samples_are_the_written_rows_in_their_order(num, length, batch, groups, tree, ends_as):
    """Everything at once: content, order, staggered starts, carry before row 0, overlap, filler counts.

    Mutations: carry of the row after; extras written before the move; `starts` ignored; a slot reused too early.
    """
    path = Path(num, length, batch, groups, core=Counting(length=3, ends_as=ends_as, tree=tree))
    samples = path.samples(8)
    expected = path.expected()
    got = list(unrolls_of(samples))
    assert len(got) == 8 * batch
    for unroll, where in zip(got, expected, strict=False):
        assert_equal_trees(unroll, from_rows(path, *where))
    for sample in samples:
        assert sample.trajectory.reward.shape == (length, batch)
        assert sample.trajectory.first.shape == (length + 1, batch)
        assert sample.steps == length * batch - int(sample.trajectory.first[1:].sum())
        assert sample.lag.shape == (batch,)


def by_column(path, samples):
    """{(group, column): its unrolls in order}."""
    columns = {}
    for unroll, (group, column, _) in zip(unrolls_of(samples), path.expected(), strict=False):
        columns.setdefault((group, column), []).append(unroll)
    return columns


@pytest.mark.parametrize("num, length, batch, groups", SHAPES)
def test_row_t_of_one_unroll_is_row_0_of_the_next(num, length, batch, groups):
    """Specs/impala.md section 8.7. Mutation: a slot that does not begin with the row its predecessor ended with."""
    path = Path(num, length, batch, groups)
    columns = by_column(path, path.samples(15))
    pairs = [pair for unrolls in columns.values() for pair in zip(unrolls[:-1], unrolls[1:], strict=True)]
    assert len(pairs) >= 8
    for one, following in pairs:
        assert torch.equal(one["obs"][-1], following["obs"][0])
        assert one["first"][-1] == following["first"][0]
        assert one["action"][-1] == following["last_action"][0]
        assert one["reward"][-1] == following["last_reward"]["train"][0]
        assert following["carry"]["rows"] == one["carry"]["rows"] + length
        assert following["carry"]["rows"] == following["extras"]["row"][0]


@pytest.mark.parametrize("ends_as", ["termination", "truncation"])
@pytest.mark.parametrize("num, length, batch, groups", SHAPES)
def test_every_transition_is_seen_exactly_once(num, length, batch, groups, ends_as):
    """By what the environment says alone: episode ids and step numbers. Mutation: an unroll queued twice, or lost."""
    path = Path(num, length, batch, groups, core=Counting(length=5, ends_as=ends_as))
    samples = path.samples(20)
    seen, fillers = [], 0
    for unrolls in by_column(path, samples).values():
        inside = None  # (episode, step) before the next transition of this column
        for unroll in unrolls:
            for t in range(length):
                before, after = unroll["obs"][t].tolist(), unroll["obs"][t + 1].tolist()
                assert inside is None or inside == before
                if unroll["first"][t + 1]:
                    fillers += 1
                    assert before[1] == 5 and after[1] == 0 and before[0] != after[0]
                    assert unroll["reward"][t] == 0 and unroll["action"][t] == 0
                    assert not unroll["terminated"][t] and not unroll["truncated"][t]
                else:
                    seen.append((after[0], after[1]))
                    assert after == [before[0], before[1] + 1]
                    assert unroll["reward"][t] == after[1]
                    assert unroll["terminated"][t] == (after[1] == 5 and ends_as == "termination")
                    assert unroll["truncated"][t] == (after[1] == 5 and ends_as == "truncation")
                inside = after
    assert len(seen) == len(set(seen)) == sum(sample.steps for sample in samples)
    assert fillers == 20 * length * batch - len(seen)
    assert fillers > 0


def test_columns_start_staggered_so_that_batches_do_not_burst():
    """Column c begins c·T/N rows after column 0. Mutation: equal starts give all N unrolls in one turn."""
    path = Path(num=4, length=8, batch=1)
    arrivals = []
    for turn in range(26):
        path.actor.turn()
        while (sample := path.queue.sample(version=0)) is not None:
            arrivals.append((turn, int(sample.trajectory.carry["rows"])))
    assert arrivals == [(8, 0), (10, 2), (12, 4), (14, 6), (16, 8), (18, 10), (20, 12), (22, 14), (24, 16)]


def test_actions_are_stored_beside_what_they_led_to():
    """With a tree core, the observation repeats the action that led to it."""
    path = Path(num=3, length=4, batch=2, core=Counting(length=3, tree=True))
    for unroll in unrolls_of(path.samples(10)):
        shown, real = unroll["obs"]["last_action"][1:], ~unroll["first"][1:]
        assert torch.equal(shown[real], unroll["action"][real])
        assert unroll["action"][~real].eq(0).all()
        assert torch.equal(unroll["obs"]["parts"][0][:, 0].long(), unroll["obs"]["count"][:, 1])


def test_context_rows_stand_in_front_of_row_0():
    """For policies that stack frames. Mutation: the rows of the unroll before last, or context that shifts actions."""
    path = Path(num=3, length=4, batch=2, context=2)
    checked = 0
    for unroll, (group, column, start) in zip(unrolls_of(path.samples(10)), path.expected(), strict=False):
        rows = path.tapes[group].rows
        want = from_rows(path, group, column, start)
        assert unroll["obs"].shape == (7, 2) and unroll["last_action"].shape == (3,)
        for name in ("action", "reward", "terminated", "truncated"):
            assert torch.equal(unroll[name], want[name]), name
        if start >= 2:
            checked += 1
            for c in range(3):
                row = rows[start - 2 + c]
                assert torch.equal(unroll["obs"][c], row.obs[column]) and unroll["first"][c] == row.first[column]
                assert unroll["last_action"][c] == row.last_action[column]
                assert unroll["last_reward"]["train"][c] == row.last_reward["train"][column]
    assert checked > 10


def test_a_batch_is_taken_whole_or_not_at_all():
    path = Path(num=3, length=2, batch=3, num_buffers=6)
    while len(path.queue) < 2:
        assert path.queue.sample(version=0) is None and not path.queue.ready()
        path.actor.turn()
    assert len(path.queue) == 2  # what was refused is still there


# -- backpressure


def fill(path):
    while path.queue.has_room():
        path.actor.turn()


def test_a_full_queue_has_no_room_and_a_sample_makes_some():
    path = Path(num=4, length=3, batch=2, num_buffers=5)
    fill(path)
    assert 5 <= len(path.queue) <= 6  # two columns may finish in one turn
    begin = time.monotonic()
    assert not path.queue.wait_for_room(0.05)
    assert 0.05 <= time.monotonic() - begin < 1.0
    assert path.queue.sample(version=0) is not None
    assert path.queue.has_room() and path.queue.wait_for_room(0.0)


def test_an_empty_queue_keeps_a_learner_waiting():
    path = Path()
    begin = time.monotonic()
    assert not path.queue.wait_for_batch(0.05)
    assert 0.05 <= time.monotonic() - begin < 1.0
    path.samples(1)
    fill(path)
    assert path.queue.wait_for_batch(0.0)


@pytest.mark.parametrize("num, length, batch, groups", SHAPES)
def test_there_is_always_a_free_slot_while_there_is_room(num, length, batch, groups):
    """Fill to the brim, take one batch, again and again. Mutation: one slot fewer fails for some of these shapes."""
    path = Path(num, length, batch, groups, core=Counting(length=3))
    samples = []
    for _ in range(10):
        fill(path)
        samples.append(path.queue.sample(version=0))
    for unroll, where in zip(unrolls_of(samples), path.expected(), strict=False):
        assert_equal_trees(unroll, from_rows(path, *where))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    num=st.integers(1, 5),
    length=st.integers(1, 4),
    batch=st.integers(1, 4),
    groups=st.integers(1, 2),
    room=st.integers(0, 4),
    lag=st.sampled_from([None, 1, 3]),
    stalls=st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=8),
)
def test_f12_no_schedule_of_stalls_leaves_actor_and_learner_waiting(num, length, batch, groups, room, lag, stalls):
    """Each side goes on alone while the other stalls, with unrolls dropped for their lag meanwhile. L4: no batch is
    older than the limit. Mutation: slots of dropped unrolls are not free again; a drop does not make room."""
    version = [0]
    path = Path(
        *(num, length, batch, min(groups, num)),
        core=Counting(length=3),
        refresh=lambda: version[0],
        num_buffers=batch + room,
        max_policy_lag=lag,
    )
    found = [0]

    def act():
        if path.queue.wait_for_room(0.0):
            path.actor.turn()

    def learn():
        if (sample := path.queue.sample(version=version[0])) is not None:
            assert lag is None or int(sample.lag.max()) <= lag
            version[0] += 1
            found[0] += 1

    for acts, turns in stalls:
        for _ in range(turns):
            act() if acts else learn()
            assert path.queue.wait_for_room(0.0) or path.queue.ready(), "both sides wait for each other"
    before = found[0]
    for _ in range(40 * length * (batch + room)):
        act()
        learn()
        if found[0] == before + 3:
            return
    raise AssertionError("no batch arrives although both sides go on")


def wake(waiting, cause):
    """Seconds that `waiting` lasted in a thread, when `cause` is called after 0.1 s."""
    lasted = []

    def wait():
        begin = time.monotonic()
        assert waiting(6.0)
        lasted.append(time.monotonic() - begin)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    cause()
    thread.join(30)
    return lasted[0]


def test_a_sample_wakes_a_waiting_actor():
    path = Path(num_buffers=4)
    fill(path)
    assert wake(path.queue.wait_for_room, lambda: path.queue.sample(version=0)) < 3


def test_dropping_stale_unrolls_wakes_a_waiting_actor():
    """Mutation: without the notification the actor sleeps until its timeout, although there is room."""
    path = Path(num_buffers=4, max_policy_lag=2)
    fill(path)
    assert wake(path.queue.wait_for_room, lambda: path.queue.sample(version=3)) < 3


def test_a_full_batch_wakes_a_waiting_learner():
    path = Path()
    assert wake(path.queue.wait_for_batch, lambda: fill(path)) < 3


@pytest.mark.parametrize("slow", ["actor", "learner", "nobody"])
@pytest.mark.parametrize("num, length, batch, groups", [(5, 3, 2, 2), (3, 2, 4, 1)])
def test_nothing_is_lost_or_torn_between_threads(num, length, batch, groups, slow):
    """An actor thread and a learner thread at their own speeds. Mutation: slots freed before they are copied out."""
    path = Path(num, length, batch, groups, core=Counting(length=3, tree=True))
    wanted, over, faults = 80, threading.Event(), []

    def act():
        try:
            while not over.is_set():
                if path.queue.wait_for_room(0.02):
                    path.actor.turn()
                    if slow == "actor":
                        time.sleep(0.001)
        except BaseException as error:
            faults.append(error)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    samples, deadline = [], time.monotonic() + 60
    try:
        while len(samples) < wanted and not faults and time.monotonic() < deadline:
            if path.queue.wait_for_batch(0.02) and (sample := path.queue.sample(version=0)) is not None:
                samples.append(sample)
                if slow == "learner":
                    time.sleep(0.002)
    finally:
        over.set()
        thread.join(10)
    assert not faults and len(samples) == wanted
    for unroll, where in zip(unrolls_of(samples), path.expected(), strict=False):
        assert_equal_trees(unroll, from_rows(path, *where))


# -- lag


def versioned(num=2, length=4, batch=1, **unrolls):
    """A path whose weights have the version that its `version` holds."""
    version = [0]
    path = Path(num, length, batch, refresh=lambda: version[0], core=Counting(), **unrolls)
    return path, version


def test_unrolls_over_the_lag_limit_are_dropped_and_counted():
    """L4: the lag of a batch is never over the limit. Mutation: ≤ for < drops one version too early."""
    path, version = versioned(max_policy_lag=2, num_buffers=4)
    for turn in range(11):  # unrolls of column 0 begin at rows 0, 4, 8; of column 1 at 2, 6
        version[0] = turn
        path.actor.turn()
    assert len(path.queue) == 4
    sample = path.queue.sample(version=6)  # those begun with version 4 are just young enough
    assert path.queue.dropped == 2
    assert sample.lag.tolist() == [2]
    assert sample.trajectory.extras["weights_version"].T.tolist() == [[4, 5, 6, 7]]


def test_lag_counts_from_the_weights_of_the_first_action():
    path, version = versioned(num=1, batch=1)
    for turn in range(5):
        version[0] = 10 + turn
        path.actor.turn()
    sample = path.queue.sample(version=15)
    assert sample.trajectory.extras["weights_version"][:, 0].tolist() == [10, 11, 12, 13]
    assert sample.lag.tolist() == [5]
    assert path.queue.dropped == 0


def test_slots_of_dropped_unrolls_are_used_again():
    path, version = versioned(max_policy_lag=1, num_buffers=4)
    for round_ in range(1, 40):
        fill(path)
        version[0] = 10 * round_
        assert path.queue.sample(version=version[0]) is None
    assert path.queue.dropped >= 100
    fill(path)
    assert path.queue.sample(version=version[0]).lag.item() <= 1


def test_limits_follow_from_the_sizes():
    sizes = Unrolls(batch_size=4)
    assert sizes.bound(1) == 4 and sizes.bound(10) == 20
    assert Unrolls(num_buffers=7, batch_size=4).bound(10) == 7
    assert sizes.lag_limit(4) == 20
    # 200 unrolls may wait, 100 columns hold two each: 100 updates before the last of them is learned from
    assert sizes.lag_limit(100) == 101
    assert Unrolls(max_policy_lag=3).lag_limit(100) == 3


@pytest.mark.parametrize("name", ["unroll_length", "batch_size", "num_buffers", "max_policy_lag"])
def test_impossible_sizes_are_refused_by_name(name):
    with pytest.raises(ConfigError, match=rf"Unrolls\.{name} = 0 must be at least 1"):
        Unrolls(**{name: 0})


def test_a_batch_that_could_never_be_full_is_refused():
    with pytest.raises(ConfigError, match=r"Unrolls\.batch_size = 8 .* Unrolls\.num_buffers = 7"):
        Unrolls(batch_size=8, num_buffers=7)
    Unrolls(batch_size=8, num_buffers=8)


# -- saving


@pytest.mark.parametrize("turns", [1, 7, 8, 13])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_restored_queue_goes_on_as_if_nothing_had_happened(turns, groups):
    """Mutations: a snapshot without positions, without fillers, without the waiting slots, or that shares memory."""
    core = Counting(length=3)
    path = Path(5, 4, 2, groups, core=core, num_buffers=20)
    for _ in range(turns):
        path.actor.turn()
    actor, queue = path.actor.snapshot(), path.queue.snapshot()
    want = path.samples(20)  # more unrolls than there are slots: all of them are used again

    other = Path(5, 4, 2, groups, core=core, num_buffers=20)
    other.actor.restore(actor)
    other.queue.restore(queue)
    got = other.samples(20)
    for one, two in zip(got, want, strict=True):
        assert_equal_trees(one.trajectory._asdict(), two.trajectory._asdict())
        assert one.steps == two.steps and torch.equal(one.lag, two.lag)


def test_a_snapshot_keeps_the_count_of_dropped_unrolls():
    path, version = versioned(max_policy_lag=1)
    fill(path)
    path.queue.sample(version=10)
    assert path.queue.dropped > 0
    other, _ = versioned(max_policy_lag=1)
    other.queue.restore(path.queue.snapshot())
    assert other.queue.dropped == path.queue.dropped


def test_a_queue_that_has_seen_nothing_has_an_empty_snapshot():
    path = Path()
    assert path.queue.snapshot() == {}
    path.queue.restore({})
    assert path.samples(2)


# -- memory


class Leaky(ScriptedPolicy):
    """Forgets no_grad: the carry it gives out hangs on a parameter."""

    def __init__(self, action_space):
        super().__init__(action_space)
        self.weight = torch.nn.Parameter(torch.ones(()))

    def initial_carry(self, batch):
        return {**super().initial_carry(batch), "state": torch.zeros(batch)}

    def act(self, rows, carry):
        action, after, extras = super().act(rows, carry)
        return action, {**after, "state": carry["state"] * 0.5 + self.weight}, extras


class Hanging:
    """A sink that hands on what it is given as tensors, all that can on a graph."""

    def __init__(self, sink, weight):
        self._sink, self._weight = sink, weight
        self.hung = 0

    def add(self, row, carry, extras):
        row = row._replace(last_reward={"train": self._hang(row.last_reward["train"])})
        extras = {name: torch.as_tensor(leaf) for name, leaf in extras.items()}
        extras["behaviour_log_prob"] = self._hang(extras["noise"])
        self.hung += sum(leaf.requires_grad for leaf in trees.flatten((row.last_reward, carry, extras)))
        self._sink.add(trees.map(torch.as_tensor, row), carry, extras)

    def _hang(self, leaf):
        return torch.as_tensor(leaf) * self._weight


def arena(queue):
    return trees.flatten((queue._rows, queue._extras, queue._carry))


def test_the_arena_never_requires_grad():
    """Specs/impala.md 2.9.2. Mutation: writes outside no_grad make the arena part of a graph that only grows."""
    core = Counting(length=3)
    policy = Leaky(core.action_space)
    path = Path(core=core, policy=policy)
    sinks = [Hanging(tape._sink, policy.weight) for tape in path.tapes]
    for tape, sink in zip(path.tapes, sinks, strict=True):
        tape._sink = sink
    for sample in path.samples(5):
        assert not any(leaf.requires_grad for leaf in trees.flatten(sample.trajectory))
        assert torch.equal(sample.trajectory.extras["behaviour_log_prob"], sample.trajectory.extras["noise"])
    assert not any(leaf.requires_grad or leaf.grad_fn for leaf in arena(path.queue))
    assert all(sink.hung >= 3 * (len(tape.rows) - 1) for sink, tape in zip(sinks, path.tapes, strict=True))


def test_the_arena_does_not_grow():
    """Every slot is filling, waiting or free, and nothing is allocated after the first row."""
    path = Path(num=5, length=3, batch=2, groups=2)
    path.actor.turn()
    places = [(leaf.data_ptr(), leaf.shape) for leaf in arena(path.queue)]
    for _ in range(30):
        fill(path)
        path.queue.sample(version=0)
        queue = path.queue
        filling = np.concatenate([sink.slot for sink in queue.writers]).tolist()
        assert sorted([*filling, *queue._full, *queue._free]) == list(range(queue._slots))
    assert [(leaf.data_ptr(), leaf.shape) for leaf in arena(path.queue)] == places


def test_a_sample_is_a_copy():
    """Mutation: a view of the arena changes while the learner reads it."""
    path = Path(num=2, length=3, batch=2)
    (sample,) = path.samples(1)
    kept = trees.map(torch.clone, sample.trajectory._asdict())
    path.samples(10)
    assert_equal_trees(sample.trajectory._asdict(), kept)


def test_a_queue_gives_batches_of_its_own_size_alone():
    """And one at a time; without a version there is no lag. Mutation: the argument is ignored."""
    path = Path(num=2, length=3, batch=2)
    fill(path)
    for arguments, name in (({"batch_size": 3}, "batch_size = 3"), ({"count": 2}, "count = 2")):
        with pytest.raises(ConfigError, match=f"UnrollQueue cannot sample with {name}"):
            path.queue.sample(**arguments)
    with pytest.raises(ConfigError, match="UnrollQueue cannot sample with holdout = True"):
        path.queue.sample(holdout=True)
    assert path.queue.sample(2).lag is None and path.queue.view("all") is None
