"""Configurations of the STEVE project: inheritance and ghosts, every method, and the .gin files that come of them."""

import json
import os
import re
from pathlib import Path

import pytest

from packtrain import config, knobs
from packtrain.cli import main
from packtrain.convert import steve_json
from packtrain.convert.steve_json import read
from packtrain.convert.steve_to_gin import METHODS, TASKS

ENSEMBLE = {"ensemble_size": 4, "train_sample_count": 4, "eval_sample_count": 4}
LEARNER = {
    "batch_size": 512,
    "replay_size": 1_000_000,
    "frames_before_learning": 10_000,
    "log_every_n": 500,
    "epoch_every_n": 500,
    "backup_every_n": 2_500_000,
    "frames_per_update": 0.25,
}
BASIC = {
    "output_root": "output",
    "save_model_path": "checkpoints",
    "log_path": "log",
    "agent_config": {"count": 1, "batch_size": 8, "reload_every_n": 1, "full_random_n": 10_000},
    "evaluator_config": {"count": 2, "batch_size": 1},
    "policy_config": {"algo": "ddpg", "hidden_dim": 128, "explore_chance": 0.05, **LEARNER},
}
MODEL = {"model_config": {"transition_hidden_dim": 512, "aux_hidden_dim": 128, "pretrain_n": 10_000, **LEARNER}}
BAYESIAN = {
    "policy_config": {"bayesian": ENSEMBLE},
    "*model_config": {"bayesian": {"transition": ENSEMBLE, "reward": ENSEMBLE}},
}
SPEEDRUN = {
    "policy_config": {"frames_per_update": False},
    "*model_config": {"frames_per_update": False, "pretrain_n": False},
}
ENVS = {
    "swimmer": ("Swimmer-v1", 8, 2, "Swimmer-v5"),
    "hopper": ("Hopper-v1", 11, 3, "Hopper-v5"),
    "halfcheetah": ("HalfCheetah-v1", 17, 6, "HalfCheetah-v5"),
    "walker2d": ("Walker2d-v1", 17, 6, "Walker2d-v5"),
    "humanoid": ("Humanoid-v1", 376, 17, "Humanoid-v5"),
    "rshum": ("RoboschoolHumanoid-v1", 44, 17, "packtrain/HumanoidRun-v0"),
    "flagrun": ("RoboschoolHumanoidFlagrun-v1", 44, 17, "packtrain/HumanoidFlagrun-v0"),
    "hardcore": ("BipedalWalkerHardcore-v2", 24, 4, "BipedalWalkerHardcore-v3"),
}
SINGLE, WITH_MODEL, STEVE = ["basic"], ["basic", "model"], ["basic", "model", "bayesian"]
ALGOS = {  # what each inherits of config/core, and its value_expansion
    "ddpg": (SINGLE, None),
    "mve_tdk": (WITH_MODEL, {"rollout_len": 3, "tdk_trick": True}),
    "mve_meank": (WITH_MODEL, {"rollout_len": 3, "mean_k_return": True}),
    "mve_25tdlambda": (WITH_MODEL, {"rollout_len": 3, "lambda_return": 0.25}),
    "mve_75tdlambda": (WITH_MODEL, {"rollout_len": 3, "lambda_return": 0.75}),
    "steve": (STEVE, {"rollout_len": 3, "steve_reweight": True}),
    "steve_cov": (STEVE, {"rollout_len": 3, "steve_reweight": True, "covariances": True}),
    **{f"steve_{h}h": (STEVE, {"rollout_len": 1, "steve_reweight": True}) for h in (1, 2, 5)},
}


def write(path, inherits=(), updates=None):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"inherits": list(inherits), "updates": updates or {}}))
    return path


def experiment(algo, env, number=0, group="goodruns", extra=(), updates=None):
    inherits = [f"config/algos/{algo}.json", f"config/envs/{env}.json", *extra]
    return write(f"config/experiments/{group}/{env}/{algo}{number}.json", inherits, updates)


