"""The part on MarltasCore of docs/coming-from.md says what is so: keys, knobs, configurations, commands, metrics."""

import json
import re
import shlex
from pathlib import Path

import pytest

from packtrain import knobs
from packtrain.cli import main
from packtrain.convert.marltas_to_gin import GONE, IN_STEPS, SAME, SAME_EPISODIC, SAME_RECURRENT
from packtrain.convert.marltas_yaml import KEYS, SCRIPTS
from packtrain.runtime import preparation

PAGE = (Path(__file__).parent.parent / "docs" / "coming-from.md").read_text()
PART = PAGE[PAGE.index("## Coming from MarltasCore") :]
TRAIN_FLAGS = "LOG_DIR --config --seed --log_level --disable_actor --run_only_actor".split()
ROLLOUT_FLAGS = "--snap --render --eps --num_episode --num_process".split()
TAGS = {
    "ReplayBuffer": "size beta append_sample_per_sec get_sample_per_sec update_loss_per_sec priority_mean",
    "Learner": "online_update target_update online_update_per_sec extrinsic_loss intrinsic_loss "
    "extrinsic_td_error_mean intrinsic_td_error_mean extrinsic_q_value_mean intrinsic_q_value_mean rnd_loss_mean "
    "episodic_curiosity_loss_mean",
    "Actor": "episode step n_actor reward_sum epsilon gamma episode_len intrinsic_reward_sum ucb_arm_index "
    "reward_sum_mean epsilon_mean gamma_mean episode_len_mean intrinsic_reward_sum_mean ucb_arm_index_most_selected",
    "Evaluator": "reward_sum episode_len walltime global_step",
    "ParamDistributor": "n_get_param n_update_param",
}


def section(title):
    return re.search(rf"^### {title}\n(.*?)(?=^#{{1,3}} |\Z)", PART, re.M | re.S)[1]


