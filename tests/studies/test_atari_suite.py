"""Atari suites: scores, aggregates, and the published figures."""

import statistics

import pytest

from packtrain.studies import atari_suite
from packtrain.studies.atari_scores import SCORES, human_normalised

# Estimates as the page of each agent has them, in percent.
ESTIMATES = [227, 144, 152, 151, 225, 81, 296, 425, 64, 1651]


@pytest.mark.parametrize("one, estimate", list(zip(atari_suite.PUBLISHED, ESTIMATES, strict=True)))
def test_published_scores_give_the_published_estimates(one, estimate):
    """Mutations: two games exchanged; a coefficient changed in its second digit."""
    assert 100 * atari_suite.estimate_of(one) == pytest.approx(estimate, rel=0.003, abs=1)


def results(**each):
    return {game: {"each": values} for game, values in each.items()}


def human(game, times):
    random, score = SCORES[game]
    return random + times * (score - random)


def test_aggregates_are_of_mean_scores_per_game():
    """Mutations: the median over runs; scores normalised by another game's."""
    games = atari_suite.SUITES["atari5"]
    found = atari_suite.suite_scores(
        results(**{game: [human(game, k), human(game, k + 2)] for k, game in enumerate(games)})
    )
    assert [found["games"][game]["normalised"] for game in games] == pytest.approx([1, 2, 3, 4, 5])
    values = {name: each["value"] for name, each in found["aggregates"].items()}
    assert values["median over 5 games"] == pytest.approx(3) and values["mean over 5 games"] == pytest.approx(3)
    assert values["interquartile mean over 5 games"] == pytest.approx(3)
    assert (
        "Atari-5 estimate of the median over 57 games" in values
        and "Atari-10 estimate of the median over 57 games" not in values
    )
    assert all(each["interval"] is None for each in found["aggregates"].values()), "two seeds are too few"


def test_intervals_resample_the_seeds_of_every_game():
    games = atari_suite.SUITES["atari5"]
    found = atari_suite.suite_scores(results(**{game: [human(game, k) for k in (0.5, 1, 1.5)] for game in games}))
    for name, each in found["aggregates"].items():
        low, high = each["interval"]
        assert low < each["value"] < high, name
        assert 0.4 < low and high < 1.6


def test_games_without_a_score_are_left_out():
    found = atari_suite.suite_scores(results(Pong=[0.0], Qbert=[]))
    assert list(found["games"]) == ["Pong"] and found["games"]["Pong"]["normalised"] == human_normalised("Pong", 0.0)
    assert {each["value"] for each in found["aggregates"].values()} == {human_normalised("Pong", 0.0)}
    assert atari_suite.suite_scores({}) == {"games": {}, "aggregates": {}}


def test_suites_have_the_games_of_their_papers():
    assert [len(games) for games in atari_suite.SUITES.values()] == [5, 10, 57]
    assert "Riverraid" in atari_suite.SUITES["atari10"]
    true = [one.median for one in atari_suite.PUBLISHED if one.median is not None]
    errors = [
        abs(100 * atari_suite.estimate_of(one) / one.median - 1)
        for one in atari_suite.PUBLISHED
        if one.median is not None
    ]
    assert len(true) == 6 and statistics.fmean(errors) < 0.2


def test_every_game_has_an_id_in_both_protocols():
    pytest.importorskip("ale_py")
    from packtrain.envs.atari import find_game

    for game in atari_suite.SUITES["atari57"]:
        sticky, classic = (find_game(atari_suite.env_id(game, protocol)) for protocol in ("sticky", "classic"))
        assert sticky.rom == classic.rom
        assert sticky.protocol == "sticky" and (classic.protocol == "classic" or game == "Surround")
