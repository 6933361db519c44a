"""Replay of sequences: a numbered stream goes in, and what comes out is what a plain list of rows says."""

import itertools
import re
import sys
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain import trees
from packtrain.equations.boundaries import boundaries
from packtrain.equations.priorities import item_priority, sequence_priority
from packtrain.equations.q_learning import n_step_q_targets
from packtrain.errors import CheckpointError, ConfigError, DivergedError
from packtrain.memory.sequence_memory import SequenceMemory
from packtrain.memory.sequence_settings import Sequences
from packtrain.networks.recurrent import ResettingLSTM
from packtrain.runtime import checkpoint
from packtrain.testing.numbered_rows import Numbered, check, live, run
from packtrain.types import Row

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def make(groups=(2,), context=0, seed=3, segments=None, device=CPU, **sizes):
    given = dict(capacity=200, sequence_length=5, burn_in=3, stride=2, n_step=2, batch_size=16, extras=("known",))
    sizes = Sequences(**{**given, **sizes})
    memory = sizes.build(list(groups), context, device)
    memory.reseed(seed)
    if segments is not None:
        memory.attach(*segments)
    return sizes, memory


@st.composite
def settings_of_a_memory(draw):
    length, n_step = draw(st.integers(1, 6)), draw(st.integers(0, 4))
    n_step = n_step if length == 1 else min(n_step, length)
    stride, context = draw(st.integers(1, length)), draw(st.integers(0, 3))
    burn_in = draw(st.integers(0, min(4, length - 1)))
    groups = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    least = context + burn_in + length + max(n_step, 1) + 1
    rows = least + draw(st.integers(0, 40))
    sizes = dict(sequence_length=length, burn_in=burn_in, stride=stride, n_step=n_step, batch_size=4)
    return groups, context, {**sizes, "capacity": max(rows * sum(groups) + draw(st.integers(0, 1)), 4 * length)}


@settings(max_examples=20, deadline=None, derandomize=True)
@given(settings_of_a_memory(), st.integers(1, 20), st.integers(0, 10_000))
def test_it_holds_and_shows_what_a_list_of_rows_says(setting, longest, seed) -> None:
    """No sequence is lost, doubled, partly overwritten or wrong in a single row, whatever the sizes and episodes.

    Mutations: the ring one row too long; next_row off by one; the last sequence of an episode left out; front rows that
    cross a reset; an item that stays when its oldest context row is gone.
    """
    groups, context, given = setting
    sizes, memory = make(groups, context, **given)
    stream, rng = Numbered(groups, seed, longest), np.random.default_rng(seed)
    for _ in range(6):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("packtrain.memory.sequence_index.first_room", lambda sizes, columns: 2)  # so that it grows
            run(memory, stream, int(rng.integers(1, 60)), rng)
        want = stream.items(sizes, context, memory.length)
        assert len(memory) == len(want) and live(memory) == want
        if memory.ready():
            check(memory.sample(), stream, sizes, context)
    steps = sum(not row["first"] for rows in stream.columns for row in rows)
    assert memory.count == steps


@pytest.mark.parametrize("margin", [1, 8])
def test_rows_are_given_up_a_margin_before_they_are_overwritten(margin) -> None:
    """As on a GPU, where a learner's stream may still read them. Mutation: the margin left out."""
    sizes, memory = make((2, 1), 1, capacity=120)
    memory.margin = margin
    stream, rng = Numbered((2, 1), 0), np.random.default_rng(0)
    run(memory, stream, 300, rng)
    assert live(memory) == stream.items(sizes, 1, memory.length - margin)
    check(memory.sample(), stream, sizes, 1)


def test_where_sequences_lie_in_an_episode() -> None:
    """Literal: 5 steps, one every 2, rows for 2-step returns. Mutations: none that ends at the end; one twice there."""
    _, memory = make((1,))
    stream = Numbered((1,), 0, steps=[8, 3, 5, 0, 1, 30])
    for _ in range(9 + 4 + 6 + 1 + 2 + 10):
        stream.step(memory, 0)
    assert live(memory) == [
        *((0, 0, 0, 6), (0, 2, 2, 6), (0, 3, 3, 5)),  # 8 steps: the third regular one would end one too late
        (0, 9, 0, 3),  # 3 steps: padded
        (0, 13, 0, 5),  # 5 steps: just one, and no row more
        (0, 20, 0, 1),  # a reset that was reset again is nothing; 1 step
        *((0, 22, 0, 6), (0, 24, 2, 6)),  # under way: rows 22 … 31 are there, 26 needs 32
    ]
    stream.step(memory, 0)
    assert live(memory)[-1] == (0, 26, 3, 6)


