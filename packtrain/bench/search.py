"""Speed of planners: alone, relative to the environment they search in, and with a network.

On the CPU all runs on one core, in seconds of its processor time, so that other processes matter little. A search is
measured as it is used, decision by decision over whole episodes, alternately with the environment's own rate. Then the
search with trees on the device is measured (`bench/device_search.py`); with `--device cuda` only that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from packtrain import trees
from packtrain.acting.inference import Inference
from packtrain.acting.planner_policy import PlannerPolicy, PlannerState
from packtrain.bench import device_search
from packtrain.bench.measure import machine
from packtrain.envs.functional import Core
from packtrain.envs.functional_vector_env import FunctionalVectorEnv
from packtrain.envs.hanoi import Hanoi
from packtrain.envs.sokoban import Sokoban
from packtrain.envs.stream import Stream
from packtrain.networks.prediction import ConvNet, Prediction
from packtrain.planning.best_first import BestFirstSearchAgent
from packtrain.planning.deterministic_mcts import DeterministicMCTSAgent
from packtrain.planning.leaf_evaluators import QualityNetworkNewLeafRater
from packtrain.planning.planner import Agent
from packtrain.planning.stochastic_mcts import StochasticMCTSAgent
from packtrain.types import Request

ROOTS = (1, 32, 256)
ROUNDS = 5
PASSES = 20


class FreeInference(Inference):
    """Answers requests with 0 at no cost, so that a search is measured alone."""

    def __init__(self, heads: dict[str, dict[str, int]]):
        super().__init__({})
        self._heads = heads

    def answer(self, requests: list[Request]) -> list[dict[str, np.ndarray]]:
        """Return zeros."""
        counts = [len(trees.front(request.inputs)) for request in requests]
        self.rows += sum(counts)
        return [
            {head: np.zeros((count, size), np.float32) for head, size in self._heads[request.network].items()}
            for request, count in zip(requests, counts, strict=True)
        ]


class Search:
    """A planner that plays episodes and is timed decision by decision."""

    def __init__(self, core: Core, agent: Agent, roots: int, passes: int, network: torch.nn.Module | None = None):
        networks = torch.nn.ModuleDict({} if network is None else {"agent": network})
        self._stream = Stream(FunctionalVectorEnv(core, roots, 0, "raise", "bench"), roots)
        policy = PlannerPolicy(agent, networks, torch.device("cpu"), 0)
        if network is None:
            policy.inference = FreeInference(agent.heads(core.action_space))
        self.inference = policy.inference
        self._actor_state: PlannerState = policy.actor_state(self._stream)
        self._row = self._stream.start()
        self._roots, self._passes = roots, passes
        self.extras: dict[str, np.ndarray] = {}  # extras of the last decision

    def decide(self) -> float:
        """Make one decision for all roots and step the environments; return the seconds of the decision."""
        begin = time.thread_time()
        decision = self._actor_state.act(self._row)
        spent = time.thread_time() - begin
        self.extras = decision.extras
        self._stream.send(decision.action)
        self._row = self._stream.recv()
        return spent

    def rate(self, secs: float) -> float:
        """Return passes, or expansions, per second."""
        spent, decisions = 0.0, 0
        while spent < secs:
            spent += self.decide()
            decisions += 1
        return decisions * self._roots * self._passes / spent


def steps_per_second(core: Core, states: int, secs: float) -> float:
    """Return the core's steps per second for batches of this size."""
    rng = np.random.default_rng(0)
    batch, count = core.initial(states, rng), int(core.action_space.n)  # type: ignore[attr-defined]
    steps, begin = 0, time.thread_time()
    while time.thread_time() - begin < secs:
        core.step(batch, rng.integers(0, count, states), rng)
        steps += states
    return steps / (time.thread_time() - begin)


def boards() -> Sokoban:
    """Return the boards that searches are measured on."""
    return Sokoban(8, 8, 2, min_pushes=8, boards=64, step_reward=0.0, max_steps=50)


CASES: tuple[tuple[str, Callable[[], Core], Agent, int], ...] = (
    ("MCTS, Sokoban 8x8", boards, DeterministicMCTSAgent(n_passes=PASSES), PASSES),
    (
        "stochastic MCTS, Hanoi 5",
        lambda: Hanoi(5, max_steps=50),
        StochasticMCTSAgent(n_passes=PASSES, new_leaf_rater=QualityNetworkNewLeafRater()),
        PASSES,
    ),
    ("BestFS, Hanoi 7", lambda: Hanoi(7, max_steps=100), BestFirstSearchAgent(n_nodes_per_step=10), 10),
)


NETWORKS = (
    ("5 convolutions of 64", ConvNet(5, 64, 128)),  # planning/mcts_sokoban
    ("3 convolutions of 32", ConvNet(3, 32, 64)),  # planning/mcts_sokoban_8x8
)


def run(secs: float, device: str = "cpu") -> dict[str, Any]:
    """Measure every search with a free network at 1, 32 and 256 roots, one with a network, one in a growing graph.

    Then the search with trees on the device, and mctx's beside it; on another device than the CPU only these.
    """
    on_device = device_search.compare(secs, device)
    if torch.device(device).type != "cpu":
        return on_device
    torch.set_num_threads(1)
    cases = [
        _case(name, make(), agent, passes, roots, secs / ROUNDS)
        for name, make, agent, passes in CASES
        for roots in ROOTS
    ]
    networks = [_with_network(name, sizes, secs / ROUNDS) for name, sizes in NETWORKS]
    growing = _growing()
    return {
        "bench": "search",
        **networks[0],
        "cases": cases,
        "networks": networks,
        "growing_graph": growing,
        "on_device": on_device,
        "machine": machine(),
        "lines": [*_lines(cases, networks, growing), "", *on_device["lines"]],
    }


