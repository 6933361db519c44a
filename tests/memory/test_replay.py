"""Uniform replay: what goes in comes out, ends and resets included; it grows, wraps around, comes back from disk."""

import os
import sys
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain.errors import CheckpointError, ConfigError
from packtrain.memory.replay import Replay, ReplayMemory
from packtrain.runtime import checkpoint
from packtrain.types import Row

CPU = torch.device("cpu")
FLAGS = ("terminated", "truncated")
NAMES = ("obs", "action", "reward", "after", *FLAGS, "row")


def row(obs, first=False, action=0.0, reward=0.0, terminated=False, truncated=False) -> Row:
    """One row of two columns, the second of which shows the negative of the first and is never reset."""
    two = lambda value, dtype: np.array([value, value], dtype)  # noqa: E731
    return Row(
        obs=np.array([[obs, obs + 0.5], [-obs, -obs - 0.5]], np.float64),
        first=np.array([first, obs == 0]),
        last_action=np.array([[action], [-action]], np.float32),
        last_reward={"train": np.array([reward, -reward], np.float32)},
        terminated=two(terminated, bool),
        truncated=two(truncated, bool),
    )


def filled(count: int, memory: ReplayMemory) -> ReplayMemory:
    """So many transitions of one column of numbers: n → n + 1 by action 10 n, paid 100 n."""
    for n in range(memory.count, memory.count + count):
        one = np.array([float(n)])
        memory.add(
            {
                "obs": np.stack([one, one + 0.5], axis=1),
                "action": 10 * one[:, None],
                "reward": 100 * one,
                "after": np.stack([one + 1, one + 1.5], axis=1),
                "terminated": one % 7 == 0,
                "truncated": one % 5 == 0,
            }
        )
    return memory


def fields(sample) -> dict[str, torch.Tensor]:
    """Transitions [..., 1, B] field by field, [..., B] each, and "row", where they lie; of no sample, no rows."""
    if sample is None:
        return {name: torch.zeros(0, 2) if name in ("obs", "after") else torch.zeros(0) for name in NAMES}
    t, time = sample.trajectory, sample.trajectory.reward.ndim - 2
    found = {name: getattr(t, name).select(time, 0) for name in ("obs", "action", "reward", *FLAGS)}
    return {**found, "after": t.obs.select(time, 1), "row": sample.keys}


def batches(memory, count, size=None, holdout=False) -> dict[str, torch.Tensor]:
    return fields(memory.sample(size, count, holdout=holdout))


def everything(memory) -> dict[str, torch.Tensor]:
    return fields(memory.view("all"))


def held_out(memory, most=None) -> dict[str, torch.Tensor]:
    return fields(memory.view("held_out", most=most))


def indices(memory, count, size=None, holdout=False) -> torch.Tensor:
    return memory.sample(size, count, holdout=holdout).keys


def make(capacity=100, batch_size=8, warm_up=1, segments=None, seed=3) -> ReplayMemory:
    memory = Replay(capacity, batch_size, warm_up).build([2], 0, CPU)
    memory.reseed(seed)
    if segments is not None:
        memory.attach(*segments)
    return memory


def test_a_transition_is_a_row_and_what_its_action_led_to() -> None:
    """A reset row ends no transition and begins a new episode. Mutations: storing it; taking the next row's reward."""
    memory = make(batch_size=64)
    sink = memory.writer(0)
    sink.add(row(0, first=True), (), {})
    sink.add(row(1, action=0.1, reward=1), (), {})
    sink.add(row(2, action=0.2, reward=2, terminated=True), (), {})
    sink.add(row(7, first=True, action=0.3, reward=3), (), {})
    sink.add(row(8, action=0.4, reward=4, truncated=True), (), {})
    assert len(memory) == 7  # the second column never rested: 4; the first: 3
    kept = {name: leaf.numpy() for name, leaf in everything(memory).items()}
    mine = kept["reward"] > 0
    np.testing.assert_array_equal(kept["obs"][mine][:, 0], [0, 1, 7])
    np.testing.assert_array_equal(kept["after"][mine][:, 1], [1.5, 2.5, 8.5])
    np.testing.assert_array_equal(kept["reward"][mine], [1, 2, 4])
    np.testing.assert_allclose(kept["action"][mine][:, 0], [0.1, 0.2, 0.4], rtol=1e-6)
    np.testing.assert_array_equal(kept["terminated"][mine], [0, 1, 0])
    np.testing.assert_array_equal(kept["truncated"][mine], [0, 0, 1])
    assert kept["obs"].dtype == np.float32 and kept["terminated"].dtype == bool


