"""A replay of sequences with other environments: what a plain list of rows says of every sequence still holds."""

import copy
import dataclasses
import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain.errors import CheckpointError
from packtrain.memory import resize
from packtrain.memory.sequence_settings import Sequences
from packtrain.testing.numbered_rows import Numbered, check, live, run
from packtrain.types import Sample

LATER = 100  # what the environments after the resize are counted from


def make(groups, context=0, segments=None, **sizes):
    given = dict(capacity=200, sequence_length=5, burn_in=3, stride=2, n_step=2, batch_size=16, extras=("known",))
    sizes = Sequences(**{**given, **sizes})
    memory = sizes.build(list(groups), context, torch.device("cpu"))
    memory.reseed(3)
    if segments is not None:
        memory.attach(*segments)
    return sizes, memory


@st.composite
def settings_of_a_memory(draw):
    length, n_step = draw(st.integers(1, 6)), draw(st.integers(0, 4))
    n_step = n_step if length == 1 else min(n_step, length)
    groups = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    new_groups = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    context, burn_in = draw(st.integers(0, 3)), draw(st.integers(0, min(4, length - 1)))
    rows = context + burn_in + length + max(n_step, 1) + 1 + draw(st.integers(0, 60))
    capacity = max(rows * max(sum(groups), sum(new_groups)), 4 * length)
    stride = draw(st.integers(1, length))
    sizes = dict(sequence_length=length, burn_in=burn_in, stride=stride, n_step=n_step, batch_size=4, capacity=capacity)
    return groups, new_groups, context, sizes


class Later(Numbered):
    """Environments whose rows differ from those of earlier ones."""

    def next_row(self, column):
        return super().next_row(column) | {
            "column": LATER + column,
            "place": (LATER + column, len(self.columns[column])),
        }


class Both:
    """All rows of the environments before and after."""

    def __init__(self, before, after):
        self.columns = dict(enumerate(before.columns)) | {LATER + k: rows for k, rows in enumerate(after.columns)}


def ended(snapshot, sizes, groups, context):
    """A memory of the same groups that goes on with other episodes: what there is to be kept."""
    memory = sizes.build(list(groups), context, torch.device("cpu"))
    memory.attach(*snapshot["attached"]) if "attached" in snapshot else None
    memory.restore(copy.deepcopy(snapshot), same_episodes=False)
    return memory


def contents(memory, sizes):
    """{(environment, start, front, steps): priority} of all sequences by what their rows say, and a sample of all."""
    memory._upload()
    priorities = memory.index.tree.snapshot()["priorities"]
    slots = priorities.nonzero().flatten()
    if not len(slots):
        return {}, None, 0
    trajectory = memory._gather(slots)
    places = trajectory.obs["place"][memory.context].long().tolist()
    items = memory.index.items[slots].tolist()
    found = {
        (*place, front, steps): float(priorities[slot])
        for place, (_, _, front, steps), slot in zip(places, items, slots, strict=True)
    }
    assert len(found) == len(slots) == len(memory), "none is there twice"
    return found, Sample(trajectory, 0), len(slots)


def check_all(memory, stream, sizes, context):
    """Every sequence row by row, not only those of one sample."""
    found, sample, count = contents(memory, sizes)
    if count:
        check(sample, stream, dataclasses.replace(sizes, batch_size=count, capacity=10**6), context)
    return found


def step_count(sequences):
    """Different steps of sequences (environment, start, front, steps), one by one."""
    return len({(env, t) for env, start, front, steps in sequences for t in range(start - front, start + steps)})


def give_errors(memory, rng):
    memory._upload()
    slots = memory.index.tree.snapshot()["priorities"].nonzero().flatten()
    if len(slots):
        memory.update_priorities(
            memory.index.generations.of(slots), torch.from_numpy(rng.uniform(0.1, 3.0, len(slots)))
        )


