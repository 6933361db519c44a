"""Rolling metrics of the solved rate, against a plain reading of their definitions."""

import numpy as np
import pytest

from packtrain.metrics.rolling import Rolling


def plainly(rates: list[float], threshold: float) -> tuple[int | None, int | None, float | None]:
    """First epoch above; first epoch with more than half of the last ten above; share above since then."""
    above = [rate > threshold for rate in rates]
    first = next((i + 1 for i, yes in enumerate(above) if yes), None)
    stable = next((i + 1 for i in range(9, len(above)) if sum(above[i - 9 : i + 1]) > 5), None)
    share = None if stable is None else float(np.mean(above[stable - 1 :]))
    return first, stable, share


@pytest.mark.parametrize("seed", range(20))
def test_against_the_definitions(seed: int) -> None:
    """Mutations: a window of 9; at least half instead of more; counting since the first epoch; epochs from 0."""
    rng = np.random.default_rng(seed)
    rates = np.clip(rng.random(40) * 1.4 - 0.4 + 0.02 * np.arange(40) * (seed % 3), 0, 1).round(2).tolist()
    rolling, row = Rolling(), {}
    for epoch, rate in enumerate(rates, start=1):
        row = rolling.add(epoch, rate)
        if epoch == 17:
            other = Rolling()
            other.restore(rolling.snapshot())
            rolling = other
    for label, threshold in (("10", 0.1), ("75", 0.75)):
        first, stable, share = plainly(rates, threshold)
        assert row.get(f"first_solved_over_{label}_epoch") == first
        assert row.get(f"first_stable_over_{label}_epoch") == stable
        assert row.get(f"stability_at_{label}") == (None if share is None else pytest.approx(share))
    assert row.get("first_solved_epoch") == plainly(rates, 0.0)[0]


def test_the_first_epoch_counts() -> None:
    """An event in the first epoch is epoch 1, not "never"."""
    assert Rolling().add(1, 0.5)["first_solved_epoch"] == 1
    assert Rolling().add(1, 0.0) == {}
