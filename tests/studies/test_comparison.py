import pytest

from packtrain.metrics.reading import Series
from packtrain.studies.comparison import atari_scores, best_of, central, methods_of, methods_over, profile_chart
from packtrain.studies.report_data import EVALUATION_RETURN, Run, Seed


def run(tmp_path, name, *finals, env="Catch"):
    """A run with one evaluation a seed."""
    seeds = [
        Seed(tmp_path, f"seed_{k}", {EVALUATION_RETURN: Series([10], [float(final)], [1.0])}, {})
        for k, final in enumerate(finals)
    ]
    return Run(tmp_path, name, 0, seeds, f"env = '{env}'\n")


def test_within_an_environment_scores_are_returns(tmp_path):
    (method,) = methods_of([run(tmp_path, "a", 1, 2, 6), run(tmp_path, "none")])
    assert method.scores == ((1, 2, 6),) and method.has_seeds
    value, (low, high) = central(method)
    assert value == 3 and 1 <= low <= 3 <= high <= 6


def test_two_seeds_have_no_bootstrap_interval(tmp_path):
    (method,) = methods_of([run(tmp_path, "a", 1, 2)])
    assert central(method) == (1.5, None) and best_of([method]) == []


def test_over_environments_scores_are_normalised_in_each(tmp_path):
    """Mutation: the range of all environments together; of one method alone."""
    environments = {
        "x": [run(tmp_path, "a", 0, 5), run(tmp_path, "b", 10, 10)],
        "y": [run(tmp_path, "a", 100), run(tmp_path, "b", 300)],
        "z": [run(tmp_path, "a", 1)],
    }
    first, second = methods_over(environments, compared=True)
    assert (first.name, first.tasks) == ("a", ("x", "y")), "b has not played z"
    assert first.scores == [(0, 0.5), (0,)] and second.scores == [(1, 1), (1,)]


def test_without_compare_runs_of_one_environment_are_not_matched_with_others(tmp_path):
    """Mutation: methods by the order of runs."""
    environments = {"x": [run(tmp_path, "a", 0), run(tmp_path, "b", 1)], "y": [run(tmp_path, "c", 0)]}
    assert methods_over(environments, compared=False) == []


def test_atari_scores_are_human_normalised(tmp_path):
    pong, qbert = "PongNoFrameskip-v4", "QbertNoFrameskip-v4"
    environments = {pong: [run(tmp_path, "a", 14.6, env=pong)], qbert: [run(tmp_path, "b", 163.9, env=qbert)]}
    (method,) = methods_over(environments, compared=False)
    assert method.name == "these runs" and [list(task) for task in method.scores] == [[1], [0]]
    (scores,) = atari_scores(environments, compared=False)
    assert scores.games == {"Pong": 1, "Qbert": 0} and set(scores.estimates.values()) == {None}


def test_the_best_methods_come_first(tmp_path):
    methods = methods_of([run(tmp_path, str(k), k, k, k) for k in range(12)])
    assert [method.name for method in best_of(methods)] == ["11", "10", "9", "8", "7", "6", "5", "4"]


def test_a_profile_falls_from_one_to_zero(tmp_path):
    chart = profile_chart(methods_of([run(tmp_path, "a", 1, 2, 3)]), "final return")
    (line,) = chart.lines
    assert line.values[0] == 1 and line.values[-1] == 0 and sorted(line.values, reverse=True) == line.values
    assert line.values[50] == pytest.approx(1 / 3, abs=0.34)