def test_single_transitions_have_what_n_step_learners_need() -> None:
    """T = 1: every step once, the last ones of an episode with shorter returns. Mutation: the last n − 1 left out."""
    sizes, memory = make((1,), sequence_length=1, stride=1, burn_in=0, n_step=3, batch_size=64)
    stream = Numbered((1,), 0, steps=[6, 2, 10])
    for _ in range(7 + 3 + 5):
        stream.step(memory, 0)
    assert [(start, steps) for _, start, _, steps in live(memory)] == [
        *((0, 3), (1, 3), (2, 3), (3, 3), (4, 2), (5, 1)),
        *((7, 2), (8, 1)),
        *((10, 3), (11, 3)),
    ]
    t = memory.sample().trajectory
    bounds = boundaries(t.first, t.terminated, t.truncated, 0.5)
    q = t.obs["place"][..., 1:]  # values: the row's number
    targets = n_step_q_targets(q, q, t.reward, *bounds[:2], bounds.weight_t, n=3)
    for b in range(64):
        row, want, worth = stream.columns[0][int(q[0, b])], 0.0, 1.0
        for _ in range(3):
            if row["number"] in (6, 9):
                break
            row = stream.columns[0][row["number"] + 1]
            want, worth = want + worth * row["reward"], worth * 0.5 * (not row["terminated"])
            if row["terminated"] or row["truncated"]:
                break
        assert targets[0, b] == want + worth * row["number"]
    assert t.extras["weight"].tolist() == [[1.0] * 64, [0.0] * 64, [0.0] * 64]


@pytest.mark.parametrize("flag", ["terminated", "truncated", None])
def test_ends_arrive_and_padding_weighs_nothing(flag) -> None:
    """3 steps of an episode in a sequence of 5. Mutations: weight of the filler row; flags one row off; a cut stream
    that looks as if it had terminated."""
    sizes, memory = make((1,), batch_size=1)
    stream = Numbered((1,), 0, steps=[3, 50])
    plain, made = stream.next_row, []

    def scripted(column):
        row = plain(column)
        row |= {"terminated": False, "truncated": False} | ({flag: True} if row["number"] == 3 and flag else {})
        made.append(row)
        return row

    stream.next_row = scripted
    for _ in range(6):
        stream.step(memory, 0)
    t = memory.sample().trajectory
    assert t.extras["weight"].flatten().tolist() == [1, 1, 1, 0, 0, 0]
    assert t.first.flatten().tolist() == [False] * 3 + [True] + [False] * 3 + [True] * 3
    assert t.terminated.flatten().tolist() == [False, False, flag == "terminated", False, False, False]
    assert t.truncated.flatten().tolist() == [False, False, flag != "terminated", False, False, False]
    bounds = boundaries(t.first[3:], t.terminated, t.truncated, 0.9)
    assert torch.equal(bounds.weight_t, t.extras["weight"])
    assert bounds.continue_t.flatten().tolist() == [1, 1, 0, 0, 0, 0]
    assert bounds.discount_t[2] == pytest.approx(0.0 if flag == "terminated" else 0.9)


def test_burn_in_gives_back_the_actor_s_state() -> None:
    """Up to rounding, from the middle of an episode and from its beginning. Mutation: the carry of another row."""
    torch.manual_seed(0)
    core, (_, memory) = ResettingLSTM(1, 4), make((2,), batch_size=32, extras=())
    carry, states, rng = core.initial_carry(2), [], np.random.default_rng(0)
    for number in range(70):
        first = np.array([number % 9 == 0, number % 13 == 0])
        obs = rng.standard_normal((2, 1)).astype(np.float32)
        obs[:, 0] += np.array([number, 1000 + number])
        no = np.zeros(2, bool)
        memory.writer(0).add(Row(obs, first, no, {"train": np.zeros(2, np.float32)}, no, no), carry, {})
        with torch.no_grad():
            _, carry = core(torch.from_numpy(obs)[None], torch.from_numpy(first)[None], carry)
        states.append((obs, carry))
    t = memory.sample().trajectory
    before = 0
    with torch.no_grad():
        _, (h, c) = core(t.obs[:3], t.first[:3], t.carry)
    for b in range(32):
        if bool(t.first[3, b]):
            continue  # forgets whatever it is given
        before += 1
        match = [(n, k) for n, (obs, _) in enumerate(states) for k in range(2) if obs[k, 0] == t.obs[3, b, 0]]
        ((number, column),) = match
        want = states[number - 1][1]
        torch.testing.assert_close((h[b], c[b]), (want[0][column], want[1][column]), rtol=0, atol=1e-6)
    assert before > 16


def errors_by_item(memory, rng) -> dict[tuple[int, ...], float]:
    """Give every sequence an error of its own, through keys."""
    memory._upload()
    slots = memory.index.tree.snapshot()["priorities"].nonzero().flatten()
    errors = torch.from_numpy(rng.uniform(0.1, 3.0, len(slots)))
    memory.update_priorities(memory.index.generations.of(slots), errors)
    return {tuple(memory.index.items[slot].tolist()): float(error) for slot, error in zip(slots, errors, strict=True)}


