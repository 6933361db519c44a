"""`packtrain audit` as a user types it: verdicts, exit codes, the page, and one line for what cannot be compared."""

import json
import re
import shutil

import pytest

from packtrain.cli import main

SMALL = ["--total_steps", "300", "--num_actors", "2", "--batch_size", "2", "--unroll_length", "5", "--eval_every", "0"]
QUICK = ["--num_episodes", "6"]


def train(folder, *more, config="impala/gym"):
    assert main(["train", config, "--output_dir", str(folder), "--runtime", "serial", *SMALL, *more]) == 0


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs to compare: two seeds of one world, another world, a policy without a distribution."""
    folder = tmp_path_factory.mktemp("runs")
    boat = ["--env", "BoatRace", "--config", "Environment.kwargs = {'size': 3, 'max_steps': 10}"]
    boat += ["--config", "Environment.rewards = @Rewards()", "--config", "Rewards.train = 'checkpoints'"]
    boat += ["--learning_rate", "0.02"]
    train(folder / "one", *boat)
    train(folder / "other", *boat, "--seed", "7")
    train(folder / "third", *boat, "--seed", "8")
    train(folder / "fourth", *boat, "--seed", "9")
    train(folder / "cart", "--env", "CartPole")
    train(folder / "large", "--env", "BoatRace")
    shutil.copytree(folder / "one", folder / "bare")
    shutil.rmtree(folder / "bare" / "checkpoints")
    catch = ["train", "dqn/catch", "--output_dir", str(folder / "values"), "--total_steps", "20", "--runtime", "serial"]
    assert main(catch) == 0
    return folder


@pytest.fixture
def here(runs, tmp_path, monkeypatch):
    """A fresh copy of them."""
    shutil.copytree(runs, tmp_path / "runs")
    monkeypatch.chdir(tmp_path / "runs")
    return tmp_path / "runs"


def test_a_run_looks_like_itself_and_not_like_another(here, capsys):
    """Negative control. Mutations: a verdict that is turned round; --fail that fails always or never."""
    assert main(["audit", "one", "--trusted", "one", *QUICK, "--fail"]) == 0
    same = capsys.readouterr().out
    assert "uncalibrated: mean_jensen_shannon 0 is reached by 19 of 19 plays" in same
    assert "no more than these plays differ" in same
    assert main(["audit", "other", "--trusted", "one", *QUICK, "--slip", "0"]) == 0
    other = capsys.readouterr().out.splitlines()
    assert re.match(
        r"uncalibrated: mean_jensen_shannon [\d.e−]+ is reached by 0 of 19 plays .*: more than .*; \d+ of 11", other[-2]
    )
    assert other[-1] == "page: other/audit.html"
    assert main(["audit", "other", "--trusted", "one", *QUICK, "--slip", "0", "--fail"]) == 1


def test_json_says_it_all_and_the_same_seed_the_same(here, capsys):
    """Mutation: any unseeded draw."""
    argv = ["audit", "other", "--trusted", "one", "--trusted", "other", *QUICK, "--json", "--out", "page.html"]
    found = []
    for seed in ("3", "3", "4"):
        assert main([*argv, "--seed", seed]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1] and found[0]["scores"] != found[2]["scores"]
    result = found[0]
    assert result["verdict"] == "uncalibrated" and not result["anomalous"]  # it is among the trusted
    assert [one["run"] for one in result["trusted"]] == ["one", "other"]
    assert result["episodes"] == 6 and result["env"] == "BoatRace" and result["checkpoint"] >= 300
    assert len(result["scores"]) == 11
    for scored in result["scores"].values():
        assert set(scored) == {"score", "threshold", "p", "anomalous", "null"} and len(scored["null"]) == 19


def test_one_trusted_run_gives_no_calibrated_verdict(here, capsys):
    """Mutation: plays of one run counted as if they were runs."""
    assert main(["audit", "other", "--trusted", "one", *QUICK, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["verdict"], result["calibrated"], result["supported_rate"]) == ("uncalibrated", False, None)
    assert (result["independent_runs"], result["runs_needed"]) == (1, 20)
    page = (here / "other" / "audit.html").read_text()
    assert "<h1>Uncalibrated</h1>" in page and "needs 20 independent trusted runs" in page
    assert "<th>rank" in page and "<th>p" not in page


def test_enough_trusted_runs_calibrate_the_verdict(here, capsys):
    """Three runs support one false alarm in three. Mutations: plays of the reference in the null; one run too few."""
    argv = ["audit", "other", "--rate", "0.34", *QUICK]
    runs = ["--trusted", "one", "--trusted", "third", "--trusted", "fourth"]
    assert main([*argv, *runs, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["calibrated"] and result["verdict"] in ("anomalous", "looks like the trusted one")
    assert (result["verdict"] == "anomalous") == result["anomalous"]
    assert (result["null"], result["slip"], result["supported_rate"]) == ("trusted runs", None, 1 / 3)
    for scored in result["scores"].values():
        assert len(scored["null"]) == 2 and scored["p"] in (1 / 3, 2 / 3, 1)
    assert main([*argv, *runs]) == 0
    said = capsys.readouterr().out.splitlines()[-2]
    assert said.startswith(f"{result['verdict']}: ") and "of 2 further trusted runs (p = " in said
    page = (here / "other" / "audit.html").read_text()
    assert f"<h1>{result['verdict'].capitalize()}</h1>" in page and "<th>p" in page


@pytest.mark.parametrize("third", ["one", "../runs/one", "other"])
def test_runs_named_twice_and_the_unknown_run_itself_do_not_calibrate(here, capsys, third):
    argv = ["audit", "other", "--rate", "0.34", "--trusted", "one", "--trusted", "fourth", "--trusted", third, *QUICK]
    assert main(argv) == 0
    said = capsys.readouterr().out
    assert "uncalibrated: " in said and "needs 3 independent trusted runs; 2 support --rate 0.5" in said


def test_the_page_stands_alone(here, capsys):
    """Mutations: a name that is not escaped; anything from outside."""
    shutil.move("other", "<b>other")
    assert main(["audit", "<b>other", "--trusted", "one", *QUICK]) == 0
    page = (here / "<b>other" / "audit.html").read_text()
    assert "&lt;b&gt;other" in page and "<b>other" not in page
    assert page.count("<svg") >= 3 and page.count("<figure>") == 3
    assert "<script" not in page and not re.search(r"(src|href)=|url\(", page)
    for word in ("range_hellinger", "occupancy_nearest", "Distance from the trusted policy"):
        assert word in page


def test_nothing_but_the_page_is_written(here, capsys):
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    assert main(["audit", "other", "--trusted", "one", *QUICK]) == 0
    after = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    assert set(after) - set(before) == {here / "other" / "audit.html"}
    assert all(after[path] == data for path, data in before.items())


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["one"], ["needs --trusted RUN"]),
        (["nowhere", "--trusted", "one"], ["nowhere is not a run folder: it does not exist"]),
        (["one", "--trusted", "."], [". is not a run folder: it has no config.gin"]),
        (["bare", "--trusted", "one"], ["bare/checkpoints holds no checkpoint"]),
        (["one", "--trusted", "bare"], ["bare/checkpoints holds no checkpoint"]),
        (["one", "--trusted", "cart"], ["the actions of one and cart differ: Discrete(4) and Discrete(2)"]),
        (["one", "--trusted", "one", "--trusted", "cart"], ["the actions of one and cart differ"]),
        (["one", "--trusted", "large"], ["the observations of one and large differ"]),
        (["values", "--trusted", "one"], ["values has no distribution over actions", "ActionValues", "IMPALA, PPO"]),
        (["one", "--trusted", "other", "--num_episodes", "0"], ["--num_episodes 0 must be at least 1"]),
        (["one", "--trusted", "other", "--num_episodes", "x"], ["--num_episodes", "invalid int"]),
        (["one", "--trusted", "other", "--rate", "1"], ["--rate 1.0 must be between 0 and 1"]),
        (["one", "--trusted", "other", "--null_plays", "5"], ["--null_plays 5 must be at least 19 for --rate 0.05"]),
        (["one", "--trusted", "other", "--slip", "-0.1"], ["--slip -0.1 must be at least 0"]),
        (["one", "--trusted", "other", "--seed", "-1"], ["--seed -1 must not be negative"]),
        (["one", "--trusted", "other", "--detector", "mean"], ["--detector 'mean' is not one of"]),
        (["one", "--trusted", "other", "--checkpoint", "7"], ["no checkpoint '7'"]),
        (["one", "--trusted", "other", "--trusted_checkpoint", "best"], ["no best checkpoint"]),
        (["one", "--trusted", "other", "--out", "no/such/page.html"], ["no/such/page.html cannot be written", "--out"]),
        (["one", "--trusted", "other", "--device", "toaster"], ["toaster"]),
        (["one", "--trusted", ""], ["need a name"]),
        (["one", "--trusted", "other", "--sampled"], ["unrecognized arguments: --sampled"]),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_one_line_and_exit_code_2(here, capsys, argv, parts):
    before = sorted(here.rglob("*"))
    assert main(["audit", *argv]) == 2
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("packtrain: error: ") and captured.out == "", captured
    for part in parts:
        assert part in lines[0], (part, lines[0])
    assert sorted(here.rglob("*")) == before, "something was written"


def test_a_score_that_a_run_does_not_have(here, capsys):
    """The truth is in no score: where the trusted run learned from it, what it gains cannot be compared."""
    argv = ["audit", "large", "--trusted", "large", "--num_episodes", "2"]
    assert main([*argv, "--detector", "advantage_gap"]) == 2
    assert "advantage_gap has no score here; available are mean_jensen_shannon" in capsys.readouterr().err
    assert main([*argv, "--detector", "surprise"]) == 0