def rows(title):
    """The rows of a section's table, without its heading."""
    lines = [line.strip("|").split(" | ") for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def codes(text):
    return re.findall(r"`([^`]+)`", text)


def block(title, language):
    return re.search(rf"^```{language}\n(.*?)^```", section(title), re.M | re.S)[1]


def known_knobs():
    files = ["ngu/atari.gin", *[script.counterpart for script in SCRIPTS.values()]]
    return {name for file in files for name in knobs.read_knobs(knobs.CONFIGS / file)}


def test_every_key_has_its_row():
    """Mutation: a key in the converter but not on the page, or the other way round."""
    said = [code for row in rows("Configurations of MarltasCore") for code in codes(row[0])]
    assert len(said) == len(set(said)) and set(said) == set(KEYS)


def test_a_key_stands_beside_the_knob_that_it_becomes():
    """Mutation: two knobs of the table swapped; a key without a knob that is given one."""
    beside = {key: row[1] for row in rows("Configurations of MarltasCore") for key in codes(row[0])}
    for place, knob in {**SAME, **SAME_RECURRENT, **SAME_EPISODIC, **IN_STEPS}.items():
        assert f"`--{knob}`" in beside[place], place
    assert {place for place, cell in beside.items() if cell == "none"} == set(GONE)


def test_the_knobs_and_flags_named_exist():
    """Mutation: one renamed."""
    titles = re.findall(r"^### (.*)$", PART, re.M)
    cells = [cell for title in titles for row in rows(title) for cell in row[1:]]
    text = "\n".join(cells) + re.sub(r"^\|.*$|^```.*?^```", "", PART, flags=re.M | re.S)
    found = {match[1] for code in codes(text) if (match := re.match(r"--(\w+)(\s[\w.:-]+)?$", code))}
    others = {"checkpoint", "video_episodes", "video_format", "out", "script"}  # of eval and of convert
    assert len(found) > 60 and not found - known_knobs() - set(knobs.PROGRAM_FLAGS) - others


def test_the_configurations_named_are_shipped():
    named = {code for text in codes(PART) for code in text.split() if re.match(r"(r2d2|dqn|ngu)/\w+$", code)}
    assert {script.counterpart.removesuffix(".gin") for script in SCRIPTS.values()} <= named
    assert not named - set(knobs.shipped())


def test_every_script_and_flag_of_the_original_has_its_row():
    said = [code for row in rows("Commands of MarltasCore") for code in codes(row[0])]
    for script in SCRIPTS.values():
        (row,) = [row for row in rows("Commands of MarltasCore") if f"bin/{script.name}.py" in row[0]]
        assert f"packtrain train {script.counterpart.removesuffix('.gin')} " in row[1]
    for flag in [*TRAIN_FLAGS, *ROLLOUT_FLAGS, "make", "-h"]:
        assert any(code.split()[0] == flag for code in said), flag
    assert any("bin/rollout_rnn.py" in code for code in said) and any("dqn/make_env.py" in code for code in said)


def test_the_example_converts_and_can_be_trained(tmp_path, monkeypatch, capsys):
    """Mutation: a flag or a key of the page's example that is none."""
    monkeypatch.chdir(tmp_path)
    convert, train = block("Configurations of MarltasCore", "text").splitlines()
    Path("pong.yaml").write_text(block("Configurations of MarltasCore", "yaml"))
    assert main(["convert", "pong.yaml"]) == 2  # which script is not said
    assert "--script sync_cnn_train" in capsys.readouterr().err
    assert main(shlex.split(convert)[1:]) == 0
    said = capsys.readouterr().out
    assert "replay_buffer: prioritised, as by default" in said and said.splitlines()[-1] == f"{train}   trains it"
    small = {"num_actors": 2, "replay_size": 400, "batch_size": 2, "dueling_size": 8, "storage": "host"}
    _, made, _ = preparation.prepare([Path("pong.gin")], [], small, 0, True)
    assert made.learners["values"].learner.discount == 0.99 and made.learners["values"].ratio == 0.125
    assert made.run.total_steps == 8 * 250_000 + 100


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("marltas") / "run"
    sizes = "--size 6 --num_actors 2 --replay_size 400 --batch_size 2 --hidden_sizes (8,) --dueling_size 8"
    often = "--total_steps 120 --warm_up 60 --log_every 60 --eval_every 120 --eval_episodes 1 --tensorboard"
    novel = "--arms 3 --novelty_memory 20 --separate_intrinsic true"
    argv = ["train", "ngu/deep_sea", "--output_dir", str(folder), *sizes.split(), *often.split(), *novel.split()]
    assert main([*argv, "--config", "Arms.bandit = @Bandit()"]) == 0
    return folder


def test_every_tag_has_its_row_and_the_metrics_named_are_written(run):
    """Mutation: a metric renamed."""
    table = rows("Tags of MarltasCore")
    said = [code for row in table for code in codes(row[0])]
    assert sorted(said) == sorted(f"{owner}/{name}" for owner, names in TAGS.items() for name in names.split())
    written = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    train, evaluated = (set.union(*[set(r) for r in written if r["kind"] == kind]) for kind in ("train", "eval"))
    for row in table:
        assert set(codes(row[1])) <= (evaluated if "Evaluator" in row[0] else train), row
    assert {"learner_busy", "wall_s"} <= train


def test_the_files_named_are_written(run):
    said = {code for row in rows("Files of a MarltasCore run") for code in codes(row[1])}
    for name in ("config.gin", "metrics.jsonl", "log.txt"):
        assert name in said and (run / name).is_file()
    assert {"checkpoints/STEP/", "tensorboard/", "eval.json", "videos/"} <= said
    assert (run / "checkpoints" / "120").is_dir() and list((run / "tensorboard").iterdir())
    assert main(["eval", str(run), "--num_episodes", "1", "--video"]) == 0
    assert (run / "eval.json").is_file() and list((run / "videos").iterdir())
