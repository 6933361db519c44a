"""The bound is the formula it claims to be."""

import time

import pytest
import torch

from packtrain.bench.measure import Part, bound, measure, result, table


def test_bound_is_the_smaller_of_cores_and_lock():
    parts = [Part("a", 1, core_us=30, lock_us=5), Part("b", 1, core_us=10, lock_us=5)]
    assert bound(parts, 2) == (pytest.approx(50_000), "2 cores")
    assert bound(parts, 8) == (pytest.approx(100_000), "the interpreter's lock")


def test_python_holds_the_lock_and_torch_does_not():
    """Mutation: counting all time as held, or none."""

    def python():
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass
        return 1

    big = torch.rand(500, 500)

    def operator():
        big @ big
        return 1

    busy = measure("python", python, 0.2)
    assert busy.lock_us > 0.8 * 2000
    free = measure("torch", operator, 0.2)
    assert free.lock_us < 0.5e6 / free.steps_per_second


def test_cases_read_as_a_table_each():
    """Mutation: the first case alone, as if the others had not been measured."""
    one = result("x", 100.0, [Part("a", 200, 10, 10)]) | {"times_environments": 0.91, "environment_rates": [110, 111]}
    text = table({**one, "cases": [{"case": "shallow", **one}, {"case": "deep", **one, "times_environments": 0.72}]})
    assert text.index("shallow") < text.index("0.91") < text.index("deep") < text.index("0.72") and "110, 111" in text


def test_results_read_as_a_table():
    content = result("x", 100.0, [Part("a", 200, 10, 10)], actor_busy=0.5, learner_busy=0.25)
    assert {"rate", "bound", "ratio", "parts"} <= set(content)
    assert "ratio" in table(content) and "learner 25%" in table(content)
