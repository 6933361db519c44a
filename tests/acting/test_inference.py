"""Requests of many computations answered together: who gets which rows, and how often a network is asked."""

import numpy as np
import pytest
import torch
from torch import nn

from packtrain.acting.inference import Inference
from packtrain.types import Request


class Affine(nn.Module):
    """x → {"value": factor · x, "double": 2 · factor · x}, with a list of how many rows each pass had."""

    def __init__(self, factor):
        super().__init__()
        self.factor, self.sizes = factor, []

    def forward(self, x):
        self.sizes.append(len(x))
        return {"value": self.factor * x, "double": 2 * self.factor * x}


def asking(name, questions):
    """Requests [(network, rows)] one after the other, and returns its name and all answers."""
    answers = []
    for network, rows in questions:
        answers.append((yield Request(network, np.asarray(rows, np.float32).reshape(-1, 1))))
    return name, answers


def values(result):
    return [answer["value"].ravel().tolist() for answer in result[1]]


def test_a_round_is_one_pass_for_each_network_and_rows_go_back_to_who_asked():
    """Mutations: a pass for each request; cutting the answer at equal sizes; results in the order of ending."""
    networks = {"a": Affine(10), "b": Affine(100)}
    inference = Inference(networks)
    results = inference.run_all(
        [
            asking("long", [("a", [1, 2, 3]), ("b", [4]), ("a", [5, 6])]),
            asking("nothing", []),
            asking("short", [("b", [7])]),
            asking("middle", [("a", [8]), ("b", [9, 10])]),
        ]
    )
    assert [result[0] for result in results] == ["long", "nothing", "short", "middle"]
    assert values(results[0]) == [[10, 20, 30], [400], [50, 60]]
    assert values(results[1]) == [] and values(results[2]) == [[700]]
    assert values(results[3]) == [[80], [900, 1000]]
    assert networks["a"].sizes == [3 + 1, 2], "round 1: long and middle together; round 3: long alone"
    assert networks["b"].sizes == [1, 1 + 2], "round 1: short; round 2: long and middle together"
    assert (inference.requests, inference.rows, inference.passes) == (6, 10, 4)
    doubled = results[0][1][0]["double"]
    assert doubled.dtype == np.float32 and doubled.tolist() == [[20], [40], [60]]


def test_without_requests_no_network_is_called():
    network = Affine(1)
    inference = Inference({"a": network})
    assert inference.run_all([]) == [] and inference.run(asking("x", [])) == ("x", [])
    assert network.sizes == [] and inference.passes == 0


@pytest.mark.parametrize("seed", range(10))
def test_asking_together_is_asking_one_by_one(seed):
    """Ragged sizes, several networks, any number of rounds. Mutation: answers in the order of networks."""
    rng = np.random.default_rng(seed)
    scripts = [
        [(str(rng.choice(["a", "b", "c"])), rng.normal(size=rng.integers(0, 4))) for _ in range(rng.integers(0, 5))]
        for _ in range(6)
    ]
    networks = {"a": Affine(3), "b": Affine(5), "c": Affine(7)}
    together = Inference(networks).run_all([asking(i, script) for i, script in enumerate(scripts)])
    for i, script in enumerate(scripts):
        alone = Inference(networks).run(asking(i, script))
        assert alone[0] == together[i][0] and values(alone) == values(together[i])


def test_a_linear_network_gives_the_same_in_any_company():
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    network = type("Net", (nn.Module,), {"forward": lambda self, x: {"logits": layer(x)}})()
    rows = [np.random.default_rng(i).normal(size=(size, 4)).astype(np.float32) for i, size in enumerate((1, 5, 2))]
    together = Inference({"n": network}).answer([Request("n", some) for some in rows])
    for some, answer in zip(rows, together, strict=True):
        np.testing.assert_allclose(answer["logits"], layer(torch.from_numpy(some)).detach().numpy(), rtol=1e-6)


def test_inputs_may_be_trees_in_any_layout():
    """A transposed view and a column of another array are asked about like any array. Mutation: no contiguous copy."""

    class Sum(nn.Module):
        def forward(self, obs):
            return {"value": obs["left"].sum(1, keepdim=True) + obs["right"][:, None]}

    left, right = np.arange(6, dtype=np.float32).reshape(2, 3).T[::-1], np.arange(6.0, dtype=np.float32)[::2]
    requests = [Request("s", {"left": left, "right": right}), Request("s", {"left": left[:1], "right": right[:1]})]
    first, second = Inference({"s": Sum()}).answer(requests)
    assert first["value"].ravel().tolist() == [2 + 5 + 0, 1 + 4 + 2, 0 + 3 + 4]
    assert second["value"].tolist() == [[7]]


def test_answers_are_single_precision_and_carry_no_gradient():
    class Half(nn.Module):
        def forward(self, x):
            assert not torch.is_grad_enabled()
            return {"value": x.to(torch.bfloat16), "wide": x.double()}

    answer = Inference({"h": Half()}).run(asking("x", [("h", [0.5])]))[1][0]
    assert {rows.dtype for rows in answer.values()} == {np.dtype(np.float32)}


def test_a_network_that_is_not_there_is_named():
    with pytest.raises(KeyError, match=r"prediction of network 'model', but the networks are \['agent', 'other'\]"):
        Inference({"other": Affine(1), "agent": Affine(1)}).run(asking("x", [("model", [1])]))


def test_a_computation_that_fails_says_so():
    """Mutation: swallowing everything but StopIteration."""

    def failing():
        yield Request("a", np.zeros((1, 1), np.float32))
        raise ValueError("lost my way")

    with pytest.raises(ValueError, match="lost my way"):
        Inference({"a": Affine(1)}).run_all([asking("x", [("a", [1])]), failing()])
