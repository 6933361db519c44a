"""Action selection at the root by Gumbel noise and sequential halving, for stochastic MCTS.

Danihelka et al. 2022, "Policy improvement by planning with Gumbel".

Shapes: M roots, A actions.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from packtrain.equations import puct

if TYPE_CHECKING:
    from packtrain.planning.mcts_tree import Decision, MctsTree
    from packtrain.planning.stochastic_mcts import StochasticMCTSAgent


def gumbel_terms(
    tree: MctsTree, agent: StochasticMCTSAgent, decision: Decision, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits of roots, and the scaled completed qualities that are added to them, both [M, A].

    An evaluation is an action's first visit, so the qualities to complete are of actions that were not allowed then.
    """
    ids = decision.ids[rows]
    visits, sums, priors = tree.nodes.visits[ids], tree.nodes.quality_sums[ids], tree.nodes.priors[ids]
    logits = np.log(np.maximum(priors, 1e-300))
    value = sums.sum(axis=1) / visits.sum(axis=1)
    completed = puct.completed_qualities(sums / np.maximum(visits, 1), visits, priors, value)
    allowed = visits > 0 if decision.legal is None else decision.legal[rows]
    most = decision.tried[rows].max(axis=1)
    return logits, puct.scaled_qualities(completed, most, allowed, agent.value_scale, agent.visit_offset)


def gumbel_scores(
    tree: MctsTree, agent: StochasticMCTSAgent, decision: Decision, number: int, rows: np.ndarray
) -> np.ndarray:
    """Return Gumbel noise + logits + qualities of the actions that sequential halving considers now, else −inf."""
    assert decision.gumbel is not None
    logits, scaled = gumbel_terms(tree, agent, decision, rows)
    most = min(agent.max_considered_actions, tree.actions)
    considered = np.full(len(rows), most)
    due = np.ones(logits.shape, bool)
    if decision.legal is not None:
        due = decision.legal[rows]
        considered = np.minimum(due.sum(axis=1), most)
    begun = decision.begun[rows]
    turn = halving_table(agent.n_passes, most)[begun, considered, number - begun]
    due = due & (decision.tried[rows] == turn[:, None])
    return np.where(due, decision.gumbel[rows] + logits + scaled, -np.inf)


@functools.lru_cache(maxsize=64)
def halving_table(passes: int, considered: int) -> np.ndarray:
    """Return `puct.considered_visits` for passes and passes − 1, by number of actions: [2, considered + 1, passes]."""
    table = np.zeros((2, considered + 1, passes), np.int64)
    for spent in (0, 1):
        for actions in range(1, considered + 1):
            table[spent, actions, : passes - spent] = puct.considered_visits(actions, passes - spent)
    return table
