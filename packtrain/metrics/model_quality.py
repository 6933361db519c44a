"""Accuracy of a learned model on real transitions, with the names of the published code.

A *predicted loop* is a step for which the model predicted no change; it is false if the state changed. Metrics are
separated by what chose the step, which shows the value of verification: the planner, the model's disagreement
(novelty), or chance.
"""

from __future__ import annotations

import numpy as np

_CHOOSERS = ("planner", "novelty", "random")


class ModelQuality:
    """Counts predictions and outcomes until the next report."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(
        self,
        *,
        right: np.ndarray,
        predicted_loop: np.ndarray,
        loop: np.ndarray,
        predicted_reward: np.ndarray,
        reward: np.ndarray,
        novelty: np.ndarray,
        random: np.ndarray,
    ) -> None:
        """Add R steps, each bool [R].

        Args:
          right: the next observation was predicted exactly.
          predicted_loop: no change was predicted.
          loop: the state did not change.
          predicted_reward: a reward was predicted.
          reward: there was a reward.
          novelty: the step was taken to verify the model.
          random: the action was random.
        """
        chosen = {"planner": ~(novelty | random), "novelty": novelty, "random": random}
        events = {
            "steps": np.ones_like(right),
            "right": right,
            "loop": loop,
            "predicted_loop": predicted_loop,
            "false_loop": predicted_loop & ~loop,
            "true_loop": predicted_loop & loop,
            "reward": reward,
            "predicted_reward": predicted_reward,
            "true_reward": predicted_reward & reward,
        }
        for name, event in events.items():
            self._counts[name] = self._counts.get(name, 0) + int(event.sum())
            if name in ("steps", "right", "loop", "predicted_loop", "false_loop"):
                for who in _CHOOSERS:
                    key = f"{name}_{who}"
                    self._counts[key] = self._counts.get(key, 0) + int((event & chosen[who]).sum())

    def drain(self) -> dict[str, float]:
        """Return the counts and fractions since the last call; fractions with denominator 0 are omitted."""
        counts, self._counts = self._counts, {}
        if not counts.get("steps"):
            return {}
        row: dict[str, float] = {
            "hit_events": counts["loop"],
            "predicted_loop_events": counts["predicted_loop"],
            "predicted_loop_true_events": counts["true_loop"],
            "predicted_loop_false_events": counts["false_loop"],
            "novelty_based_transitions": counts["steps_novelty"],
            "predicted_reward_false_events": counts["predicted_reward"] - counts["true_reward"],
        }
        shares = {
            "perfect_next_observation": ("right", "steps"),
            "hit_freq": ("loop", "steps"),
            "predicted_loop_freq": ("predicted_loop", "steps"),
            "predicted_loop_false_freq": ("false_loop", "predicted_loop"),
            "novelty_based_transitions_freq": ("steps_novelty", "steps"),
            "predicted_reward_recall": ("true_reward", "reward"),
            "predicted_reward_precision": ("true_reward", "predicted_reward"),
        }
        for who in _CHOOSERS:
            shares[f"perfect_next_observation_{who}"] = (f"right_{who}", f"steps_{who}")
            shares[f"predicted_loop_false_freq_{who}"] = (f"false_loop_{who}", f"predicted_loop_{who}")
            shares[f"hit_freq_{who}"] = (f"loop_{who}", f"steps_{who}")
        return row | {name: counts[part] / counts[whole] for name, (part, whole) in shares.items() if counts[whole]}

    def state_dict(self) -> dict[str, int]:
        """Return what has been counted since the last `drain`."""
        return dict(self._counts)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a saved state."""
        self._counts = dict(state)
