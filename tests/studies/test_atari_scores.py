import pytest

from packtrain.studies.atari_scores import SCORES, SUBSETS, estimate_median, game_of, human_normalised

# Published scores of BattleZone, DoubleDunk, NameThisGame, Phoenix and Qbert, and the published estimate in percent.
PUBLISHED = {
    "IMPALA, deep network": ((20885, -0.3, 21537, 210996, 351200), 227),
    "Rainbow": ((62010, -0.3, 13136, 108529, 33818), 225),
    "BTR, 10 M frames": ((34810, -23.9, 14228, 25635, 4099), 81),
    "R2D2": ((751880, 23.7, 58183, 864020, 408850), 1651),
}


@pytest.mark.parametrize("agent", PUBLISHED)
def test_the_estimate_is_the_published_one(agent):
    """Mutation: log(HNS) without 1 +; a negative score below 0; a weight of another game."""
    scores, percent = PUBLISHED[agent]
    normalised = {game: human_normalised(game, score) for game, score in zip(SUBSETS["Atari-5"], scores, strict=True)}
    estimate = estimate_median("Atari-5", normalised)
    assert 100 * estimate == pytest.approx(percent, rel=0.005)


def test_a_missing_game_gives_no_estimate():
    games = dict.fromkeys(SUBSETS["Atari-10"], 1.0)
    assert estimate_median("Atari-10", games) == pytest.approx(1, rel=0.15), "a human plays about like a human"
    del games["Amidar"]
    assert estimate_median("Atari-10", games) is None and estimate_median("Atari-5", games) is not None


def test_random_is_zero_and_human_one():
    assert human_normalised("Pong", -20.7) == 0 and human_normalised("Pong", 14.6) == 1
    assert len(SCORES) == 57 and all(random < human for random, human in SCORES.values())
    assert all(game in SCORES for weights in SUBSETS.values() for game in weights)


@pytest.mark.parametrize(
    ("env_id", "game"),
    [
        ("PongNoFrameskip-v4", "Pong"),
        ("ALE/MsPacman-v5", "MsPacman"),
        ("QbertDeterministic-v0", "Qbert"),
        ("Pong-v4", "Pong"),
        ("CartPole-v1", None),
        ("Pong", None),
    ],
)
def test_games_are_found_in_environment_ids(env_id, game):
    assert game_of(env_id) == game
