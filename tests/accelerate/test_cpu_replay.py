"""Recorded CPU replay equals the plain call: random programs, reuse of memory, calls that cannot be recorded."""

import logging
import random

import pytest
import torch
from torch import nn

from packtrain.accelerate import cpu_replay
from packtrain.accelerate.cpu_replay import MemoryPool, RecordedCall

ROWS, WIDTH = 6, 4


class Program:
    """Random operations on random tensors: results, views of them, and writes into both."""

    def __init__(self, seed: int, length: int = 40):
        self._seed, self._length = seed, length
        self.input = torch.zeros(ROWS, WIDTH)
        self.state = torch.ones(ROWS, WIDTH)  # what it leaves behind

    def __call__(self) -> None:
        pick = random.Random(self._seed).randrange
        pool = [self.input * 2, self.state + self.input]
        for _ in range(self._length):
            a, b = pool[pick(len(pool))], pool[pick(len(pool))]
            step = pick(10)
            if step == 0:
                pool.append(torch.tanh(a + b))
            elif step == 1:
                pool.append(torch.bmm(a.unsqueeze(0), b.mT.contiguous().unsqueeze(0))[0, :, :WIDTH])
            elif step == 2:
                pool.append(a.mT.mT)
            elif step == 3:
                a[1:3].mul_(0.5)
            elif step == 4:
                a[:, 0] = b[:, 1]
            elif step == 5:
                pool.append(torch.cat([a[:3], b[3:]]))
            elif step == 6:
                pool.append((a - a.mean(0, keepdim=True)) / (1 + a.square().sum(1, keepdim=True)))
            elif step == 7:
                pool.append(torch.zeros_like(a))
            elif step == 8:
                pool.append(torch.nn.functional.layer_norm(a, (WIDTH,)) + a.max(0).values)
            else:
                torch._foreach_lerp_([a.clone(), b], [b.clone(), a.clone()], 0.25)
        self.state.copy_(pool[-1].clamp(-1, 1) + 0.1 * pool[pick(len(pool))].clamp(-1, 1))


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_leave_what_they_leave_unrecorded(seed):
    """Six runs with other inputs each. Mutations: places freed one call early; writes into views dropped as unused."""
    plain, again = Program(seed), Program(seed)
    recording = RecordedCall(again, "a program")
    for run in range(6):
        given = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(100 * seed + run))
        plain.input.copy_(given)
        again.input.copy_(given)
        plain()
        recording()
        assert torch.equal(plain.state, again.state)
    assert recording._calls is not None


def test_gradients_and_optimiser_steps_are_recorded():
    weights = [torch.ones(3, 3, requires_grad=True) for _ in range(2)]
    given = torch.zeros(2, 3)

    def steps(weight):
        loss = torch.relu(given @ weight).square().mean()
        (gradient,) = torch.autograd.grad(loss, [weight])
        with torch.no_grad():
            weight.sub_(0.1 * gradient)

    recording = RecordedCall(lambda: steps(weights[1]), "a step")
    for run in range(4):
        given.copy_(torch.randn(2, 3, generator=torch.Generator().manual_seed(run)))
        steps(weights[0])
        recording()
        assert torch.equal(*weights)
        assert torch.is_grad_enabled()
    assert not torch.equal(weights[0], torch.ones(3, 3))


def test_unused_work_and_views_cost_nothing():
    given, left = torch.ones(4), torch.zeros(4)

    def work():
        unused = given.exp() + 1
        unused.mul_(2)
        left.copy_((given.view(2, 2) * 3).flatten())

    recording = RecordedCall(work, "work")
    for value in (1.0, 2.0, 3.0):
        given.fill_(value)
        recording()
        assert left.tolist() == [3 * value] * 4
    assert len(recording._calls) == 2  # the product, and the copy


def test_places_are_used_again():
    given, left = torch.ones(1000), torch.zeros(1000)

    def work():
        x = given
        for _ in range(20):
            x = x + 1
        left.copy_(x)

    pool = MemoryPool()
    recordings = [RecordedCall(work, "work", pool) for _ in range(2)]
    for recording in 3 * recordings:
        recording()
        assert left.tolist() == [21.0] * 1000
    calls = [call for recording in recordings for call in recording._calls if "out" in call.keywords]
    assert len(calls) == 40
    assert len({call.keywords["out"].data_ptr() for call in calls}) == 2


