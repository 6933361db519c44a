"""A study as a user types it: its folder, the same command again, signals, seeds, what is refused."""

import json
import re
import signal

import pytest

from packtrain.cli import main
from packtrain.metrics.reading import read_metrics
from packtrain.studies import steve_toy

SMALL = ["--total_steps", "60", "--runs", "2", "--log_every", "20"]
TOY = ["train", "steve/toy", "--output_dir", "run", *SMALL]


@pytest.fixture(autouse=True)
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "log.txt"}


def refused(capsys, argv, *parts):
    """Run a command that must be refused in one line."""
    assert main(argv) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.strip().splitlines()
    assert line.startswith("packtrain: error: ") and captured.out == ""
    for part in parts:
        assert part in line, (part, line)


def test_a_flag_that_takes_a_configuration_may_be_followed_by_one(capsys):
    """Mutation: a word that names a configuration is always one to run."""
    refused(capsys, ["train", "misspecification/counterfeit_sweep", "--agent", "impala/catch"], "no knob 'discount'")


def test_a_study_fills_its_folder(tmp_path, capsys):
    assert main(TOY) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert re.fullmatch(r"finished in 0:\d\d: run; the image is run/toy.svg", lines[-1])
    assert [line.split("  ")[0] for line in lines[-7:-1]] == [one.label for one in steve_toy.LEARNERS.values()]
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    wanted = [".lock", "Toy-v1", "config.gin", "log.txt", "metrics.jsonl", "study.json", "toy.json", "toy.svg"]
    assert names == wanted
    assert [row["step"] for row in read_metrics("run")] == [1, 20, 40, 60]
    log = (tmp_path / "run/log.txt").read_text()
    assert "INFO packtrain " in log and lines[-2] in log and log.endswith("INFO finished\n")


def test_the_same_command_again_says_that_it_is_finished(tmp_path, capsys):
    """Mutation: no study.json."""
    assert main(TOY) == 0
    before = contents(tmp_path / "run")
    capsys.readouterr()
    assert main(TOY) == 0
    assert capsys.readouterr().out == "run is finished; its image is run/toy.svg\n"
    assert contents(tmp_path / "run") == before