def messages(caplog):
    return [record.message for record in caplog.records if "goes on with" in record.message]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    settings_of_a_memory(),
    st.integers(1, 40),
    st.integers(0, 150),
    st.integers(0, 10_000),
)
def test_sequences_are_kept_as_they_were_recorded(setting, longest, turns, seed):
    """Mutations: rows shifted by one; the carry of another sequence; priorities in the order of the old slots."""
    groups, new_groups, context, given = setting
    sizes, memory = make(groups, context, **given)
    stream, rng = Numbered(groups, seed, longest), np.random.default_rng(seed)
    run(memory, stream, turns, rng)
    give_errors(memory, rng)
    state = memory.snapshot()
    before, _, _ = contents(ended(state, sizes, groups, context), sizes)
    _, again = make(new_groups, context, **given)
    if list(new_groups) == list(groups):
        return
    again.restore(copy.deepcopy(state), same_episodes=False)

    kept, _, _ = contents(again, sizes)
    assert kept.items() <= before.items(), "each is one that was there, with its priority"
    if sum(new_groups) == sum(groups):
        assert kept == before
    total, span = step_count(before), max((front + steps + 1 for _, _, front, steps in before), default=0)
    blocks = len(before)  # an episode has a row more than steps
    room = sum(new_groups) * (again.length - 2 * span) - blocks
    assert step_count(kept) >= min(total, room)
    assert again.count == memory.count and again._draws == memory._draws
    assert again._rng.bit_generator.state == memory._rng.bit_generator.state
    check_all(again, stream, sizes, context)
    given_up_in_turn(again, stream, Later(new_groups, seed + 1, longest), kept, sizes, context, rng)


def given_up_in_turn(again, stream, later, kept, sizes, context, rng):
    """Acting goes on: what was kept is overwritten at last, and what is new is as in any memory."""
    for _ in range(6):
        run(again, later, int(rng.integers(1, 60)), rng)
        found = check_all(again, Both(stream, later), sizes, context)
        old, new = ({item for item in found if (item[0] >= LATER) == is_new} for is_new in (False, True))
        assert old <= kept.keys()
        want = {(LATER + env, *rest) for env, *rest in later.items(sizes, context, again.length)}
        assert new == want
        if again.ready():
            sample = again.sample()
            check(sample, Both(stream, later), sizes, context)
            again.update_priorities(sample.keys, torch.rand(len(sample.keys)))
    for group in range(len(later.groups)):
        for _ in range(again.length):
            later.step(again, group)
    assert all(item[0] >= LATER for item in contents(again, sizes)[0])


@pytest.mark.parametrize("new_groups", [(4,), (2, 2), (1,), (2,), (3, 3, 2), (8,)])
def test_a_full_memory_keeps_its_newest_steps_and_says_how_many(new_groups, caplog):
    """Mutations: the oldest kept first; counts of the log line that count rows twice."""
    sizes, memory = make((1, 3), capacity=2400)
    stream, rng = Numbered((1, 3), 5, longest=60), np.random.default_rng(5)
    run(memory, stream, 2600, rng)
    state = memory.snapshot()
    before, _, _ = contents(ended(state, sizes, (1, 3), 0), sizes)
    _, again = make(new_groups, capacity=2400)
    with caplog.at_level(logging.INFO, "packtrain"):
        again.restore(copy.deepcopy(state), same_episodes=False)
    kept, _, _ = contents(again, sizes)
    assert len(kept) > (0.97 if sum(new_groups) != 4 else 0.999) * len(before)
    assert messages(caplog) == [
        f"the replay of 4 environments goes on with {sum(new_groups)}: {len(kept):,} of {len(before):,} sequences "
        f"kept, {step_count(kept):,} of {step_count(before):,} steps"
    ]
    age = lambda item: len(stream.columns[item[0]]) - item[1]  # noqa: E731
    lost = [age(item) for item in before if item not in kept]
    assert not lost or min(lost) > 0.8 * max(age(item) for item in kept)


def test_a_memory_that_is_not_full_is_shared_evenly():
    """Four long histories for sixteen environments. Mutation: an environment takes what it has room for."""
    sizes, memory = make((4,), capacity=16_000)
    stream = Numbered((4,), 0, steps=[10_000] * 4)
    for _ in range(950):
        stream.step(memory, 0)
    _, again = make((16,), capacity=16_000)
    state = memory.snapshot()
    before, _, _ = contents(ended(state, sizes, (4,), 0), sizes)
    again.restore(copy.deepcopy(state), same_episodes=False)
    kept, _, _ = contents(again, sizes)
    assert kept == before
    steps = np.bincount(again.index.items[: len(kept), 0].numpy(), minlength=16)
    assert steps.min() > 0.4 * steps.mean() and steps.max() < 1.6 * steps.mean()


