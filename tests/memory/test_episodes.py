"""Episodes with hindsight: against lists, by arithmetic."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain.errors import ConfigError
from packtrain.memory.episodes import EpisodeMemory, Episodes, bucket_chances, n_step_parts, rewards_to_go
from packtrain.memory.ring import Ring
from packtrain.types import Row

CPU = torch.device("cpu")


def numbered(start: int, length: int, solved: bool = False, terminated: bool = True) -> dict:
    """An episode whose observations are the numbers start, start + 1, …; action = reward = observation."""
    numbers = np.arange(start, start + length + 1)
    ends = np.zeros(length, bool)
    return {
        "obs": {"n": numbers},
        "action": numbers[:-1],
        "reward": numbers[:-1].astype(np.float32),
        "terminated": ends | (np.arange(length) == length - 1) if terminated else ends,
        "truncated": ends if terminated else ends | (np.arange(length) == length - 1),
        "solved": solved,
        "value": numbers[:-1] / 10,
    }


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(10, 60))
def test_ring_keeps_the_newest_rows(lengths: list[int], capacity: int) -> None:
    """Steps that can be drawn are those of the last `capacity` rows, each followed by its own next observation.

    Mutation: let the last row of an episode be drawn; its successor is another episode's.
    """
    ring, rows = Ring(capacity), []
    start = 0
    for length in lengths:
        numbers = np.arange(start, start + length + 1)
        ring.add({"n": numbers}, {"action": numbers[:-1]})
        rows += [(n, n != numbers[-1]) for n in numbers.tolist()]
        start += 100
    kept = [n for n, is_step in rows[-capacity:] if is_step]
    assert len(ring) == len(kept)
    drawn, chances = ring.draw(400, np.random.default_rng(0), 0.0)
    seen = ring.take("obs", drawn)["n"]
    assert set(seen.tolist()) <= set(kept)
    np.testing.assert_array_equal(ring.take("obs", drawn, 1)["n"], seen + 1)
    np.testing.assert_array_equal(ring.take("action", drawn), seen)
    assert chances[0] == pytest.approx(1 / len(kept))
    copy = Ring(capacity)
    copy.restore(ring.snapshot())
    again, _ = copy.draw(400, np.random.default_rng(0), 0.0)
    np.testing.assert_array_equal(copy.take("obs", again)["n"], seen)


def test_priorities_decide_how_often() -> None:
    """With exponent 1 a step of priority 3 is drawn three times as often as one of priority 1."""
    ring = Ring(10)
    ring.add({"n": np.arange(3)}, {"action": np.arange(2)})
    ring.priority[:2] = [1.0, 3.0]
    drawn, chances = ring.draw(20_000, np.random.default_rng(0), 1.0)
    assert np.mean(drawn == 1) == pytest.approx(0.75, abs=0.02)
    np.testing.assert_allclose(chances, np.where(drawn == 1, 0.75, 0.25))


def test_hindsight_by_arithmetic() -> None:
    """Rewards 1, 0, 2 with discount 0.5."""
    reward = np.array([1.0, 0.0, 2.0])
    np.testing.assert_allclose(rewards_to_go(reward, 1.0), [3, 2, 2])
    np.testing.assert_allclose(rewards_to_go(reward, 0.5), [1 + 0.25 * 2, 0.5 * 2, 2])


@pytest.mark.parametrize("terminated", [True, False])
def test_n_step_parts_by_arithmetic(terminated: bool) -> None:
    """Two steps: the window of step 0 ends inside, those of 1 and 2 reach the end, which bootstraps if truncated."""
    parts = n_step_parts(np.array([1.0, 0.0, 2.0]), terminated, 2, 0.5)
    np.testing.assert_allclose(parts["n_step_return"], [1 + 0.5 * 0, 0 + 0.5 * 2, 2])
    np.testing.assert_allclose(parts["bootstrap_discount"], [0.25, 0, 0] if terminated else [0.25, 0.25, 0.5])
    np.testing.assert_array_equal(parts["bootstrap_offset"], [2, 2, 1])


def test_sample_gives_steps_with_hindsight_and_bootstrap() -> None:
    """Every field of a sampled step belongs to the same step. Mutation: an offset of one in any field."""
    memory = Episodes(batch_size=256, extras=("value",), n_step=2, discount=0.5).build([1], 0, CPU)
    memory.add_episode(numbered(10, 3))
    memory.add_episode(numbered(50, 2, terminated=False))
    trajectory = memory.sample().trajectory
    obs = trajectory.obs["n"]
    assert obs.shape == (2, 256) and set(obs[0].tolist()) == {10, 11, 12, 50, 51}
    assert torch.equal(obs[1], obs[0] + 1)
    assert torch.equal(trajectory.action[0], obs[0]) and torch.equal(trajectory.reward[0], obs[0].float())
    assert torch.allclose(trajectory.extras["value"][0].float(), obs[0] / 10)
    bootstrap = {10: 12, 11: 13, 12: 13, 50: 52, 51: 52}
    returns = {10: 33, 11: 23, 12: 12, 50: 101, 51: 51}
    discount = {10: 0.25, 11: 0, 12: 0, 50: 0.25, 51: 0.5}
    for n, obs_n, ret, disc in zip(
        obs[0].tolist(),
        trajectory.extras["bootstrap_obs"]["n"][0].tolist(),
        trajectory.extras["return"][0].tolist(),
        trajectory.extras["bootstrap_discount"][0].tolist(),
        strict=True,
    ):
        assert (obs_n, ret, disc) == (bootstrap[n], returns[n], discount[n])


def test_buckets_are_drawn_evenly() -> None:
    """One solved episode among a hundred makes half of every batch; without buckets about one in a hundred."""
    for hierarchy, want in ((("solved",), 0.5), ((), 0.01)):
        memory = Episodes(batch_size=2000, sampling_hierarchy=hierarchy).build([1], 0, CPU)
        for episode in range(100):
            memory.add_episode(numbered(100 * episode, 5, solved=episode == 50))
        solved = memory.sample().trajectory.extras["solved"].mean()
        assert solved == pytest.approx(want, abs=0.05)
    np.testing.assert_allclose(bucket_chances([(False, False), (True, False), (True, True)]), [0.5, 0.25, 0.25])


def rows_of(columns: list[list[tuple]]) -> list[tuple[Row, dict]]:
    """Rows of columns given as lists of (obs, first, last_reward, terminated, solved)."""
    rows = []
    for moment in zip(*columns, strict=True):
        obs, first, reward, terminated, solved = (np.array(part) for part in zip(*moment, strict=True))
        row = Row(obs, first, obs * 10, {"train": reward.astype(np.float32)}, terminated, np.zeros(len(obs), bool))
        rows.append((row, {"value": obs / 2, "solved": solved}))
    return rows


def test_a_round_is_kept_when_its_last_episode_is_over() -> None:
    """Column 0 takes one step and waits, column 1 takes two; rows of waiting are not in any episode.

    Mutations: keep rows after the end; shift actions or values by a row.
    """
    memory = Episodes(batch_size=64, extras=("value",), sampling_hierarchy=("solved",)).build([2], 0, CPU)
    first = [(1, True, 0, False, False), (2, False, 5, True, True), (99, False, 0, False, False)]
    second = [(11, True, 0, False, False), (12, False, 3, False, False), (13, False, 4, True, False)]
    for index, (row, extras) in enumerate(rows_of([first, second])):
        assert len(memory) == 0, index
        memory.writer(0).add(row, (), extras)
    assert len(memory) == 3 and memory.episodes == 2
    assert memory.report() == {"bucket_False_size": 2, "bucket_True_size": 1}
    trajectory = memory.sample().trajectory
    seen = {
        (int(o), int(a), float(r), bool(t), float(v), float(s))
        for o, a, r, t, v, s in zip(
            trajectory.obs[0],
            trajectory.action[0],
            trajectory.reward[0],
            trajectory.terminated[0],
            trajectory.extras["value"][0],
            trajectory.extras["solved"][0],
            strict=True,
        )
    }
    assert seen == {
        (1, 20, 5.0, True, 0.5, 1.0),
        (11, 120, 3.0, False, 5.5, 0.0),
        (12, 130, 4.0, True, 6.0, 0.0),
    }


def test_snapshot_goes_on_with_the_same_batches() -> None:
    """A restored memory draws what the original would have drawn next."""
    memory = Episodes(batch_size=8, sampling_hierarchy=("solved",)).build([1], 0, CPU)
    for episode in range(20):
        memory.add_episode(numbered(100 * episode, 5, solved=episode % 3 == 0))
    memory.sample()
    copy = EpisodeMemory(Episodes(batch_size=8, sampling_hierarchy=("solved",)), [1], CPU)
    copy.restore(memory.snapshot())
    for _ in range(3):
        assert torch.equal(memory.sample().trajectory.obs["n"], copy.sample().trajectory.obs["n"])


def test_episodes_longer_than_the_memory_are_dropped_and_counted() -> None:
    """They would write over themselves."""
    memory = Episodes(capacity=4).build([1], 0, CPU)
    memory.add_episode(numbered(0, 4))
    assert (len(memory), memory.dropped, memory.sample()) == (0, 1, None)


@pytest.mark.parametrize("wrong", [{"capacity": 0}, {"sampling_hierarchy": ("sovled",)}, {"discount": 1.5}])
def test_bad_sizes_are_refused(wrong: dict) -> None:
    """With one line that names the parameter."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Episodes(**wrong)


