"""docs/extending.md: two files of a user's own run under every runtime, resume, are evaluated and reported."""

import json
import re
from pathlib import Path

import pytest

from packtrain.cli import main
from packtrain.metrics.reading import read_metrics
from packtrain.runtime import checkpoint
from packtrain.trees import flatten

PAGE = Path(__file__).parent.parent / "docs" / "extending.md"
RUNTIMES = {
    "serial": ["--runtime", "serial"],
    "local": [],
    "process": ["--acting", "process", "--workers", "2"],
    "cluster": ["--runtime", "cluster", "--workers", "2"],
}
CASES = [(name, runtime) for runtime in RUNTIMES for name in ("gru", "lookahead")]
LONG = [("lookahead", "cluster")]
EXAMPLES = {  # flags of a short run, and of the same run made longer
    "gru": (["--total_steps", "1600"], ["--total_steps", "2400"]),
    "lookahead": (["--total_steps", "400"], ["--total_steps", "1000"]),
}


def example(name):
    match = re.search(rf"<!-- test: {re.escape(name)} -->\n```\w*\n(.*?)```", PAGE.read_text(), re.S)
    assert match, name
    return match.group(1)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder outside the package with the files of the page, the current folder."""
    for name in ("my_gru.py", "gru.gin", "my_lookahead.py", "lookahead.gin"):
        (tmp_path / name).write_text(example(name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def train(name, output, *flags):
    assert main(["train", f"{name}.gin", "--output_dir", output, *flags]) == 0


def newest(output):
    return checkpoint.load_newest(Path(output) / "checkpoints")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "runtime"), [pytest.param(*case, marks=[pytest.mark.long] * (case in LONG)) for case in CASES]
)
def test_it_runs_resumes_and_is_evaluated(folder, name, runtime, capsys):
    """Mutation: a snapshot that leaves out the writers, or a weight that is not saved."""
    short, longer = EXAMPLES[name]
    train(name, "run", *short, *RUNTIMES[runtime])
    before, _ = newest("run")
    train(name, "run", *longer, *RUNTIMES[runtime])
    after, _ = newest("run")
    assert after > before
    steps = [row["step"] for row in read_metrics(folder / "run") if row["kind"] == "train"]
    assert steps == sorted(set(steps)), "a row was written twice"
    capsys.readouterr()
    assert main(["eval", "run", "--num_episodes", "4", "--json", "--trust-config"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 4
    assert main(["report", "run", "--out", "page.html"]) == 0
    assert (folder / "page.html").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_serial_run_that_is_resumed_equals_one_that_is_not(folder, name):
    """Bit for bit. Mutation: a generator that is not in the snapshot."""
    short, longer = EXAMPLES[name]
    train(name, "whole", *longer, "--runtime", "serial")
    train(name, "parts", *short, "--runtime", "serial")
    train(name, "parts", *longer, "--runtime", "serial")
    (_, whole), (_, parts) = newest("whole"), newest("parts")
    for part in ("weights", "learners", "memories"):
        for mine, other in zip(flatten(whole.get(part, {})), flatten(parts.get(part, {})), strict=True):
            assert (mine == other).all() if hasattr(mine, "shape") else mine == other, part


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_it_changes_the_way_of_acting_on_resume_and_runs_several_seeds(folder, name):
    short, longer = EXAMPLES[name]
    train(name, "run", *short)
    train(name, "run", *longer, "--acting", "process")
    train(name, "seeds", *short, "--num_seeds", "2")
    values = [flatten(newest(f"seeds/seed_{k}")[1]["weights"])[0] for k in (0, 1)]
    assert not (values[0] == values[1]).all()


@pytest.mark.learning
def test_the_recurrent_learner_remembers(folder):
    """Catch with the ball visible once: chance −0.6, best 1."""
    train("gru", "run", "--runtime", "serial", "--seed", "0")
    returns = [row["return_mean"] for row in read_metrics(folder / "run") if row["kind"] == "eval"]
    assert returns[-1] > 0.5


@pytest.mark.learning
def test_the_planner_solves_hanoi_only_if_it_learns(folder):
    """Control: three steps ahead without learning do not reach the goal, fifteen moves away."""
    train("lookahead", "run", "--runtime", "serial", "--total_steps", "3000")
    train("lookahead", "without", "--runtime", "serial", "--total_steps", "3000", "--config", "Update.count = 0")
    solved = [
        [row["solved"] for row in read_metrics(folder / run) if row["kind"] == "eval"][-1] for run in ("run", "without")
    ]
    assert solved[0] > 0.8 and solved[1] < 0.5
