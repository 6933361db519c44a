"""Several seeds in one process: each is what it would be in any other company, stopped or not."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from packtrain.acting.multi_seed_planner import Joint
from packtrain.cli import main
from packtrain.errors import DivergedError, FolderLostError
from packtrain.metrics.reading import read_metrics
from packtrain.runtime import checkpoint, multi_seed, preparation
from packtrain.runtime.local_acting import build_sides
from packtrain.runtime.train_rows import TrainRows
from packtrain.runtime.training import Training

CLOCKED = ("wall_s", "steps_per_second", "actor_busy", "learner_busy", "rss_mb")
SMALL = """
include 'tbv/bfs_hanoi_tbv.gin'
disks = 2
n_envs = 2
episode_time_limit = 15
n_precollect_epochs = 1
n_epochs = 3
n_model_precollect_episodes = 4
n_model_pretrain_epochs = 2
members = 3
mask_size = 2
model_hidden_sizes = (16,)
model_batch_size = 16
model_n_steps_per_epoch = 4
model_replay_buffer_capacity = 2000
validation_share = 0.25
quantile_rank = 0.5
verified_edges = 'run'
noise_quantile = 0.5
Runner.callback_classes = (@ExplorationCallback, @EvaluationCallback)
EvaluationCallback.eval_period = 3
EvaluationCallback.n_envs = 2
EvaluationCallback.episode_time_limit = 9
"""
SHOOTING = """
include 'tbv/base.gin'
n_envs = 2
episode_time_limit = 8
n_epochs = 1
n_model_precollect_episodes = 2
n_model_pretrain_epochs = 1
members = 2
mask_size = 2
model_hidden_sizes = (8,)
model_batch_size = 8
model_n_steps_per_epoch = 2
Runner.env_class = @Hanoi
Hanoi.disks = 3
Runner.agent_class = @ShootingAgent
ShootingAgent.n_rollouts = 4
ShootingAgent.rollout_time_limit = 4
ShootingAgent.rollout_agent = @SoftmaxAgent()
"""


@pytest.fixture(autouse=True)
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("given.gin").write_text(SMALL)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Two seeds without interruptions."""
    folder = tmp_path_factory.mktemp("straight")
    (folder / "given.gin").write_text(SMALL)
    argv = ["train", str(folder / "given.gin"), "--output_dir", str(folder / "runs"), "--num_seeds", "2"]
    assert main(argv) == 0
    return folder / "runs"


def train(output, *more, seeds=2):
    return main(["train", "given.gin", "--output_dir", output, "--num_seeds", str(seeds), *more])


def rows(run, kind=None):
    found = [{k: v for k, v in row.items() if k not in CLOCKED} for row in read_metrics(Path(run))]
    return [row for row in found if kind in (None, row["kind"])]


def saved(run):
    """The newest checkpoint: every array to the last byte."""
    folder = Path(run) / "checkpoints"
    newest = folder / str(checkpoint.steps(folder)[-1])
    files = {path.name: path.read_bytes() for path in sorted(newest.glob("*.safetensors"))}
    assert {"actor.safetensors", "memories.safetensors", "weights.safetensors"} <= set(files)
    return files


def assert_same(run, other):
    assert rows(run) == rows(other)
    assert saved(run) == saved(other)


def stop_at(monkeypatch, turn, look=None):
    """SIGTERM when so many turns have been made."""
    made, original = [], Joint.turn

    def stopping(self, runs):
        original(self, runs)
        made.append(list(runs))
        if len(made) == turn:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Joint, "turn", stopping)
    return made


def test_shooting_uses_the_network_of_its_own_run(capsys):
    """Mutation: asking of what roots show, in which there is no run."""
    Path("given.gin").write_text(SHOOTING)
    assert train("runs") == 0


def test_every_seed_draws_batches_of_its_own():
    """Of every memory. Mutation: `Episodes.seed` alone, which is 0 in all of them."""
    drawn = []
    for seed in (0, 1):
        _, experiment, spec = preparation.prepare([Path("given.gin")], [], {}, seed, True)
        memories = build_sides(experiment, spec, torch.device("cpu"))[1].memories
        drawn += [tuple(memory._rng.integers(10**9, size=3)) for memory in memories.values()]
    assert len(set(drawn)) == len(drawn) >= 2