@pytest.fixture(autouse=True)
def checkout(tmp_path, monkeypatch):
    """A tree as the project has it, without its experiments."""
    monkeypatch.chdir(tmp_path)
    for name, updates in (("basic", BASIC), ("model", MODEL), ("bayesian", BAYESIAN), ("speedrun", SPEEDRUN)):
        write(f"config/core/{name}.json", updates=updates)
    for name, (env, obs, act, _) in ENVS.items():
        numbers = {"obs_dims": obs, "action_dim": act, "reward_scale": 1.0, "discount": 0.99, "max_frames": 1000}
        write(f"config/envs/{name}.json", updates={"env": {"name": env, **numbers}})
    for name, (core, expansion) in ALGOS.items():
        updates = {"policy_config": {"value_expansion": expansion}} if expansion else {}
        write(f"config/algos/{name}.json", [f"config/core/{file}.json" for file in core], updates)
    extra = ["config/algos/mve_tdk", "config/core/bayesian.json"]  # as it was released: without .json
    write("config/algos/ensemble_mve_tdk.json", extra)
    return tmp_path


def convert(path, *flags):
    out = Path("out.gin")
    out.unlink(missing_ok=True)
    assert main(["convert", str(path), "--out", str(out), *flags]) == 0
    return out


def built(out):
    """The experiment that a .gin file makes; a line of it that nothing uses is an error."""
    return config.build(config.load([Path(out)], [], {}))


def sizes(made):
    dynamics = made.policy.dynamics
    return made.policy.critics, dynamics and dynamics.transitions, dynamics and dynamics.rewards


def one_line(capsys):
    error = capsys.readouterr().err
    assert error.startswith("packtrain: error: ") and len(error.splitlines()) == 1, error
    return error


# -- reading


def test_a_file_is_what_it_inherits_in_order_and_its_own_updates_last():
    """Mutation: merging in another order, or replacing groups instead of merging them."""
    write("a.json", updates={"policy_config": {"batch_size": 1, "replay_size": 1, "hidden_dim": 1}})
    write("b.json", updates={"policy_config": {"batch_size": 2, "replay_size": 2}, "log_path": "b"})
    settings, remarks = read(write("c.json", ["a.json", "b.json"], {"policy_config": {"batch_size": 3}}))
    assert settings == {"policy_config": {"batch_size": 3, "replay_size": 2, "hidden_dim": 1}, "log_path": "b"}
    assert remarks == []
    assert settings.find("policy_config.pretrain_n") is False and settings.find("model_config.batch_size") is False


def test_false_takes_a_group_away_and_a_group_comes_back_empty():
    write("a.json", updates={"model_config": {"batch_size": 1}})
    gone = write("b.json", ["a.json"], {"model_config": False})
    assert read(gone)[0] == {"model_config": False}
    assert read(write("c.json", ["b.json"], {"model_config": {"replay_size": 2}}))[0] == {
        "model_config": {"replay_size": 2}
    }


def test_ghosts_are_taken_only_where_their_name_is():
    """Mutations: a ghost that is always merged, never merged, or lost in its own file."""
    ghost = write("ghost.json", updates={"*model_config": {"batch_size": 7}, "policy_config": {"batch_size": 7}})
    real = write("real.json", updates={"model_config": {"batch_size": 1, "replay_size": 1}})
    assert read(ghost)[0]["model_config"] == {"batch_size": 7}
    assert read(write("1.json", ["ghost.json"]))[0] == {"policy_config": {"batch_size": 7}}
    assert read(write("2.json", ["real.json", "ghost.json"]))[0]["model_config"] == {"batch_size": 7, "replay_size": 1}
    assert read(write("3.json", ["ghost.json", "real.json"]))[0]["model_config"] == {"batch_size": 1, "replay_size": 1}
    write("4.json", [real.name], {"*model_config": {"batch_size": 9}})  # a ghost on what is there leaves it real
    assert read(write("5.json", ["4.json"]))[0] == {"model_config": {"batch_size": 9, "replay_size": 1}}
    write("6.json", updates={"model_config": False})
    assert read(write("7.json", ["6.json", "ghost.json"]))[0]["model_config"] is False


