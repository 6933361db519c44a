"""The bench of trust-but-verify: its ready model is right, and its result has what every bench's has."""

import numpy as np
import pytest
import torch

from packtrain.bench import tbv
from packtrain.envs.hanoi import Hanoi


def test_ready_answers_are_what_follows() -> None:
    """And members disagree a little about some. Mutation: a delta towards the observation, not from it."""
    core = Hanoi(3)
    pegs = np.random.default_rng(0).integers(3, size=(60, 3)).astype(np.uint8)
    actions = np.arange(60) % 6
    after, reward, over, _ = core.step(pegs, actions, np.random.default_rng(0))
    obs = torch.from_numpy(core.observe(pegs))
    answer = tbv.ReadyModel(core, 8)({"obs": obs, "action": torch.from_numpy(actions)})
    guess = (obs + answer["delta"].mean(1)).numpy()
    np.testing.assert_allclose(guess, core.observe(after), atol=0.4)
    assert (answer["delta"].std(1) > 0).any()
    np.testing.assert_array_equal(answer["terminated"][:, 0].numpy() > 0, over)
    np.testing.assert_array_equal(answer["reward"][:, 0].numpy() > 0, reward > 0)


@pytest.mark.slow
def test_the_result(monkeypatch) -> None:
    """Small sizes: the parts are there, and add up."""
    for name, value in {"DISKS": 3, "ENVIRONMENTS": 4, "EPISODE": 12, "BATCH": 16, "RUNS": (1, 2)}.items():
        monkeypatch.setattr(tbv, name, value)
    result = tbv.run(0.2)
    assert {"bench", "rate", "bound", "ratio", "machine", "lines"} <= set(result)
    assert result["rate"] == pytest.approx(1e6 / sum(result["us_a_step"].values()))
    assert 0 < result["ratio"] <= 1 and [one["runs"] for one in result["searches"]] == [1, 2]
    assert all(one["expansions_a_step"] > 0 for one in result["searches"])
