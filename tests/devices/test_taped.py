"""Taped work is the plain work: random programs as twins, memory that is used again, what cannot be taped."""

import logging
import random

import pytest
import torch

from packtrain.devices import taped
from packtrain.devices.taped import Taped

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
def test_random_programs_leave_what_they_leave_untaped(seed):
    """Six runs with other inputs each. Mutations: places freed one call early; writes into views dropped as unused."""
    plain, again = Program(seed), Program(seed)
    tape = Taped(again, "a program")
    for run in range(6):
        given = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(100 * seed + run))
        plain.input.copy_(given)
        again.input.copy_(given)
        plain()
        tape()
        assert torch.equal(plain.state, again.state)
    assert tape._calls is not None


def test_gradients_and_steps_are_on_the_tape():
    weights = [torch.ones(3, 3, requires_grad=True) for _ in range(2)]
    given = torch.zeros(2, 3)

    def steps(weight):
        loss = torch.relu(given @ weight).square().mean()
        (gradient,) = torch.autograd.grad(loss, [weight])
        with torch.no_grad():
            weight.sub_(0.1 * gradient)

    tape = Taped(lambda: steps(weights[1]), "a step")
    for run in range(4):
        given.copy_(torch.randn(2, 3, generator=torch.Generator().manual_seed(run)))
        steps(weights[0])
        tape()
        assert torch.equal(*weights)
        assert torch.is_grad_enabled()
    assert not torch.equal(weights[0], torch.ones(3, 3))


def test_unused_work_and_views_cost_nothing():
    given, left = torch.ones(4), torch.zeros(4)

    def work():
        unused = given.exp() + 1
        unused.mul_(2)
        left.copy_((given.view(2, 2) * 3).flatten())

    tape = Taped(work, "work")
    tape()
    assert len(tape._calls) == 2  # the product, and the copy
    given.fill_(2)
    tape()
    assert left.tolist() == [6.0] * 4


def test_places_are_used_again():
    given, left = torch.ones(1000), torch.zeros(1000)

    def work():
        x = given
        for _ in range(20):
            x = x + 1
        left.copy_(x)

    tape = Taped(work, "work")
    tape()
    tape()
    assert left.tolist() == [21.0] * 1000
    assert len({call.keywords["out"].data_ptr() for call in tape._calls if "out" in call.keywords}) == 2


def test_constants_are_kept_unless_somebody_writes_to_them():
    """Mutation: zeros that are added to keep their sum."""
    left = torch.zeros(3)

    def work():
        counted = torch.zeros(3)
        counted += torch.ones(3)
        left.copy_(counted)

    tape = Taped(work, "work")
    for _ in range(3):
        tape()
        assert left.tolist() == [1.0] * 3
    assert len(tape._calls) == 3  # zeros, their sum and the copy; the ones stay


def test_operations_without_a_place_to_write_to_are_copied(monkeypatch):
    monkeypatch.setattr(taped, "_writes_into", lambda function, results: None)
    given, left = torch.ones(3), torch.zeros(3)
    tape = Taped(lambda: left.copy_(given * 2 + 1), "work")
    for value in (1.0, 5.0):
        given.fill_(value)
        tape()
        assert left.tolist() == [2 * value + 1] * 3


@pytest.mark.parametrize("kind", ["value", "shape"])
def test_what_python_looks_at_runs_as_it_is(kind, caplog):
    """Each time with the numbers of that time. Mutation: the tags are not asked."""
    given, left = torch.ones(3), torch.zeros(3)

    def work():
        left.fill_(given.sum().item() if kind == "value" else len(given[given > 1]))

    tape = Taped(work, "work")
    with caplog.at_level(logging.WARNING, "packtrain"):
        for value, found in ((1.0, (3.0, 0)), (2.0, (6.0, 3))):
            given.fill_(value)
            tape()
            assert left.tolist() == [found[kind == "shape"]] * 3
    assert caplog.text.count("work is not taped") == 1
