"""Tabular frontier search: nearest untried action first, exact memory, a baseline that solves small towers."""

import os
import signal
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from packtrain.acting.inference import Inference
from packtrain.cli import main
from packtrain.envs.bin_packing import BinPacking
from packtrain.envs.hanoi import Hanoi
from packtrain.errors import ConfigError
from packtrain.metrics.reading import read_metrics
from packtrain.planning.model import CoreModel
from packtrain.planning.planner import Roots
from packtrain.planning.tabular_search import UNTRIED, FrontierAgent
from packtrain.runtime.training import Training

CLOCKED = ("wall_s", "steps_per_second", "actor_busy", "learner_busy", "rss_mb")


class Play:
    """One environment without a time limit, and a planner that acts in it."""

    def __init__(self, core, seed=0, planner=None):
        self.core, self.model = core, CoreModel(core)
        self.planner = planner or FrontierAgent().build(self.model, 1, seed)
        self.begin()

    def begin(self):
        self.state = self.core.initial(1, np.random.default_rng(0))
        self.planner.begin(np.zeros(1, np.int64), 0)

    def step(self):
        roots = Roots(np.zeros(1, np.int64), self.state, self.core.observe(self.state))
        plan = Inference({}, "cpu").run(self.planner.plan(roots))
        self.state, reward, terminated, _ = self.core.step(self.state, plan.action, np.random.default_rng(0))
        self.planner.feedback(np.zeros(1, np.int64), self.state, reward, terminated)
        return plan, bool(terminated[0])


def distance_to_untried(planner, state):
    queue, distance = deque([state]), {state: 1}
    while queue:
        node = queue.popleft()
        if UNTRIED in planner._next[node]:
            return distance[node]
        for after in planner._next[node]:
            if after >= 0 and after not in distance:
                distance[after] = distance[node] + 1
                queue.append(after)
    return None


def test_each_new_route_leads_to_the_nearest_untried_action():
    """Mutations: depth-first search; distances off by one; a route that is kept when its end has been tried."""
    play, left = Play(Hanoi(4)), 0
    for _ in range(400):
        (state,) = play.planner._find(play.state)
        wanted = distance_to_untried(play.planner, state)
        plan, ended = play.step()
        (distance,) = plan.extras["target_distance"].tolist()
        if play.planner._goals:
            break
        assert distance == (left - 1 if left > 1 else wanted)
        assert plan.extras["explores"].tolist() == [distance == 1]
        left = distance
        if ended:
            play.begin()
            left = 0
    assert play.planner.transitions > 50


def test_ties_are_broken_at_random_and_by_the_seed_alone():
    """Mutation: always the first of the nearest untried actions."""
    first = [Play(Hanoi(4), seed).step()[0].action[0] for seed in range(60)]
    assert set(first) == set(range(6))
    assert first == [Play(Hanoi(4), seed).step()[0].action[0] for seed in range(60)]


def test_an_action_is_tried_once_until_the_goal_is_known_and_then_the_shortest_way_is_walked():
    """Mutations: transitions forgotten with the episode; the goal not remembered."""
    play, tried = Play(Hanoi(3)), []
    while not play.planner._goals:
        (state,) = play.planner._find(play.state)
        plan, ended = play.step()
        if plan.extras["explores"][0]:
            tried.append((state, int(plan.action[0])))
        if ended:
            play.begin()
    assert len(tried) == len(set(tried)) == play.planner.transitions
    play.begin()
    steps, ended = 0, False
    while not ended:
        plan, ended = play.step()
        assert not plan.extras["explores"][0]
        steps += 1
    known = play.planner.transitions
    assert 7 <= steps <= 14 and known == play.planner.transitions
    if known == 26 * 6:
        assert steps == 7


def test_the_table_survives_a_snapshot_and_evaluations_do_not_extend_it():
    """Mutations: goals left out of the snapshot; an evaluation that explores."""
    play = Play(Hanoi(3))
    while not play.planner._goals:
        if play.step()[1]:
            play.begin()
    saved = play.planner.lasting()
    evaluated = FrontierAgent().trusting().build(play.model, 1, 0)
    evaluated.restore(saved)
    before, other, steps, ended = evaluated.transitions, Play(Hanoi(3), planner=evaluated), 0, False
    while not ended:
        plan, ended = other.step()
        assert not plan.extras["random_action"][0]
        steps += 1
    assert evaluated.transitions == before == play.planner.transitions and steps <= 14
    ignorant = Play(Hanoi(3), planner=FrontierAgent().trusting().build(play.model, 1, 0))
    for _ in range(30):
        plan, ended = ignorant.step()
        assert plan.extras["random_action"][0]
        if ended:
            ignorant.begin()
    assert ignorant.planner.transitions == 0


def test_random_environments_are_refused():
    with pytest.raises(ConfigError, match="deterministic"):
        FrontierAgent().build(CoreModel(BinPacking()), 1, 0)


# -- as a run


def train(output, *more):
    shape = ("--disks", "4", "--n_envs", "4", "--episode_time_limit", "60", "--n_epochs", "8")
    return main(["train", "tbv/frontier_hanoi", "--output_dir", output, *shape, *more])


def rows(run, kind="train"):
    found = [{k: v for k, v in row.items() if k not in CLOCKED} for row in read_metrics(Path(run))]
    return [row for row in found if row["kind"] == kind]


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_shipped_baseline_solves_the_tower_and_counts_all_its_steps(in_tmp):
    assert train("runs", "--until_solved", "true", "--num_seeds", "2") == 0
    solved = [rows(f"runs/seed_{k}")[-1] for k in range(2)]
    for row in solved:
        assert row["graph/min_distance_to_goal_in_history"] == 0
        assert 15 <= row["first_solved_step"] <= row["env_steps"] == row["env_steps_without_random"] < 1000
    assert solved[0]["first_solved_step"] != solved[1]["first_solved_step"]
    assert main(["eval", "runs/seed_0", "--num_episodes", "2"]) == 0


def test_a_stopped_run_goes_on_as_if_it_had_not_been_stopped(in_tmp, monkeypatch):
    """Mutation: the table is not saved."""
    assert train("straight") == 0
    act, turns = Training.act, []

    def interrupted(self):
        act(self)
        turns.append(self.progress.epoch)
        if turns.count(2) == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "act", interrupted)
        assert train("stopped") == 128 + signal.SIGTERM
    assert train("stopped") == 0
    assert rows("stopped") == rows("straight") and rows("stopped", "planning") == rows("straight", "planning")


@pytest.mark.learning
def test_seven_disks_are_solved_within_the_steps_the_baseline_needs(in_tmp):
    """Ten seeds took 20 to 31 thousand steps."""
    assert main(["train", "tbv/frontier_hanoi", "--until_solved", "true", "--seed", "3", "--output_dir", "run"]) == 0
    assert 15_000 < rows("run")[-1]["first_solved_step"] < 40_000
