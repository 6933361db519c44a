"""Values, ranges, grids, random combinations and the names of folders."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtrain.errors import ConfigError
from packtrain.knobs import Knob
from packtrain.studies.sweep import points
from packtrain.studies.sweep.points import Choice, Range

RATE = Knob("rate", 0.1, float, "", "here:1")
SIZE = Knob("size", 64, int, "None: no limit", "here:2")
WIDTHS = Knob("widths", (32, 64), tuple, "", "here:3")
NAME = Knob("name", "a", str, "", "here:4")
FLAG = Knob("flag", False, bool, "", "here:5")


@pytest.mark.parametrize(
    ("knob", "text", "values"),
    [
        (RATE, "0.001,0.003", ("0.001", "0.003")),
        (RATE, "1e-3", ("1e-3",)),
        (SIZE, "1, 2,None", ("1", "2", "None")),
        (WIDTHS, "(1,2),(3,)", ("(1,2)", "(3,)")),
        (WIDTHS, "1,2", ("1,2",)),  # one tuple, as `train` reads it
        (WIDTHS, "(1,2)", ("(1,2)",)),
        (NAME, "a,b c", ("a", "b c")),
        (NAME, r"a\,b,c", ("a,b", "c")),
        (NAME, "{'x': (1,2)},b", ("{'x': (1,2)}", "b")),
        (NAME, "", ("",)),
        (FLAG, "true,no", ("true", "no")),
    ],
)
def test_comma_lists_become_values(knob, text, values):
    assert points.parse_value(knob, text) == Choice(knob.name, values)


@pytest.mark.parametrize(
    ("knob", "text", "part"),
    [
        (RATE, "0.1,x", "'x' is not a number"),
        (RATE, "0.1,,0.2", "empty value"),
        (RATE, "0.1,0.1", "twice"),
        (SIZE, "1,2.5", "'2.5' is not a whole number"),
        (RATE, "log:0:1", "above 0"),
        (RATE, "uniform:2:1", "below the second"),
        (RATE, "uniform:1:x", "not a number"),
        (SIZE, "uniform:None:3", "below the second"),
        (NAME, "log:1:2", "not a number"),
        (FLAG, "maybe", "not true or false"),
    ],
)
def test_what_is_no_value_is_refused(knob, text, part):
    with pytest.raises(ConfigError, match=part):
        points.parse_value(knob, text)


def test_a_grid_has_every_combination_once_the_last_knob_fastest():
    found = points.grid([Choice("a", ("1", "2")), Choice("b", ("x", "y", "z"))])
    assert [(one["a"], one["b"]) for one in found] == [(a, b) for a in "12" for b in "xyz"]
    assert points.grid([]) == [{}]
    with pytest.raises(ConfigError, match="--random N or --optuna N"):
        points.grid([Range("a", 0, 1, False, False)])


@given(st.integers(1, 40), st.integers(0, 5))
def test_random_combinations_differ_and_the_first_ones_stay(count, seed):
    """Mutation: the generator's seed depends on the count."""
    varied = [Range("a", 1e-4, 1e-2, True, False), Choice("b", ("x", "y"))]
    found = points.sampled(varied, count, seed)
    assert len({tuple(one.values()) for one in found}) == count
    assert found[: count // 2] == points.sampled(varied, count, seed)[: count // 2]
    assert points.sampled(varied, count + 1, seed)[:count] == found
    assert all(1e-4 <= float(one["a"]) <= 1e-2 for one in found)


def test_random_combinations_that_run_out_are_refused():
    with pytest.raises(ConfigError, match="only about 2 different"):
        points.sampled([Choice("b", ("x", "y"))], 3, 0)
    with pytest.raises(ConfigError, match="needs a knob to vary"):
        points.sampled([], 3, 0)


@pytest.mark.parametrize("log", [True, False])
def test_ranges_are_uniform_on_their_scale(log):
    """By the share below the middle. Mutation: log ranges sampled uniformly, or the other way round."""
    middle = 1e-3 if log else (1e-4 + 1e-2) / 2
    one, rng = Range("a", 1e-4, 1e-2, log, False), random.Random(1)
    below = sum(float(one.sample(rng)) < middle for _ in range(4000))
    assert abs(below / 4000 - 0.5) < 0.04


def test_whole_ranges_include_both_bounds_equally():
    """Mutation: rounding that gives the bounds half the weight of the others."""
    one, rng = Range("n", 1, 4, False, True), random.Random(2)
    found = [one.sample(rng) for _ in range(4000)]
    assert set(found) == {"1", "2", "3", "4"}
    assert all(abs(found.count(value) / 4000 - 0.25) < 0.04 for value in "1234")
    wide = Range("n", 16, 1024, True, True)
    logs = [math.log2(int(wide.sample(rng))) for _ in range(2000)]
    assert all(4 <= value <= 10 for value in logs) and abs(sum(logs) / 2000 - 7) < 0.15


def test_folder_names_are_safe_different_and_stable():
    settings = [{"a": "1"}, {"a": "../../x"}, {"a": "__/__/x"}, {"a": "x" * 300}, {"a": "x" * 299 + "y"}, {}]
    names = points.folder_names(settings, "run")
    assert len(set(names)) == len(names) and names[0] == "a=1" and names[-1] == "run"
    assert all(len(name) <= points.LONGEST_NAME and "/" not in name and name[0] not in ".-" for name in names)
    assert points.folder_names(settings[1:2], "run") == names[1:2]


def test_only_what_differs_is_a_setting():
    found = points.varied_settings([{"a": 1, "b": "x", "c": [1]}, {"a": 1, "b": "y", "c": [1], "d": None}])
    assert found == [{"b": "x"}, {"b": "y", "d": "None"}]