def test_a_block_is_used_for_what_is_half_as_large():
    pool = MemoryPool()
    block = pool.take(100)
    pool.give(block)
    assert pool.take(49).nbytes() == 49
    assert pool.take(101).nbytes() == 101
    assert pool.take(50).data_ptr() == block.data_ptr()
    assert pool.take(50).nbytes() == 50  # the block is taken


def test_constants_are_kept_unless_an_operation_writes_to_them():
    """Mutation: zeros that are added to keep their sum."""
    left = torch.zeros(3)

    def work():
        counted = torch.zeros(3)
        counted += torch.ones(3)
        left.copy_(counted)

    recording = RecordedCall(work, "work")
    for _ in range(3):
        recording()
        assert left.tolist() == [1.0] * 3
    assert len(recording._calls) == 3  # zeros, their sum and the copy; the ones stay


def test_what_is_made_of_constants_is_one():
    """Numbers of Python, whatever was computed from them; not what was there before. Mutation: of anything."""
    given, before, left = torch.ones(3), torch.ones(3), torch.zeros(3)

    def work():
        half = torch.ones(3) / torch.tensor(2.0)
        before.mul_(2)
        left.copy_(given * (half + 1).exp() + before.exp())

    recording = RecordedCall(work, "work")
    for run in range(4):
        given.fill_(run)
        recording()
        assert torch.equal(left, run * torch.full((3,), 1.5).exp() + torch.full((3,), 2.0 ** (run + 1)).exp())
    assert len(recording._calls) == 5  # of `before` and `given`


def test_copies_are_copies_and_places_are_not_called():
    """Of other dtypes and strides, of a single tensor that is joined; empty tensors are only places."""
    given, left = torch.zeros(4, 3), torch.zeros(3, 4)

    def work():
        place = torch.empty_like(given)
        place.copy_(given)
        joined = torch.cat([torch.stack([place.double()])]).float()
        left.copy_(joined[0].mT.contiguous())

    recording = RecordedCall(work, "work")
    for run in range(4):
        given.normal_(generator=torch.Generator().manual_seed(run))
        recording()
        assert torch.equal(left, given.mT)
    assert len(recording._calls) == 7
    assert all("copy_" in str(call.func) for call in recording._calls)


def test_operations_without_a_place_to_write_to_are_copied(monkeypatch):
    monkeypatch.setattr(cpu_replay, "_writes_into", lambda function, results, given: None)
    given, left = torch.ones(3), torch.zeros(3)
    recording = RecordedCall(lambda: left.copy_(given * 2 + 1), "work")
    for value in (1.0, 5.0, 7.0):
        given.fill_(value)
        recording()
        assert left.tolist() == [2 * value + 1] * 3
    assert recording._calls is not None