def test_draws_are_in_proportion_to_priorities_after_wrapping_around() -> None:
    """χ² over all sequences. Mutations: slots not given up when their rows are; an exponent that is not applied."""
    sizes, memory = make((2, 1), capacity=90, batch_size=18, priority_exponent=0.7)
    stream, rng = Numbered((2, 1), 1), np.random.default_rng(1)
    run(memory, stream, 300, rng)
    errors = errors_by_item(memory, rng)
    assert sorted(errors) == stream.items(sizes, 0, 30)
    wanted = {item[:2]: (error + 1e-4) ** 0.7 for item, error in errors.items()}
    counts, batches = dict.fromkeys(wanted, 0), 1500
    for _ in range(batches):
        for column, start in memory.sample().trajectory.obs["place"][3].long().tolist():
            counts[column, start] += 1
    total = sum(wanted.values())
    expected = {item: batches * 18 * chance / total for item, chance in wanted.items()}
    statistic = sum((counts[item] - expected[item]) ** 2 / expected[item] for item in wanted)
    freedom = len(wanted) - 1
    assert freedom > 15 and statistic < freedom + 4 * (2 * freedom) ** 0.5  # strata only make it smaller


def test_a_late_priority_never_lands_on_another_sequence() -> None:
    """Not on what took its slot, and not on nothing: what is gone stays gone. Mutation: old keys kept when it goes."""
    sizes, memory = make((2,), capacity=80, priority_exponent=1.0)
    stream, rng = Numbered((2,), 2), np.random.default_rng(2)
    run(memory, stream, 40, rng)
    sample, dropped = memory.sample(), 0
    for _ in range(60):
        run(memory, stream, 1, rng)
        there = live(memory)
        drawn = [(int(c), int(s)) for c, s in sample.trajectory.obs["place"][3].tolist()]
        late = sum(item not in {each[:2] for each in there} for item in drawn)
        before = memory.index.tree.snapshot()["priorities"]
        memory.update_priorities(sample.keys, torch.full((16,), 0.25))
        dropped += late
        assert memory.dropped == dropped and live(memory) == there == stream.items(sizes, 0, 40)
        slots = (memory.index.tree.snapshot()["priorities"] != before).nonzero().flatten()
        changed = {tuple(memory.index.items[slot].tolist())[:2] for slot in slots}
        assert changed <= set(drawn)
    assert late == 16  # in the end all of them are gone
    assert memory.index.unused < 2 * 40  # and slots are used again


def test_new_sequences_have_the_largest_error_so_far() -> None:
    """Before anything was learned 1. Mutations: errors of what is gone count; the newest error instead."""
    sizes, memory = make((1,), priority_exponent=0.5)
    stream = Numbered((1,), 0, steps=[100])
    for _ in range(9):
        stream.step(memory, 0)
    sample = memory.sample()
    chance = lambda: memory.index.tree.snapshot()["priorities"][: memory.index.unused]  # noqa: E731
    one = item_priority(torch.ones(1, dtype=torch.float64), 0.5)
    torch.testing.assert_close(chance(), one.expand(2))
    for _ in range(2):
        stream.step(memory, 0)
    memory.update_priorities(sample.keys[:1], torch.tensor([9.0]))
    assert chance()[-1] == one  # it came before
    memory.update_priorities(sample.keys[:1], torch.tensor([2.0]))
    memory.update_priorities(sample.keys[:1] + memory.index.tree.capacity, torch.tensor([50.0]))  # never was
    for _ in range(2):
        stream.step(memory, 0)
    memory._upload()
    assert chance()[-1] == item_priority(torch.tensor(9.0, dtype=torch.float64), 0.5)


def test_the_largest_error_decays_until_one_is_larger() -> None:
    """An error seen once is not the priority of all new sequences for ever. Mutations: no decay; decay at every row."""
    _, memory = make((1,), priority_exponent=1.0, largest_decay=0.5)
    stream = Numbered((1,), 0, steps=[400])
    found = []
    for errors in (80.0, 1.0, 1.0, 1.0, 30.0, 1.0):
        for _ in range(20):
            stream.step(memory, 0)
        sample = memory.sample()
        memory.update_priorities(sample.keys[:1], torch.tensor([errors]))
        stream.step(memory, 0)
        stream.step(memory, 0)
        memory._upload()
        found.append(float(memory.index.tree.snapshot()["priorities"][memory.index.unused - 1]))
    assert found == pytest.approx([80, 40, 20, 10, 30, 15], rel=1e-3)


def test_actors_may_say_what_sequences_are_worth() -> None:
    """extras["priority"] of row t + n is the error of step t. Mutations: that of row t; of rows of the next episode."""
    sizes, memory = make((2, 1), new_priority="given", priority_exponent=1.0)
    stream, rng = Numbered((2, 1), 5), np.random.default_rng(5)
    run(memory, stream, 250, rng)
    memory._upload()
    priorities, largest, silent = memory.index.tree.snapshot()["priorities"], 1.0, 0
    for slot in priorities.nonzero().flatten():
        column, start, _, steps = memory.index.items[slot].tolist()
        said = [stream.columns[column][start + t + 2]["error"] for t in range(5) if t + 2 <= steps]
        silent += not said
        error = torch.tensor(said or [largest])[:, None]
        want = item_priority(sequence_priority(error, torch.ones_like(error)).double(), 1.0)
        torch.testing.assert_close(priorities[slot], want[0], rtol=1e-6, atol=0)
    assert silent > 3  # episodes of one step
    stream.next_row = lambda column, plain=stream.next_row: plain(column) | {"error": float("nan")}
    with pytest.raises(DivergedError, match="the actor gives priorities that are not finite"):
        run(memory, stream, 60, rng)


