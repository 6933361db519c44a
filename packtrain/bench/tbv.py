"""Cost of a step of "Trust, but verify" on the Tower of Hanoi with 7 disks at the published sizes, on one core.

Parts are measured alone, in processor time: the environments, the search with precomputed predictions, the ensemble's
predictions, its training. A search is measured over whole episodes, since graphs grow within an episode. Steps per
second must be read together with the expansions per step: with a weaker model there are fewer, and steps are cheaper.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import nn

from packtrain.acting.actor import Actor
from packtrain.acting.multi_seed_planner import Joint
from packtrain.acting.planner_policy import PlannerPolicy
from packtrain.algorithms.world_model import WorldModelLearning
from packtrain.bench.measure import machine
from packtrain.cpu_count import available_cores
from packtrain.envs.environment import Environment
from packtrain.envs.hanoi import Hanoi
from packtrain.envs.stream import Stream
from packtrain.hashing import digest
from packtrain.interfaces import Writer
from packtrain.memory.episodes import Episodes
from packtrain.networks.world_model import WorldModel
from packtrain.planning.best_first import BestFirstSearchAgent
from packtrain.planning.learned import LearnedModel

DISKS, ENVIRONMENTS, EPISODE, UPDATES, BATCH = 7, 32, 1000, 200, 1024
RUNS = (1, 10)  # numbers of runs that share a search
PUBLISHED = {"steps": 260, "expansions": 560, "updates": 8.9}  # of the published code, on 2 cores


class ReadyModel(nn.Module):
    """Predicts like a good ensemble: the true transition, with a small disagreement that differs between requests."""

    def __init__(self, core: Hanoi, members: int):
        super().__init__()
        self._core, self._members = core, members
        self._apart = np.random.default_rng(0).standard_normal(members).astype(np.float32)

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return predictions in the format of `WorldModelNetwork`."""
        obs, actions = inputs["obs"].numpy(), inputs["action"].numpy()
        pegs = obs.reshape(len(obs), -1, 3).argmax(-1).astype(np.uint8)
        after, reward, over, _ = self._core.step(pegs, actions, np.random.default_rng(0))
        noise = (digest({"obs": obs, "action": actions}) >> np.uint64(40)).astype(np.float32) / 2**24
        delta = (self._core.observe(after) - obs)[:, None] + (0.3 * noise**4)[:, None, None] * self._apart[:, None]
        logits = [np.repeat(np.where(yes, 9, -9)[:, None], self._members, 1) for yes in (reward > 0, over)]
        reward_logits, over_logits = (torch.from_numpy(each.astype(np.float32)) for each in logits)
        return {"delta": torch.from_numpy(delta), "reward": reward_logits, "terminated": over_logits}


class _Nowhere(Writer):
    def add(self, row: Any, carry: Any, extras: dict[str, Any]) -> None:
        """Store nothing."""


def run(secs: float, device: str = "cpu") -> dict[str, Any]:
    """Measure every part alone, and return their sum."""
    torch.set_num_threads(1)
    environment = _environment_us(secs)
    searches = [_search(runs) for runs in RUNS]
    answer_us, update_s = _network(secs, torch.device(device))
    questions = 6 * 3**DISKS  # pairs of state and action: maximum number of predictions between two epochs of learning
    steps = ENVIRONMENTS * EPISODE
    parts = {
        "environment": environment,
        "search": searches[0]["us"] - environment,
        "the model's answers": answer_us * questions / steps,
        "the model's learning": 1e6 * update_s * UPDATES / steps,
    }
    content = {
        "bench": "tbv",
        "us_a_step": parts,
        "searches": searches,
        "updates_per_second": 1 / update_s,
        "answers_per_second": 1e6 / answer_us,
        "rate": 1e6 / sum(parts.values()),
        "bound": 1e6 / max(parts.values()),
        "ratio": max(parts.values()) / sum(parts.values()),
        "limited_by": max(parts, key=lambda name: parts[name]),
        "device": device,
        "published": PUBLISHED,
        "machine": machine(device != "cpu"),
    }
    return {**content, "lines": _lines(content)}


def _streams(runs: int) -> list[Stream]:
    environment = Environment("Hanoi", {"disks": DISKS})
    return [Stream(environment.open_core(ENVIRONMENTS, k, True, EPISODE), ENVIRONMENTS) for k in range(runs)]


def _environment_us(secs: float) -> float:
    stream, rng = _streams(1)[0], np.random.default_rng(0)
    stream.start()
    begin = time.process_time()
    while time.process_time() - begin < secs / 4:
        stream.send(rng.integers(6, size=ENVIRONMENTS))
        stream.recv()
    return 1e6 * (time.process_time() - begin) / stream.steps