@pytest.mark.parametrize("new_groups", [(3,), (1,), (2, 2, 1)])
def test_segments_on_disk_go_on_under_new_names(new_groups, tmp_path):
    """Older checkpoints stay whole, and the new memory is saved and resumed. Mutation: numbers from 0 again."""
    sizes, memory = make((2, 1), 1, capacity=300, segments=(tmp_path, 30))
    stream, rng = Numbered((2, 1), 2), np.random.default_rng(2)
    run(memory, stream, 400, rng)
    state = memory.snapshot()
    assert any(sink["segments"] for sink in state["sinks"])
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    _, again = make(new_groups, 1, capacity=300, segments=(tmp_path, 30))
    again.restore(copy.deepcopy(state), same_episodes=False)
    kept = check_all(again, stream, sizes, 1)
    later = Later(new_groups, 3)
    for _ in range(5):
        run(again, later, 30, rng)
        found = check_all(again, Both(stream, later), sizes, 1)
        resumed = again.snapshot()
        _, again = make(new_groups, 1, capacity=300, segments=(tmp_path, 30))
        again.restore(copy.deepcopy(resumed))
        assert contents(again, sizes)[0] == found
    assert any(sink["segments"] for sink in resumed["sinks"]) and kept
    assert {name: (tmp_path / name).read_bytes() for name in files} == files
    _, old = make((2, 1), 1, capacity=300, segments=(tmp_path, 30))
    old.restore(state)
    assert live(old) == live(memory)


def test_sequences_that_need_a_lost_segment_are_dropped(tmp_path, capsys):
    """Mutation: rows of a lost segment are shown as zeros."""
    sizes, memory = make((2, 1), 1, capacity=300, segments=(tmp_path, 30))
    stream, rng = Numbered((2, 1), 2), np.random.default_rng(2)
    run(memory, stream, 400, rng)
    state = memory.snapshot()
    described = state["sinks"][0]["segments"]
    (tmp_path / described[len(described) // 2]["name"]).unlink()
    same, (_, again) = ended({**state, "attached": (tmp_path, 30)}, sizes, (2, 1), 1), make((4,), 1, capacity=300)
    again.attach(tmp_path, 30)
    again.restore(copy.deepcopy(state), same_episodes=False)
    kept = check_all(again, stream, sizes, 1)
    assert 0 < len(kept) and kept.keys() <= contents(same, sizes)[0].keys()
    assert again.lost == same.lost > 0
    assert "sequences of the replay need rows that are lost" in capsys.readouterr().err


@pytest.mark.parametrize("storage", [{"storage": "host", "compression": "zlib"}, {"storage": "disk"}])
def test_every_storage_is_resized(storage):
    sizes, memory = make((2, 1), 1, capacity=300)
    stream, rng = Numbered((2, 1), 2), np.random.default_rng(2)
    run(memory, stream, 400, rng)
    _, again = make((2, 3), 1, capacity=300, **storage)
    again.restore(memory.snapshot(), same_episodes=False)
    assert len(check_all(again, stream, sizes, 1)) > 50


def test_other_sizes_and_same_episodes_are_refused():
    _, memory = make((2, 1))
    state = memory.snapshot()
    for groups, more, same in (((3,), {}, True), ((3,), {"capacity": 400}, False), ((4,), {"burn_in": 2}, False)):
        with pytest.raises(CheckpointError, match="cannot be restored from"):
            make(groups, **more)[1].restore(state, same_episodes=same)


def test_an_empty_memory_is_resized():
    sizes, memory = make((2, 1))
    _, again = make((4,))
    again.restore(memory.snapshot(), same_episodes=False)
    later, rng = Later((4,), 3), np.random.default_rng(3)
    run(again, later, 30, rng)
    check_all(again, Both(Numbered((), 0), later), sizes, 0)


def test_steps_that_several_sequences_need_count_once():
    notes = resize.Notes(
        *(np.array(column) for column in ([0] * 4, [0, 0, 0, 1], [3, 5, 20, 4], [2, 4, 0, 1], [4, 4, 3, 2]))
    )
    assert notes.first.tolist() == [1, 1, 20, 3] and notes.end.tolist() == [8, 10, 24, 7]
    assert resize.count_steps(notes) == len(range(1, 9)) + len(range(20, 23)) + len(range(3, 6))
    assert resize.count_steps(notes, np.array([True, False, False, False])) == 6
