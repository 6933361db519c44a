"""The bench of Q-learners, tiny: both loops run, and what was measured alone is not taken for work done ahead."""

from packtrain.bench import r2d2


def test_both_loops_run_at_once():
    """Mutation: updates measured alone counted as made, so that none is due for a while."""
    found = r2d2._cpu_case("r2d2/catch", {"num_actors": 8, "warm_up": 200}, 0.5)
    assert found["updates_per_second"] > 1 and found["rate"] > 10 and found["ratio"] > 0.05
    assert set(found["alone"]) == {"steps", "updates"} and len(found["ratios"]) == r2d2.ROUNDS
