"""Monte Carlo tree search on the graph of states, for deterministic models and discrete actions.

Equal states are one node, found by key, so that all ways to a state share what is known of it. A pass goes down from
the root along

    argmax_a r(n, a) + gamma · index(child(n, a))

over the actions that do not lead back to a state of this pass, ties broken uniformly at random, until it comes to a
node without edges: its leaf. The leaf gets its edges (one model step for each action, one value request for the states
that are new), and its own value is backed up: v ← r + gamma · v, added to every node above it. A pass that ends in a
terminal state backs up 0; one that comes to a node where no action is allowed backs up `dead_end_value`, from that node
on. There is no exploration bonus: unexpanded states attract by what the network says of them, and by its ensemble's
disagreement.

With `n_leaves_to_expand` = k a pass goes on from an expanded leaf until it has expanded k of them (Shoot Tree Search).

All columns search together. A round is one model call and one request for all of them, and every operation of a level
of the descent is one over all columns that are still under way. The way down is kept as arrays, one triple (column,
node, action) a level; columns leave the arrays as their passes end.

Differences from the planners of the Shoot Tree Search [S] and Trust-but-Verify [T] code:

1. No tree nodes beside the graph. Visits are counted on the graph's edges, so `visits` and `action_histogram` of a
   state count the passes of all ways through it; and a pass does not stop at a state that another way has expanded,
   but goes on below it, so that each pass that is not cut off expands something new.
2. With `avoid_loops` off a pass that comes back to one of its own states ends there and backs up that state's value,
   where [T] would go around the loop in its tree.
3. The root is found by the key of the real state. If the model was wrong about the last step only its edge needs
   repair, and the state behind it where that was thought to be an end, or not to be one.
4. At the top level actions that lead back to the root's own state are left out ([S]) unless nothing else is there,
   where [S] crashed. `avoid_top_level_loops` = False gives the rule of [T], which plays such actions too.
5. The pass ends at its last expanded leaf ([S] took one more step), and a terminal state is backed up once.
6. Training targets are those at the time of acting. Depths are of this decision's passes, from the root to their ends.
7. Ensemble masks are drawn for each column and episode, not for the process.
8. The mean bonus is over the bonuses backed up, 0 before the first.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from packtrain import config, trees
from packtrain.config import configurable
from packtrain.errors import ConfigError, DivergedError
from packtrain.planning.chance import chance
from packtrain.planning.events import Listener, ModelSteps
from packtrain.planning.model import GOLDEN, Asking, Model, mix
from packtrain.planning.nodes import Nodes
from packtrain.planning.planner import Plan, Roots
from packtrain.planning.table import NOBODY
from packtrain.planning.values import EnsembleValue, ScalarValue, Values
from packtrain.planning.verification import Verification
from packtrain.trees import Tree
from packtrain.types import Request

SWEEP = 1 << 14  # nodes from which on those of past episodes are given back
EPSILON, RANDOM_ACTION, TOP_LEVEL, PASSES = range(4)  # what random numbers are for


@configurable
@dataclass(frozen=True)
class DeterministicMCTSAgent:
    """The numbers of a search."""

    gamma: float = 0.99  # discount
    n_passes: int = 10  # a decision
    avoid_loops: bool = True  # a pass enters no state twice
    avoid_top_level_loops: bool = True  # no action that leaves the root's state as it is
    avoid_termination: bool = False  # no action that ends the episode and pays nothing
    dead_end_value: float = -2.0  # backed up from where no action is allowed
    avoid_history_coeff: float = 0.0  # added to the index of a state each time it is the root
    top_level_epsilon: float = 0.0  # chance of a uniformly random action
    n_leaves_to_expand: int = 1  # a pass; more is Shoot Tree Search
    backpropagate_intermediate_expansion: bool = False  # back up from each of these leaves, not only from the last
    ensemble_size: int | None = None  # members of the value network; None for a single one
    ensemble_mask_size: int | None = None  # members that count in an episode; None for all
    kappa: float = 3.0  # weight of the members' standard deviation in the index
    alpha: float = 1.0  # weight of the mean value
    beta: float = 0.0  # weight of the mean bonus in the index
    use_value_network: bool = True  # False: new states are worth 0, and nothing is asked
    bonus_quantile_threshold: float | None = None  # verify what the model is less sure of than this; None: never
    rejection_probability: float = 0.5  # chance of trusting the plan all the same
    bonus_queue_length: int = 2000  # expansions that the quantile is taken over
    noise_quantile: float | None = None  # of bonuses of what came as predicted: up to there nothing is verified

    def __post_init__(self) -> None:
        name = "DeterministicMCTSAgent"
        for field in ("n_passes", "n_leaves_to_expand", "ensemble_size", "ensemble_mask_size", "bonus_queue_length"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ConfigError(f"{name}.{field} = {value} must be at least 1")
        shares = ("gamma", "top_level_epsilon", "bonus_quantile_threshold", "rejection_probability", "noise_quantile")
        for field in shares:
            if getattr(self, field) is not None and not 0 <= getattr(self, field) <= 1:
                raise ConfigError(f"{name}.{field} = {getattr(self, field)} must be between 0 and 1")
        for field in ("dead_end_value", "avoid_history_coeff", "kappa", "alpha", "beta"):
            if not math.isfinite(getattr(self, field)):
                raise ConfigError(f"{name}.{field} = {getattr(self, field)} must be a finite number")
        if self.ensemble_mask_size is not None and self.ensemble_mask_size > (self.ensemble_size or 0):
            raise ConfigError(
                f"{name}.ensemble_mask_size = {self.ensemble_mask_size} is more than "
                f"{name}.ensemble_size = {self.ensemble_size} has members"
            )
        if self.ensemble_size is not None and not self.use_value_network:
            raise ConfigError(f"{name}.ensemble_size = {self.ensemble_size} needs {name}.use_value_network = True")
        if self.noise_quantile is not None and self.bonus_quantile_threshold is None:
            raise ConfigError(
                f"{name}.noise_quantile = {self.noise_quantile} needs {name}.bonus_quantile_threshold: nothing is "
                "verified"
            )

    def trusting(self) -> DeterministicMCTSAgent:
        """The same, but it never verifies: for evaluations."""
        with config.unrecorded():
            return replace(self, bonus_quantile_threshold=None, noise_quantile=None)

    def heads(self, action_space: gym.Space) -> dict[str, dict[str, int]]:
        """A value, of each member of an ensemble; nothing without a network."""
        return {"agent": {"value": self.ensemble_size or 1}} if self.use_value_network else {}

    def build(self, model: Model, columns: int, seed: int, listener: Listener | None = None) -> DeterministicMCTS:
        """The planner for B columns."""
        if not isinstance(model.action_space, gym.spaces.Discrete):
            raise ConfigError(f"DeterministicMCTSAgent needs discrete actions, not {model.action_space}")
        if not model.deterministic:
            raise ConfigError("DeterministicMCTSAgent needs a deterministic model, and this one is stochastic")
        if self.beta and not gives_bonus(model):
            raise ConfigError(f"DeterministicMCTSAgent.beta = {self.beta} weighs a bonus that this model does not give")
        if self.bonus_quantile_threshold is not None and not gives_bonus(model):
            raise ConfigError(
                f"DeterministicMCTSAgent.bonus_quantile_threshold = {self.bonus_quantile_threshold} verifies what a "
                "learned model is unsure of, and this model is sure of everything"
            )
        return DeterministicMCTS(self, model, columns, seed, listener)

    def values(self, columns: int, seed: int) -> Values:
        """How values are kept."""
        if self.ensemble_size is None:
            return ScalarValue(self.alpha, self.beta)
        mask_size = self.ensemble_mask_size or self.ensemble_size
        return EnsembleValue(self.ensemble_size, mask_size, columns, seed, self.kappa, self.alpha, self.beta)


class Level(NamedTuple):
    """One step down in M columns of a pass."""

    rows: np.ndarray  # [M] which of the R roots
    nodes: np.ndarray  # [M] from where
    edges: np.ndarray  # [M] along which, as numbers into the flat fields of the fans


class Path:
    """The way of a pass in R columns: steps from the roots down, and where no action was allowed."""

    def __init__(self) -> None:
        self.levels: list[Level] = []
        self.stuck: list[tuple[np.ndarray, np.ndarray]] = []  # rows and nodes of dead ends

    def depths(self, roots: int) -> np.ndarray:
        """Steps in each column, [R]."""
        rows = [level.rows for level in self.levels]
        return np.bincount(np.concatenate(rows), minlength=roots) if rows else np.zeros(roots, np.int64)


class DeterministicMCTS:
    """Searches for some of B columns at once. Nodes live from `begin` to the next `begin` of their column."""

    def __init__(self, agent: DeterministicMCTSAgent, model: Model, columns: int, seed: int, listener: Listener | None):
        self.agent, self.model, self.listener = agent, model, listener
        self._n_actions = int(model.action_space.n)  # type: ignore[attr-defined]
        self._values = agent.values(columns, seed)
        self._seed = seed
        self.rng = np.random.default_rng(seed)  # for the model, which should not need it
        self.decisions = 0
        shape, n = self._values.shape, (self._n_actions,)
        fields: dict[str, tuple[tuple[int, ...], Any, Any]] = {
            "fan": ((), np.int64, NOBODY),  # where its edges are, once it is expanded
            "terminal": ((), bool, False),
            "solved": ((), bool, False),
            "total": (shape, np.float64, 0.0),  # of the values added
            "count": ((), np.int64, 0 if agent.use_value_network else 1),  # of them; 0 until the network has answered
            "initial": ((), np.float64, 0.0),  # what it answered, over the mask
            "aux": ((), np.float64, 0.0),  # added to the index
            "discounted_index": ((), np.float64, 0.0),  # gamma · index, kept up to date
        }
        edge_fields: dict[str, tuple[tuple[int, ...], Any, Any]] = {
            "children": (n, np.int64, NOBODY),  # the node that each action leads to
            "rewards": (n, np.float64, 0.0),
            "visits": (n, np.int64, 0),  # passes that took the edge
        }
        if not agent.avoid_loops:
            fields["seen"] = ((), np.int64, 0)  # the last pass that came through
        self._bonuses = gives_bonus(model)
        if self._bonuses:
            fields["bonus_total"] = ((), np.float64, 0.0)
            edge_fields["bonus"] = (n, np.float64, 0.0)
        self._verification: Verification | None = None
        if agent.bonus_quantile_threshold is not None:
            self._verification = Verification(
                columns,
                agent.bonus_quantile_threshold,
                agent.rejection_probability,
                agent.bonus_queue_length,
                seed,
                agent.noise_quantile,
                getattr(model, "runs", 1),
            )
        self._clears_bonus = bool(getattr(model, "clears_bonus", False))
        self._hears_noise = self._bonuses and agent.noise_quantile is not None
        if self._hears_noise:
            edge_fields["tried"] = (n, bool, False)
        self.nodes = Nodes(fields)
        self.fans = Nodes(edge_fields)  # the edges of expanded nodes, apart: most nodes never have any
        self._stamp = 0  # passes so far
        self._labels = np.arange(columns)  # who owns the nodes of each column's episode: a new number for each
        self._next_label = columns
        self._past: list[np.ndarray] = []  # labels of episodes that are over, with nodes not given back yet
        self._sweep = SWEEP
        self._last_root = np.full(columns, NOBODY)
        self._last_action = np.zeros(columns, np.int64)
        self._unrated = np.empty((2, 0), np.int64)  # nodes that were heard of and not asked about yet; their columns
        self._tie_words = tie_words(0, self._n_actions)  # of the levels met so far

    # -- the planner's face

    def begin(self, columns: np.ndarray, epoch: int) -> None:
        """Forget these columns. Their nodes are given back later, many at once: that costs a look at every node."""
        columns = np.asarray(columns)
        self._values.begin(columns, self.decisions)
        if self._verification is not None:
            self._verification.begin(columns)
        self._past.append(self._labels[columns])
        self._labels[columns] = self._next_label + np.arange(len(columns))
        self._next_label += len(columns)
        self._last_root[columns] = NOBODY
        self._unrated = self._unrated[:, ~np.isin(self._unrated[1], columns)]
        if len(self.nodes) >= self._sweep:
            past = np.concatenate(self._past)
            self.nodes.forget(past)
            self.fans.forget(past)
            self._past = []
            self._sweep = max(SWEEP, 2 * len(self.nodes))

    def plan(self, roots: Roots) -> Asking[Plan]:
        """Make `n_passes` passes from each root, and choose."""
        agent, nodes, columns = self.agent, self.nodes, roots.columns
        decision = self.decisions
        self.decisions += 1
        root, _ = nodes.intern(self._labels[columns], self.model.keys(roots.states), roots.states)
        nodes.terminal[root] = False  # or nobody would ask
        unknown, askers, others = root, columns, self._unrated
        if others.shape[1]:
            mine = np.isin(others[1], columns)
            both = np.concatenate([np.stack([root, columns]), others[:, mine]], axis=1)
            (unknown, askers), others = np.unique(both, axis=1), others[:, ~mine]
        asked = np.flatnonzero(nodes.count[unknown] == 0)
        unknown, askers = unknown[asked], askers[asked]
        yield from self._appraise(unknown, askers, _pick(nodes.states, unknown))
        self._unrated = others
        if agent.avoid_history_coeff:
            nodes.aux[root] += agent.avoid_history_coeff
            self._refresh(root)
        leaves = agent.n_leaves_to_expand
        words = pass_words(self._seed, columns, decision, agent.n_passes * leaves)
        depth_sum, depth_max = np.zeros(len(root), np.int64), np.zeros(len(root), np.int64)
        for start in range(0, len(words), leaves):
            path = Path()
            try:
                yield from self._pass(columns, root, words[start : start + leaves], path)
            except BaseException:  # a request failed, or nobody waits for the plan: what is known here is half made
                self.begin(columns, 0)
                raise
            depths = path.depths(len(root))
            depth_sum += depths
            np.maximum(depth_max, depths, out=depth_max)
        extras: dict[str, np.ndarray] = {
            "depth_mean": (depth_sum / agent.n_passes).astype(np.float32),
            "depth_max": depth_max,
        }
        return self._choose(columns, root, decision, extras)

    def feedback(self, columns: np.ndarray, states: Tree, rewards: np.ndarray, terminated: np.ndarray) -> None:
        """Set the taken edges right: where they lead, what they pay, and whether the episode ends there."""
        planned = self._last_root[columns] != NOBODY
        if not planned.all():
            columns, rewards, terminated = columns[planned], rewards[planned], terminated[planned]
            states = _pick(states, np.flatnonzero(planned))
        if not len(columns):
            return
        self._correct(columns, self._last_root[columns], self._last_action[columns], states, rewards, terminated, True)

    def hear(
        self, columns: np.ndarray, before: Tree, actions: np.ndarray, states: Tree, rewards: Any, terminated: Any
    ) -> None:
        """What came of actions [M] somewhere else, for columns [M] that may know the states before them."""
        sources = self.nodes.find(self._labels[columns], self.model.keys(before))
        known = np.flatnonzero((sources != NOBODY) & (self.nodes.fan[sources] != NOBODY))
        if len(known):
            there = _pick(states, known)
            self._correct(columns[known], sources[known], actions[known], there, rewards[known], terminated[known])

    def lasting(self, run: int = 0) -> dict[str, Any]:
        """What outlives the episodes of a run, to be saved."""
        return {} if self._verification is None else self._verification.snapshot(run)

    def restore(self, lasting: dict[str, Any], run: int = 0) -> None:
        """Go on with what has been saved."""
        if self._verification is not None:
            self._verification.restore(lasting, run)

    def _correct(
        self,
        columns: np.ndarray,
        before: np.ndarray,
        action: np.ndarray,
        states: Tree,
        rewards: np.ndarray,
        terminated: np.ndarray,
        tried: bool = False,
    ) -> None:
        """Set edges [M] right, and what is known of the nodes behind them: an end is worth 0, and has no way on.

        If the columns have tried them, the rule hears how unsure the model was of those that came as predicted, each
        once: later it is reality that says where they lead.
        """
        nodes, fans = self.nodes, self.fans
        real, _ = nodes.intern(self._labels[columns], self.model.keys(states), states)
        terminated, fan = np.asarray(terminated, bool), nodes.fan[before]
        changed = nodes.terminal[real] != terminated
        if self._hears_noise:
            if tried and self._verification is not None:
                doubts = fans.bonus[fan, action]
                right = (fans.children[fan, action] == real) & (fans.rewards[fan, action] == rewards) & ~changed
                right &= ~fans.tried[fan, action] & (doubts > 0)
                self._verification.confirmed(columns[right], doubts[right])
            fans.tried[fan, action] = True
        if self._clears_bonus:
            fans.bonus[fan, action] = 0.0
        fans.children[fan, action] = real
        fans.rewards[fan, action] = rewards
        nodes.solved[real] = terminated & (rewards > 0)
        if changed.any():
            ids = real[changed]
            nodes.terminal[ids] = terminated[changed]
            nodes.fan[ids], nodes.total[ids] = NOBODY, 0.0
            nodes.count[ids] = terminated[changed] | (not self.agent.use_value_network)  # 0: the network will be asked
            if self._bonuses:
                nodes.bonus_total[ids] = 0.0
            self._refresh(ids)
        if not tried:  # the others are the next roots
            unrated = nodes.count[real] == 0
            heard = np.stack([real[unrated], columns[unrated]])
            self._unrated = np.concatenate([self._unrated, heard], axis=1)

    # -- a pass

    def _pass(self, columns: np.ndarray, root: np.ndarray, words: np.ndarray, path: Path) -> Asking[None]:
        """One pass in each column, kept in `path`. `words` [leaves, R] break ties."""
        agent, nodes, values = self.agent, self.nodes, self._values
        if self.listener is not None:
            self.listener.pass_begin(columns)
        self._stamp += 1
        value = np.zeros((len(root), *values.shape))  # terminal states are worth 0
        bonus = np.zeros(len(root)) if self._bonuses else None
        rows, current = np.arange(len(root)), root
        for leaf in range(len(words)):
            rows, current = self._descend(rows, current, words[leaf], path)
            value[rows] = 0.0  # what an earlier leaf was worth counts no more
            if bonus is not None:
                bonus[rows] = 0.0
            if not agent.avoid_loops:
                back = nodes.seen[current] == self._stamp
                value[rows[back]] = values.get(nodes.total[current[back]], nodes.count[current[back]])
                rows, current = rows[~back], current[~back]
            under_way = ~nodes.terminal[current]
            if not under_way.all():
                rows, current = rows[under_way], current[under_way]
            if not len(rows):
                break
            yield from self._expand(columns[rows], current)
            value[rows] = values.get(nodes.total.take(current, axis=0), nodes.count.take(current))
            if bonus is not None:
                bonus[rows] = self.fans.bonus[nodes.fan[current]].max(axis=1)
            if agent.backpropagate_intermediate_expansion and leaf + 1 < len(words):
                only = np.zeros(len(root), bool)
                only[rows] = True
                self._back_up(path, value, bonus, only)
        for stuck, _ in path.stuck:
            value[stuck] = agent.dead_end_value
            if bonus is not None:
                bonus[stuck] = 0.0
        self._back_up(path, value, bonus)
        if self.listener is not None:
            self.listener.pass_end(columns)

    def _descend(
        self, rows: np.ndarray, current: np.ndarray, words: np.ndarray, path: Path
    ) -> tuple[np.ndarray, np.ndarray]:
        """Go down to nodes without edges, or to one seen before if loops are not avoided. Dead ends stay in `path`.

        Returns:
          [M] rows of the columns that are not at a dead end, [M] the nodes they have come to.
        """
        agent, nodes, n = self.agent, self.nodes, self._n_actions
        children, rewards, fan_of, index = self.fans.children, self.fans.rewards, nodes.fan, nodes.discounted_index
        first = np.arange(0, len(rows) * n, n)  # where the actions of each column begin in flat arrays
        began, here = rows, np.full(len(words), NOBODY)  # where each column is
        here[rows] = current
        for level in range(len(nodes) + 1):  # a way without loops has no more steps
            fan = fan_of.take(current)
            inner = fan != NOBODY
            if not agent.avoid_loops:
                inner &= nodes.seen.take(current) != self._stamp
            if np.count_nonzero(inner) < len(rows):
                rows, current, fan = rows[inner], current[inner], fan[inner]
                if not len(rows):
                    break
                first = first[: len(rows)]
            if agent.avoid_loops:
                index[current] = -np.inf  # until the pass is backed up: it does not come here again
            else:
                nodes.seen[current] = self._stamp
            targets, pay = children.take(fan, axis=0), rewards.take(fan, axis=0)  # [M, A]
            score = index.take(targets)
            score += pay
            if agent.avoid_termination:
                np.putmask(score, nodes.terminal.take(targets) & (pay <= 0), -np.inf)
            actions = score.argmax(axis=1)
            top = score.ravel().take(first + actions)  # several times as fast as score.max(axis=1)
            if top[top.argmin()] == -np.inf:
                free = top > -np.inf
                path.stuck.append((rows[~free], current[~free]))
                here[rows[~free]] = NOBODY
                rows, current, fan = rows[free], current[free], fan[free]
                if not len(rows):
                    break
                first, score, top, actions = first[: len(rows)], score[free], top[free], actions[free]
            ties = score == top[:, None]
            if np.count_nonzero(ties) > len(rows):
                if level >= len(self._tie_words):
                    self._tie_words = tie_words(2 * level + 8, n)
                actions = (ties * (words.take(rows)[:, None] * self._tie_words[level])).argmax(axis=1)
            edges = fan * n
            edges += actions
            path.levels.append(Level(rows, current, edges))
            current = children.reshape(-1).take(edges)
            here[rows] = current
        arrived = here.take(began)
        return began[arrived != NOBODY], arrived[arrived != NOBODY]

    def _expand(self, columns: np.ndarray, leaves: np.ndarray) -> Generator[Request, dict[str, np.ndarray], None]:
        """Give the leaves [M] edges to the states that all actions lead to, and the network's values to new ones."""
        nodes, n = self.nodes, self._n_actions
        source = leaves.repeat(n)
        actions = np.tile(np.arange(n), len(leaves))
        stepped = yield from self.model.step(_pick(nodes.states, source), actions, self.rng)
        if self._verification is not None and stepped.bonus is not None:
            self._verification.expanded(columns, stepped.bonus.reshape(len(leaves), n).max(axis=1))
        columns = columns.repeat(n)
        target, fresh = nodes.intern(self._labels[columns], self.model.keys(stepped.states), stepped.states)
        shape = (len(leaves), n)
        fan = self.fans.add(nodes.owner[leaves])
        nodes.fan[leaves] = fan
        self.fans.children[fan] = target.reshape(shape)  # [M * A] → [M, A]
        self.fans.rewards[fan] = stepped.rewards.reshape(shape)
        if self._bonuses and stepped.bonus is not None:
            self.fans.bonus[fan] = stepped.bonus.reshape(shape)
        if stepped.terminated.any():  # known states keep what is known of them
            nodes.terminal[target[fresh & stepped.terminated]] = True
            nodes.solved[target[fresh & stepped.solved]] = True
        if self.listener is not None:
            self.listener.model_steps(
                ModelSteps(columns, source, target, stepped.states, actions, stepped.rewards, stepped.terminated)
            )
        if self.agent.use_value_network:
            new = np.flatnonzero(fresh)
            nodes.count[target[new]] = 1  # terminal ones are worth 0
            new = new[~stepped.terminated[new]]
            yield from self._appraise(target[new], columns[new], _pick(stepped.states, new))

    def _appraise(
        self, ids: np.ndarray, columns: np.ndarray, states: Tree
    ) -> Generator[Request, dict[str, np.ndarray], None]:
        """Give new nodes the network's values."""
        if not len(ids):
            return
        nodes = self.nodes
        answers = (yield Request("agent", self.model.observe(states)))["value"]
        if not np.isfinite(answers).all():
            raise DivergedError(f"the value network answered NaN or infinity for some of {len(ids)} states")
        values = self._values.initial(columns, np.asarray(answers, np.float64))
        nodes.total[ids] = values
        nodes.count[ids] = 1
        nodes.initial[ids] = self._values.target(values)
        self._refresh(ids)

    def _back_up(self, path: Path, value: np.ndarray, bonus: np.ndarray | None, only: np.ndarray | None = None) -> None:
        """Add v ← r + gamma · v to the nodes of the path from below, v [R, *shape] being the values at its ends.

        Args:
          path: the steps of the pass; a column meets no node twice.
          value: [R, *shape].
          bonus: [R], discounted and added too; None if there is none.
          only: [R] bool, the columns to which this is done; None for all.
        """
        nodes, fans, gamma = self.nodes, self.fans, self.agent.gamma
        levels, stuck = path.levels, path.stuck
        if only is not None:
            levels = [Level(*(part[only[level.rows]] for part in level)) for level in levels]
            stuck = []  # a column at a dead end has no further leaf
            value, bonus = value.copy(), None if bonus is None else bonus.copy()
        if not levels and not stuck:
            return
        ids = np.concatenate([level.nodes for level in levels] + [node for _, node in stuck])
        edges = np.concatenate([level.edges for level in levels] or [ids[:0]])
        rewards = self._values.spread(fans.rewards.reshape(-1).take(edges))
        added = np.empty((len(ids), *value.shape[1:]))
        bonuses = None if bonus is None else np.zeros(len(ids))
        end = len(edges)
        added[end:] = self.agent.dead_end_value
        for level in reversed(levels):
            begin = end - len(level.rows)
            v = value.take(level.rows, axis=0)
            v *= gamma
            v += rewards[begin:end]
            value[level.rows] = added[begin:end] = v
            if bonus is not None and bonuses is not None:
                bonus[level.rows] = bonuses[begin:end] = gamma * bonus[level.rows]
            end = begin
        nodes.total[ids] += added
        nodes.count[ids] += 1
        fans.visits.reshape(-1)[edges] += 1
        if bonuses is not None:
            nodes.bonus_total[ids] += bonuses
        if only is None or not self.agent.avoid_loops:  # else the pass goes on, and its marks stay
            self._refresh(ids)

    def _refresh(self, ids: np.ndarray) -> None:
        """Bring the index of these nodes up to date."""
        self.nodes.discounted_index[ids] = self.agent.gamma * self._index(ids)

    def _index(self, ids: np.ndarray) -> np.ndarray:
        nodes, count = self.nodes, self.nodes.count.take(ids)
        values = self._values.get(nodes.total.take(ids, axis=0), count)
        bonus = nodes.bonus_total.take(ids) / np.maximum(count - 1, 1) if self._bonuses else None
        return self._values.index(values, bonus, nodes.aux.take(ids))

    # -- the decision

    def _choose(self, columns: np.ndarray, root: np.ndarray, decision: int, extras: dict[str, np.ndarray]) -> Plan:
        """The action for each root, and what is known there."""
        agent, nodes, values, n = self.agent, self.nodes, self._values, self._n_actions
        fan = nodes.fan[root]
        children, rewards, visits = self.fans.children[fan], self.fans.rewards[fan], self.fans.visits[fan]  # [R, A]
        flat = children.ravel()  # [R, A] → [R * A]
        index = self._index(flat).reshape(children.shape)
        get = values.target(values.get(nodes.total[flat], nodes.count[flat])).reshape(children.shape)
        score = rewards + nodes.discounted_index[children]
        if agent.avoid_termination:
            score = _without(nodes.terminal[children] & (rewards <= 0), score)
        if agent.avoid_top_level_loops:
            score = _without(children == root[:, None], score)
        noise = chance(self._seed, TOP_LEVEL, columns[:, None], decision, np.arange(n))
        action = np.where(score == score.max(axis=1, keepdims=True), noise, -1.0).argmax(axis=1)
        random = chance(self._seed, EPSILON, columns, decision) < agent.top_level_epsilon
        at_random = (chance(self._seed, RANDOM_ACTION, columns, decision) * n).astype(np.int64)
        action = np.where(random, at_random, action)
        if self._verification is not None:
            verified = self._verification.choose(columns, self.fans.bonus[fan], decision)
            action, random = np.where(verified >= 0, verified, action), random & (verified < 0)
            extras["verified"] = verified >= 0
        own = values.get(nodes.total[root], nodes.count[root])
        passes = visits.sum(axis=1, keepdims=True)
        extras |= {
            "value": values.target(own).astype(np.float32),
            "initial_value": nodes.initial[root].astype(np.float32),
            "qualities": (rewards + agent.gamma * get).astype(np.float32),
            "index": index.astype(np.float32),
            "visits": visits,
            "action_histogram": np.where(passes, visits / np.maximum(passes, 1), 1 / n).astype(np.float32),
            "random_action": random,
        }
        if values.shape:
            extras["value_std"] = own.std(axis=1).astype(np.float32)
        if agent.avoid_history_coeff and random.any():
            nodes.aux[root[random]] -= agent.avoid_history_coeff
            self._refresh(root[random])
        self._last_root[columns], self._last_action[columns] = root, action
        return Plan(action, extras)


