"""Runs that replay: how many updates follow a step, what a resumed run repeats, and seeds that learn together."""

import json
import random
import re
import shutil
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from packtrain import cli, knobs
from packtrain.algorithms.batched_updates import transitions
from packtrain.errors import ConfigError, EnvError, EnvSetupError, SaveError
from packtrain.metrics.console import PlainConsole
from packtrain.runtime import checkpoint, local, multi_seed, preparation, serial
from packtrain.runtime.folder import RunFolder
from packtrain.runtime.loops import Learn
from packtrain.runtime.loops.ratio import Ratio
from packtrain.runtime.train_rows import TrainRows
from packtrain.runtime.training import RunSetup, Training
from packtrain.testing import chaos

SMALL = {
    **{"env": "PointMass", "total_steps": 90, "warm_up": 40, "num_actors": 3, "batch_size": 8, "hidden_size": 8},
    **{"num_layers": 1, "log_every": 20, "updates_per_step": 2.0, "checkpoint_secs": 1000.0, "eval_every": 0},
}
MODEL = {
    **SMALL,
    **{"pretrain": 12, "model_updates_per_step": 1.0, "model_batch_size": 8, "model_hidden_size": 8},
    **{"model_layers": 1, "aux_hidden_size": 8, "aux_layers": 1, "horizon": 2},
}
TIMES = ("wall_s", "steps_per_second", "actor_busy", "learner_busy", "rss_mb")


def everything(run):
    """All transitions of a run's replay, field by field, [N, ...] each."""
    return transitions(run.learning.memories["replay"].view("all"))


def training(path, name="steve/steve_pendulum", bindings=(), saved=None, seed=0, **values):
    given = {**(SMALL if "ddpg" in name else MODEL), **values}
    given = {knob: value for knob, value in given.items() if value != "unset"}
    file, _ = knobs.find_config(name)
    configuration, experiment, spec = preparation.prepare([file], list(bindings), given, seed, True)
    folder = RunFolder(path)
    folder.checkpoints.mkdir(parents=True, exist_ok=True)
    console = PlainConsole("x", experiment.run.total_steps)
    setup = RunSetup(experiment, spec, folder, configuration, torch.device("cpu"), console, exact=True)
    return Training(setup, saved)


def rows(path, kind="train"):
    found = [json.loads(line) for line in (Path(path) / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMES} for row in found if row["kind"] == kind]


def weights(run):
    return {name: leaf.clone() for name, leaf in run.learning.learners["value"].network.state_dict().items()}


def test_so_many_updates_follow_every_step(tmp_path):
    """After n steps past the warm-up, ratio · n updates have run: 0.25 u < n of the specification, u from 0.

    Steps are counted in turns of all three columns. Mutations: pre-training not counted; updates during warm-up.
    """
    run = training(tmp_path)
    seen = []
    for wish in serial.loop(run):
        serial.carry_out(run, wish)
        learners = run.learning.learners
        seen.append((run.progress.acted, learners["model"].updates, learners["value"].updates))
    run.close()
    before = [s for s in seen if s[0] <= 40 and s[1] == 0]
    assert before and all(value == 0 for _, _, value in before)
    ends = {acted: (model, value) for acted, model, value in seen}
    for acted, (model, value) in ends.items():
        past = max(0, min(acted, 90) - 40) // 3 * 3
        if acted >= 42:
            assert value == 2 * past and model == 12 + past, (acted, model, value)
    assert run.progress.finished and run.progress.step >= 90


@pytest.mark.parametrize("total, steps", [(90, [21, 42, 60, 81, 90]), (81, [21, 42, 60, 81]), (10, [12])])
def test_the_last_steps_have_a_row_too(tmp_path, total, steps):
    """Once. Mutations: rows at multiples of 20 only; a last row for steps that have one."""
    run = training(tmp_path, "steve/ddpg_pendulum", total_steps=total, warm_up=min(40, total - 3))
    serial.run(run)
    run.close()
    assert [row["step"] for row in rows(tmp_path)] == steps


