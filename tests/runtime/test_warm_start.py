"""Beginning a run where another one stands: what is taken over, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

from packtrain import trees
from packtrain.cli import main
from packtrain.metrics.reading import read_metrics
from packtrain.planning.learned.transition_table import TransitionTable
from packtrain.runtime import checkpoint

CLOCKED = ("wall_s", "steps_per_second", "actor_busy", "learner_busy", "rss_mb")
SMALL = """
include 'tbv/bfs_hanoi_tbv.gin'
disks = 2
n_envs = 2
episode_time_limit = 12
n_precollect_epochs = 0
n_epochs = 2
n_model_precollect_episodes = 4
n_model_pretrain_epochs = 2
members = 3
mask_size = 2
model_hidden_sizes = (16,)
model_batch_size = 16
model_n_steps_per_epoch = 4
model_replay_buffer_capacity = 2000
validation_share = 0.5
quantile_rank = 0.5
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Two seeds that end after pre-training."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "given.gin").write_text(SMALL)
    argv = ["train", str(folder / "given.gin"), "--output_dir", str(folder / "runs"), "--num_seeds", "2"]
    assert main([*argv, "--n_epochs", "0"]) == 0
    return folder / "runs"


@pytest.fixture(autouse=True)
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("given.gin").write_text(SMALL)


def train(output, *more):
    return main(["train", "given.gin", "--output_dir", output, *more])


def rows(run, kind=None):
    found = [{k: v for k, v in row.items() if k not in CLOCKED} for row in read_metrics(Path(run))]
    return [row for row in found if kind in (None, row["kind"])]


def newest(run):
    return checkpoint.load_newest(Path(run) / "checkpoints")[1]


def same(one, other):
    pairs = zip(trees.flatten(one), trees.flatten(other), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)


def test_it_begins_where_the_other_stands(base, capsys):
    """With its weights, moments, memory, books and metrics; nothing is collected or pre-trained again.

    Mutations: leave the memory out; reset the metrics; reset the count of random steps.
    """
    assert train("run", "--start_from", str(base / "seed_0"), "--n_epochs", "0") == 0
    assert "run: beginning from step" in capsys.readouterr().out
    before, after = newest(base / "seed_0"), newest("run")
    assert same(before["weights"], after["weights"]) and same(before["learners"], after["learners"])
    assert same(before["memories"], after["memories"])
    assert same(before["exploration"], after["exploration"])
    assert before["run"]["random_steps"] == after["run"]["random_steps"] > 0
    assert rows("run") == rows(base / "seed_0")
    assert train("run") == 0, "the same folder goes on with more epochs"
    assert [row["epoch"] for row in rows("run", "planning")] == [1, 2, 3, 4, 5, 6]
    assert rows("run")[: len(rows(base / "seed_0"))] == rows(base / "seed_0")
    played = rows("run", "train")[-1]
    assert played["env_steps_without_random"] == played["env_steps"] - before["run"]["random_steps"] > 0


def test_it_is_the_run_that_did_everything_itself():
    """To the last byte: what comes before the planner plays does not depend on how it plays.

    Mutation: let the pre-training draw from a generator of its own after a branch.
    """
    assert train("alone") == 0
    assert train("before", "--n_epochs", "0") == 0
    assert train("branched", "--start_from", "before") == 0
    assert rows("branched") == rows("alone")
    one, other = newest("alone"), newest("branched")
    for part in ("weights", "learners", "memories", "actor", "exploration"):
        assert same(one[part], other[part]), part


@pytest.mark.parametrize(
    "variant",
    [
        ("--quantile_rank", "0.95"),
        ("--epsilon", "0.3"),
        ("--n_nodes_per_step", "3"),
        ("--mask_size", "3"),
        ("--n_precollect_epochs", "1"),
        ("--verified_edges", "run", "--plan_to_verify", "true"),
        ("--until_solved", "true"),
    ],
)
def test_another_planner_is_accepted(base, variant):
    """Mutation: compare settings that have not been used yet."""
    assert train("run", "--start_from", str(base / "seed_0"), "--n_epochs", "1", *variant) == 0
    assert rows("run")[: len(rows(base / "seed_0"))] == rows(base / "seed_0")


@pytest.mark.parametrize(
    "variant, message",
    [
        (("--seed", "5"), "its seed differs (0, here 5)"),
        (("--disks", "3"), "its environments differs (environment: kwargs:"),
        (("--episode_time_limit", "13"), "its environments differs (episode_time_limit: 12, here 13)"),
        (("--model_hidden_sizes", "(17,)"), "its model differs (ensemble: hidden_sizes: (16,), here (17,))"),
        (("--learning_rate", "0.001"), "its learner 'model' differs"),
        (("--model_replay_buffer_capacity", "999"), "its memory 'model' differs (capacity: 2000, here 999)"),
        (("--validation_share", "0.1"), "its memory 'model' differs (validation_share: 0.5, here 0.1)"),
        (("--n_model_precollect_episodes", "6"), "stage 1 of its schedule is another one, or not over"),
        (("--n_model_pretrain_epochs", "3"), "stage 2 of its schedule is another one, or not over"),
    ],
)
def test_what_would_have_made_a_difference_is_refused(base, capsys, variant, message):
    """In one line, and nothing is written. Mutation: check after the folder was made."""
    assert train("run", "--start_from", str(base / "seed_0"), *variant) == 2
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1 and message in lines[0], lines
    assert "the run's results so far depend on it" in lines[0]
    assert not Path("run").exists()