OPERATIONS = {
    "add": lambda x: torch.add(x, x * 2, alpha=3),
    "add_": lambda x: (x * 1).add_(x, alpha=3),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.3),
    "argsort": lambda x: x.argsort(1) + x,
    "baddbmm": lambda x: torch.baddbmm(x[None], x[None], x[None, :4], beta=0.3, alpha=2)[0],
    "batch norm": lambda x: torch.nn.functional.batch_norm(x, torch.zeros(4), torch.ones(4), training=True),
    "cat of one": lambda x: torch.cat([x.mT]).mT,
    "cast": lambda x: x.double().mean(1, keepdim=True) * x,
    "cumprod": lambda x: x.cumprod(1),
    "div": lambda x: torch.div(7 * x, 2.0, rounding_mode="floor"),
    "divide": lambda x: torch.div(7 * x, x.abs() + 1, rounding_mode="trunc"),
    "gather": lambda x: x.gather(1, torch.tensor([[3, 2, 1, 0]] * ROWS)),
    "index put": lambda x: x.clone().index_put_((torch.arange(ROWS), x.argmax(1)), torch.tensor(3.0)),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, (WIDTH,)),
    "literal": lambda x: x * torch.tensor([1.0, 2, 3, 4]),
    "logsumexp": lambda x: x - x.logsumexp(1, keepdim=True),
    "masked": lambda x: x.masked_fill(x > 0, 1),
    "maximum": lambda x: torch.maximum(x, 2 * x),
    "mean": lambda x: x - x.mean(0, keepdim=True, dtype=torch.float64),
    "median": lambda x: x - x.median(1, keepdim=True).values,
    "pow": lambda x: x**3,
    "roll": lambda x: x.roll(1, 0),
    "round": lambda x: torch.round(x, decimals=1),
    "scatter": lambda x: torch.scatter(x + 0, 1, torch.tensor([[0, 0, 1, 1]] * ROWS), 2 * x, reduce="add"),
    "softmax": lambda x: x.softmax(1),
    "softplus": lambda x: torch.nn.functional.softplus(-2 * x),
    "stack": lambda x: torch.stack([x[:, 0], x[:, 1], x[:, 2], x[:, 3]], 1),
    "sub": lambda x: torch.sub(x, x * 2, alpha=3),
    "sum": lambda x: x + x.sum((0, 1)) + x.sum(dtype=torch.float64),
    "threshold": lambda x: torch.where(x > 0, x, 0.1),
    "topk": lambda x: x.topk(4, 1).values,
    "variance": lambda x: x - torch.var_mean(x, 1, keepdim=True, correction=0)[0],
}


@pytest.mark.parametrize("name", list(OPERATIONS))
def test_single_operations_with_their_arguments(name):
    """Mutations: arguments by name are dropped; an overload that does not have them is taken."""
    given, left = torch.zeros(ROWS, WIDTH), torch.zeros(ROWS, WIDTH)
    recording = RecordedCall(lambda: left.copy_(OPERATIONS[name](given)), name)
    for run in range(5):
        given.normal_(generator=torch.Generator().manual_seed(run))
        recording()
        assert torch.equal(left, OPERATIONS[name](given).float())
    assert recording._calls is not None


class NotRecordable:
    """Work of which every run must be the plain one, since no recording can repeat it."""

    def __init__(self):
        self.given, self.left, self.runs = torch.zeros(ROWS, WIDTH), torch.zeros(ROWS, WIDTH), 0
        self.weight = torch.ones(ROWS, WIDTH, requires_grad=True)
        self.generator = torch.Generator().manual_seed(5)

    def value(self):
        return self.given * self.given.sum().item()

    def shape(self):
        return self.given * len(self.given[self.given > 0])

    def drawn(self):
        return self.given + torch.randn(ROWS, WIDTH, generator=self.generator)

    def drawn_in_vain(self):
        torch.randn(3, generator=self.generator)
        return self.drawn()

    def shape_in_place(self):
        return self.given.clone().unsqueeze_(0)[0]

    def counted(self):
        self.runs += 1
        return self.given * self.runs

    def replaced(self):
        self.kept = getattr(self, "kept", self.given) * 0.5 + self.given
        return self.kept

    def literal_written(self):
        total = torch.tensor([0.0] * WIDTH)
        total += self.given[0]
        return total + self.given

    def literal_counted(self):
        total = torch.tensor([0.0] * WIDTH)
        total += 1
        return total * self.given

    def numpy(self):
        return torch.from_numpy(self.given.numpy() + 1)

    def conjugate(self):
        return (torch.complex(self.given, self.given).conj() * torch.complex(self.given, 2 * self.given)).imag

    def sparse(self):
        return self.given.relu().to_sparse().to_dense()

    def both(self):
        mean, spread = torch.zeros(WIDTH), torch.ones(WIDTH)
        return torch.ops.aten._native_batch_norm_legit(self.given, None, None, mean, spread, True, 0.1, 1e-5)[0]

    def other_into_a_place(self):  # torch computes another mean if the output tensor is given
        return self.given * nn.functional.binary_cross_entropy(self.given.sigmoid(), self.given.sigmoid().round())

    def statistics_that_are_not_declared(self):
        mean, spread = torch.zeros(WIDTH) + 1, torch.ones(WIDTH)
        nn.functional.batch_norm(self.given, mean, spread, training=True)
        return self.given + mean + spread

    def numbers_in_a_list(self):
        return self.given * torch.tensor([(self.given[0, 0] > 9).float(), self.given[0, 0]]).sum()

    def split_at_a_number(self):
        return self.given * self.given.flatten().tensor_split((self.given[0, :1] > 9).long().cpu())[1].sum()

    def exchanged(self):
        one, other = self.given * 2, self.given * 3
        one.data = other
        return one + self.given

    def gradients_that_add_up(self):
        (self.weight * self.given).square().sum().backward()
        return self.weight.grad

    def gradient_of_what_was_looked_at(self):
        loss = (self.weight * self.given).square().sum() * self.given.sum().item()
        return torch.autograd.grad(loss, self.weight)[0]