def test_errors_that_actors_give_count_for_the_largest() -> None:
    """An episode too short for an error has the largest of those before it. Mutation: the first of a batch of them."""
    _, memory = make((1,), new_priority="given", priority_exponent=1.0)
    stream = Numbered((1,), 0, steps=[1, 5, 1, 5, 1, 40])
    plain = stream.next_row  # rows 0, 1 | 2 … 7 | 8, 9 | 10 … 15 | 16, 17 | 18 …
    stream.next_row = lambda column: plain(column) | {"error": 9.0 if 2 <= len(stream.columns[0]) <= 8 else 0.5}
    for rows in (9, 11):
        for _ in range(rows):
            stream.step(memory, 0)
        memory._upload()
    chances = memory.index.tree.priorities(torch.arange(5)).tolist()
    found = {int(memory.index.items[slot, 1]): round(chance, 2) for slot, chance in enumerate(chances)}
    assert found == {0: 1.0, 2: 9.0, 8: 9.0, 10: 0.5, 16: 9.0}


def test_importance_weights_make_up_for_chances_more_and_more() -> None:
    """(p / smallest p)^−β, β from 0.5 to 1 over 2 batches. Mutations: β that stays; weights of the items' errors."""
    sizes, memory = make(
        importance_exponent=0.5, importance_exponent_end=1.0, importance_steps=2, priority_exponent=0.6
    )
    stream, rng = Numbered((2,), 4), np.random.default_rng(4)
    run(memory, stream, 60, rng)
    errors = {item[:2]: error for item, error in errors_by_item(memory, rng).items()}
    for beta in (0.5, 0.75, 1.0, 1.0):
        sample = memory.sample()
        drawn = [errors[int(c), int(s)] for c, s in sample.trajectory.obs["place"][3].tolist()]
        chance = (torch.tensor(drawn) + 1e-4) ** 0.6
        torch.testing.assert_close(sample.importance_weight, (chance.min() / chance) ** beta, rtol=1e-5, atol=0)
    assert sample.importance_weight.dtype == torch.float32 and sample.steps == 5 * 16


def same(one, other) -> None:
    assert (one is None) == (other is None)
    if one is not None:
        for a, b in zip(trees.flatten(tuple(one)), trees.flatten(tuple(other)), strict=True):
            assert a.dtype == b.dtype and torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def walk(memory, stream, rng, turns, late) -> list:
    """Add, draw, add, and answer the batch before."""
    samples = []
    for _ in range(turns):
        if late and late[-1] is not None:
            memory.update_priorities(late[-1].keys, torch.from_numpy(rng.uniform(0, 3 + len(late), 16)))
        run(memory, stream, int(rng.integers(1, 4)), rng)
        samples.append(memory.sample())
        run(memory, stream, int(rng.integers(0, 6)), rng)
        late.append(samples[-1])
    return samples


@pytest.mark.parametrize("turns", [0, 1, 7, 40, 77])
@pytest.mark.parametrize("kept", [None, 20, 70])
def test_it_goes_on_from_disk_as_if_nothing_had_happened(turns, kept, tmp_path) -> None:
    """As one that was never saved, to the last bit. Mutations: slots that become free when it is saved; β, the largest
    error, carries of the latest rows or the generator not saved; rows of a segment at other places."""
    groups = (2, 1)
    segments = lambda: (tmp_path / "replay", kept) if kept else None  # noqa: E731
    runs = []
    for saved in (False, True):
        _, memory = make(groups, 1, capacity=150, segments=segments(), importance_exponent_end=1.0, importance_steps=60)
        stream, rng, late = Numbered(groups, 8), np.random.default_rng(8), []
        samples = walk(memory, stream, rng, turns, late)
        run(memory, stream, min(turns, 12), rng)
        if saved:
            checkpoint.save(tmp_path / "checkpoints", turns, {"memory": memory.snapshot()})
            state = checkpoint.load(tmp_path / "checkpoints" / str(turns))["memory"]
            walk(memory, Numbered(groups, 1), np.random.default_rng(1), 3, [])  # a snapshot is a copy
            _, memory = make(
                groups, 1, capacity=150, segments=segments(), importance_exponent_end=1.0, importance_steps=60
            )
            memory.restore(state)
            assert kept is None or turns < 40 or any(sink["segments"] for sink in state["sinks"])
        run(memory, stream, 12, rng)  # nothing is drawn just before and after
        samples += walk(memory, stream, rng, 40, late)
        runs.append((samples, memory.snapshot()))
    for one, other in zip(runs[0][0], runs[1][0], strict=True):
        same(one, other)
    plain = lambda state: {name: state[name] for name in state if name not in ("sinks", "rng")}  # noqa: E731
    one, other = (trees.named_leaves(plain(state)) for _, state in runs)
    assert one.keys() == other.keys() and runs[0][1]["rng"] == runs[1][1]["rng"]
    for name in one:
        assert np.array_equal(np.asarray(one[name]), np.asarray(other[name])), name