def _case(name: str, core: Core, agent: Agent, passes: int, roots: int, secs: float) -> dict[str, Any]:
    search = Search(core, agent, roots, passes)
    actions = int(core.action_space.n)  # type: ignore[attr-defined]
    search.rate(secs)  # warm up
    rates, cores = [], []
    for _ in range(ROUNDS):
        rates.append(search.rate(secs))
        cores.append(steps_per_second(core, roots * actions, secs / 4))
    shares = [actions * rate / own for rate, own in zip(rates, cores, strict=True)]
    return {
        "case": name,
        "roots": roots,
        "rate": statistics.median(rates),
        "core_steps_per_second": statistics.median(cores),
        # model steps of the search over those of the core alone, if every node is expanded
        "share_of_core": statistics.median(shares),
    }


def _with_network(name: str, sizes: ConvNet, secs: float) -> dict[str, Any]:
    """Measure MCTS on Sokoban at 32 roots: the search alone, the network alone at the same batches, and both."""
    core, roots = boards(), 32
    network = Prediction(sizes).build(core.observation_space, {"value": 1}).eval()
    agent = DeterministicMCTSAgent(n_passes=PASSES)
    free, whole = Search(core, agent, roots, PASSES), Search(core, agent, roots, PASSES, network)
    free.rate(secs), whole.rate(secs)  # warm up
    rates, alone, networks, batch = [], [], [], 1
    for _ in range(ROUNDS):
        alone.append(free.rate(secs))
        rates.append(whole.rate(secs))
        batch = max(1, round(whole.inference.rows / max(1, whole.inference.passes)))
        per_pass = whole.inference.rows / max(1, whole.inference.passes) / roots  # requested rows per pass of a root
        networks.append(_network_rate(network, core, batch, secs) / per_pass)
    ratios = [rate / min(a, n) for rate, a, n in zip(rates, alone, networks, strict=True)]
    both = [1 / (1 / a + 1 / n) for a, n in zip(alone, networks, strict=True)]
    return {
        "network": name,
        "rate": statistics.median(rates),
        "bound": statistics.median(min(a, n) for a, n in zip(alone, networks, strict=True)),
        "ratio": statistics.median(ratios),
        "search_alone": statistics.median(alone),
        "network_alone": statistics.median(networks),
        "one_after_the_other": statistics.median(both),  # maximum rate of one core
        "network_share": statistics.median(rate / n for rate, n in zip(rates, networks, strict=True)),
        "rows_a_request": batch,
    }


def _network_rate(network: torch.nn.Module, core: Core, batch: int, secs: float) -> float:
    """Return the network's rows per second."""
    rng = np.random.default_rng(0)
    inference = Inference({"agent": network})
    request = Request("agent", core.observe(core.initial(batch, rng)))
    begin = time.thread_time()
    while time.thread_time() - begin < secs:
        inference.answer([request])
    return inference.rows / (time.thread_time() - begin)


def _growing() -> dict[str, Any]:
    """Return microseconds per decision of best-first search at 32 roots with about 200 and 2,000 nodes per root."""
    core = Hanoi(9, max_steps=None)  # 19,683 states: none is solved during the search
    found: dict[str, list[float]] = {"200": [], "2000": []}
    search = Search(core, BestFirstSearchAgent(n_nodes_per_step=10), 32, 10)
    for decision in range(360):
        spent = search.decide()
        nodes = float(search.extras["graph_size"].mean())
        for name in found:
            if 0.8 * int(name) <= nodes <= 1.2 * int(name):
                found[name].append(1e6 * spent)
        if nodes > 2600 and decision > 60:
            break
    small, large = (statistics.median(times) if times else float("nan") for times in found.values())
    return {"us_at_200": small, "us_at_2000": large, "ratio": large / small}


def _lines(cases: list[dict[str, Any]], networks: list[dict[str, Any]], growing: dict[str, Any]) -> list[str]:
    lines = [f"{'search, free network':<26}{'roots':>6}{'passes/s':>12}{'core steps/s':>15}{'share of core':>15}"]
    for case in cases:
        lines.append(
            f"{case['case']:<26}{case['roots']:>6}{case['rate']:>12,.0f}{case['core_steps_per_second']:>15,.0f}"
            f"{case['share_of_core']:>15.2f}"
        )
    for one in networks:
        lines += [
            "",
            f"MCTS on Sokoban at 32 roots with a network of {one['network']}:",
            f"rate   {one['rate']:>12,.0f} passes/s, {one['network_share']:.0%} of the time in the network",
            f"alone  {one['search_alone']:>12,.0f} the search, {one['network_alone']:,.0f} the network",
            f"ratio  {one['ratio']:>12.2f} of the slower one alone",
        ]
    return [
        *lines,
        "",
        f"a decision of BestFS at 32 roots takes {growing['us_at_200']:,.0f} µs with 200 nodes a root and "
        f"{growing['us_at_2000']:,.0f} µs with 2,000: {growing['ratio']:.2f} times",
    ]