@pytest.mark.parametrize(
    "more, difference",
    [
        (["--noise", "0.2"], "Toy.noise: 0.1 → 0.2"),
        (["--total_steps", "80"], "Toy.steps: 60 → 80"),
        (["--log_every", "10"], "Study.log_every: 20 → 10"),
        (["--seed", "1"], "Study.seed: 0 → 1"),
    ],
)
def test_a_changed_configuration_is_refused_and_fresh_goes_beside(tmp_path, capsys, more, difference):
    assert main(TOY) == 0
    before = contents(tmp_path / "run")
    capsys.readouterr()
    refused(capsys, [*TOY, *more], "run was made with another configuration", difference, "--fresh")
    assert main([*TOY, *more, "--fresh"]) == 0
    assert contents(tmp_path / "run") == before
    assert (tmp_path / "run-2/study.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_a_line_and_the_same_command_starts_over(tmp_path, capsys, monkeypatch, number):
    """The signal comes when all rows are there. Mutation: a handler that stays; a mark that is written first."""
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch:
        patch.setattr(steve_toy, "collect", lambda *_: signal.raise_signal(number))
        assert main(TOY) == 128 + number
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[-1] == f"stopped by {number.name}: run is not finished; repeat the command to start over"
    assert read_metrics("run") and not (tmp_path / "run/study.json").exists()
    assert main([*TOY, "--log_every", "30"]) == 0, "nothing is there to protect from another configuration"
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[0] == "run was not finished: starting over" and lines[-1].startswith("finished")
    assert [row["step"] for row in read_metrics("run")] == [1, 30, 60]


def test_seeds_are_ordinary_run_folders_and_the_report_shows_them(tmp_path):
    argv = ["train", "steve/toy", "--output_dir", "many", *SMALL, "--num_seeds", "2", "--seed", "5"]
    assert main(argv) == 0
    for k in (0, 1):
        assert f"Study.seed = {5 + k}" in (tmp_path / f"many/seed_{k}/config.gin").read_text()
    errors = [read_metrics(f"many/seed_{k}")[-1]["error/steve_noisy"] for k in (0, 1)]
    assert errors[0] != errors[1]
    assert main(["report", "many"]) == 0
    page = (tmp_path / "many/report.html").read_text()
    assert page.count('<img src="data:image/svg+xml;base64,') == 2 and "error/steve_noisy" in page


def test_the_studys_own_config_gives_the_same_study(tmp_path):
    assert main([*TOY, "--seed", "3"]) == 0
    assert main(["train", "run/config.gin", "--output_dir", "again"]) == 0
    results = [json.loads((tmp_path / folder / "toy.json").read_text()) for folder in ("run", "again")]
    for result in results:
        assert result["seed"] == 3 and result.pop("wall_s") >= 0
    assert results[0] == results[1]


def test_default_folder_and_latest(tmp_path):
    assert main(["train", "steve/toy", *SMALL]) == 0
    assert (tmp_path / "runs/latest/toy.svg").exists()
    assert (tmp_path / "runs/latest").resolve().parent == tmp_path / "runs/steve/toy"


@pytest.mark.parametrize(
    "more, parts",
    [
        (["--total_steps", "0"], ["Toy.steps = 0 must be at least 1", "--total_steps"]),
        (["--members", "0"], ["Toy.members = 0"]),
        (["--members", "1000000"], ["Toy with runs = 2, members = 1000000", "lower one of them"]),
        (["--noise", "1.5"], ["Toy.noise = 1.5 must be between 0 and 1"]),
        (["--noise", "loud"], ["--noise 'loud' is not a number"]),
        (["--log_every", "0"], ["Study.log_every = 0 must be at least 1"]),
        (["--seed", "-1"], ["Study.seed = -1 must not be negative", "set in --seed -1"]),
        (["--horizont", "3"], ["unknown flag '--horizont'", "did you mean 'horizon'"]),
        (["--checkpoint_secs", "3"], ["unknown flag '--checkpoint_secs'"]),
        (["--config", "Experiment.seed = 1"], ["Experiment.seed is set but not used"]),
        (["--config", "Study.experiment = 3"], ["Study.experiment = 3 is not a Procedure"]),
        (["--runtime", "serial"], ["--runtime serial does not apply to a study", "omit it"]),
        (["--runtime", "cluster"], ["cluster"]),
        (["--device", "cuda"], ["--device cuda does not apply to a study"]),
        (["--start_from", "other"], ["--start_from other does not apply"]),
        (["--tensorboard"], ["--track does not apply"]),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_what_cannot_be_meant_is_one_line_and_nothing_is_written(tmp_path, capsys, more, parts):
    refused(capsys, [*TOY, *more], *parts)
    assert not list(tmp_path.iterdir())


def test_a_study_has_nothing_to_evaluate_or_begin_from(capsys):
    assert main(TOY) == 0
    capsys.readouterr()
    refused(capsys, ["eval", "run"], "run/config.gin is a study", "packtrain report")
    refused(capsys, ["train", "impala/catch", "--output_dir", "other", "--start_from", "run"], "is a study")


def test_neither_kind_of_run_writes_over_the_other(tmp_path, capsys):
    """Mutation: a check that is left out on either side."""
    assert main(TOY) == 0
    (tmp_path / "trained/checkpoints").mkdir(parents=True)
    before = contents(tmp_path)
    capsys.readouterr()
    refused(capsys, ["train", "impala/catch", "--output_dir", "run"], "run contains another kind of run", "--fresh")
    argv = ["train", "steve/toy", "--output_dir", "trained", *SMALL]
    refused(capsys, argv, "trained contains another kind of run", "--fresh")
    assert contents(tmp_path) == before


def test_a_damaged_mark_is_one_line(tmp_path, capsys):
    assert main(TOY) == 0
    (tmp_path / "run/study.json").write_text('{"identity": 3')
    capsys.readouterr()
    refused(capsys, TOY, "run/study.json cannot be read", "--fresh")


def test_a_full_disk_is_one_line(capsys, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(steve_toy, "write_whole", fail)
    assert main(TOY) == 3
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line == "packtrain: error: run cannot be written: No space left on device; repeat the command to start over"
