"""The part on STEVE of docs/coming-from.md says what is so: keys, knobs, configurations, files, metrics."""

import json
import re
from pathlib import Path

import pytest

from packtrain import knobs
from packtrain.cli import main
from packtrain.convert.steve_json import KEYS
from packtrain.convert.steve_to_gin import TASKS

PAGE = (Path(__file__).parent.parent / "docs" / "coming-from.md").read_text()
PART = PAGE[PAGE.index("## Coming from STEVE") :]
SEED_FILES = (
    "master.py learner.py valuerl_learner.py worldmodel_learner.py valuerl.py worldmodel.py replay.py nn.py envwrap.py "
    "config.py util.py toy_demo.py visualizer.py"
).split()


def rows(title):
    """The rows of a section's table, without its heading."""
    text = re.search(rf"^### {title}\n(.*?)(?=^#{{1,3}} |\Z)", PART, re.M | re.S)[1]
    lines = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def codes(text):
    return re.findall(r"`([^`]+)`", text)


def places(keys, above=""):
    for name, kind in keys.items():
        yield from places(kind, f"{above}{name}.") if isinstance(kind, dict) else [above + name]


def test_every_key_has_its_row():
    """Mutation: a key in the converter but not on the page, or the other way round."""
    said = [code for row in rows("Configurations of STEVE") for code in codes(row[0])]
    assert len(said) == len(set(said))
    groups = {"inherits", "updates", "name", "resume", "model_config"}  # not keys of the merged configuration
    known = {place for place in places(KEYS) if not place.startswith("value_expansion.")}
    for short in ("train_sample_count", "eval_sample_count", "keep_all_replay_buffers"):  # said once for all
        known = {place for place in known if not place.endswith(f".{short}")} | {short}
    assert set(said) - groups == known


def test_the_knobs_named_are_knobs():
    known = set(knobs.read_knobs(knobs.CONFIGS / "steve" / "mve_tdlambda_humanoid_paper.gin"))
    found = set()
    for title in ("Configurations of STEVE", "Files of a STEVE run", "Columns of a STEVE run"):
        for row in rows(title):
            found |= {code.removeprefix("--") for cell in row[1:] for code in codes(cell) if re.match(r"--\w+$", code)}
    assert len(found) > 25 and not found - known - set(knobs.PROGRAM_FLAGS)


def test_the_configurations_named_are_shipped():
    """Mutation: one renamed. TASK stands for each of the tasks."""
    named = {code for code in codes(re.sub(r"^```.*?^```", "", PART, flags=re.M | re.S)) if code.startswith("steve/")}
    assert len(named) >= 18
    tasks = {task for task, _ in TASKS.values()}
    for name in named:
        for task in tasks if "TASK" in name else [""]:
            method = "steve" if "METHOD" in name else ""
            assert name.replace("METHOD", method).replace("TASK", task) in knobs.shipped(), name


def test_every_file_of_the_original_has_its_row():
    said = {code for row in rows("Parts of STEVE") for code in codes(row[0])}
    assert said == set(SEED_FILES)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("steve") / "run"
    sizes = (
        "--num_actors 2 --batch_size 8 --model_batch_size 8 --hidden_size 8 --model_hidden_size 8 --aux_hidden_size 8"
    )
    often = "--total_steps 60 --warm_up 40 --pretrain 2 --log_every 20 --eval_every 30 --eval_episodes 1"
    limit = "Environment.kwargs = {'max_episode_steps': 15}"
    argv = ["train", "steve/steve_pendulum_paper", "--output_dir", str(folder), "--config", limit]
    assert main([*argv, *sizes.split(), *often.split()]) == 0
    return folder


def test_the_metrics_named_are_written(run):
    """Mutation: a metric renamed."""
    written = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    train, evaluated = (set.union(*[set(r) for r in written if r["kind"] == kind]) for kind in ("train", "eval"))
    table = rows("Columns of a STEVE run")
    assert len(table) == 13
    for row in table:
        names = {code for code in codes(row[1])}
        assert names <= (evaluated if "score" in row[0] else train), row
    assert {"wall_s", "step"} <= evaluated
    assert "weight/depth_0" in train and "env_steps_without_random" in train


def test_the_files_named_are_written(run):
    said = {code for row in rows("Files of a STEVE run") for code in codes(row[1])}
    for name in ("config.gin", "metrics.jsonl", "log.txt"):
        assert name in said and (run / name).is_file()
    assert "checkpoints/STEP/" in said and (run / "checkpoints" / "60").is_dir()
