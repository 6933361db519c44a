"""docs/walk.md: the files that one transition passes through, per family, are those that are executed.

`make golden` regenerates the tables.
"""

import ast
import os
import re
import sys
from pathlib import Path

import pytest
import torch

import packtrain
from packtrain import knobs
from packtrain.metrics.console import PlainConsole
from packtrain.runtime import preparation, serial
from packtrain.runtime.folder import RunFolder
from packtrain.runtime.loops import Act, Learn
from packtrain.runtime.training import RunSetup, Training

PACKAGE = Path(packtrain.__file__).parent
PAGE = PACKAGE.parent / "docs" / "walk.md"
WRITE = os.environ.get("PACKTRAIN_GOLDEN") == "write"
PLAN = {"n_envs": 4, "n_epochs": 4, "n_precollect_epochs": 1}
MODEL = {"model_n_steps_per_epoch": 3, "model_hidden_sizes": (16, 16), "model_batch_size": 32, "members": 4}
FAMILIES = {
    "impala/catch": {"eval_every": 0},
    "tbv/ppo_hanoi": {"eval_every": 0},
    "r2d2/catch": {"eval_every": 0, "warm_up": 400},
    "steve/steve_pendulum": {"eval_every": 0, "warm_up": 400, "pretrain": 2},
    "planning/mcts_hanoi": {**PLAN, "n_steps_per_epoch": 5, "batch_size": 8, "episode_time_limit": 20},
    "tbv/bfs_hanoi_tbv": {**PLAN, **MODEL, "n_model_pretrain_epochs": 1, "episode_time_limit": 25, "disks": 4},
}
# Left out everywhere: functions on tensors, networks, and the types that travel.
LEAVES = ("equations/", "networks/", "trees.py", "types.py", "arrays.py", "check.py")
# Around the transition in every family: what steps environments, connects, counts and shows; listed once.
AROUND = re.compile(
    r"envs/(?!stream)|metrics/|interfaces/|runtime/(acting|local_acting|learning|explorer|divergence)\.py"
)


def first_sentence(path):
    return (ast.get_docstring(ast.parse((PACKAGE / path).read_text())) or "").split("\n\n")[0].replace("\n", " ")


def open_run(name, values, folder):
    path, _ = knobs.find_config(name)
    configuration, experiment, spec = preparation.prepare([path], [], values, 0, True)
    run = RunFolder(folder)
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    console = PlainConsole("x", 1_000_000)
    return Training(RunSetup(experiment, spec, run, configuration, torch.device("cpu"), console, exact=True), None)


def executed(name, values, folder):
    """The package's files with the functions called, in order, from an actor step over an update to the next step."""
    found = {}

    def note(frame, event, _):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(PACKAGE)):
            calls = found.setdefault(str(Path(path).relative_to(PACKAGE)), [])
            function = frame.f_code.co_qualname
            if "<" not in function and function not in calls:
                calls.append(function)

    training = open_run(name, values, folder)
    learned = seen = 0  # updates before, and updates that were watched
    try:
        for due in serial.loop(training):
            acts = isinstance(due, Act)
            watch = learned and (acts or found)
            _carry_out(training, due, note if watch else None)
            learned += isinstance(due, Learn)
            seen += bool(watch) and not acts
            if seen and acts:
                return found
    finally:
        training.close()
    raise AssertionError("the run ended before a transition went all the way round")


def _carry_out(training, due, note):
    """The transition goes through the two sides, which are watched; what they report is counted beside its way."""
    sys.setprofile(note)
    try:
        result = training.acting.act() if isinstance(due, Act) else training.learning.learn(due.learner, due.updates)
    finally:
        sys.setprofile(None)
    if isinstance(due, Act):
        training.rows.note_report(result)
    elif result is not None:
        training.rows.note_update(due.learner, result)


def table(found):
    """The table of a family, without the files that all have in common."""
    path = [file for file in found if not file.startswith(LEAVES) and not AROUND.match(file)]
    rows = [f"| {k} | `packtrain/{file}` | {first_sentence(file)} |" for k, file in enumerate(path, 1)]
    return "\n".join(["| # | file | what it is |", "| - | --- | --- |", *rows])


def block(name):
    return re.compile(rf"(<!-- walk: {re.escape(name)} -->\n)((?:(?!<!-- ).)*)(\n<!-- end -->)", re.S)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_the_page_lists_the_files_that_are_executed(name, tmp_path):
    """In the order of their first call. Mutation: a row of the page taken out, or two exchanged."""
    found = executed(name, FAMILIES[name], tmp_path)
    want, page = table(found), PAGE.read_text()
    if WRITE:
        PAGE.write_text(block(name).sub(lambda match: match[1] + want + match[3], page))
        return
    match = block(name).search(page)
    assert match, f"docs/walk.md has no table of {name}"
    assert match[2] == want
    folders = ("envs/", "metrics/", "interfaces/")  # named as a whole
    common = [file for file in found if AROUND.match(file) and not file.startswith(folders)]
    assert not [file for file in common if f"`packtrain/{file}`" not in page]
