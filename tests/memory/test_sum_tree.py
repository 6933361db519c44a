"""The sum tree: against a list, in proportion, at the numeric edges, on every device there is."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from packtrain.errors import CheckpointError, ConfigError, DivergedError, Error
from packtrain.memory.sum_tree import LARGEST, SlotGenerations, SumTree
from packtrain.testing.naive_sum_tree import NaiveSumTree

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))
DEVICES = pytest.mark.parametrize("device", ["cpu", CUDA])


def filled(priorities, device="cpu"):
    priorities = torch.as_tensor(priorities, dtype=torch.float64, device=device)
    tree = SumTree(len(priorities), device)
    tree.set(torch.arange(len(priorities), device=device), priorities)
    return tree


def assert_in_proportion(counts, priorities):
    """χ² within five of its standard deviations: a right tree fails about once in a million times."""
    expected = priorities / priorities.sum() * counts.sum()
    assert not counts[expected == 0].any()
    there = expected > 0
    assert expected[there].min() >= 5
    statistic = ((counts - expected)[there].square() / expected[there]).sum()
    freedom = int(there.sum()) - 1
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5


class AgainstAList(RuleBasedStateMachine):
    """Random operations on both. Priorities are eighths, so that sums are exact and draws must be equal.

    Mutations: the first of repeated leaves wins; leaves below 0 are taken from the end; only the lowest level of sums
    is recomputed; a sample that does not subtract what it passed; a restore that leaves the sums as they were.
    """

    @initialize(capacity=st.sampled_from([1, 2, 31, 32, 33, 1000, 1023, 1024, 2500]))
    def begin(self, capacity):
        self.tree, self.naive = SumTree(capacity), NaiveSumTree(capacity)

    @rule(data=st.data(), many=st.integers(0, 40))
    def set(self, data, many):
        leaves = data.draw(st.lists(st.integers(-1, self.tree.capacity - 1), min_size=many, max_size=many))
        eighths = data.draw(st.lists(st.integers(0, 800), min_size=many, max_size=many))
        priorities = torch.tensor(eighths, dtype=torch.float32) / 8
        self.tree.set(torch.tensor(leaves, dtype=torch.int64), priorities)
        self.naive.set(leaves, priorities)

    @rule(uniforms=st.lists(st.floats(0, 1), max_size=20))
    def sample(self, uniforms):
        uniforms = torch.tensor([0.0, 1.0, *uniforms], dtype=torch.float64)
        if self.naive.total == 0:
            with pytest.raises(Error, match="cannot be sampled"):
                self.tree.sample(uniforms)
        else:
            assert torch.equal(self.tree.sample(uniforms), self.naive.sample(uniforms))

    @rule(used=st.booleans())
    def restore(self, used):
        """Into a new tree, or into one that held something else."""
        other = SumTree(self.tree.capacity)
        if used:
            other.set(torch.arange(other.capacity), torch.ones(other.capacity))
        other.restore(self.tree.snapshot())
        self.tree = other
        self.naive.restore(self.naive.snapshot())

    @invariant()
    def agree(self):
        if not hasattr(self, "tree"):
            return
        assert float(self.tree.total) == self.naive.total
        everything = torch.arange(self.tree.capacity)
        assert torch.equal(self.tree.priorities(everything), self.naive.priorities(everything))


AgainstAList.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None, derandomize=True)
TestAgainstAList = AgainstAList.TestCase


@DEVICES
def test_draws_are_in_proportion(device):
    """Mutation: children compared by ≥ instead of >, or uniforms not scaled by the total."""
    generator = torch.Generator(device).manual_seed(1)
    priorities = torch.rand(50, generator=generator, device=device, dtype=torch.float64) + 0.05
    priorities[::7] = 0
    tree = filled(priorities, device)
    uniforms = torch.rand(40_000, generator=generator, device=device)
    counts = tree.sample(uniforms).bincount(minlength=50)
    assert_in_proportion(counts.double().cpu(), priorities.cpu())


def test_a_wrong_proportion_is_noticed():
    """The negative control of the test above."""
    priorities = torch.linspace(1, 2, 50, dtype=torch.float64)
    counts = filled(priorities.sqrt()).sample(torch.rand(40_000, generator=torch.Generator().manual_seed(1)))
    with pytest.raises(AssertionError):
        assert_in_proportion(counts.bincount(minlength=50).double(), priorities)


@DEVICES
def test_a_ring_with_late_updates_stays_in_proportion(device):
    """Three times around, updates half a ring late: what is drawn is what lies there, by its own priority.

    Mutation: without generations, a late update lands on the item that took the slot.
    """
    capacity, size = 40, 5
    tree, keys = SumTree(capacity, device), SlotGenerations(capacity, device)
    generator = torch.Generator().manual_seed(0)
    wanted, items = torch.zeros(capacity, dtype=torch.float64), torch.zeros(capacity, dtype=torch.int64)
    waiting, late = [], 0
    for turn in range(3 * capacity // size + 3):
        number = turn * size + torch.arange(size)
        slots = number % capacity
        wanted[slots], items[slots] = torch.rand(size, generator=generator).double() + 0.1, number
        taken = keys.take(slots.to(device))
        assert taken.tolist() == number.tolist()  # in a ring a key is the number of things that came before
        tree.set(slots.to(device), wanted[slots].to(device))
        waiting.append(keys.of(tree.sample(torch.rand(8, generator=generator).to(device))))
        if len(waiting) > 4:
            answered = waiting.pop(0)
            fresh = torch.rand(8, generator=generator) + 0.1
            tree.set(keys.slots(answered), fresh.to(device))
            for key, priority in zip(answered.tolist(), fresh.tolist(), strict=True):
                if items[key % capacity] == key:
                    wanted[key % capacity] = priority
                else:
                    late += 1
    assert late > 20 and int(keys.dropped) == late
    torch.testing.assert_close(tree.priorities(torch.arange(capacity, device=device)).cpu(), wanted)
    counts = tree.sample(torch.rand(40_000, generator=generator).to(device)).bincount(minlength=capacity)
    assert_in_proportion(counts.double().cpu(), wanted)
    tree.check()


@DEVICES
def test_stratified_draws_of_a_million_equal_leaves_take_each_in_turn(device):
    """float32 fails here: a million has no room for halves in it."""
    leaves = 1_000_000
    tree = filled(torch.full((leaves,), 0.1), device)
    wanted = torch.arange(17, leaves, 61, device=device)
    assert torch.equal(tree.sample((wanted.double() + 0.5) / leaves), wanted)


@DEVICES
@pytest.mark.parametrize("seed", range(4))
def test_a_leaf_of_priority_0_is_never_drawn(device, seed):
    """Zeros first, last and between; numbers of all sizes, which sums lose. Mutation: no step back from the end."""
    generator = torch.Generator().manual_seed(seed)
    size = [33, 1000, 5000, 40_000][seed]
    priorities = 10 ** (torch.rand(size, generator=generator, dtype=torch.float64) * 40 - 20)
    priorities[torch.rand(size, generator=generator) < 0.7] = 0
    priorities[-3:] = 0
    priorities[:2] = 0
    tree = filled(priorities, device)
    edge = torch.ones(1, dtype=torch.float64)
    ends = [edge, edge.nextafter(edge * 0), edge * 0, edge * 1e-300]
    uniforms = torch.cat([*ends, torch.rand(5000, generator=generator, dtype=torch.float64)]).to(device)
    drawn = tree.sample(uniforms)
    assert (priorities.to(device)[drawn] > 0).all()
    exact = priorities.cumsum(0)  # the ends are where they belong
    assert int(drawn[2]) == int(priorities.nonzero()[0])
    assert exact[int(drawn[0])] >= exact[-1] * (1 - 1e-12)


@DEVICES
@pytest.mark.parametrize("leaf", [0, 31, 32, 999])
def test_one_leaf_alone_is_always_drawn(device, leaf):
    tree = SumTree(1000, device)
    tree.set(torch.tensor([leaf], device=device), torch.tensor([5e-324], dtype=torch.float64, device=device))
    uniforms = torch.tensor([0, 0.3, 1 - 1e-16, 1], dtype=torch.float64, device=device)
    assert tree.sample(uniforms).tolist() == [leaf] * 4


@DEVICES
def test_sums_do_not_drift(device):
    """A million updates of all sizes, then small ones: bit by bit a tree that never held anything else.

    Mutation: a parent changed by the difference keeps what rounding left of the large ones.
    """
    generator = torch.Generator(device).manual_seed(0)
    tree = SumTree(3000, device)
    for _ in range(100):
        leaves = torch.randint(3000, (10_000,), generator=generator, device=device)
        sizes = torch.rand(10_000, generator=generator, dtype=torch.float64, device=device)
        tree.set(leaves, 10 ** (sizes * 30 - 10))
    small = torch.rand(3000, generator=generator, dtype=torch.float64, device=device) * 1e-9
    for part in torch.randperm(3000, generator=generator, device=device).split(7):
        tree.set(part, small[part])
    assert torch.equal(tree.total, filled(small, device).total)
    torch.testing.assert_close(float(tree.total), float(small.sum()), rtol=1e-12, atol=0)


@DEVICES
def test_a_restored_tree_draws_the_same(device):
    """However it was filled: to the last bit. Mutation: sums by torch.sum, whose order depends on the batch."""
    generator = torch.Generator().manual_seed(3)
    priorities = torch.rand(5000, generator=generator, dtype=torch.float64)
    tree = SumTree(5000, device)
    for part in torch.randperm(5000, generator=generator).split(1):
        tree.set(part.to(device), priorities[part].to(device)) if int(part) % 5 == 0 else None
    for part in torch.randperm(5000, generator=generator).split(300):
        tree.set(part.to(device), priorities[part].to(device))
    other = SumTree(5000, device)
    other.restore(tree.snapshot())
    assert all(torch.equal(mine, its) for mine, its in zip(tree._levels, other._levels, strict=True))
    tree.set(torch.tensor([0], device=device), torch.tensor([9.0], device=device))
    assert float(other.priorities(torch.tensor([0], device=device))) != 9  # a snapshot is a copy


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), -1e-9, LARGEST * 2])
def test_bad_priorities_are_refused_and_change_nothing(bad):
    """Mutation: checked after the leaves were written."""
    tree = filled([1.0, 2.0, 3.0])
    with pytest.raises(DivergedError, match=r"priority 1 of 3 is .*, not finite and 0 or above") as error:
        tree.set(torch.tensor([0, 1, 2]), torch.tensor([7.0, bad, 7.0], dtype=torch.float64))
    assert "\n" not in str(error.value)
    assert float(tree.total) == 6 and tree.priorities(torch.arange(3)).tolist() == [1, 2, 3]
    with pytest.raises(DivergedError):
        tree.restore({"priorities": torch.tensor([7.0, bad, 7.0], dtype=torch.float64)})


def test_the_largest_priorities_stay_finite():
    tree = filled([LARGEST] * 3000)
    assert tree.total.isfinite() and set(tree.sample(torch.tensor([0.0, 1.0])).tolist()) == {0, 2999}


@DEVICES
def test_a_gpu_counts_what_is_wrong_and_goes_on(device):
    """On a CPU the same lines are run. Mutation: the bad ones written, or not counted."""

    def on_a_gpu(tree):
        tree.device = torch.device("cuda")  # all that makes the difference
        return tree

    tree = on_a_gpu(filled([1.0, 2.0, 3.0, 4.0], device))
    tree.check()
    bad = torch.tensor([7.0, float("nan"), -1.0, 8.0, float("inf")], device=device)
    tree.set(torch.tensor([0, 1, 2, 3, 3], device=device), bad)
    assert tree.priorities(torch.arange(4, device=device)).tolist() == [7, 2, 3, 4] and float(tree.total) == 16
    with pytest.raises(DivergedError, match="3 priorities were not finite"):
        tree.check()
    empty = on_a_gpu(SumTree(3, device))
    empty.sample(torch.rand(4, device=device))
    with pytest.raises(Error, match="4 draws were made from a sum tree"):
        empty.check()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_can_capture_all_of_it():
    tree, keys = filled(torch.rand(5000), "cuda"), SlotGenerations(5000, "cuda")
    keys.take(torch.arange(5000, device="cuda"))
    uniforms, drawn = torch.rand(64, device="cuda"), torch.zeros(64, dtype=torch.int64, device="cuda")

    def turn():
        drawn.copy_(tree.sample(uniforms))
        tree.set(keys.slots(keys.of(drawn)), uniforms)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        turn()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        turn()
    twin = SumTree(5000)
    for seed in range(3):
        uniforms.copy_(torch.rand(64, generator=torch.Generator().manual_seed(seed)))
        twin.restore(tree.snapshot())
        graph.replay()
        wanted = twin.sample(uniforms.cpu())
        assert (wanted == drawn.cpu()).float().mean() > 0.9  # sums along a row are added in another order
        twin.set(drawn.cpu(), uniforms.cpu())
        assert torch.equal(twin.total, tree.total.cpu())
    tree.check()


def test_impossible_sizes_are_refused():
    with pytest.raises(ConfigError, match=r"SumTree\.capacity = 0 must be at least 1"):
        SumTree(0)
    with pytest.raises(CheckpointError, match="4 leaves cannot be restored from one of 3"):
        SumTree(4).restore(filled([1.0, 2.0, 3.0]).snapshot())
    with pytest.raises(AssertionError, match="leaf 3 of 3"):
        filled([1.0, 2.0, 3.0]).set(torch.tensor([3]), torch.tensor([1.0]))


# Keys: an old entry is distinguished from the one that replaced it


def test_a_key_is_generation_times_capacity_plus_slot():
    keys = SlotGenerations(4)
    assert keys.take(torch.tensor([0, 3])).tolist() == [0, 3]
    assert keys.take(torch.tensor([3])).tolist() == [7]
    assert keys.take(torch.tensor([3, 1])).tolist() == [11, 1]
    assert keys.of(torch.tensor([0, 1, 2, 3])).tolist() == [0, 1, -2, 11]


def test_only_what_is_still_there_is_found():
    """Literal. Mutations: the generation not compared; an empty slot found by a key below 0; drops not counted."""
    keys = SlotGenerations(4)
    keys.take(torch.tensor([0, 1, 3]))
    keys.take(torch.tensor([3]))
    given = [0, 1, 2, 3, 7, 11, 4, -2, -1]
    assert keys.slots(torch.tensor(given)).tolist() == [0, 1, -1, -1, 3, -1, -1, -1, -1]
    assert int(keys.dropped) == 6
    assert keys.slots(torch.tensor([7, 3])).tolist() == [3, -1] and int(keys.dropped) == 7


def test_keys_survive_a_checkpoint():
    keys = SlotGenerations(3)
    old = keys.take(torch.arange(3))
    new = keys.take(torch.tensor([1]))
    keys.slots(old)
    other = SlotGenerations(3)
    other.restore(keys.snapshot())
    keys.take(torch.tensor([0]))  # a snapshot is a copy
    assert other.slots(old).tolist() == [0, -1, 2] and other.slots(new).tolist() == [1]
    assert int(other.dropped) == 2


def test_impossible_numbers_of_keys_are_refused():
    with pytest.raises(ConfigError, match=r"SlotGenerations\.capacity = 0 must be at least 1"):
        SlotGenerations(0)
    with pytest.raises(CheckpointError, match="keys of 4 slots cannot be restored from those of 3"):
        SlotGenerations(4).restore(SlotGenerations(3).snapshot())