def test_a_sample_is_a_trajectory_of_one_step() -> None:
    """Every drawn step is whole: its parts belong together. Mutation: another index for the next observation."""
    memory = filled(60, make())
    sample = memory.sample()
    assert sample is not None and sample.steps == 8
    t = sample.trajectory
    assert t.obs.shape == (2, 8, 2) and t.action.shape == (1, 8, 1) and t.reward.shape == (1, 8)
    n = t.obs[0, :, 0]
    torch.testing.assert_close(t.obs[1, :, 0], n + 1)
    torch.testing.assert_close(t.action[0, :, 0], 10 * n)
    torch.testing.assert_close(t.reward[0], 100 * n)
    assert torch.equal(t.terminated[0], n % 7 == 0) and torch.equal(t.truncated[0], n % 5 == 0)
    assert not t.first.any()


def test_it_is_uniform_over_what_is_left() -> None:
    """After wrapping around only the newest are drawn, all alike. Mutation: drawing below the ring's next place."""
    memory = filled(250, make(capacity=100, batch_size=100))
    drawn = batches(memory, 200)["obs"][..., 0].flatten()
    counts = torch.bincount(drawn.long(), minlength=250)
    assert not counts[:150].any() and len(memory) == 100
    assert counts[150:].min() > 130 and counts[150:].max() < 270  # 200 each; six standard deviations are 85


def test_many_batches_at_once_are_whole_steps_and_say_where_they_lie() -> None:
    """Of any size. Mutations: the memory's own batch size; a field at other rows; the same rows in each batch."""
    memory = filled(60, make())
    sample = memory.sample(3, 5)
    assert sample.trajectory.obs.shape == (5, 2, 3, 2) and sample.trajectory.first.shape == (5, 2, 3)
    assert sample.trajectory.last_action.shape == (5, 1, 3, 1) and sample.steps == 15
    taken = fields(sample)
    assert taken["row"].shape == taken["reward"].shape == (5, 3) and taken["obs"].shape == (5, 3, 2)
    n = taken["row"].float()
    torch.testing.assert_close(taken["obs"][..., 0], n)
    torch.testing.assert_close(taken["after"][..., 1], n + 1.5)
    torch.testing.assert_close(taken["action"][..., 0], 10 * n)
    torch.testing.assert_close(taken["reward"], 100 * n)
    assert torch.equal(taken["terminated"], n % 7 == 0) and torch.equal(taken["truncated"], n % 5 == 0)
    assert len(torch.unique(taken["row"], dim=0)) == 5
    again = filled(60, make())
    assert torch.equal(indices(again, 5, 3), taken["row"]) and indices(again, 2).shape == (2, 8)
    one_by_one = filled(60, make())
    rows = torch.cat([indices(one_by_one, 1, 3) for _ in range(5)])
    assert torch.equal(rows, taken["row"])  # how many are drawn at once does not matter