def test_random_steps_come_first_and_are_counted(tmp_path):
    """Mutation: leaving the policy random after the warm-up."""
    run = training(tmp_path, "steve/ddpg_pendulum", explore_chance=0.0, learning_rate=1e-9)  # stays where it is
    serial.run(run)
    kept = everything(run)
    run.close()
    network = run.learning.learners["value"].network
    greedy = network.act(network.policy, kept["obs"][None])[0].detach()
    assert not run.acting.policy.random
    assert 40 <= run.progress.random_steps <= 45
    assert kept["action"][:39].abs().mean() > 0.35  # of uniform numbers: 0.5
    torch.testing.assert_close(kept["action"][48:], greedy[48:], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(kept["action"][:39], greedy[:39], atol=0.1)


@pytest.mark.parametrize(
    "name, values",
    [
        ("steve/ddpg_pendulum", {"env": "PointMass"}),
        ("steve/ddpg_pendulum", {"env": "PointMass", "n_step": 4}),
        ("steve/steve_pendulum", {"env": "PointMass"}),
        ("steve/steve_pendulum", {"env": "PointMass", "holdout": True, "replay_size": 60}),
        ("steve/steve_pendulum", {"env": "Hopper-v5"}),
        ("steve/ddpg_pendulum", {"env": "Pendulum-v1"}),
    ],
)
def test_a_run_that_is_broken_off_anywhere_goes_on_as_if_it_had_not_been(tmp_path, name, values):
    """Saved after every request, also within pre-training and between model and critic; the rest is the same.

    Mutations: counting steps whose results have not been stored; new episodes of Gymnasium's;
    transitions of several steps that were not whole are lost.
    """
    whole = training(tmp_path / "whole", name, **values)
    serial.run(whole)
    whole.saver.save(required=True)
    wanted = weights(whole)
    whole.close()
    stops = [5, 17, 23, 31, 47]
    for stop in stops:
        path = tmp_path / str(stop)
        run = training(path, name, **values)
        for count, wish in enumerate(serial.loop(run)):
            if count == stop:
                break
            serial.carry_out(run, wish)
        run.saver.save(required=True)
        run.close()
        again = training(path, name, saved=checkpoint.load_newest(path / "checkpoints"), **values)
        serial.run(again)
        again.saver.save(required=True)
        got = weights(again)
        again.close()
        assert all(torch.equal(wanted[leaf], got[leaf]) for leaf in wanted), stop
        assert rows(path) == rows(tmp_path / "whole"), stop
        for file in ("memories", "learners", "actor"):
            mine, theirs = (
                load_file(folder / "checkpoints" / str(again.progress.step) / f"{file}.safetensors")
                for folder in (path, tmp_path / "whole")
            )
            for leaf in theirs:  # NaN: an environment that does not say whether a task is solved
                assert np.array_equal(mine[leaf].numpy(), theirs[leaf].numpy(), equal_nan=True), (stop, file, leaf)


def test_a_memory_survives_environments_that_cannot_be_saved(tmp_path, monkeypatch):
    """Pendulum begins a new episode; nothing that was stored is lost. Mutation: keeping the row before."""
    monkeypatch.setattr("packtrain.envs.gymnasium_vector_env.exact_saving", lambda env: None)
    run = training(tmp_path, "steve/ddpg_pendulum", env="Pendulum-v1", total_steps=60)
    serial.run(run)
    run.saver.save(required=True)
    kept = {name: leaf.clone() for name, leaf in everything(run).items()}
    run.close()
    saved = checkpoint.load_newest(tmp_path / "checkpoints")
    again = training(tmp_path, "steve/ddpg_pendulum", env="Pendulum-v1", total_steps=90, saved=saved)
    found = everything(again)
    assert all(torch.equal(kept[name], found[name]) for name in kept)
    count = len(kept["reward"])
    serial.run(again)
    found = everything(again)
    jumps = (
        (found["after"] - found["obs"])[:, :2].abs().amax(1)
    )  # cosine and sine of an angle that turns by 0.4 at most
    assert jumps[count:].max() < 0.45
    again.close()


def test_rows_are_in_segments_and_not_in_every_checkpoint(tmp_path, monkeypatch):
    """Mutation: not attaching the folder of segments."""
    monkeypatch.setattr("packtrain.memory.segments.SEGMENT_ROWS", 16)
    run = training(tmp_path, "steve/ddpg_pendulum")
    serial.run(run)
    run.saver.save(required=True)
    run.close()
    assert len(list((tmp_path / "replay" / "replay").glob("*.safetensors"))) >= 5
    newest = checkpoint.steps(tmp_path / "checkpoints")[-1]
    inside = load_file(tmp_path / "checkpoints" / str(newest) / "memories.safetensors")
    assert inside["/replay/tail/reward"].numel() < 16
    again = training(tmp_path, "steve/ddpg_pendulum", saved=checkpoint.load_newest(tmp_path / "checkpoints"))
    assert len(everything(again)["reward"]) == run.progress.acted
    again.close()


def test_segments_that_nothing_refers_to_are_deleted(tmp_path, monkeypatch):
    """Mutations: deleting none; deleting what the oldest checkpoint that is kept needs."""
    monkeypatch.setattr("packtrain.memory.segments.SEGMENT_ROWS", 16)
    run = training(tmp_path, "steve/ddpg_pendulum", replay_size=48, total_steps=400)
    save_now_and_then(run)
    files = {path.name for path in (tmp_path / "replay" / "replay").glob("*.safetensors")}
    referred = referred_to(tmp_path)
    assert referred and referred <= files and len(files - referred) <= 1
    assert min(referred) > "00000004.safetensors", "the first have gone"


def save_now_and_then(run):
    for count, wish in enumerate(serial.loop(run)):
        serial.carry_out(run, wish)
        if count % 15 == 14:
            run.saver.save(required=True)
    run.close()


def referred_to(path):
    """The segments that checkpoints name."""
    kept = [checkpoint.load(path / "checkpoints" / str(step)) for step in checkpoint.steps(path / "checkpoints")]
    return {name for state in kept for name in re.findall(r"'name': '(\d+\.safetensors)'", str(state["memories"]))}


def test_a_run_goes_on_without_the_steps_of_a_damaged_segment(tmp_path, monkeypatch, capsys):
    """One flipped bit in a file that all checkpoints share: a warning, a count in the rows, and nothing else is lost,
    after another resume too. Mutations: refusing every checkpoint; a count that begins again at 0."""
    monkeypatch.setattr("packtrain.memory.segments.SEGMENT_ROWS", 16)
    steps = 0
    for total, lost in ((120, 0), (160, 16), (200, 16)):
        saved = checkpoint.load_newest(tmp_path / "checkpoints")
        run = training(tmp_path, "steve/ddpg_pendulum", saved=saved, total_steps=total)
        memory = run.learning.memories["replay"]
        assert memory.lost == lost and len(memory) == memory.count - lost and memory.count == steps
        serial.run(run)
        run.saver.save(required=True)
        run.close()
        steps = memory.count
        assert rows(tmp_path)[-1].get("replay_steps_lost", 0) == lost
        if not lost:
            assert "damaged" not in capsys.readouterr().err
            chaos.flip_bit(tmp_path / "replay/replay/00000002.safetensors", random.Random(0))
    assert capsys.readouterr().err.count("00000002.safetensors is damaged") == 1, "said once, and known from then on"


def test_a_disk_that_refuses_a_segment_is_a_warning(tmp_path, monkeypatch, caplog):
    """As where it refuses another file of a checkpoint. Mutation: segments written outside what is guarded."""
    monkeypatch.setattr("packtrain.memory.segments.SEGMENT_ROWS", 16)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("packtrain.memory.segments.write_whole", full)
    run = training(tmp_path, "steve/ddpg_pendulum", checkpoint_secs=0.001, eval_every=40, eval_episodes=1)
    serial.run(run)
    assert run.progress.finished and "not written: [Errno 28] No space left on device" in caplog.text
    assert [row["step"] for row in rows(tmp_path, "eval")][-1] == run.progress.step, "it is evaluated all the same"
    with pytest.raises(SaveError, match="could not be written"):
        run.saver.save(required=True)
    run.close()


def test_seeds_that_learn_together_are_what_they_are_alone(tmp_path):
    """Weights within rounding, rows at the same steps. Mutation: joining without telling where weights moved to."""
    alone = [training(tmp_path / f"alone_{seed}", seed=seed) for seed in range(3)]
    for run in alone:
        serial.run(run)
    runs = [training(tmp_path / f"seed_{seed}", seed=seed) for seed in range(3)]
    multi_seed.run(runs)
    for mine, theirs in zip(runs, alone, strict=True):
        assert mine.progress.step == theirs.progress.step
        for name, leaf in weights(theirs).items():
            torch.testing.assert_close(weights(mine)[name], leaf, rtol=2e-3, atol=2e-4)
        assert [row["step"] for row in rows(mine.folder.path)] == [row["step"] for row in rows(theirs.folder.path)]
        acting, learned = mine.acting.policy.network.behaviour, mine.learning.learners["value"].network.behaviour
        mine.acting._refresh()
        assert torch.equal(acting.weights[0], learned.weights[0])
    assert not torch.allclose(weights(runs[0])["policy.weights.0"], weights(runs[1])["policy.weights.0"])
    for run in [*runs, *alone]:
        run.close()


def test_slack_changes_nothing_where_there_is_no_gpu(tmp_path):
    """Acting then finds the newest weights, as it does without. Mutation: a turn less between acting and learning."""
    ends = []
    for slack in (None, 4):
        runs = [training(tmp_path / f"{slack}_{seed}", seed=seed, slack=slack or "unset") for seed in range(2)]
        assert multi_seed.can_share(runs[0].experiment) and runs[0].experiment.overlaps == (slack is not None)
        multi_seed.run(runs)
        assert all(run.learning.weights.waits for run in runs)
        ends.append([weights(run) for run in runs])
        for run in runs:
            run.close()
    for one, other in zip(*ends, strict=True):
        assert all(torch.equal(leaf, other[name]) for name, leaf in one.items())


def test_acting_runs_ahead_of_as_many_updates_as_there_is_slack_for(tmp_path, monkeypatch):
    """Updates are events here that finish when the code waits for them. Mutation: waiting for none, or for all."""
    done, left = [], []

    class Event:
        def record(self):
            left.append(self)

        def synchronize(self):
            done.append(self)

    run = training(tmp_path, slack=4)
    assert not multi_seed._Launched(run)._slack, "on a CPU nothing is under way"
    run.acting.policy.device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    launched = multi_seed._Launched(run)
    for _ in range(3):
        launched.add(Learn("model", 1))
        launched.add(Learn("value", 4))
        launched.wait()
    assert done == left[:4], "those of the last turn may be under way"
    monkeypatch.undo()
    assert not multi_seed._Launched(None)._slack
    run.close()


@pytest.mark.parametrize("n_step", [1, 3, 9])
def test_seeds_whose_episodes_end_at_different_times_stay_in_step(tmp_path, n_step):
    """A reset is no step, so seeds do not act equally often; their updates must.

    Mutations: counting every step; transitions instead of steps, which come when an episode ends.
    """
    values = {"env": "InvertedPendulum-v5", "total_steps": 120, "n_step": n_step}
    runs = [training(tmp_path / f"seed_{seed}", "steve/ddpg_pendulum", seed=seed, **values) for seed in range(3)]
    multi_seed.run(runs)
    assert len({run.learning.learners["value"].updates for run in runs}) == 1
    resets = [run.acting.actor.steps for run in runs]
    assert all(run.progress.step >= 120 for run in runs), resets
    for run in runs:
        run.close()


def diverging(monkeypatch, seed=1, updates=40):
    """Let the critic of one seed become NaN in the course of so many updates."""
    original = TrainRows.note_update

    def breaking(self, name, metrics):
        original(self, name, metrics)
        learner = self._learning.learners[name]
        if self._experiment.seed == seed and name == "value" and learner.updates >= updates:
            with torch.no_grad():
                learner.network.critic.biases[-1].fill_(torch.nan)

    monkeypatch.setattr(TrainRows, "note_update", breaking)


@pytest.mark.parametrize("name, secs", [("steve/ddpg_pendulum", 1e-9), ("steve/steve_pendulum", 1000.0)])
def test_seeds_go_on_without_one_that_diverges(tmp_path, monkeypatch, capsys, name, secs):
    """Noticed by a checkpoint or by a row.

    They are what they are beside one that does not; its folder keeps its last checkpoint, and it can go on alone.

    Mutations: the error of one ends all; weights that are not finite are saved; the others' optimiser states are
    lost, or stay joined with those of the run that is gone.
    """
    given = {**(SMALL if "ddpg" in name else MODEL), "log_every": 10, "checkpoint_secs": secs}
    argv = ["train", name, "--num_seeds", "3", *[f"--{knob}={value}" for knob, value in given.items()]]
    assert cli.main([*argv, "--output_dir", str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patch:
        diverging(patch)
        assert cli.main([*argv, "--output_dir", str(tmp_path / "run")]) == 3
    printed = capsys.readouterr()
    assert f"{tmp_path}/run/seed_1 has diverged, and the other seeds go on: " in printed.out
    assert printed.err.count("packtrain: error: ") == 1 and f"{tmp_path}/run/seed_1: " in printed.err
    for k in (0, 2):
        mine, theirs = (rows(tmp_path / run / f"seed_{k}") for run in ("run", "whole"))
        assert [row["step"] for row in mine] == [row["step"] for row in theirs] and mine[-1]["step"] >= 90
        for row, other in zip(mine, theirs, strict=True):
            assert set(row) == set(other)
            if "critic_loss" in row:
                assert row["critic_loss"] == pytest.approx(other["critic_loss"], rel=1e-3), (k, row["step"])
    if secs < 1:
        step, state = checkpoint.load_newest(tmp_path / "run" / "seed_1" / "checkpoints")
        assert 40 <= step < 90
        assert all(leaf.isfinite().all() for leaf in state["weights"]["value"].values())
    assert cli.main([*argv, "--output_dir", str(tmp_path / "run")]) == 0  # the cause is gone
    assert capsys.readouterr().out.count("is finished") == 2
    assert rows(tmp_path / "run" / "seed_1")[-1]["step"] >= 90


def test_a_seed_that_diverged_is_left_out_until_the_others_are_finished(tmp_path, monkeypatch, capsys):
    """Stopped in between, the others go on from where they were. Mutation: all go back to the update it had made."""
    given = {**SMALL, "log_every": 10, "checkpoint_secs": 1e-9, "total_steps": 120}
    argv = ["train", "steve/ddpg_pendulum", "--num_seeds", "3", "--output_dir", str(tmp_path / "run")]
    argv += [f"--{knob}={value}" for knob, value in given.items()]

    def stopping(self):
        counting(self)
        if self._progress.step >= 90:
            self._progress.stop = KeyboardInterrupt()

    counting = TrainRows.count_acted
    with monkeypatch.context() as patch:
        diverging(patch)
        patch.setattr(TrainRows, "count_acted", stopping)
        assert cli.main(argv) == 3
    before = [max(checkpoint.steps(tmp_path / "run" / f"seed_{k}" / "checkpoints")) for k in range(3)]
    assert before[1] < before[0] == before[2] < 120
    capsys.readouterr()
    assert cli.main(argv) == 3
    printed = capsys.readouterr()
    assert "seed_1 diverged before and was left out" in printed.err
    assert printed.out.count(f"going on from step {before[0]:,}") == 2
    assert cli.main(argv) == 0
    assert f"seed_1: going on from step {before[1]:,}" in capsys.readouterr().out
    ends = [rows(tmp_path / "run" / f"seed_{k}")[-1]["step"] for k in range(3)]
    assert min(ends) >= 120
    assert not list((tmp_path / "run").glob("*/diverged.json"))


def test_metrics_do_not_depend_on_when_checkpoints_are_written(tmp_path, monkeypatch):
    """Seeds that learn together, saved at every update, at none, or stopped and gone on with.

    Mutation: steps that a checkpoint has waited for, counted before their turn.
    """
    found = {}
    for name, secs in (("often", 1e-9), ("never", 1000.0)):
        runs = [training(tmp_path / f"{name}_{seed}", checkpoint_secs=secs, seed=seed, log_every=7) for seed in (0, 1)]
        multi_seed.run(runs)
        found[name] = [rows(tmp_path / f"{name}_{seed}") for seed in (0, 1)]
        assert len(checkpoint.steps(tmp_path / f"{name}_0" / "checkpoints")) == (3 if name == "often" else 0)
        for run in runs:
            run.close()
    assert found["often"] == found["never"]
    assert {row["step"] - row["env_steps"] for row in found["never"][0]} == {0}


def test_seeds_go_on_from_the_same_update(tmp_path):
    """Killed between saving two of them, the others are a checkpoint ahead. Mutation: taking the newest of each."""
    argv = ["train", "steve/ddpg_pendulum", "--num_seeds", "2", "--output_dir", str(tmp_path / "run")]
    argv += [f"--{name}={value}" for name, value in SMALL.items() if name != "total_steps"]
    assert cli.main([*argv, "--total_steps", "60"]) == 0
    assert cli.main([*argv, "--total_steps", "75"]) == 0
    newest = max(checkpoint.steps(tmp_path / "run" / "seed_1" / "checkpoints"))
    shutil.rmtree(tmp_path / "run" / "seed_1" / "checkpoints" / str(newest))
    assert cli.main([*argv, "--total_steps", "90"]) == 0
    states = [checkpoint.load_newest(tmp_path / "run" / f"seed_{k}" / "checkpoints")[1] for k in range(2)]
    assert states[0]["learners"]["value"]["updates"] == states[1]["learners"]["value"]["updates"] == 2 * 48
    steps = [row["step"] for row in rows(tmp_path / "run" / "seed_0")]
    assert steps == sorted(set(steps)) and steps[-1] >= 80
    for old in checkpoint.steps(tmp_path / "run" / "seed_0" / "checkpoints"):
        if old < 90:
            shutil.rmtree(tmp_path / "run" / "seed_0" / "checkpoints" / str(old))
    shutil.rmtree(tmp_path / "run" / "seed_1" / "checkpoints" / str(max(states[1]["run"]["step"], 90)))
    assert cli.main([*argv, "--total_steps", "99"]) == 2  # nothing in common is left


def test_slack_below_what_is_learned_beforehand(tmp_path):
    """Random steps come first, then pre-training, then both at once.

    Mutations: an actor that waits for what comes after the warm-up; one that acts on during the last evaluation.
    """
    run = training(tmp_path, slack=4, pretrain=12, total_steps=90, eval_every=45)
    assert not Ratio(run.experiment, run.progress, run.learning).acting_is_ahead()
    local.run(run)
    assert run.progress.finished and run.progress.step == 90
    assert run.learning.learners["model"].updates >= 12
    assert [row["step"] for row in rows(tmp_path, "eval")][-1] == 90
    run.close()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_run_goes_on_with_another_use_of_the_machine(tmp_path, monkeypatch):
    """Compiled or not, at once or in turns: the run is the same. And loading it needs no compiler."""
    argv = ["train", "steve/ddpg_pendulum", "--output_dir", str(tmp_path / "run")]
    argv += [f"--{name}={value}" for name, value in SMALL.items() if name != "total_steps"]
    assert cli.main([*argv, "--total_steps", "60", "--compile", "True"]) == 0
    monkeypatch.setenv("PATH", "")
    assert cli.main(["eval", str(tmp_path / "run"), "--num_episodes", "1"]) == 0
    assert cli.main([*argv, "--total_steps", "75", "--compile", "True"]) == 2
    assert cli.main([*argv, "--total_steps", "75", "--slack", "4"]) == 0
    assert cli.main([*argv, "--total_steps", "90", "--batch_size", "5"]) == 2


def test_updates_that_do_not_wait_for_steps(tmp_path):
    """The speedrun: acting and learning at the same time. Mutation: an actor that waits for the learner."""
    free = {"updates_per_step": "unset", "model_updates_per_step": "unset", "total_steps": 3000}
    run = training(tmp_path, bindings=["value/LearnerUse.ratio = None", "model/LearnerUse.ratio = None"], **free)
    assert not multi_seed.can_share(run.experiment)
    local.run(run)
    assert run.progress.finished and run.learning.learners["value"].updates >= 32
    assert run.learning.learners["model"].updates >= 32
    assert abs(run.learning.learners["value"].updates - 2.0 * (run.progress.step - 40)) > 32  # no ratio is kept
    steps = [row["step"] for row in rows(tmp_path)]
    assert steps == sorted(set(steps))
    run.close()


class Breaks(gym.Env):
    """Numbers, until one of them is not a number."""

    observation_space, action_space = gym.spaces.Box(-9, 9, (2,)), gym.spaces.Box(-1, 1, (1,))

    def __init__(self, render_mode=None):
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(2, np.nan if self.steps == 20 else 0.5, np.float32), 1.0, False, False, {}


def test_an_observation_that_is_not_a_number_is_named_and_nothing_is_lost(tmp_path):
    """Mutation: storing it."""
    gym.register("BreaksForTests-v0", Breaks)
    run = training(tmp_path, "steve/ddpg_pendulum", env="BreaksForTests-v0")
    with pytest.raises(EnvError, match="NaN") as caught:
        serial.run(run)
    run.close()
    assert "\n" not in str(caught.value)
    saved = checkpoint.load_newest(tmp_path / "checkpoints")
    again = training(tmp_path, "steve/ddpg_pendulum", env="BreaksForTests-v0", saved=saved)
    kept = everything(again)
    assert len(kept["reward"]) >= 3 * 17 and all(leaf.float().isfinite().all() for leaf in kept.values())
    again.close()


@pytest.mark.slow
def test_ten_kills_lose_nothing(tmp_path):
    """kill −9 at odd moments, resumed by the same command each time: a whole, monotone curve and all of the replay.

    The first come while steps are still random and while the model is trained beforehand.
    """
    argv = ["train", "steve/steve_pendulum", "--output_dir", str(tmp_path / "run")]
    values = {**MODEL, "total_steps": 1500, "warm_up": 200, "pretrain": 1000, "checkpoint_secs": 1e-95, "num_actors": 1}
    argv += [f"--{name}={value}" for name, value in values.items()] + ["--runtime", "serial"]
    assert chaos.kill_after_checkpoints(argv, tmp_path / "run", kills=10) == 10
    assert cli.main(argv) == 0
    reference = training(tmp_path / "whole", **values)
    serial.run(reference)
    reference.saver.save(required=True)
    reference.close()
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")
    last = [tmp_path / name / "checkpoints" / "1500" for name in ("run", "whole")]
    for file in ("weights", "learners", "memories"):
        mine, theirs = (load_file(folder / f"{file}.safetensors") for folder in last)
        assert all(torch.equal(mine[leaf], theirs[leaf]) for leaf in theirs), file


def test_scores_say_how_many_updates_led_to_them(tmp_path):
    """Mutations: no counts; those of one learner for both."""
    run = training(tmp_path, eval_every=30, eval_episodes=1)
    serial.run(run)
    run.close()
    found = [(row["step"], row["updates/model"], row["updates/value"]) for row in rows(tmp_path, "eval")]
    assert found[0] == (0, 0, 0) and len(found) >= 3
    assert found[-1] == (90, 12 + 48, 2 * 48)


@pytest.mark.parametrize("savable", [True, False])
def test_new_episodes_after_a_resume_are_said_on_the_terminal(tmp_path, monkeypatch, capsys, savable):
    """And how often the model is looked at may change. Mutations: in the log alone; said of every resume."""
    if not savable:
        monkeypatch.setattr("packtrain.envs.gymnasium_vector_env.exact_saving", lambda env: None)
    argv = ["train", "steve/ddpg_pendulum", "--output_dir", str(tmp_path / "run"), "--runtime", "serial"]
    argv += [f"--{name}={value}" for name, value in {**SMALL, "env": "Pendulum-v1"}.items()]
    assert cli.main([*argv, "--total_steps", "60"]) == 0
    capsys.readouterr()
    assert cli.main([*argv, "--config", "ValueExpansion.calibration_period = 7"]) == 0
    said = capsys.readouterr().out
    assert "going on from step 6" in said and ("; the environments begin new episodes" in said) != savable


def test_slack_that_is_not_used_is_said(tmp_path, capsys):
    """Mutation: a setting that is passed over without a word."""
    argv = ["train", "steve/ddpg_pendulum", "--output_dir", str(tmp_path / "run"), "--runtime", "serial"]
    argv += [f"--{name}={value}" for name, value in {**SMALL, "total_steps": 60}.items()]
    assert cli.main([*argv, "--slack", "4"]) == 0
    assert "slack is not used: in the serial runtime" in capsys.readouterr().out
    assert "slack is not used" in (tmp_path / "run" / "log.txt").read_text()
    assert cli.main([*argv, "--fresh"]) == 0
    assert "slack is not used" not in capsys.readouterr().out


def test_a_target_that_looks_into_a_model_needs_one():
    """Mutation: building the learner anyway."""
    file, _ = knobs.find_config("steve/ddpg_pendulum")
    with pytest.raises(ConfigError, match="needs a world model"):
        preparation.prepare([file], ["ValueExpansion.target = @Steve()"], SMALL, 0, True)


@pytest.mark.parametrize(
    ("values", "bindings", "said"),
    [
        ({"env": "CartPole-v1"}, [], "SAC, TD3, DDPG and STEVE need a bounded vector of continuous actions"),
        ({"env": "Catch"}, [], "SAC, TD3, DDPG and STEVE need a bounded vector of continuous actions"),
        ({"horizon": 0}, [], "Steve.horizon = 0 must be at least 1"),
        ({"warm_up": 0}, [], "Collect.steps = 0 leaves the memory of learner 'model' empty at its first update"),
        ({"critics": 0}, [], "Control.critics = 0 must be at least 1"),
        ({"transitions": 0}, [], "Dynamics.transitions = 0 must be at least 1"),
        ({"rewards": -1}, [], "Dynamics.rewards = -1 must be at least 1"),
        ({"replay_size": 4}, [], "Replay.capacity = 4 is less than"),
        ({"replay_size": 100, "model_batch_size": 400}, [], "less than the batches of 400"),
        ({"updates_per_step": 0.0}, [], "LearnerUse.ratio = 0.0 must be above 0"),
        ({"rows": "split", "critics": 3}, [], "cannot be split between"),
        ({"core": "sac"}, [], "do not fit"),
        ({"probabilistic": True, "normalise": False}, [], "needs Dynamics.normalise"),
        ({"elites": 2}, [], "held-out"),
        ({"explore_chance": 1.5}, [], "must lie between 0 and 1"),
        ({"n_step": 3}, [], r"Replay.n_step = 3 and ValueExpansion.target = @Steve\(\) do not fit"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(tmp_path, values, bindings, said):
    """Before anything is written."""
    file, _ = knobs.find_config("steve/steve_pendulum")
    with pytest.raises((ConfigError, EnvSetupError), match=said) as caught:
        preparation.prepare([file], bindings, {**MODEL, **values}, 0, True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "bindings", "said"),
    [
        ({"n_step": 0}, [], "Replay.n_step = 0 must be at least 1"),
        ({"n_step": 14}, [], "warm_up must be at least 42, n_step for each actor"),  # of three, after 40 steps
    ],
)
def test_steps_that_cannot_be_joined_are_refused(values, bindings, said):
    """Mutation: batches of a memory that is empty yet."""
    file, _ = knobs.find_config("steve/ddpg_pendulum")
    preparation.prepare([file], [], {**SMALL, "n_step": 13}, 0, True)
    with pytest.raises(ConfigError, match=said):
        preparation.prepare([file], bindings, {**SMALL, **values}, 0, True)


def test_a_planner_learns_its_model_from_single_steps():
    file, _ = knobs.find_config("steve/pets_pendulum")
    with pytest.raises(ConfigError, match="Replay.n_step = 3: a world model learns from single steps"):
        preparation.prepare([file], ["Replay.n_step = 3"], {}, 0, True)


KNOBS = ("batch_size", "discount", "learning_rate", "rows", "target_period", "polyak", "publish_period", "policy_delay")


@pytest.mark.parametrize("name, base", [("DDPG", ""), ("TD3", ""), ("SAC", ""), ("MVE", "DDPG"), ("STEVE", "DDPG")])
def test_an_algorithm_that_is_configured_by_its_name_trains(tmp_path, name, base):
    """The same weights as under `ValueExpansion`. Mutation: a number that one of the two does not pass on."""
    named = [f"value/LearnerUse.learner = @{name}()", *(f"{base or name}.{knob} = %{knob}" for knob in KNOBS)]
    shared = [f"ValueExpansion.core = {name.lower()!r}"] if not base else []
    shared += ["ValueExpansion.target = @Mve()"] * (name == "MVE")
    file = "steve/ddpg_pendulum"
    values = {"stochastic": True} if name == "SAC" else {}
    if base:
        file, values = "steve/steve_pendulum", {}
        named += [
            f"{name}.actor_critic = @{base}()",
            f"{name}.horizon = %horizon",
            f"{name}.model_period = %model_period",
        ]
    found = []
    for folder, bindings in (("named", named), ("shared", shared)):
        (tmp_path / folder).mkdir()
        run = training(tmp_path / folder, file, bindings, total_steps=60, **values)
        serial.run(run)
        found.append(weights(run))
        run.close()
    assert all(torch.equal(found[0][leaf], found[1][leaf]) for leaf in found[1])