@pytest.mark.parametrize("turns, longest", [(40, 12), (77, 60), (150, 200)])
@pytest.mark.parametrize("lost", [0, 1, -1])
def test_sequences_that_need_a_lost_segment_are_gone_and_no_others(turns, longest, lost, tmp_path) -> None:
    """Nothing that is drawn later reaches into the hole, and priorities are those of before. Mutations: sequences that
    end at its first row; an episode under way whose next sequence begins in it; a queue that keeps what was lost."""
    groups, context, kept = (2, 1), 1, 20
    sizes, memory = make(groups, context, capacity=150, segments=(tmp_path, kept))
    stream, rng, late = Numbered(groups, 8, longest), np.random.default_rng(8), []
    walk(memory, stream, rng, turns, late)
    checkpoint.save(tmp_path / "checkpoints", turns, {"memory": memory.snapshot()})
    state = checkpoint.load(tmp_path / "checkpoints" / str(turns))["memory"]
    segments = [(group, one) for group, sink in enumerate(state["sinks"]) for one in sink["segments"]]
    group, described = segments[lost]
    path = tmp_path / described["name"]
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    size = kept // sum(groups)
    first = (described["number"] - group) // len(groups) * size
    columns = range(stream.begin[group], stream.begin[group + 1])
    hole = {(column, row) for column in columns for row in range(first, first + size)}
    safe = lambda c, start, front, steps: not hole & {(c, row) for row in range(start - front, start + steps + 1)}  # noqa: E731

    _, again = make(groups, context, capacity=150, segments=(tmp_path, kept))
    again.restore(state)
    assert again.lost == len(hole)
    assert live(again) == [one for one in live(memory) if safe(*one)] and len(again) == len(live(again))

    def chance(one):
        chances = one.index.tree.snapshot()["priorities"].tolist()
        return sorted((*item, p) for item, p in zip(one.index.items.tolist(), chances, strict=False) if p)

    assert chance(again) == [one for one in chance(memory) if safe(*one[:4])]

    saved = [len(rows) for rows in stream.columns]
    for turn in range(40):
        run(again, stream, 4, rng)
        want = [one for one in stream.items(sizes, context, again.length) if safe(*one)]
        there = live(again)
        assert set(there) <= set(want) and len(again) == len(there)
        begun_later = [one for one in want if stream.columns[one[0]][one[1]]["episode"] >= saved[one[0]]]
        assert set(begun_later) <= set(there), "only an episode under way may be given up"
        if again.ready():
            sample = again.sample()
            check(sample, stream, sizes, context)
            again.update_priorities(sample.keys, torch.rand(len(sample.keys)))
        if turn == 20:
            state = again.snapshot()
            _, again = make(groups, context, capacity=150, segments=(tmp_path, kept))
            again.restore(state)
            assert again.lost == len(hole) and live(again) == there


def test_other_episodes_after_a_resume_end_those_that_were_under_way() -> None:
    """The old ones end where they stood, as if truncated; rows count again from the next reset on."""
    _, memory = make((1,))
    stream = Numbered((1,), 0, steps=[30, 30])
    for _ in range(10):  # rows 0 … 9: sequences at 0 and 2; 4 … 9 has 5 steps but lacks a row
        stream.step(memory, 0)
    _, again = make((1,))
    again.restore(memory.snapshot(), same_episodes=False)
    assert live(again) == [(0, 0, 0, 6), (0, 2, 2, 6), (0, 4, 3, 5)]
    for _ in range(12):
        stream.step(again, 0)  # not a reset: the row before is unknown
    assert len(again) == 3
    cut = [again.sample().trajectory for _ in range(3)]
    starts = torch.cat([t.obs["place"][3, :, 1] for t in cut])
    ends = torch.cat([t.truncated[4] for t in cut])
    assert torch.equal(ends, starts == 4) and ends.any()
    stream.columns[0][-1]["left"] = 0
    for _ in range(7):
        stream.step(again, 0)
    assert live(again)[3:] == [(0, 22, 0, 6)]


STORAGES = {
    "device": {},
    "host": {"storage": "host"},
    "disk": {"storage": "disk"},
    "zlib": {"storage": "host", "compression": "zlib"},
}