def numbers(trajectory) -> list[int]:
    return trajectory.obs["n"][0].tolist()


def held_out_memory(count: int, **more) -> tuple[EpisodeMemory, dict[bool, list[int]]]:
    """A memory with a quarter held out, of so many episodes of 3 steps, every third solved; their starts by kind."""
    memory = Episodes(400, 500, ("solved",), validation_share=0.25, **more).build([1], 0, CPU)
    starts: dict[bool, list[int]] = {False: [], True: []}
    for index in range(count):
        solved = index % 3 == 0
        memory.add_episode(numbered(100 * index, 3, solved))
        starts[solved].append(100 * index)
    return memory, starts


def spared(memory, most):
    """At most so many held-out steps, as a trajectory."""
    sample = memory.view("held_out", most=most)
    return None if sample is None else sample.trajectory


def test_every_fourth_episode_of_each_kind_is_held_out() -> None:
    """And never sampled; the first of a kind is learned from. Mutations: every fourth of all; hold out and sample."""
    memory, starts = held_out_memory(24)
    kept = {start + step for kind in starts.values() for start in kind[3::4] for step in range(3)}
    learned = {start + step for kind in starts.values() for start in kind for step in range(3)} - kept
    trajectory = spared(memory, 10_000)
    assert sorted(numbers(trajectory)) == sorted(kept)
    np.testing.assert_array_equal(trajectory.obs["n"][1], trajectory.obs["n"][0] + 1)
    np.testing.assert_array_equal(trajectory.reward[0], trajectory.obs["n"][0].float())
    assert trajectory.first.shape == (2, len(kept)) and not trajectory.first.any()
    drawn = {n for _ in range(4) for n in numbers(memory.sample().trajectory)}
    assert drawn == learned and len(memory) == len(learned) and memory.episodes == 24


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3, 0.4, 0.45, 0.5])
def test_as_many_episodes_are_held_out_as_was_said(share) -> None:
    """Mutation: every so many-th, a whole number: half of them for 0.4."""
    memory = Episodes(4000, 8, validation_share=share).build([1], 0, CPU)
    for index in range(100):
        memory.add_episode(numbered(100 * index, 3, False))
    assert len(numbers(spared(memory, 10_000))) == 3 * round(100 * share)