def _search(runs: int) -> dict[str, Any]:
    """Run one episode in every environment of `runs` runs, with the published settings and precomputed predictions."""
    agent = BestFirstSearchAgent(
        expand_heuristic="bonus",
        top_level_heuristic="solved_then_auxiliary_then_bonus",
        avoid_history_coeff=-0.2,
        bonus_quantile_threshold=0.9,
        bonus_queue_length=2000,
    )
    streams, model = _streams(runs), LearnedModel()
    ready = ReadyModel(Hanoi(DISKS), model.members)
    policies = [
        PlannerPolicy(agent, nn.ModuleDict({"model": ready}), torch.device("cpu"), k, None, model) for k in range(runs)
    ]
    actors = [Actor([s], p, [_Nowhere()], lambda: 0) for s, p in zip(streams, policies, strict=True)]
    turn = actors[0].turn
    if runs > 1:
        joint = Joint(actors, policies, streams)
        turn = lambda: joint.turn(range(runs))  # noqa: E731
    turn(), turn()  # compile what can be compiled
    before, begin = sum(stream.steps for stream in streams), time.process_time()
    for _ in range(EPISODE - 2):
        turn()
    spent, steps = time.process_time() - begin, sum(stream.steps for stream in streams) - before
    expansions = np.mean([policy.decisions.drain()["expansions_mean"] for policy in policies])
    rate = steps / spent
    return {
        "runs": runs,
        "us": 1e6 / rate,
        "steps_per_second": rate,
        "expansions_a_step": float(expansions),
        "expansions_per_second": float(expansions * rate),
        "secs_a_million_steps": 1e6 / rate,
    }


def _network(secs: float, device: torch.device) -> tuple[float, float]:
    """Return microseconds of a prediction in batches of 32 · 6, and seconds of an update at the published sizes."""
    core = Hanoi(DISKS)
    network = nn.ModuleDict({"model": WorldModel().build(core.observation_space, core.action_space)}).to(device)
    rng = np.random.default_rng(0)
    pegs = rng.integers(3, size=(ENVIRONMENTS * 6, DISKS)).astype(np.uint8)
    inputs = {"obs": torch.from_numpy(core.observe(pegs)), "action": torch.arange(6).repeat(ENVIRONMENTS)}
    count, begin = 0, time.perf_counter()
    with torch.inference_mode():
        while time.perf_counter() - begin < secs / 2:
            answer = network["model"]({name: leaf.to(device) for name, leaf in inputs.items()})
            answer["delta"].cpu()
            count += len(pegs)
    answer_us = 1e6 * (time.perf_counter() - begin) / count
    learner = WorldModelLearning().build(network, 1)
    memory = Episodes(50_000, 8 * BATCH).build([1], 0, device)
    memory.add_episode(_random_episode(core, rng, 20_000))
    learner.update(memory.sample())  # type: ignore[arg-type]
    updates, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < secs:
        learner.update(memory.sample())  # type: ignore[arg-type]
        updates += 1
    if device.type == "cuda":
        torch.cuda.synchronize()
    return answer_us, (time.perf_counter() - begin) / updates


def _random_episode(core: Hanoi, rng: np.random.Generator, steps: int) -> dict[str, Any]:
    states, actions = [core.initial(1, rng)], rng.integers(6, size=steps)
    for action in actions:
        states.append(core.step(states[-1], np.array([action]), rng)[0])
    no = np.zeros(steps, bool)
    obs = core.observe(np.concatenate(states))
    ends = {"terminated": no, "truncated": no, "solved": False}
    return {"obs": obs, "action": actions, "reward": np.zeros(steps, np.float32), **ends}


def _lines(content: dict[str, Any]) -> list[str]:
    lines = [
        f"{'search, ready answers':<36}{'steps/s':>10}{'expansions a step':>20}{'expansions/s':>15}{'1 M steps':>12}"
    ]
    for one in content["searches"]:
        name = "one run" if one["runs"] == 1 else f"{one['runs']} runs together"
        lines.append(
            f"{name + f', {ENVIRONMENTS} environments':<36}{one['steps_per_second']:>10,.0f}"
            f"{one['expansions_a_step']:>20.1f}{one['expansions_per_second']:>15,.0f}"
            f"{one['secs_a_million_steps']:>10,.0f} s"
        )
    lines += ["", f"{'a step of one run':<26}{'core µs':>10}{'share':>9}"]
    total = sum(content["us_a_step"].values())
    lines += [f"{name:<26}{us:>10.0f}{us / total:>9.0%}" for name, us in content["us_a_step"].items()]
    lines += [
        "",
        f"rate   {content['rate']:>10,.0f} steps/s, all parts one after the other on one of {available_cores()} cores",
        f"bound  {content['bound']:>10,.0f} steps/s, by {content['limited_by']} alone: ratio {content['ratio']:.2f}",
        f"       {content['updates_per_second']:>10,.1f} updates/s of the ensemble on {content['device']}, "
        f"{content['answers_per_second']:,.0f} answers/s",
        f"       the published code: {PUBLISHED['steps']} steps/s, {PUBLISHED['expansions']} expansions/s, "
        f"{PUBLISHED['updates']} updates/s on 2 cores",
    ]
    return lines