@pytest.mark.parametrize("name", ["host", "disk", "zlib"])
def test_samples_do_not_depend_on_where_rows_lie(name, tmp_path) -> None:
    """To the last bit, lap after lap, and when a run goes on with another storage.

    Mutations: the open block of compressed rows not read; leaves of a block that begin where others do.
    """
    groups, found = (2, 1), []
    for here, there in (("device", name), (name, "device")):
        segments = lambda: (tmp_path / "replay", 20)  # noqa: E731
        _, memory = make(groups, 1, capacity=150, segments=segments(), **STORAGES[here])
        stream, rng, late = Numbered(groups, 8), np.random.default_rng(8), []
        samples = walk(memory, stream, rng, 50, late)
        state = memory.snapshot()
        _, memory = make(groups, 1, capacity=150, segments=segments(), **STORAGES[there])
        memory.restore(state)
        found.append([*samples, *walk(memory, stream, rng, 30, late)])
    assert sum(sample is not None for sample in found[0]) > 70
    for one, other in zip(*found, strict=True):
        same(one, other)


def arrays(thing, seen) -> dict[int, int]:
    """Bytes of all arrays and tensors below an object, by where they lie."""
    if isinstance(thing, torch.Tensor):
        seen[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    elif isinstance(thing, np.ndarray):
        assert thing.base is None
        seen[thing.__array_interface__["data"][0]] = thing.nbytes
    elif isinstance(thing, dict):
        for each in thing.values():
            arrays(each, seen)
    elif isinstance(thing, list | tuple):
        for each in thing:
            arrays(each, seen)
    elif type(thing).__module__.startswith("packtrain") and id(thing) not in seen:
        seen[id(thing)] = 0
        arrays(vars(thing), seen)
    return seen


def filled(groups, rows, frame, carry, **sizes) -> SequenceMemory:
    """A memory after some rows of one endless episode, with nothing that waits."""
    memory, rng = Sequences(**sizes).build(list(groups), 3, CPU), np.random.default_rng(0)
    for number, (group, size) in itertools.product(range(rows), enumerate(groups)):
        no = np.zeros(size, bool)
        obs = rng.integers(0, 256, (size, *frame)).astype(np.uint8)
        row = Row(obs, no | (number == 0), np.zeros(size, np.int64), {"train": np.zeros(size, np.float32)}, no, no)
        memory.writer(group).add(row, tuple(torch.zeros(size, carry) for _ in range(2)), {})
    memory._upload()
    memory.index.free()
    return memory


@pytest.mark.parametrize("name", STORAGES)
@pytest.mark.parametrize("stride", [1, 4])
def test_bytes_are_as_many_as_it_says(name, stride) -> None:
    """Of every array there is, after two laps. Mutations: notes, carries, the tree or the queue not counted; room that
    grows beyond what was said; frames kept as floats."""
    plain = dict(capacity=500, sequence_length=8, burn_in=4, stride=stride, n_step=2, batch_size=4)
    sizes, frame, carry = Sequences(**plain, **STORAGES[name]), (7, 9), 6
    memory = filled((2, 1), 400, frame, carry, **plain, **STORAGES[name])
    say = lambda sizes, where: getattr(sizes, where)(3, 63 + 15, carry=2 * 4 * carry)  # noqa: E731
    device, host, disk = (say(sizes, f"{where}bytes_needed") for where in ("", "host_", "disk_"))
    held, frames = sum(arrays(memory, {}).values()), 63 * (3 * 166 + 1)
    near = say(Sequences(**plain), "bytes_needed")
    assert device == (near if name == "device" else near - frames) and disk == (frames if name == "disk" else 0)
    if name == "zlib":  # noise cannot be made smaller; the open blocks are arrays
        held += (closed := 3 * 11 * 16 * 63)
        assert closed * 9 / 11 < memory.rings._rings["obs"].packed_bytes < closed * 1.02
    assert held == device + host + disk
    assert memory.index.unused <= len(memory.index.items) and len(memory) > 3 * 120 / stride
    assert memory.sample().trajectory.obs.dtype == torch.uint8


def test_a_million_frames_take_less_than_8_gb() -> None:
    """84 × 84, the carries of an LSTM of 512 for a sequence every 40 steps, and everything else."""
    sizes, row, carry = Sequences(), 84 * 84 + 15, 2 * 512 * 4
    for columns in (1, 64, 256):
        assert 7.1e9 < sizes.bytes_needed(columns, row, carry=carry) < 8e9
        assert sizes.bytes_needed(columns, row, carry=carry) + sizes.host_bytes_needed(columns, row, carry=carry) < 8e9
    host = Sequences(storage="host")
    assert host.bytes_needed(64, row, carry=carry) < 0.3e9 and 7.0e9 < host.host_bytes_needed(64, row) < 7.2e9
    disk = Sequences(storage="disk")
    assert disk.bytes_needed(64, row) == host.bytes_needed(64, row) and disk.host_bytes_needed(64, row) < 0.1e9


def test_room_for_notes_grows_with_short_episodes() -> None:
    """Of one step each: as many sequences as every other row. Mutation: room that was said is all there is."""
    sizes, memory = make((1,), stride=5)
    room, stream = len(memory.index.items), Numbered((1,), 0, steps=[1] * 300)
    for _ in range(420):
        stream.step(memory, 0)
    assert len(memory) > room and live(memory) == stream.items(sizes, 0, 200)


@pytest.mark.parametrize(("margin", "device"), [(0, CPU), (64, CPU), pytest.param(64, GPU, marks=NEEDS_GPU, id="gpu")])
def test_a_learner_draws_whole_rows_while_an_actor_writes(margin, device) -> None:
    """Two threads on small rings. Mutation: no lock (rows of another lap, a tree that does not add up)."""
    sizes, memory = make((2, 1), capacity=300 if margin else 81, device=device)
    assert memory.margin == (margin if device == GPU else 0)
    memory.margin = margin
    stream, over, failed = Numbered((2, 1), 6), threading.Event(), []

    def act() -> None:
        try:
            rng = np.random.default_rng(6)
            with torch.cuda.stream(torch.cuda.Stream(device) if device == GPU else None):
                while not over.is_set():
                    run(memory, stream, 1, rng)
        except Exception as error:
            failed.append(error)

    actor, interval = threading.Thread(target=act), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        actor.start()
        end = time.monotonic() + 1.5
        while time.monotonic() < end and not failed:
            if (sample := memory.sample()) is not None:
                memory.update_priorities(sample.keys, torch.rand(16))
                trajectory = trees.map(lambda leaf: leaf.cpu(), sample.trajectory)
                check(sample._replace(trajectory=trajectory), stream, sizes, 0)
    finally:
        sys.setswitchinterval(interval)
        over.set()
        actor.join()
    assert not failed and live(memory) == stream.items(sizes, 0, memory.length - margin)


def with_margin(groups=(2, 1), capacity=300):
    """A memory as on a GPU: rows are given up early, so that actors may write while a learner reads."""
    sizes, memory = make(groups, capacity=capacity)
    memory.margin = sizes.together(sum(groups))
    assert memory.margin < memory.length - sizes.rows
    return sizes, memory


def while_reading(memory, monkeypatch, call):
    """Let something happen in the middle of every draw."""
    draw = memory.index.draw

    def drawn(uniforms):
        found = draw(uniforms)
        call()
        return found

    monkeypatch.setattr(memory.index, "draw", drawn)


def test_actors_write_while_a_learner_reads(monkeypatch) -> None:
    """Mutation: the turn kept while reading, where the actor's thread does not come to its end."""
    sizes, memory = with_margin()
    stream, rng = Numbered((2, 1), 0), np.random.default_rng(0)
    run(memory, stream, 4 * 64 + 10, rng)

    def write() -> None:
        actor = threading.Thread(target=run, args=(memory, stream, 50, rng))
        actor.start()
        actor.join(10)
        assert not actor.is_alive()

    while_reading(memory, monkeypatch, write)
    check(memory.sample(), stream, sizes, 0)


def test_with_a_margin_actors_bring_what_waits() -> None:
    """Mutations: a draw before the first sequences are there; one that brings them itself, again and again."""
    sizes, memory = with_margin((1,), capacity=100)
    stream, whole = Numbered((1,), 0, steps=[300]), sizes.steps + 1  # rows of the first sequence
    for turn in range(1, 130):
        stream.step(memory, 0)
        sample = memory.sample()
        assert (sample is None) == (turn < whole)
        if sample is not None:
            check(sample, stream, sizes, 0)
            newest = sample.trajectory.obs["place"][sizes.burn_in, :, 1].max()
            assert newest <= max(whole, turn // 64 * 64) - whole  # as of the first draw, or of the last 64th row
            memory.update_priorities(sample.keys, torch.rand(len(sample.keys)))
    assert len(live(memory)) == memory.index.on_device == len(memory)


@pytest.mark.parametrize("grows", [False, True])
def test_nothing_is_freed_or_moved_while_a_learner_reads(monkeypatch, grows) -> None:
    """Mutation: an actor that frees slots, or makes room for more, without waiting."""
    sizes, memory = with_margin()
    stream, rng, actors = Numbered((2, 1), 0), np.random.default_rng(0), []
    run(memory, stream, 4 * 64 + 10, rng)

    def write() -> None:
        if grows:
            monkeypatch.setattr(memory.index, "unused", len(memory.index.items))
            memory.index._freed.clear()
        before = memory.index.items
        actors.append(threading.Thread(target=run, args=(memory, stream, 2000, rng)))
        actors[0].start()
        actors[0].join(0.3)
        assert actors[0].is_alive() and memory._adds <= 5 * 64 and memory.index.items is before

    while_reading(memory, monkeypatch, write)
    sample = memory.sample()
    actors[0].join(30)
    assert not actors[0].is_alive()
    check(sample, stream, sizes, 0)
    assert grows or live(memory) == stream.items(sizes, 0, memory.length - memory.margin)


def test_another_seed_draws_other_sequences() -> None:
    drawn = []
    for seed in (3, 3, 4):
        _, memory = make(seed=seed)
        run(memory, Numbered((2,), 0), 60, np.random.default_rng(0))
        drawn.append(memory.sample().keys)
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_a_batch_comes_after_the_warm_up() -> None:
    """Mutations: resets counted as steps; ready with steps but no sequence."""
    _, memory = make((1,), warm_up=8)
    stream = Numbered((1,), 0, steps=[5, 30])
    assert memory.replays and memory.wait_for_room(0.0) and memory.sample() is None
    for _ in range(10):
        assert not memory.ready() and memory.sample() is None
        stream.step(memory, 0)
    assert memory.count == 8 and memory.ready() and memory.sample() is not None
    _, memory = make((1,))
    stream = Numbered((1,), 0, steps=[30])
    for number in range(7):
        assert not memory.ready(), number
        stream.step(memory, 0)
    assert memory.ready()


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"capacity": 0}, "Sequences.capacity = 0 must be at least 1"),
        ({"stride": 0}, "Sequences.stride = 0 must be at least 1"),
        ({"burn_in": -1}, "Sequences.burn_in = -1 must be at least 0"),
        ({"burn_in": 5}, "Sequences.burn_in = 5 must be less than Sequences.sequence_length = 5"),
        ({"n_step": -1}, "Sequences.n_step = -1 must be at least 0"),
        ({"priority_exponent": -0.5}, "Sequences.priority_exponent = -0.5 must be at least 0"),
        ({"priority_exponent": float("nan")}, "Sequences.priority_exponent = nan must be at least 0"),
        ({"importance_exponent": 1.5}, "Sequences.importance_exponent = 1.5 must lie between 0 and 1"),
        ({"importance_steps": 0}, "Sequences.importance_steps = 0 must be at least 1"),
        ({"stride": 6}, "Sequences.stride = 6 is more than Sequences.sequence_length = 5"),
        ({"n_step": 6}, "Sequences.n_step = 6 is more than Sequences.sequence_length = 5"),
        ({"burn_in": 193}, "Sequences.burn_in = 193 with 5 steps to learn from takes 201 rows, more than"),
        ({"batch_size": 41}, "Sequences.capacity = 200 is less than a batch of 41 sequences of 5 steps"),
        ({"warm_up": 201}, "Sequences.warm_up = 201 is more than Sequences.capacity = 200 can hold"),
        ({"new_priority": "high"}, 'Sequences.new_priority = \'high\' must be "largest" or "given"'),
        ({"storage": "ram"}, "Sequences.storage = 'ram' is not one of 'device', 'host', 'disk'"),
        ({"storage": "host", "compression": "lzma"}, "Sequences.compression = 'lzma' is not one of 'zlib' or None"),
        (
            {"storage": "disk", "compression": "zlib"},
            "Sequences.compression = 'zlib' needs Sequences.storage = \"host\", not 'disk'",
        ),
        ({"groups": (10, 7)}, "Sequences.capacity = 200 gives each of 17 columns 11 rows, and a sequence takes 12"),
    ],
)
def test_impossible_sizes_are_refused(given, line) -> None:
    with pytest.raises(ConfigError, match=re.escape(line)):
        make(**{"context": 1 if "groups" in given else 0, **given})