def test_every_seed_has_a_folder_of_its_own(capsys):
    """Mutation: let all runs write into the first one's folder, or all have the first one's seed."""
    assert train("runs", "--seed", "7") == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["seed_0", "seed_1"]
    for k in range(2):
        run = Path("runs") / f"seed_{k}"
        text = run.joinpath("config.gin").read_text()
        assert f"Experiment.seed = {7 + k}" in text
        assert (run / "pictures/visits.png").is_file()
        epochs = [row["epoch"] for row in rows(run, "planning")]
        assert epochs == list(range(1, 9)), "two rounds of random play, two epochs of learning, one and three of play"
        assert checkpoint.steps(run / "checkpoints")[-1] == rows(run)[-1]["step"]
    one, other = saved("runs/seed_0"), saved("runs/seed_1")
    assert one["weights.safetensors"] != other["weights.safetensors"]
    assert [row["step"] for row in rows("runs/seed_0")] != [row["step"] for row in rows("runs/seed_1")]
    capsys.readouterr()
    assert main(["train", "runs/seed_1/config.gin", "--output_dir", "runs/seed_1"]) == 0
    assert "runs/seed_1 is finished: 8 of 8 epochs" in capsys.readouterr().out
    assert main(["eval", "runs/seed_1", "--num_episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 2


def test_a_run_is_the_same_in_any_company(straight, capsys):
    """Two seeds, three seeds, and one that joins when the other has ended.

    Mutations: draw by a count of all runs' turns; keep no place for a run that has ended; let all runs listen to what
    one has verified; ask the network of the first run for all.
    """
    assert train("three", seeds=3) == 0
    assert_same(straight / "seed_0", "three/seed_0")
    assert_same(straight / "seed_1", "three/seed_1")
    assert train("later", seeds=1) == 0
    capsys.readouterr()
    assert train("later") == 0
    assert "later/seed_0 is finished" in capsys.readouterr().out
    assert_same(straight / "seed_0", "later/seed_0")
    assert_same(straight / "seed_1", "later/seed_1")


@pytest.mark.parametrize("turn", [3, 60])
def test_runs_that_are_stopped_go_on_exactly(straight, monkeypatch, capsys, turn):
    """SIGTERM within random play, and within epochs of the planner in which one run is done before the other.

    Mutations: save what was verified since the epoch began; let a run that goes on count turns from where it stopped;
    let a run begin its next epoch before the others.
    """
    with monkeypatch.context() as patch:
        made = stop_at(patch, turn)
        assert train("stopped") == 128 + signal.SIGTERM
    assert turn <= len(made) <= turn + 1
    printed = capsys.readouterr().out
    assert printed.count("stopped by SIGTERM") == 2 and printed.count("the same command goes on") == 2
    assert all(len(rows(f"stopped/seed_{k}")) < len(rows(straight / f"seed_{k}")) for k in range(2))
    assert train("stopped") == 0
    for k in range(2):
        assert_same(f"stopped/seed_{k}", straight / f"seed_{k}")


@pytest.mark.parametrize("at", [3, 20])
def test_runs_that_are_stopped_between_two_updates_go_on_exactly(straight, monkeypatch, capsys, at):
    """One seed has made some updates of an epoch, the other none or all. Mutation: an epoch's updates are one thing."""
    update, made = Training.learn, []

    def interrupted(self, learner, count=1):
        made.append(learner)
        if len(made) == at:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(self, learner, count)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "learn", interrupted)
        assert train("stopped") == 128 + signal.SIGTERM
    assert len(made) == at, "no update more"
    assert train("stopped") == 0
    for seed in (0, 1):
        assert_same(f"stopped/seed_{seed}", straight / f"seed_{seed}")


def test_a_run_waits_for_the_others_before_the_next_epoch(monkeypatch):
    """Some turns serve one run only, whose episodes are longer. Mutation: serve every run in each turn."""
    made = stop_at(monkeypatch, -1)
    assert train("run") == 0
    served = {tuple(runs) for runs in made}
    assert (0, 1) in served and served & {(0,), (1,)}
    epochs, original = [], TrainRows.note_report

    def count(self, *turn):
        epochs.append(self._progress.epoch)
        original(self, *turn)

    monkeypatch.setattr(TrainRows, "note_report", count)
    assert train("again", seeds=3) == 0
    assert epochs == sorted(epochs) and max(epochs) == 7


def test_runs_end_when_each_has_solved_it(monkeypatch, capsys):
    """At different epochs; asked again, they have nothing left to do. What was stopped in between ends the same way.

    Mutations: end all when one has solved; count what random play solves; forget that it was solved.
    """
    more = ("--until_solved", "true", "--n_epochs", "20", "--episode_time_limit", "4")
    assert train("runs", *more, seeds=4) == 0
    ended = [rows(f"runs/seed_{k}", "planning")[-1] for k in range(4)]
    solved = [rows(f"runs/seed_{k}", "train")[-1]["first_solved_step"] for k in range(4)]
    assert len({row["epoch"] for row in ended}) > 1, "the test needs runs that end at different epochs"
    assert all(row["episode/solved_rate"] > 0 for row in ended) and all(solved)
    for k in range(4):
        played = [row for row in rows(f"runs/seed_{k}", "planning")[4:-1]]
        assert not any(row["episode/solved_rate"] > 0 for row in played)
    capsys.readouterr()
    before = [saved(f"runs/seed_{k}") for k in range(4)]
    assert train("runs", *more, seeds=4) == 0
    assert capsys.readouterr().out.count("is finished: solved at step") == 4
    assert [saved(f"runs/seed_{k}") for k in range(4)] == before

    first = min(row["epoch"] for row in ended)
    alive, original = [], Joint.turn

    def stopping(self, runs):
        original(self, runs)
        alive.append(runs)
        if len(alive) > 20 and all(len(rows(f"stopped/seed_{k}", "planning")) >= first for k in range(4)):
            os.kill(os.getpid(), signal.SIGTERM)
            monkeypatch.setattr(Joint, "turn", original)

    monkeypatch.setattr(Joint, "turn", stopping)
    assert train("stopped", *more, seeds=4) == 128 + signal.SIGTERM
    assert train("stopped", *more, seeds=4) == 0
    assert "is finished: solved" in capsys.readouterr().out
    for k in range(4):
        assert_same(f"stopped/seed_{k}", f"runs/seed_{k}")


def test_no_epochs_end_after_pretraining(capsys):
    """Mutation: take 0 for no end."""
    assert train("runs", "--n_epochs", "0", "--n_precollect_epochs", "0") == 0
    for k in range(2):
        planning = rows(f"runs/seed_{k}", "planning")
        assert [row["episode/count"] for row in planning] == [2, 2, 0, 0]
        assert rows(f"runs/seed_{k}", "train")[-1]["env_steps_without_random"] == 0
    capsys.readouterr()
    assert train("runs", "--n_epochs", "0", "--n_precollect_epochs", "0") == 0
    assert capsys.readouterr().out.count("is finished: 4 of 4 epochs") == 2


def test_the_others_finish_when_one_run_diverges(straight, monkeypatch, capsys):
    """And it goes on from where it was saved when the cause is gone. Mutation: the error of one ends all."""
    original = Training.learn

    def breaking(self, name, count=1):
        if self.experiment.seed == 1 and self.progress.epoch == 6:
            raise DivergedError("the weights are not finite")
        return original(self, name, count)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "learn", breaking)
        assert train("broken") == 3
    printed = capsys.readouterr()
    assert "broken/seed_1: the weights are not finite" in printed.err
    assert "broken/seed_1 has diverged, and the other seeds go on" in printed.out
    assert_same("broken/seed_0", straight / "seed_0")
    assert train("broken") == 0
    assert "broken/seed_0 is finished" in capsys.readouterr().out
    assert_same("broken/seed_0", straight / "seed_0")
    assert_same("broken/seed_1", straight / "seed_1")


def test_a_second_signal_is_not_needed_where_nothing_is_shared(monkeypatch):
    """Without a learned model seeds are trained one after the other. Mutation: share a search in the environment."""
    Path("given.gin").write_text("include 'planning/bfs_hanoi.gin'\nn_envs = 2\nn_epochs = 1\nepisode_time_limit = 5\n")
    made = stop_at(monkeypatch, -1)
    assert train("runs") == 0
    assert not made and [len(rows(f"runs/seed_{k}", "planning")) for k in range(2)] == [1, 1]


def test_every_run_is_saved_even_if_the_folder_of_one_is_lost():
    """Mutation: the first that is lost ends the saving of the others."""
    saved = []

    class Run:
        def __init__(self, name, lost):
            self.name, self.lost, self.saver = name, lost, self

        def save(self, **given):
            saved.append((self.name, given))
            if self.lost:
                raise FolderLostError(f"{self.name} was deleted")

    runs = [Run("a", False), Run("b", True), Run("c", True), Run("d", False)]
    with pytest.raises(FolderLostError, match="b was deleted"):
        multi_seed.save_all(dict(enumerate(runs)), required=True)
    assert saved == [(name, {"with_actor": True, "required": True}) for name in "abcd"]
