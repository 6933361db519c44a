"""How right a model was: against a plain walk over the steps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain.metrics.model_quality import ModelQuality

NAMES = ("right", "predicted_loop", "loop", "predicted_reward", "reward", "novelty", "random")


def plain(steps):
    """The row, step by step, from lists of dicts of bools."""
    who = lambda s: "novelty" if s["novelty"] else "random" if s["random"] else "planner"  # noqa: E731
    row = {
        "hit_events": sum(s["loop"] for s in steps),
        "predicted_loop_events": sum(s["predicted_loop"] for s in steps),
        "predicted_loop_true_events": sum(s["predicted_loop"] and s["loop"] for s in steps),
        "predicted_loop_false_events": sum(s["predicted_loop"] and not s["loop"] for s in steps),
        "novelty_based_transitions": sum(s["novelty"] for s in steps),
        "predicted_reward_false_events": sum(s["predicted_reward"] and not s["reward"] for s in steps),
    }

    def share(name, of, counts):
        of = list(of)
        if of:
            row[name] = sum(bool(counts(s)) for s in of) / len(of)

    share("perfect_next_observation", steps, lambda s: s["right"])
    share("hit_freq", steps, lambda s: s["loop"])
    share("predicted_loop_freq", steps, lambda s: s["predicted_loop"])
    share("novelty_based_transitions_freq", steps, lambda s: s["novelty"])
    share("predicted_reward_recall", [s for s in steps if s["reward"]], lambda s: s["predicted_reward"])
    share("predicted_reward_precision", [s for s in steps if s["predicted_reward"]], lambda s: s["reward"])
    share("predicted_loop_false_freq", [s for s in steps if s["predicted_loop"]], lambda s: not s["loop"])
    for chooser in ("planner", "novelty", "random"):
        mine = [s for s in steps if who(s) == chooser]
        share(f"perfect_next_observation_{chooser}", mine, lambda s: s["right"])
        share(f"hit_freq_{chooser}", mine, lambda s: s["loop"])
        loops = [s for s in mine if s["predicted_loop"]]
        share(f"predicted_loop_false_freq_{chooser}", loops, lambda s: not s["loop"])
    return row


@settings(deadline=None, max_examples=80)
@given(st.lists(st.lists(st.tuples(*[st.booleans()] * len(NAMES)), max_size=12), min_size=1, max_size=4))
def test_rows_are_what_a_plain_walk_counts(batches):
    """Steps come in batches of any size; a step is never verified and random at once.

    Mutations: a share over all steps instead of its own kind; a mean of the batches' means; a false loop counted
    where nothing was predicted.
    """
    quality, steps = ModelQuality(), []
    for batch in batches:
        told = [dict(zip(NAMES, values, strict=True)) for values in batch]
        for step in told:
            step["random"] &= not step["novelty"]
        quality.add(**{name: np.array([step[name] for step in told], bool) for name in NAMES})
        steps += told
    row = quality.drain()
    assert row == (pytest.approx(plain(steps)) if steps else {})
    assert quality.drain() == {}, "a row is given once"


def test_shares_of_nothing_are_left_out():
    """One step that the planner chose, without loop or reward. Mutation: 0 / 0 as 0."""
    quality = ModelQuality()
    quality.add(**{name: np.array([name == "right"]) for name in NAMES})
    assert quality.drain() == {
        "hit_events": 0,
        "predicted_loop_events": 0,
        "predicted_loop_true_events": 0,
        "predicted_loop_false_events": 0,
        "novelty_based_transitions": 0,
        "predicted_reward_false_events": 0,
        "perfect_next_observation": 1.0,
        "hit_freq": 0.0,
        "predicted_loop_freq": 0.0,
        "novelty_based_transitions_freq": 0.0,
        "perfect_next_observation_planner": 1.0,
        "hit_freq_planner": 0.0,
    }