def test_what_does_not_fit_is_refused() -> None:
    _, memory = make(extras=("arm",))
    with pytest.raises(
        ConfigError, match="Sequences keeps 'arm' of the actor's extras, and the actor gives known, pri"
    ):
        Numbered((2,), 0).step(memory, 0)
    _, memory = make()
    run(memory, Numbered((2,), 0), 60, np.random.default_rng(0))
    with pytest.raises(CheckpointError, match=re.escape("[2, 100, 3, 11] cannot be restored from [2, 100, 4, 12]")):
        make()[1].restore(make(burn_in=4)[1].snapshot())
    keys, before = memory.sample().keys, memory.index.tree.snapshot()["priorities"]
    with pytest.raises(DivergedError, match="priority 3 of 16 is nan"):
        memory.update_priorities(keys, torch.arange(16.0).index_fill(0, torch.tensor([3]), torch.nan))
    assert torch.equal(memory.index.tree.snapshot()["priorities"], before) and float(memory.index._largest) == 1


def test_a_batch_has_the_size_that_is_asked_for() -> None:
    """But there is one at a time, of all sequences. Mutation: the memory's own size."""
    _, memory = make(batch_size=3)
    run(memory, Numbered((2,), 0), 60, np.random.default_rng(0))
    sample = memory.sample(7)
    assert sample.trajectory.reward.shape == (6, 7) and len(sample.keys) == 7 and sample.steps == 35
    for options, line in (({"count": 2}, "count = 2"), ({"holdout": True}, "holdout = True")):
        with pytest.raises(ConfigError, match=f"SequenceMemory cannot sample with {line}"):
            memory.sample(**options)
    assert memory.view("all") is None