@given(
    capacity=st.integers(8, 90),
    columns=st.integers(1, 3),
    program=st.lists(st.sampled_from(["add", "add", "add", "draw", "save"]), max_size=40),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_it_holds_and_shows_what_a_list_of_steps_says(capacity, columns, program, seed) -> None:
    """Any order of adding, drawing and going on from a snapshot. Mutations: the oldest not overwritten; a wrong lap."""
    memory, rng, kept = make(capacity, batch_size=8, seed=seed), np.random.default_rng(seed), []
    for what in program:
        if what == "add":
            count = int(rng.integers(1, columns + 1))
            numbers = len(kept) + np.arange(count, dtype=np.float64)
            kept += [(n, 10 * n, 100 * n, n + 1, n % 7 == 0, n % 5 == 0) for n in numbers]
            one = numbers[:, None]
            flags = {"terminated": numbers % 7 == 0, "truncated": numbers % 5 == 0}
            memory.add({"obs": one, "action": 10 * one, "reward": 100 * numbers, "after": one + 1, **flags})
        elif what == "save" and kept:
            saved, memory = memory.snapshot(), make(capacity, batch_size=8)
            memory.restore(saved)
        alive = kept[-capacity:]
        assert len(memory) == len(alive) and memory.count == len(kept)
        if what == "draw" and kept:
            taken = batches(memory, 3, 5)
            assert taken["obs"].shape == (3, 5, 1)
            rows = [taken[name].flatten().tolist() for name in NAMES[:-1]]
            assert set(zip(*rows, strict=True)) <= set(alive)
    if kept:
        found = everything(memory)
        rows = [found[name].flatten().tolist() for name in NAMES[:-1]]
        assert sorted(zip(*rows, strict=True)) == alive


def test_a_learner_draws_whole_steps_while_an_actor_adds() -> None:
    """Two threads on a small ring. Mutation: what waits is cleared once it is stored, and more with it."""
    memory, over, failed = make(capacity=50), threading.Event(), []

    def act() -> None:
        try:
            while not over.is_set():
                filled(60, memory)
                time.sleep(1e-3)  # or the other thread hardly gets a turn, on some machines
        except Exception as error:
            failed.append(error)

    actor, interval = threading.Thread(target=act), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        actor.start()
        end, drawn = time.monotonic() + 60, 0
        while drawn < 300 and time.monotonic() < end and not failed:
            if memory.count:
                taken = batches(memory, 2, 16)
                number = taken["obs"][..., 0]
                assert torch.equal(taken["after"][..., 0], number + 1) and torch.equal(taken["reward"], 100 * number)
                assert torch.equal(taken["terminated"].bool(), number % 7 == 0)
                drawn += 1
    finally:
        over.set()
        actor.join()
        sys.setswitchinterval(interval)
    assert not failed and drawn == 300
    kept = np.sort(everything(memory)["obs"][:, 0].numpy())
    assert np.array_equal(kept, np.arange(memory.count - 50, memory.count)), "each step once"
    assert memory._stored == memory.count, "none lost"


def test_another_seed_draws_other_rows() -> None:
    one, other = filled(60, make(seed=3)), filled(60, make(seed=4))
    first = indices(one, 3)
    assert not torch.equal(first, indices(other, 3))
    other.reseed(3)
    assert torch.equal(first, indices(other, 3))


@pytest.mark.parametrize("block, capacity", [(10, 100), (32, 400)])  # a tenth of the capacity; 16 rows of two columns
@pytest.mark.parametrize("periods", [0.05, 0.9, 0.95, 1, 1.03, 1.95, 2.57])
def test_held_out_steps_and_batches_share_nothing_and_miss_nothing(block, capacity, periods) -> None:
    """Also when the ring has wrapped around. Mutations: an index off by one at the end of a block, or of ten blocks."""
    memory = filled(round(periods * 10 * block), make(capacity=capacity, batch_size=50))
    rows = len(memory)
    drawn = indices(memory, 300, holdout=True).flatten()
    spared = torch.tensor([row for row in range(rows) if row // block % 10 == 9], dtype=torch.int64)
    assert sorted(drawn.unique().tolist()) == sorted(set(range(rows)) - set(spared.tolist()))
    chances = torch.bincount(drawn, minlength=rows) * (rows - len(spared)) / len(drawn)
    assert chances.max() < 2.2 and chances[torch.bincount(drawn, minlength=rows) > 0].min() > 0.1  # 1 on average
    kept = held_out(memory, 1000)
    assert torch.equal(kept["reward"], everything(memory)["reward"][spared])
    assert len(indices(memory, 300).unique()) == rows  # without holdout all rows are drawn


def test_what_is_held_out_is_spread_over_all_when_it_is_too_much() -> None:
    """Mutation: the oldest alone."""
    memory = filled(3200, make(capacity=3200))
    for most in (1, 7, 30, 99, 320):
        kept = held_out(memory, most)["obs"][:, 0]
        assert most // 2 <= len(kept) <= most and (kept // 32 % 10 == 9).all()
        assert most < 7 or (kept.min() < 320 and kept.max() >= 2500)
    assert len(held_out(memory, 320)["reward"]) == 320


@pytest.mark.parametrize("count, stretches", [(290, 0), (310, 2 * 8), (3200, 260), (3500, 254)])
def test_held_out_stretches_share_no_step_with_batches(count, stretches) -> None:
    """4 steps of two columns; a block of 32 rows has 13 places per column where one can begin.

    With 3,500 transitions the oldest and the newest meet within a block. Mutations: only the first step is held out; a
    stretch over that place.
    """
    memory = make(capacity=3200, batch_size=64)
    for turn in range(count // 2 + 1):
        memory.writer(0).add(row(float(turn + 1), first=turn == 0), (), {})
    assert memory.count == count
    found = memory.view("stretches", most=1000, steps=4, holdout=True)
    assert (0 if found is None else found.trajectory.reward.shape[1]) == stretches
    obs = torch.zeros(5, 0, 2) if found is None else found.trajectory.obs
    assert obs.shape == (5, stretches, 2) and torch.equal(obs[1:, :, 0].abs(), obs[:-1, :, 0].abs() + 1)
    trained = set(batches(memory, 400, holdout=True)["obs"][..., 0].flatten().tolist())
    assert len(trained) == len(memory) - len(held_out(memory, 10_000)["reward"])
    assert not trained & set(obs[:-1, :, 0].flatten().tolist())
    anywhere = memory.view("stretches", steps=4).trajectory.obs[:-1, :, 0].flatten().tolist()
    assert trained & set(anywhere), "without holdout stretches come from everywhere"


def test_a_memory_saved_before_there_were_blocks_holds_out_every_tenth_row() -> None:
    """A resumed run draws what it would have drawn. Mutation: the blocks of a new memory."""
    state = filled(257, make(capacity=400)).snapshot()
    del state["holdout_block"]
    old = make(capacity=400)
    old.restore(state)
    drawn = np.random.default_rng(3).integers(257 - 25, size=(60, 8))
    assert np.array_equal(indices(old, 60, holdout=True).numpy(), drawn + drawn // 9)
    assert torch.equal(held_out(old, 1000)["reward"], everything(old)["reward"][9::10])
    again = make(capacity=400)
    again.restore(old.snapshot())
    assert torch.equal(indices(again, 60, holdout=True), indices(old, 60, holdout=True))


def test_filled_is_all_that_is_there() -> None:
    """What waits too, and no room that is not used yet. Mutation: the whole of the fields."""
    memory = filled(5, make(capacity=6000))
    assert torch.equal(everything(memory)["reward"], 100 * torch.arange(5.0))
    filled(4200, memory)
    assert len(everything(memory)["reward"]) == 4205 and everything(memory)["obs"].shape == (4205, 2)
    filled(3000, memory)
    assert len(everything(memory)["reward"]) == 6000 and everything(memory)["obs"][:, 0].min() == 1205


def test_new_episodes_answer_nothing_of_the_old_ones() -> None:
    """Environments that could not be saved begin new episodes. Mutation: a step from the last row before the save."""
    memory = filled(3, make())
    memory.writer(0).add(row(5, first=True), (), {})
    state = memory.snapshot()
    for same_episodes, steps in ((True, 2), (False, 0)):
        again = make()
        again.restore(state, same_episodes=same_episodes)
        again.writer(0).add(row(6, action=1.0, reward=1), (), {})
        assert again.count == 3 + steps and len(everything(again)["reward"]) == 3 + steps
        again.writer(0).add(row(7, action=1.0, reward=1), (), {})
        assert again.count == 5 + steps


def test_nothing_is_drawn_before_it_is_warm() -> None:
    memory = make(warm_up=5)
    assert memory.sample() is None and not filled(4, memory).ready()
    assert filled(1, memory).sample() is not None


@pytest.mark.parametrize("count", [0, 3, 30, 64, 95, 130, 400])
@pytest.mark.parametrize("rows", [None, 16])
def test_it_comes_back_from_disk(tmp_path, count, rows) -> None:
    """The same rows at the same places, the same draws after it, and the row that waits for its consequence.

    Mutations: the head of a ring that begins inside a segment left out; the generator left out; rows placed from 0.
    """
    store = lambda: None if rows is None else (tmp_path / "replay", rows)  # noqa: E731
    memory = filled(count, make(segments=store()))
    memory.writer(0).add(row(5, first=True), (), {})
    if count:
        memory.sample()
    checkpoint.save(tmp_path / "checkpoints", count, {"memory": memory.snapshot()})
    state = checkpoint.load(tmp_path / "checkpoints" / str(count))["memory"]
    again = make(segments=store(), seed=99)
    again.restore(state)
    for one in (memory, again):
        one.writer(0).add(row(6, action=1.0, reward=1), (), {})
        filled(20, one)
    assert again.count == memory.count == count + 22
    assert torch.equal(indices(again, 5), indices(memory, 5))
    assert torch.equal(indices(again, 5, holdout=True), indices(memory, 5, holdout=True))
    for name, leaf in everything(memory).items():
        assert torch.equal(everything(again)[name], leaf), name


def test_segments_are_written_once_and_checkpoints_stay_small(tmp_path) -> None:
    """Mutation: writing the whole ring into each checkpoint."""
    memory = filled(95, make(capacity=10_000, segments=(tmp_path, 16)))
    first = memory.snapshot()
    files = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(files) == 5 and len(first["tail"]["reward"]) == 15 and len(first["head"]["reward"]) == 0
    filled(1, memory)
    second = memory.snapshot()
    assert len(second["segments"]) == 6 and len(second["tail"]["reward"]) == 0
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in files} == files


def damage(path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"?")


@pytest.mark.parametrize("how", ["damaged", "missing", "too long", "a pipe", "a link"])
def test_steps_of_a_lost_segment_are_dropped_and_counted(tmp_path, how, capsys) -> None:
    """The rest is there, draws included. Mutations: an error; rows of zeros that are drawn."""
    memory = filled(57, make(batch_size=50, segments=(tmp_path, 16)))
    state = memory.snapshot()
    path = tmp_path / state["segments"][1]["name"]
    if how == "damaged":
        damage(path)
    elif how == "too long":
        os.truncate(path, 2**40)  # holes: reading it would take all memory
    else:
        path.rename(tmp_path / "elsewhere")
    if how == "a pipe":
        os.mkfifo(path)
    elif how == "a link":
        path.symlink_to(tmp_path / "elsewhere")
    again = make(batch_size=50, segments=(tmp_path, 16))
    again.restore(state)
    assert "the replay loses its steps" in capsys.readouterr().err
    left = {*range(16), *range(32, 57)}
    assert again.lost == 16 and len(again) == len(left) and again.count == 57
    assert {int(n) for n in everything(again)["obs"][:, 0]} == left
    assert {int(n) for n in batches(again, 20)["obs"][..., 0].flatten()} == left


def test_what_cannot_be_a_segment_is_refused(tmp_path) -> None:
    memory = filled(40, make(segments=(tmp_path, 16)))
    state = memory.snapshot()
    with pytest.raises(CheckpointError, match="no folder of them"):
        make().restore(state)
    state["segments"][1]["name"] = "../../outside.safetensors"
    with pytest.raises(CheckpointError, match="not a plain file name"):
        make(segments=(tmp_path, 16)).restore(state)


def test_a_replay_of_which_nothing_is_left_is_refused(tmp_path) -> None:
    memory = filled(32, make(segments=(tmp_path, 16)))
    state = memory.snapshot()
    for path in tmp_path.glob("*.safetensors"):
        damage(path)
    with pytest.raises(CheckpointError, match="every step of the replay memory is lost"):
        make(segments=(tmp_path, 16)).restore(state)


@pytest.mark.parametrize("count, lost", [(33, {0}), (48, {-1}), (95, {1, -1}), (130, {0, 1}), (167, {-1})])
def test_a_hole_is_never_drawn_until_it_is_overwritten(tmp_path, count, lost) -> None:
    """While the ring goes on, and across a second save and resume. Mutations: holes that are not saved, or counted
    again; places of a hole that wraps around; held-out steps from a hole; overwritten rows still left out."""
    memory = filled(count, make(batch_size=50, segments=(tmp_path, 16)))
    state = memory.snapshot()
    numbers = [
        state["segments"][one]["number"] for one in lost if -len(state["segments"]) <= one < len(state["segments"])
    ]
    gone = {row for number in numbers for row in range(16 * number, 16 * number + 16)}
    for number in set(numbers):
        damage(tmp_path / f"{number:08}.safetensors")
    again = make(batch_size=50, segments=(tmp_path, 16))
    again.restore(state)
    assert again.lost == len(gone)
    for turn in range(24):
        left = {n for n in range(max(0, again.count - 100), again.count) if n not in gone}
        number = lambda rows: [int(n) for n in rows["obs"].flatten(0, -2)[:, 0]]  # noqa: E731
        assert set(number(everything(again))) == left and len(again) == len(left) == len(number(everything(again)))
        spared, rest = number(held_out(again, 1000)), set(number(batches(again, 30, holdout=True)))
        assert set(spared) | rest == left and not set(spared) & rest
        assert set(spared) == {n for n in left if n % 100 // 10 == 9}, "blocks of 10 places"
        drawn = number(batches(again, 60))
        assert set(drawn) == left and max(drawn.count(n) for n in left) * len(left) < 2.5 * len(drawn)
        if turn % 3 == 1:
            state = again.snapshot()
            again = make(batch_size=50, segments=(tmp_path, 16))
            again.restore(state)
            assert again.lost == len(gone)
        filled(7, again)
    assert not again._hole_places(again.count)


def test_stretches_do_not_reach_over_a_hole(tmp_path) -> None:
    """Mutation: rows of zeros, which follow each other."""
    memory = filled(90, make(segments=(tmp_path, 8)))  # two columns: every other row follows
    kept = everything(memory)  # views of the memory
    kept["terminated"][:] = False
    kept["after"][:] = kept["obs"] + torch.tensor([2.0, 2.0])
    state = memory.snapshot()
    assert memory.view("stretches", steps=3).trajectory.reward.shape == (3, 86)
    damage(tmp_path / state["segments"][4]["name"])
    again = make(segments=(tmp_path, 8))
    again.restore(state)
    starts = again.view("stretches", steps=3).trajectory.obs[0, :, 0]
    assert {int(n) for n in starts} == {n for n in range(86) if n + 4 < 32 or n >= 40}


def test_trees_of_observations_and_whole_numbers(tmp_path) -> None:
    """Dicts come out as they went in, from disk too, integers stay integers. Mutation: leaves in alphabetical order."""
    memory = make(batch_size=4, segments=(tmp_path, 2))
    one = {f"{n:02}": np.full((4, 2), n, np.float32) for n in range(12)} | {"whole": np.arange(4, dtype=np.int64)}
    parts = {"reward": np.zeros(4), "terminated": np.zeros(4, bool), "truncated": np.zeros(4, bool)}
    memory.add({"obs": one, "action": np.arange(4), "after": one, **parts})
    again = make(batch_size=4, segments=(tmp_path, 2))
    again.restore(memory.snapshot())
    for each in (memory, again):
        trajectory = each.sample().trajectory
        assert trajectory.obs["whole"].dtype == torch.int64
        assert torch.equal(trajectory.obs["whole"][0], trajectory.action[0])
        assert all((trajectory.obs[f"{n:02}"] == n).all() for n in range(12))


@pytest.mark.parametrize(
    "values, line",
    [
        ({"capacity": 0}, "Replay.capacity = 0 must be at least 1"),
        ({"batch_size": 0}, "Replay.batch_size = 0 must be at least 1"),
        ({"capacity": 10, "batch_size": 11}, "Replay.capacity = 10 is less than Replay.batch_size = 11"),
        ({"capacity": 300, "warm_up": 301}, "Replay.warm_up = 301 is more than Replay.capacity = 300"),
    ],
)
def test_sizes_that_cannot_be_are_refused(values, line) -> None:
    with pytest.raises(ConfigError, match=line):
        Replay(**values)
