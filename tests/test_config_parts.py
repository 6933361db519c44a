"""Configurations that are put together from parts: their names and parts, and that they are what they always were."""

import hashlib
import json
import os
from pathlib import Path

import gin
import pytest

from packtrain import config, config_parts, knobs
from packtrain.cli import main

GOLDEN = Path(__file__).parent / "golden" / "composed_configs.json"
NAMES = list(config_parts.composed())


def digest(name):
    """The digest of all bindings that a configuration makes, and of its knobs with their types."""
    path, _ = knobs.find_config(name)
    config.load([path], [], {})
    lines = [
        f"{scope}/{owner}.{parameter} = {value!r}"
        for (scope, owner), values in gin.config._CONFIG.items()
        for parameter, value in values.items()
    ]
    lines += [f"{knob.name} = {knob.default!r}: {knob.type.__name__}" for knob in knobs.read_knobs(path).values()]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def test_every_name_is_what_it_was():
    """The table holds digests of all bindings. `make golden` regenerates it.

    Mutations: parts in another order; a variation of a part left out; one taken for another method.
    """
    found = {name: digest(name) for name in NAMES}
    if os.environ.get("PACKTRAIN_GOLDEN") == "write":
        GOLDEN.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")
    assert found == json.loads(GOLDEN.read_text())


def test_a_name_resolves_to_its_parts_and_says_so():
    path, said = knobs.find_config("steve/mve_mean_pendulum")
    assert not path.exists() and said == (
        "steve/mve_mean_pendulum is steve/mve_mean + steve/tasks/pendulum + steve/tasks/sac/pendulum + "
        "steve/tasks/model_base/pendulum + steve/tasks/mve_tdk/pendulum"
    )
    assert knobs.find_config("steve/steve_humanoid_2h")[1].endswith(
        " + steve/paper + steve/paper/model_base + horizon = 2"
    )
    assert knobs.headline(path) == "MVE averaged over depths on Pendulum"
    assert knobs.read_knobs(path)["env"].where == "configs/steve/tasks/pendulum.gin:2"


def test_variations_of_other_methods_and_tasks_are_left_out():
    assert config_parts.composed()["steve/ddpg_hopper_paper"].parts == (
        *("steve/ddpg.gin", "steve/tasks/hopper.gin"),
        *("steve/paper.gin", "steve/paper/ddpg.gin"),
    )
    assert "steve/paper/hardcore.gin" in config_parts.composed()["steve/steve_hardcore_paper"].parts


def test_every_part_is_used():
    """Mutation: a part that no name has and no file includes, as a misspelt one is."""
    used = {part for one in config_parts.composed().values() for part in one.parts}
    for path in knobs.CONFIGS.glob("**/*.gin"):
        found = [config_parts.INCLUDE.match(line) for line in path.read_text().splitlines()]
        used |= {match[2] for match in found if match}
    listed = {f"{name}.gin" for name in config_parts.parts() if name.count("/") > 1}
    in_files = {str(path.relative_to(knobs.CONFIGS)) for path in knobs.CONFIGS.glob("*/*/**/*.gin")}
    assert listed and listed | in_files <= used


def test_a_name_of_whole_files_sets_knobs_after_them():
    """Mutations: knobs before the parts; a TOML list that stays a list."""
    path, said = knobs.find_config("dqn/cartpole")
    known = knobs.read_knobs(path)
    assert said.startswith("dqn/cartpole is dqn/base + ") and "knobs set for it" in said
    assert known["hidden_sizes"].default == (256,) and known["env"].default == "CartPole"
    assert not config_parts.composed()["dqn/cartpole"].parts[0].startswith("steve")


def test_every_family_has_any_gymnasium_environment():
    for family in ("ppo", "sac", "td3", "ddpg", "dqn", "r2d2", "impala"):
        assert f"{family}/gym" in knobs.shipped()


def test_no_more_than_130_files():
    assert len(list(knobs.CONFIGS.glob("**/*.gin"))) <= 130


def test_no_part_is_both_a_file_and_an_entry_of_a_table():
    """Mutation: an entry for a file that exists, of which one would be ignored."""
    assert not [name for name in {*config_parts.parts(), *NAMES} if (knobs.CONFIGS / f"{name}.gin").exists()]


def test_task_configurations_evaluate():
    """Mutation: a new task without eval_every. Exceptions repeat earlier systems or are tests."""
    spared = (
        "abilities/",
        "impala/torchbeast",
        "impala/beefy",
        "dqn/marltas",
        "r2d2/marltas",
        "steve/pets_halfcheetah",
    )
    for name in knobs.shipped():
        every = knobs.read_knobs(knobs.CONFIGS / f"{name}.gin").get("eval_every")
        if every is not None and "base" not in name and not name.startswith(spared):
            assert every.default, name


def test_parts_are_no_configurations_of_their_own():
    assert {"steve/steve", "steve/steve_hopper_paper"} < set(knobs.shipped())
    parts = {"steve/paper", "steve/speedrun", "steve/tasks/hopper", "steve/tasks/pendulum"}
    assert not parts & set(knobs.shipped())
    assert "steve/tasks/hopper" in config_parts.parts() and (knobs.CONFIGS / "steve/tasks/pendulum.gin").is_file()


@pytest.mark.parametrize("name", ["tbv/bfs_hanoi", "impala/pong_lstm", "exam/ddpg", "abilities/bandit"])
def test_names_that_were_files_can_be_included_and_say_what_they_are_made_of(tmp_path, name):
    _, said = knobs.find_config(name)
    assert said.startswith(f"{name} is ")
    path = tmp_path / "mine.gin"
    path.write_text(f"include '{name}.gin'\n")
    found, whole = knobs.read_knobs(path), knobs.read_knobs(knobs.CONFIGS / f"{name}.gin")
    assert {knob: one.default for knob, one in found.items()} == {knob: one.default for knob, one in whole.items()}


@pytest.mark.parametrize("old", ["steve/steve_hopper_paper.gin", "steve/numbers/paper_model.gin"])
def test_files_include_composed_names_and_parts_that_moved(tmp_path, old):
    """Mutation: only files are included."""
    path = tmp_path / "mine.gin"
    path.write_text(f"include 'steve/steve_hopper.gin'\ninclude '{old}'\nwarm_up = 7\n")
    found = knobs.read_knobs(path)
    assert (found["env"].default, found["model_layers"].default, found["warm_up"].default) == ("Hopper-v5", 7, 7)
    assert config.build(config.load([path], [], {})).warm_up == 7


def test_the_command_line_says_what_a_name_is_made_of_once(capsys):
    assert main(["show-config", "steve/steve_ant_paper"]) == 0
    printed = capsys.readouterr()
    parts = "steve/steve + steve/tasks/ant + steve/paper + steve/paper/model_base"
    assert printed.err == f"packtrain: steve/steve_ant_paper is {parts}\n"
    assert "env = 'Ant-v5'" in printed.out


def test_a_misspelt_name_gets_the_nearest_composed_one(capsys):
    assert main(["train", "steve/steve_hoper_paper"]) == 2
    assert "did you mean 'steve/steve_hopper_paper'?" in capsys.readouterr().err