def test_ghosts_inside_groups():
    inner = {"policy_config": {"*bayesian": {"ensemble_size": 2}, "batch_size": 1}}
    write("a.json", updates=inner)
    assert read(Path("a.json"))[0]["policy_config"]["bayesian"] == {"ensemble_size": 2}
    assert read(write("b.json", ["a.json"]))[0] == {"policy_config": {"batch_size": 1}}
    write("c.json", updates={"policy_config": {"bayesian": {"ensemble_size": 4}}})
    assert read(write("d.json", ["c.json", "a.json"]))[0]["policy_config"]["bayesian"] == {"ensemble_size": 2}


def test_a_checkout_is_read_from_anywhere(tmp_path, monkeypatch):
    """Mutation: paths from the current folder only."""
    path = experiment("steve", "humanoid").resolve()
    before = read(path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert read(path) == before
    assert read(Path("../config/experiments/goodruns/humanoid/steve0.json")) == before
    write("config/core/bayesian.json", updates={"policy_config": {"bayesian": {"ensemble_size": 9}}})
    assert read(path)[0].find("policy_config.bayesian.ensemble_size") == 9  # the current folder goes first, as there


def test_a_file_inherited_many_times_is_read_once(monkeypatch):
    """Mutation: reading it each time; ten levels of twice would be two thousand readings."""
    write("0.json", updates={"log_path": "deep"})
    for level in range(1, 11):
        write(f"{level}.json", [f"{level - 1}.json"] * 2)
    calls, load = [], steve_json._load
    monkeypatch.setattr(steve_json, "_load", lambda path: calls.append(path.name) or load(path))
    assert read(Path("10.json"))[0] == {"log_path": "deep"}
    assert calls == [f"{level}.json" for level in reversed(range(11))]


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"inherits": ["c.json"]}', "mine.json inherits itself: mine.json → c.json → mine.json"),
        ('{"inherits": ["nowhere.json"]}', "mine.json inherits 'nowhere.json', which is neither below the current"),
        ('{"inherits": ["config"]}', "inherits 'config', which is neither"),
        ('{"inherits": ["\\u0000"]}', "inherits '\\x00', which is neither"),
        ('{"inherits": "a.json"}', "inherits = 'a.json' must be a list of paths"),
        ('{"inherits": [3]}', "inherits = [3] must be a list of paths"),
        ('{"updates": []}', "updates = [] must be an object"),
        ('{"inherit": []}', "unknown key 'inherit' (did you mean 'inherits'?); the keys are 'inherits' and 'updates'"),
        ("[]", "it must be an object with 'inherits' and 'updates'"),
        ("{'updates': {}}", "mine.json is not JSON: Expecting property name enclosed in double quotes: line 1"),
        ("", "mine.json is not JSON"),
        ('{"updates": {"env": {"discount": NaN}}}', "mine.json is not JSON: NaN is not a number"),
        ("[" * 100_000, "nested too deeply"),
        ("ROOT GPU: 0\n{'env': 1}", "a run's record of its settings, which is not JSON"),
        ('{"updates": {"polcy_config": {}}}', "unknown key 'polcy_config' (did you mean 'policy_config'?)"),
        ('{"updates": {"policy_config": {"hiden_dim": 1}}}', "'policy_config.hiden_dim' (did you mean 'hidden_dim'?)"),
        ('{"updates": {"*model_config": {"pretrain": 1}}}', "'model_config.pretrain' (did you mean 'pretrain_n'?)"),
        ('{"updates": {"policy_config": 3}}', "policy_config = 3 must be an object"),
        ('{"updates": {"*model_config": false}}', "*model_config = False must be an object"),
        ('{"updates": {"*log_path": "a"}}', "*log_path = 'a' must be an object"),
        ('{"updates": {"log_path": 3}}', "log_path = 3 must be a text, or false"),
        ('{"updates": {"agent_config": {"count": 1.5}}}', "agent_config.count = 1.5 must be a whole number, or false"),
        ('{"updates": {"agent_config": {"count": true}}}', "agent_config.count = True must be a whole number"),
        ('{"updates": {"env": {"discount": "1"}}}', "env.discount = '1' must be a number, or false"),
        ('{"updates": {"env": {"discount": 1e999}}}', "env.discount = inf must be a number"),
        ('{"updates": {"env": {"discount": null}}}', "env.discount = None must be a number"),
        ('{"updates": {"value_expansion": {"tdk_trick": 1}}}', "value_expansion.tdk_trick = 1 must be true or false"),
        ('{"updates": {"value_expansion": {"lambda_return": true}}}', "lambda_return = True must be a number"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(capsys, text, message):
    """Mutation: a message that does not name the file. Nothing is written."""
    Path("mine.json").write_text(text)
    write("c.json", ["mine.json"])
    assert main(["convert", "mine.json"]) == 2
    error = one_line(capsys)
    assert message in error and "mine.json" in error
    assert not Path("mine.gin").exists()


def test_the_file_that_is_wrong_is_the_one_that_is_named(capsys):
    write("config/core/basic.json", updates={"policy_config": {"batchsize": 3}})
    assert main(["convert", str(experiment("ddpg", "hopper"))]) == 2
    assert "config/core/basic.json: unknown key 'policy_config.batchsize' (did you mean 'batch_size'?)" in one_line(
        capsys
    )


def test_no_file_a_folder_a_pipe_and_other_bytes(capsys):
    Path("folder.json").mkdir()
    os.mkfifo("pipe.json")
    Path("loop.json").symlink_to("loop.json")
    for name in ("none.json", "folder.json", "pipe.json", "loop.json", "a" * 300 + ".json"):
        assert main(["convert", name]) == 2
        assert "does not exist or is not a file" in one_line(capsys)
    Path("bytes.json").write_bytes(b"\xff\xfe{}")
    assert main(["convert", "bytes.json"]) == 2
    assert "bytes.json is not JSON" in one_line(capsys)


# -- translating


TARGETS = {
    "ddpg": ("steve/ddpg_humanoid_paper", "OneStep", (1, None, None)),
    "mve_tdk": ("steve/mve_tdk_humanoid_paper", "Mve", (1, 1, 1)),
    "ensemble_mve_tdk": ("steve/ensemble_mve_tdk_humanoid_paper", "Mve", (4, 4, 4)),
    "mve_meank": ("steve/mve_mean_humanoid_paper", "MveMean", (1, 1, 1)),
    "mve_25tdlambda": ("steve/mve_tdlambda_humanoid_paper", "MveTdLambda", (1, 1, 1)),
    "mve_75tdlambda": ("steve/mve_75tdlambda_humanoid", "MveTdLambda", (1, 1, 1)),
    "steve": ("steve/steve_humanoid_paper", "Steve", (4, 4, 4)),
    "steve_cov": ("steve/steve_cov_humanoid_paper", "SteveCov", (4, 4, 4)),
    "steve_1h": ("steve/steve_humanoid_1h", "Steve", (4, 4, 4)),
    "steve_2h": ("steve/steve_humanoid_2h", "Steve", (4, 4, 4)),
    "steve_5h": ("steve/steve_humanoid_5h", "Steve", (4, 4, 4)),
}


@pytest.mark.parametrize("algo", TARGETS)
def test_the_released_experiments_become_the_shipped_configurations(algo):
    """But for what is written when, and the chance of exploring. Mutation: any knob, flag or priority mistaken."""
    shipped, target, members = TARGETS[algo]
    out = convert(experiment(algo, "humanoid", group="ablations"))
    made = built(out)
    values = dict(config._state.values)
    assert type(made.learners["value"].learner.target).__name__ == target and sizes(made) == members
    config.build(config.load([knobs.CONFIGS / f"{shipped}.gin"], [], {}))
    differing = {name for name in values if values[name] != config._state.values.get(name)}
    assert differing == {"Control.explore_chance", "Run.log_every", "Run.keep_every"}
    assert set(values) == set(config._state.values)
    assert made.policy.explore_chance == 0.05 and (made.run.log_every, made.run.keep_every) == (125, 625_000)


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("algo", ["ddpg", "mve_tdk", "steve"])
def test_every_task_of_the_paper_has_its_file(algo, env):
    out = convert(experiment(algo, env))
    task = {"rshum": "humanoid_run"}.get(env, env)
    assert f"include 'steve/{algo}_{task}_paper.gin'" in out.read_text()
    environment = built(out).streams.environment
    assert environment.id == ENVS[env][-1]
    assert environment.kwargs == ({"max_episode_steps": 1000} if env == "hardcore" else {})


@pytest.mark.parametrize("limit, said", [(1000, False), (2000, True), (300, True)])
def test_episodes_end_where_the_file_says(limit, said):
    """By itself the task ends after 2,000 steps, in the shipped file after 1,000. Mutation: only one of them asked."""
    out = convert(experiment("steve", "hardcore", updates={"env": {"max_frames": limit}}))
    assert built(out).streams.environment.kwargs == {"max_episode_steps": limit}
    assert ("Environment.kwargs" in out.read_text()) == said


def test_there_is_a_file_for_every_method_and_task():
    """Mutation: a shipped file renamed."""
    wanted = {f"steve/{method}_{task}_paper" for method in METHODS for task, _ in TASKS.values()}
    assert not wanted - set(knobs.shipped())


@pytest.mark.parametrize("algo", ["ddpg", "mve_tdk", "steve"])
def test_speedruns_wait_for_nothing(algo, capsys):
    path = experiment(algo, "flagrun", group="speedruns", extra=["config/core/speedrun.json"])
    made = built(convert(path))
    assert made.learners["value"].ratio is None
    if algo != "ddpg":  # DDPG has no model
        assert made.learners["model"].ratio is None and made.pretraining("model") == 0
    said = capsys.readouterr().out
    assert "log_every_n = 500 updates: without frames_per_update" in said and "which --keep_every counts" in said
    assert made.run.keep_every is None


GOLDEN = """\
# STEVE on Humanoid-v1, after steve_2h1.json of the STEVE project
include 'steve/steve_humanoid_paper.gin'

# the released code never read this and used 0; the paper used 0.05
explore_chance = 0.05
# steps: log_every_n = 500 updates
log_every = 125
# steps: backup_every_n = 2500000 updates
keep_every = 625000
# the file says 1, a slip of the released ablations; its name says what was meant
horizon = 2
"""


def test_the_text_of_one(capsys):
    path = experiment("steve_2h", "humanoid", 1, group="ablations/horizons")
    assert main(["convert", str(path)]) == 0
    assert Path("steve_2h1.gin").read_text() == GOLDEN
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "config/experiments/ablations/horizons/humanoid/steve_2h1.json: STEVE on Humanoid-v1"
    assert lines[-1] == "packtrain train steve_2h1.gin --device cuda --runtime local   trains it"
    places = [line.strip().partition(" ")[0] for line in lines[1:-1]]
    assert (
        places
        == (
            "policy_config.explore_chance rollout_len env.name output_root log_path save_model_path env.obs_dims "
            "env.action_dim agent_config.reload_every_n agent_config.full_random_n evaluator_config.count "
            "evaluator_config.batch_size policy_config.algo no GPU"
        ).split()
    )


def test_a_horizon_that_is_no_slip_stays():
    """Mutation: taking any horizon from the name."""
    experiment("steve_5h", "humanoid", updates={"policy_config": {"value_expansion": {"rollout_len": 3}}})
    out = convert("config/experiments/goodruns/humanoid/steve_5h0.json")
    assert built(out).learners["value"].learner.target.horizon == 3


def test_a_path_without_its_ending_is_read_and_said(capsys):
    convert(experiment("ensemble_mve_tdk", "humanoid"))
    said = capsys.readouterr().out
    assert "ensemble_mve_tdk.json inherits 'config/algos/mve_tdk' without .json, and could not load there" in said


def test_every_number_has_its_knob():
    """Mutation: any two of them exchanged, or one left out."""
    own = {
        "env": {"discount": 0.9, "reward_scale": 0.5, "max_frames": 300},
        "agent_config": {"count": 3, "batch_size": 5},
        "policy_config": {
            "hidden_dim": 11,
            "explore_chance": 0.25,
            "batch_size": 24,
            "replay_size": 5000,
            "frames_before_learning": 101,
            "log_every_n": 12,
            "epoch_every_n": 13,
            "backup_every_n": 44,
            "frames_per_update": 0.5,
            "bayesian": {"ensemble_size": 2, "train_sample_count": 2, "eval_sample_count": 2},
        },
        "model_config": {
            "transition_hidden_dim": 17,
            "aux_hidden_dim": 18,
            "batch_size": 30,
            "frames_before_learning": 101,
            "epoch_every_n": 20,
            "pretrain_n": 21,
            "frames_per_update": 2,
            "bayesian": {"transition": {**ENSEMBLE, "ensemble_size": 5}, "reward": {**ENSEMBLE, "ensemble_size": 6}},
        },
    }
    made = built(convert(experiment("steve", "hopper", updates=own)))
    value, model = made.learners["value"], made.learners["model"]
    assert (made.streams.num_actors, made.warm_up, made.pretraining("model")) == (15, 101, 21)
    assert (value.ratio, model.ratio) == (2.0, 0.5)
    assert (value.learner.batch_size, model.learner.batch_size) == (24, 30)
    assert made.memories["replay"].capacity == 5000
    assert (value.learner.discount, value.learner.reward_scale) == (0.9, 0.5)
    learner = value.learner
    assert (learner.target_period, learner.publish_period, learner.model_period) == (13, 13, 20)
    assert (made.policy.hidden_size, made.policy.explore_chance, sizes(made)) == (11, 0.25, (2, 5, 6))
    assert (made.policy.dynamics.hidden_size, made.policy.dynamics.aux_hidden_size) == (17, 18)
    assert (made.run.log_every, made.run.keep_every) == (6, 22)
    assert made.streams.environment.kwargs == {"max_episode_steps": 300}
    assert (learner.rows, model.learner.rows) == ("split", "split")


def test_batches_that_cannot_be_split_are_drawn_as_in_the_original():
    three = {**ENSEMBLE, "ensemble_size": 3, "train_sample_count": 3, "eval_sample_count": 3}
    updates = {"policy_config": {"bayesian": three}, "model_config": {"bayesian": {"transition": three}}}
    out = convert(experiment("steve", "hopper", updates=updates))
    made = built(out)
    assert (made.learners["value"].learner.rows, made.learners["model"].learner.rows) == ("random", "random")
    assert sizes(made) == (3, 3, 4)


@pytest.mark.parametrize(
    "updates, method, members",
    [
        ({"model_config": {"bayesian": False}}, "steve", (4, 1, 1)),
        ({"policy_config": {"bayesian": False}}, "steve", (1, 4, 4)),
        ({"model_config": {"bayesian": {"reward": False}}}, "steve", (4, 4, 1)),
    ],
)
def test_ensembles_of_some_parts_only(updates, method, members):
    made = built(convert(experiment("steve", "humanoid", updates=updates)))
    assert type(made.learners["value"].learner.target).__name__ == "Steve" and sizes(made) == members


@pytest.mark.parametrize(
    "expansion, target, trick",
    [
        ({"mean_k_return": True, "lambda_return": 0.5}, "MveMean", False),
        ({"lambda_return": 0.5}, "MveTdLambda", False),
        ({"lambda_return": 0.0}, "MveTdLambda", False),
        ({"steve_reweight": False}, "Mve", False),
        ({"steve_reweight": False, "tdk_trick": True}, "Mve", True),
        ({"steve_reweight": False, "covariances": True}, "Mve", False),
        ({"tdk_trick": True}, "Steve", True),
        ({"tdk_trick": True, "covariances": True}, "SteveCov", True),
        ({"tdk_trick": True, "mean_k_return": True}, "MveMean", True),
    ],
)
@pytest.mark.parametrize("env", ["halfcheetah", "own"])
def test_flags_have_the_priority_they_had(expansion, target, trick, env, capsys):
    """Also where there is no file of the task."""
    updates = {"policy_config": {"value_expansion": expansion}}
    write("config/envs/own.json", ["config/envs/hopper.json"], {"env": {"name": "Own-v7"}})
    out = convert(experiment("steve", env, updates=updates))
    found = built(out).learners["value"].learner.target
    assert (type(found).__name__, found.tdk_trick, found.horizon) == (target, trick, 3)
    if target == "MveTdLambda":
        assert found.trace_lambda == expansion["lambda_return"]
    said = capsys.readouterr().out
    assert ("lambda_return: mean_k_return goes before it" in said) == (
        len(expansion) == 2 and target == "MveMean" and "lambda_return" in expansion
    )
    assert ("covariances: not used without steve_reweight" in said) == (target == "Mve" and "covariances" in expansion)


@pytest.mark.parametrize(
    "updates, message",
    [
        ({"policy_config": {"value_expansion": False}}, "model_config: no target looks into the model"),
        ({"policy_config": {"value_expansion": {"rollout_len": 0}}}, "model_config: no target looks into the model"),
        ({"model_config": False}, "value_expansion: there is no model to look into"),
    ],
)
def test_without_a_model_to_look_into_it_is_ddpg(updates, message, capsys):
    out = convert(experiment("steve", "humanoid", updates=updates))
    assert message in capsys.readouterr().out
    made = built(out)
    assert made.policy.dynamics is None and made.policy.critics == 4 and list(made.learners) == ["value"]


def test_value_expansion_may_stand_outside_of_policy_config_but_not_twice(capsys):
    updates = {"value_expansion": {"rollout_len": 2, "mean_k_return": True}}
    path = experiment("ddpg", "hopper", extra=["config/core/model.json"], updates=updates)
    target = built(convert(path)).learners["value"].learner.target
    assert (type(target).__name__, target.horizon) == ("MveMean", 2)
    assert main(["convert", str(experiment("steve", "hopper", updates=updates))]) == 2
    assert "has value_expansion twice" in one_line(capsys)


def test_the_key_that_the_original_reads_wins():
    updates = {"policy_config": {"ddpg_explore_chance": 0.0}}
    out = convert(experiment("ddpg", "humanoid", updates=updates))
    assert built(out).policy.explore_chance == 0.0 and "explore_chance" not in out.read_text()


def test_the_models_learner_where_it_differs(capsys):
    own = {
        "replay_size": 9,
        "log_every_n": 8,
        "backup_every_n": 7,
        "epoch_every_n": 100,
        "frames_before_learning": 20_000,
        "keep_all_replay_buffers": True,
    }
    made = built(convert(experiment("steve", "humanoid", updates={"model_config": own})))
    assert made.warm_up == 20_000 and made.learners["value"].learner.model_period == 500
    assert made.memories["replay"].capacity == 1_000_000 and made.run.log_every == 125
    said = capsys.readouterr().out
    for name, value in own.items():
        assert f"model_config.{name} = {value}: " in said


def test_other_environments_keep_their_name(capsys):
    write("config/envs/own.json", ["config/envs/hopper.json"], {"env": {"name": "Reacher-v5", "max_frames": 50}})
    out = convert(experiment("ddpg", "own"))
    assert "# not one of the paper's tasks: the name is as it was given\nenv = 'Reacher-v5'" in out.read_text()
    environment = built(out).streams.environment
    assert (environment.id, environment.kwargs) == ("Reacher-v5", {})
    out = convert(experiment("ddpg", "own"), "--env", "my_envs:Mine-v0")
    assert built(out).streams.environment.id == "my_envs:Mine-v0"
    assert "env.max_frames = 50: my_envs:Mine-v0 has one" in capsys.readouterr().out
    out = convert(experiment("ddpg", "own"), "--env", "Humanoid-v4")
    assert "include 'steve/ddpg_humanoid_paper.gin'\n\n" in out.read_text()
    assert built(out).streams.environment.id == "Humanoid-v4"


# -- what is refused


def test_a_files_word_imports_nothing(capsys, monkeypatch, tmp_path):
    """Mutation: an environment's name taken as it is; a module in it would be imported when the run begins."""
    Path("evil_module.py").write_text("import os; os.mkdir('ran')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("evil_module:CartPole-v1", "a'\nimport evil_module\n#", "", "Häh-v1"):
        path = experiment("ddpg", "hopper", updates={"env": {"name": name}})
        assert main(["convert", str(path)]) == 2
        assert "is not the name of an environment; set it with --env" in one_line(capsys)
    assert not Path("ran").exists() and not Path("ddpg0.gin").exists()


def test_a_files_name_stays_in_its_comment():
    path = experiment("ddpg", "hopper").rename("a\nimport evil_module\n.json")
    assert built(convert(path)).streams.environment.id == "Hopper-v5"


@pytest.mark.parametrize(
    "updates, message",
    [
        ({"env": {"name": False}}, "and the files it inherits do not set env.name; name an environment with --env"),
        ({"env": False}, "and the files it inherits do not set env."),
        ({"policy_config": {"batch_size": False}}, "and the files it inherits do not set policy_config.batch_size"),
        ({"policy_config": {"epoch_every_n": 0}}, "policy_config.epoch_every_n = 0 must be at least 1"),
        ({"policy_config": {"frames_per_update": 0}}, "frames_per_update = 0 must be above 0, or false"),
        (
            {"policy_config": {"explore_chance": 2}},
            "cannot be converted: Control.explore_chance = 2.0 must lie between",
        ),
        ({"policy_config": {"value_expansion": {"rollout_len": -1}}}, "rollout_len = -1 must not be negative"),
        (
            {"policy_config": {"value_expansion": {"lambda_return": 3}}},
            "MveTdLambda.trace_lambda = 3.0 must lie between",
        ),
        ({"policy_config": {"bayesian": {"eval_sample_count": 5}}}, "= 5 must lie between 1 and ensemble_size = 4"),
        ({"model_config": {"pretrain_n": -1}}, "cannot be converted: Update.count = -1 must not be negative"),
        ({"agent_config": {"count": 0}}, "agent_config.count = 0 must be at least 1"),
    ],
)
def test_what_the_original_could_not_have_run_is_refused(capsys, updates, message):
    path = experiment("steve", "humanoid", updates=updates)
    assert main(["convert", str(path)]) == 2
    error = one_line(capsys)
    assert message in error and "steve0.json" in error and "--" not in error.replace("--env", "")
    assert not Path("steve0.gin").exists()


def test_files_of_ours_are_left_alone_and_folders_made(capsys):
    """Mutation: writing over a file."""
    path = str(experiment("ddpg", "hopper"))
    assert main(["convert", path, "--output_dir", "mine/hopper"]) == 0
    assert "packtrain train mine/hopper/ddpg0.gin --device cuda" in capsys.readouterr().out
    Path("mine/hopper/ddpg0.gin").write_text("mine")
    assert main(["convert", path, "--output_dir", "mine/hopper"]) == 2
    assert "mine/hopper/ddpg0.gin already exists" in one_line(capsys)
    assert Path("mine/hopper/ddpg0.gin").read_text() == "mine"
    Path("file").write_text("")
    for flags, message in (
        (["--out", "a.txt"], "a.txt must end in .gin"),
        (["--out", "file/a.gin"], "file/a.gin cannot be written"),
        (["--out", ""], "one of them is empty"),
        (["--out", "a.gin", "--output_dir", "b"], "give one or the other"),
        (["impala/atari"], "CONFIG and --config are for checkpoints"),
        (["--config", "a = 1"], "CONFIG and --config are for checkpoints"),
        (["--env", "a b"], "--env 'a b' is not the name of an environment"),
    ):
        assert main(["convert", path, *flags]) == 2
        assert message in one_line(capsys)
    assert main(["convert", "model.tar", "--out", "a.gin"]) == 2
    assert "a checkpoint becomes a run folder" in one_line(capsys)
    assert not list(Path().rglob(".writing*")) and not Path("a.gin").exists()


def test_what_comes_of_it_can_be_trained(capsys):
    """A converted file is a configuration like any other, its knobs flags with the help they had."""
    out = convert(experiment("mve_75tdlambda", "hopper"), "--env", "Pendulum-v1")
    small = "--num_actors 2 --warm_up 20 --pretrain 2 --total_steps 24 --batch_size 8 --model_batch_size 8"
    small += " --hidden_size 8 --model_hidden_size 8 --aux_hidden_size 8 --log_every 2"
    assert main(["train", str(out), "--output_dir", "run", *small.split()]) == 0
    assert re.search(r"finished 2\d steps", capsys.readouterr().out)
    assert knobs.read_knobs(out)["log_every"].comment == "steps between metric rows"
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["updates/value"] > 0