def test_a_planner_that_has_played_is_refused(base, capsys):
    """Mutation: look at the first stage alone."""
    assert train("played", "--n_precollect_epochs", "1", "--n_epochs", "0") == 0
    capsys.readouterr()
    assert train("run", "--start_from", "played", "--n_precollect_epochs", "1") == 2
    assert "--start_from played: its planner has played already" in capsys.readouterr().err
    assert train("other", "--n_epochs", "1") == 0
    capsys.readouterr()
    assert train("run", "--start_from", "other") == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1 and not Path("run").exists()


def test_no_run_and_no_checkpoint_are_refused(base, capsys):
    for given in ("nowhere", str(base)):
        assert train("run", "--start_from", given) == 2
        assert "is not a run folder" in capsys.readouterr().err
    Path("empty").mkdir()
    Path("empty/config.gin").write_text((base / "seed_0/config.gin").read_text())
    assert train("run", "--start_from", "empty") == 2
    assert "--start_from empty: it has no checkpoint to begin from" in capsys.readouterr().err
    assert not Path("run").exists()


def test_what_was_seen_counts_as_verified(base):
    """Every transition of the memory, those held out included, whatever the run before kept of them.

    Mutations: only the buckets that are sampled; the row after an end taken for a transition.
    """
    state = newest(base / "seed_0")
    assert "verified" not in state["actor"]["seats"][0] and state["memories"]["model"]["held_out"]
    assert train("run", "--start_from", str(base / "seed_0"), "--verified_edges", "run", "--n_epochs", "0") == 0
    known = newest("run")["actor"]["seats"][0]["verified"]["edges"]
    memory, seen = state["memories"]["model"], set()
    for bucket in [*memory["buckets"], *memory["held_out"]]:
        fields = bucket["ring"]["fields"]
        for row in np.flatnonzero(bucket["ring"]["is_step"]):
            after = fields["obs"][(row + 1) % len(fields["obs"])]
            seen.add((*fields["obs"][row], int(fields["action"][row]), *after))
    found = {(*o, int(a), *n) for o, a, n in zip(known["obs"], known["action"], known["after"], strict=True)}
    assert found == seen and len(known["action"]) == len(seen)
    recorded = TransitionTable()
    recorded.restore({"edges": known, "contradicted": 0})
    assert len(recorded) == len(seen) and not recorded.snapshot()["contradicted"]


def test_it_says_so_if_some_of_what_was_seen_is_forgotten(caplog):
    """Mutation: a memory that has let go of steps taken for all that was seen."""
    small = ("--model_replay_buffer_capacity", "30", "--validation_share", "0")
    assert train("base", "--n_epochs", "0", "--n_model_precollect_episodes", "12", *small) == 0
    more = ("--n_model_precollect_episodes", "12", "--verified_edges", "run", "--n_epochs", "0", *small)
    assert train("run", "--start_from", "base", *more) == 0
    assert "has overwritten its oldest steps" in caplog.text


def test_several_seeds_begin_where_several_stand(base, capsys):
    """Each from its own, and exactly so when they are stopped. Mutation: all from the first."""
    more = ("--start_from", str(base), "--num_seeds", "2", "--verified_edges", "run")
    assert train("runs", *more, "--n_epochs", "2") == 0
    for k in range(2):
        before = rows(base / f"seed_{k}")
        assert rows(f"runs/seed_{k}")[: len(before)] == before and len(rows(f"runs/seed_{k}")) > len(before)
    assert not same(newest("runs/seed_0")["weights"], newest("runs/seed_1")["weights"])
    for epochs in ("1", "2"):
        assert train("resumed", *more, "--n_epochs", epochs) == 0
    for k in range(2):
        assert rows(f"resumed/seed_{k}") == rows(f"runs/seed_{k}")
        one, other = newest(f"resumed/seed_{k}"), newest(f"runs/seed_{k}")
        assert all(same(one[part], other[part]) for part in ("weights", "learners", "memories"))
    capsys.readouterr()
    assert train("more", "--start_from", str(base), "--num_seeds", "3") == 2
    assert "seed_2 is not a run folder" in capsys.readouterr().err


def test_weights_are_those_of_the_other(base):
    """A negative control: without start_from the same seed has other weights after no epochs of its own."""
    assert train("run", "--n_epochs", "0", "--n_model_pretrain_epochs", "1") == 0
    one, other = newest("run")["weights"], newest(base / "seed_0")["weights"]
    assert not all(torch.equal(a, b) for a, b in zip(trees.flatten(one), trees.flatten(other), strict=True))