@pytest.mark.parametrize("name", [name for name in vars(NotRecordable) if not name.startswith("_")])
def test_what_cannot_be_recorded_runs_as_it_is(name, caplog):
    """With one line in the log. Mutations: tags are not asked; one run is enough; no gradients without a recording."""
    plain, again = NotRecordable(), NotRecordable()
    recording = RecordedCall(lambda: again.left.copy_(getattr(again, name)()), "work")
    with caplog.at_level(logging.WARNING, "packtrain"):
        for run in range(6):
            for work in (plain, again):
                work.given.normal_(generator=torch.Generator().manual_seed(run))
            plain.left.copy_(getattr(plain, name)())
            recording()
            assert torch.equal(plain.left, again.left), run
    assert recording._calls is None
    assert caplog.text.count("work is not recorded, which would make it faster: ") == 1


def test_checks_are_recorded():
    """The error of `cholesky` is raised in a replay too. Mutation: a check, which returns nothing, taken for a view."""
    given, left = torch.eye(3), torch.zeros(3, 3)
    recording = RecordedCall(lambda: left.copy_(torch.linalg.cholesky(given)), "work")
    for run in range(5):
        given.copy_((run + 1) * torch.eye(3))
        recording()
        assert torch.equal(left, torch.linalg.cholesky(given))
    assert recording._calls is not None
    given.zero_()
    with pytest.raises(torch.linalg.LinAlgError):
        recording()


def test_a_recording_is_used_only_if_its_replay_gives_equal_results(monkeypatch, caplog):
    """And what the work itself leaves stays. Mutations: not comparing; leaving what the recording has left."""
    given, left = torch.ones(3), torch.zeros(3)

    def work():
        left.add_(given)
        left.mul_(2)

    played = cpu_replay._replay_calls
    # the doubling is lost
    monkeypatch.setattr(cpu_replay, "_replay_calls", lambda operations, pool: played(operations, pool)[:1])
    recording, want = RecordedCall(work, "work"), torch.zeros(3)
    with caplog.at_level(logging.WARNING, "packtrain"):
        for run in range(5):
            given.fill_(run)
            want = 2 * (want + run)
            recording()
            assert torch.equal(left, want), run
    assert recording._calls is None and "its replay gave another result" in caplog.text


def test_work_that_touches_nothing_is_not_recorded():
    recording = RecordedCall(lambda: torch.ones(3).add_(1), "work")
    for _ in range(5):
        recording()
    assert recording._calls is None


def test_a_run_that_breaks_off_is_not_counted():
    left, broken = torch.zeros(2), [False, True, False, False, False]

    def work():
        left.add_(1)
        if broken[len(runs) - 1]:
            raise KeyboardInterrupt
        left.mul_(2)

    runs: list[int] = []
    recording = RecordedCall(work, "work")
    want = 0.0
    for run, breaks in enumerate(broken):
        runs.append(run)
        want = want + 1 if breaks else 2 * (want + 1)
        if breaks:
            with pytest.raises(KeyboardInterrupt):
                recording()
        else:
            recording()
        assert left.tolist() == [want] * 2
    assert recording._calls is not None