def gives_bonus(model: Model) -> bool:
    """Whether the model's `step` says in `bonus` [N] how much its members disagree."""
    return bool(getattr(model, "gives_bonus", False))


def pass_words(seed: int, columns: np.ndarray, decision: int, count: int) -> np.ndarray:
    """A random number for each descent and column, [count, R] uint64, from which its ties are broken."""
    numbers = chance(seed, PASSES, columns[None], decision, np.arange(count)[:, None])
    return (numbers * 2.0**53).astype(np.uint64)


def tie_words(levels: int, actions: int) -> np.ndarray:
    """Fixed odd numbers [levels, A]: the action with the largest product of word and number, mod 2^64, wins a tie.

    Over all words the products of different numbers are spread evenly and independently of each other, so one word
    serves all levels and actions of a descent.
    """
    places = np.arange(1, levels * actions + 1, dtype=np.uint64).reshape(levels, actions)
    return mix(places * GOLDEN) | np.uint64(1)


def _without(unwanted: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Scores [R, A] with −inf for what is unwanted, in rows where something else is left."""
    less = np.where(unwanted, -np.inf, score)
    return np.where((less > -np.inf).any(axis=1, keepdims=True), less, score)


def _pick(states: Tree, ids: np.ndarray) -> Tree:
    return trees.map(lambda leaf: leaf.take(ids, axis=0), states)