def test_held_out_steps_are_spread_over_kinds_and_time() -> None:
    """At most so many, half of each kind, from early to late, the same every time. Mutation: the first ones only."""
    memory, starts = held_out_memory(60)
    few = numbers(spared(memory, 6))
    assert len(few) == 6 and few == numbers(spared(memory, 6))
    solved = {start + step for start in starts[True] for step in range(3)}
    assert sum(n in solved for n in few) == 3
    held = sorted(numbers(spared(memory, 10_000)))
    assert min(few) == held[0] and max(n for n in few if n not in solved) > np.median(held)


def test_what_is_held_out_has_a_tenth_of_the_room() -> None:
    """The oldest are overwritten; an episode too long for it is trained on. Mutations: no limit; drop long ones."""
    memory, _ = held_out_memory(400)
    assert len(spared(memory, 10_000).reward[0]) == 2 * 30, "40 rows of each kind, 3 of 4 of them steps"
    long = Episodes(100, 8, validation_share=0.5).build([1], 0, CPU)
    for index in range(4):
        long.add_episode(numbered(100 * index, 12))
    assert spared(long, 100) is None and len(long) == 48 and not long.dropped


def test_what_is_held_out_is_saved() -> None:
    """With the count that selects the next episode; older snapshots lack it. Mutation: count from 0 after a restore."""
    memory, _ = held_out_memory(10)
    copy, _ = held_out_memory(0)
    copy.restore(memory.snapshot())
    for each in (memory, copy):
        for index in range(10, 24):
            each.add_episode(numbered(100 * index, 3, index % 3 == 0))
    assert numbers(spared(copy, 999)) == numbers(spared(memory, 999)) == numbers(spared(held_out_memory(24)[0], 999))
    assert numbers(copy.sample().trajectory) == numbers(memory.sample().trajectory)
    old = memory.snapshot()
    del old["held_out"], old["kept"]
    copy.restore(old)
    assert spared(copy, 10) is None
    memory.clear()
    assert spared(memory, 10) is None and not memory.ready()


def test_nothing_is_held_out_unless_asked() -> None:
    """A negative control: batches equal those of a memory without held-out steps."""
    plain = Episodes(400, 500, ("solved",)).build([1], 0, CPU)
    for index in range(24):
        plain.add_episode(numbered(100 * index, 3, index % 3 == 0))
    assert spared(plain, 100) is None and len(plain) == 72


@pytest.mark.parametrize("share", [-0.1, 0.6])
def test_a_share_that_leaves_nothing_to_learn_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match=rf"Episodes.validation_share = {share} must lie in \[0, 0.5\]"):
        Episodes(validation_share=share)


def test_a_batch_has_the_size_that_is_asked_for() -> None:
    """But there is one at a time. Mutation: the memory's own size."""
    memory = Episodes(400, 8).build([1], 0, CPU)
    memory.add_episode(numbered(0, 12))
    assert memory.sample(5).trajectory.reward.shape == (1, 5) and memory.sample(5).steps == 5
    with pytest.raises(ConfigError, match="EpisodeMemory cannot sample with count = 3"):
        memory.sample(count=3)
    assert memory.view("all") is None and memory.view("stretches", steps=2) is None
