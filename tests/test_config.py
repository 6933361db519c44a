"""gin behind one door: types, places, unused bindings, hashing."""

from dataclasses import dataclass
from typing import Literal

import pytest

from packtrain import config, config_parts, knobs
from packtrain.errors import ConfigError

CATCH = knobs.CONFIGS / "impala" / "catch.gin"


@config.configurable
@dataclass(frozen=True)
class Sample:
    number: int = 1
    rate: float = 0.5
    kind: Literal["a", "b"] = "a"
    sizes: tuple[int, ...] = (1,)
    ranges: tuple[tuple[int, float | None], ...] = ()
    maybe: int | None = None


def load(*bindings, **values):
    configuration = config.load([CATCH], list(bindings), values)
    return configuration, config.build(configuration)


@pytest.mark.parametrize("ranges", [((0, 1.5, 2),), ((0.5, 1.0),), ((0, "low"),), (0, 1.5)])
def test_each_place_of_a_short_tuple_has_its_type(ranges):
    """Mutation: the type of the first place for all, which refuses a number after a whole number."""
    assert Sample(ranges=((0, 1.5), (2, None))).ranges[1] == (2, None)
    with pytest.raises(ConfigError, match="Sample.ranges = .* is not a tuple"):
        Sample(ranges=ranges)


def representatives():
    """All configurations with a file of their own, and composed ones that together have every method, task and part.

    What the other composed names bind is compared with a table in test_config_parts.
    """
    composed, covered = config_parts.composed(), set()
    names = [name for name in knobs.shipped() if name not in composed]
    for name, found in composed.items():
        pairs = {(part, name.startswith("steve/ddpg")) for part in found.parts}
        if pairs - covered or found.knobs:
            covered |= pairs
            names.append(name)
    return names


@pytest.mark.parametrize("name", representatives())
def test_every_shipped_config_builds_with_nothing_unused(name):
    configuration = config.load([knobs.CONFIGS / f"{name}.gin"], [], {})
    experiment = config.build(configuration)
    if name != "tbv/base":  # which has no planner yet: its two branches read its knobs
        assert not _unused_shipped_knobs(name)
    if configuration.root == "Study":  # which has no environments
        assert callable(experiment.experiment.fill)
    else:
        assert experiment.streams.environment.probe().action is not None


def _unused_shipped_knobs(name):
    found = knobs.read_knobs(knobs.CONFIGS / f"{name}.gin")
    return set(found) - set(config._operative())


def test_bindings_win_over_files_and_knobs_over_bindings():
    _, experiment = load("entropy_cost = 0.5", "Impala.baseline_cost = 0.25", entropy_cost=0.75)
    impala = experiment.learners["impala"].learner
    assert (impala.entropy_cost, impala.baseline_cost) == (0.75, 0.25)


@pytest.mark.parametrize(
    "binding, message",
    [
        ("Impala.entropy_cost = 'high'", "Impala.entropy_cost = 'high' is not a number; set in --config"),
        ("entropy_cost = 'high'", "as entropy_cost"),
        ("Impala.reduction = 'median'", "is not one of 'sum', 'mean'"),
        ("Unrolls.batch_size = 2.5", "is not a whole number"),
        ("ActorCritic.use_lstm = 1", "is not True or False"),
        ("Impala.entropy_cots = 0.1", "Impala has no parameter 'entropy_cots' (did you mean 'entropy_cost'?)"),
        ("Imapla.entropy_cost = 0.1", "nothing is called 'Imapla' (did you mean 'Impala'?)"),
        ("Streams.environment = @Enviroment()", "nothing is called 'Enviroment' (did you mean 'Environment'?)"),
        ("entropy_cots = 0.1", "entropy_cots is set but not used"),
        ("Sample.number = 3", "Sample.number is set but not used"),
        ("Impala.entropy_cost = ", "syntax error"),
        ("Impala.learning_rate = 0", "Impala.learning_rate = 0 must be above 0"),
        ("Experiment.seed = -1", "must not be negative"),
    ],
)
def test_bad_bindings_are_one_clear_line(binding, message):
    with pytest.raises(ConfigError) as caught:
        load(binding)
    text = str(caught.value)
    assert message in text and "\n" not in text


@pytest.mark.parametrize(
    "binding, values, message",
    [
        ("LearnerUse.ratio = 3.0", {}, "there is model/LearnerUse.ratio, value/LearnerUse.ratio; set in --config"),
        ("other/LearnerUse.ratio = 3.0", {}, "LearnerUse.ratio is set but not used"),
        ("other/Environment.id = 'CartPole-v1'", {}, "not used in this configuration; set in --config"),
        ("value/LearnerUse.ratio = -3.0", {}, "ratio = -3.0 must be above 0, or None; set in --config 'value/Lea"),
        (None, {"updates_per_step": -1.0}, "ratio = -1.0 must be above 0, or None; set in --updates_per_step"),
        (None, {"model_updates_per_step": -1.0}, "or None; set in --model_updates_per_step"),
    ],
)
def test_scopes_are_distinguished(binding, values, message):
    """Mutations: the last of all scopes named; a setting that scopes override taken for used."""
    bindings = [] if binding is None else [binding]
    with pytest.raises(ConfigError) as caught:
        config.build(config.load([knobs.CONFIGS / "steve" / "steve_pendulum.gin"], bindings, values))
    assert message in str(caught.value)
    experiment = config.build(
        config.load([knobs.CONFIGS / "steve" / "steve_pendulum.gin"], ["value/LearnerUse.ratio = 3.0"], {})
    )
    assert experiment.learners["value"].ratio == 3.0 != experiment.learners["model"].ratio


def test_type_errors_say_which_line_of_which_file(tmp_path):
    path = tmp_path / "mine.gin"
    path.write_text("include 'impala/catch.gin'\n\n\nImpala.discounting = 'long'\n")
    with pytest.raises(ConfigError, match=f"set in {path}:4"):
        config.build(config.load([path], [], {}))


def test_syntax_errors_say_which_line_of_which_file(tmp_path):
    path = tmp_path / "mine.gin"
    path.write_text("include 'impala/catch.gin'\nImpala.discounting = (1,\n")
    with pytest.raises(ConfigError, match=rf"{path}:\d+: syntax error"):
        config.load([path], [], {})


def test_the_written_configuration_gives_the_same_one(tmp_path):
    """Every default is written out, so that a later release with other defaults still runs it. Also with knobs."""
    before, _ = load("Impala.c_bar = 0.9", total_steps=777)
    text = before.text()
    assert "Impala.rho_bar = 1.0" in text and "total_steps = 777  # environment steps" in text
    path = tmp_path / "config.gin"
    path.write_text(text)
    after = config.load([path], [], {})
    config.build(after)
    assert after.values == before.values and after.hash() == before.hash()
    assert after.text().splitlines()[1:] == text.splitlines()[1:]
    assert knobs.read_knobs(path)["num_buffers"].type is int


def test_hash_leaves_out_what_may_change():
    base = load()[0].hash()
    assert load(total_steps=5, log_every=7, checkpoint_secs=1.0, eval_every=3)[0].hash() == base
    assert load(entropy_cost=0.5)[0].hash() != base
    assert load("Experiment.seed = 1")[0].hash() != base


def test_difference_names_both_values():
    before = load()[0].identity()
    assert load(entropy_cost=0.5)[0].difference(before) == ["Impala.entropy_cost: 0.01 → 0.5"]


def test_a_new_parameter_at_its_default_is_no_difference():
    """A checkpoint of an earlier release goes on. Mutation: comparing all names."""
    before = load()[0].identity()
    del before["Impala.trace_lambda"]
    assert load()[0].difference(before) == []
    assert load("Impala.trace_lambda = 0.5")[0].difference(before) == ["Impala.trace_lambda: absent → 0.5"]
    assert load("Impala.trace_lambda = 1.0")[0].difference(before) == []  # shipped files set defaults too


@pytest.mark.parametrize(
    "line",
    [
        "import os",
        "from os import path",
        "import packtrain_evil",
        "from __gin__ import dynamic_registration",
        "import tests.evil",
    ],
)
def test_an_untrusted_file_may_import_nothing_else(tmp_path, line):
    """X3. Mutation: importing before checking."""
    path = tmp_path / "config.gin"
    path.write_text(f"{line}\ninclude 'impala/catch.gin'\n")
    with pytest.raises(ConfigError, match="--trust-config"):
        config.load([path], [], {})


def test_an_untrusted_file_may_not_name_code_through_the_environment(tmp_path):
    path = tmp_path / "config.gin"
    path.write_text("include 'impala/catch.gin'\nenv = 'evil_module:Evil-v0'\n")
    with pytest.raises(ConfigError, match="--trust-config"):
        config.build(config.load([path], [], {}))


def test_a_trusted_file_may_import_the_users_module(tmp_path, monkeypatch):
    (tmp_path / "my_module_for_test.py").write_text("LOADED = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "mine.gin"
    path.write_text("import my_module_for_test\ninclude 'impala/catch.gin'\n")
    assert "my_module_for_test" in config.load([path], [], {}).imports


def run_folder(tmp_path):
    """A run folder with a config.gin, other.gin and a configuration of the user's own beside it."""
    run = tmp_path / "run"
    run.mkdir()
    for path in (run / "config.gin", run / "other.gin", tmp_path / "mine.gin"):
        path.write_text("include 'impala/catch.gin'\n")
    return run


@pytest.mark.parametrize("part", ["config.gin", "other.gin", "seed_0/deep.gin", "../run/other.gin"])
def test_every_file_of_a_run_folder_is_foreign(tmp_path, part):
    run = run_folder(tmp_path)
    (run / "seed_0").mkdir()
    (run / "seed_0/deep.gin").write_text("include 'impala/catch.gin'\n")
    assert config.is_foreign(run / part)
    assert not config.is_foreign(tmp_path / "mine.gin")
    assert not config.is_foreign(run / "../mine.gin") and not config.is_foreign(CATCH)


def test_a_lone_config_gin_and_a_copy_of_one_are_foreign(tmp_path):
    (tmp_path / "config.gin").write_text("include 'impala/catch.gin'\n")
    assert config.is_foreign(tmp_path / "config.gin")
    (tmp_path / "config.gin").rename(tmp_path / "mine.gin")
    assert not config.is_foreign(tmp_path / "mine.gin")
    (tmp_path / "mine.gin").write_text(load()[0].text())
    assert config.is_foreign(tmp_path / "mine.gin")


def test_a_configuration_beside_checkpoints_is_foreign(tmp_path):
    (tmp_path / "mine.gin").write_text("include 'impala/catch.gin'\n")
    (tmp_path / "checkpoints").mkdir()  # those of another tool, say
    assert not config.is_foreign(tmp_path / "mine.gin")
    (tmp_path / "checkpoints/5").mkdir()
    (tmp_path / "checkpoints/5/manifest.json").write_text("{}")
    assert config.is_foreign(tmp_path / "mine.gin")


def test_trust_follows_links_in_both_directions(tmp_path):
    run = run_folder(tmp_path)
    (tmp_path / "link.gin").symlink_to(run / "other.gin")
    (run / "out.gin").symlink_to(tmp_path / "mine.gin")
    assert config.is_foreign(tmp_path / "link.gin") and config.is_foreign(run / "out.gin")


def test_modules_that_moved_are_imported_by_their_old_name_too(tmp_path):
    """Mutation: no table of moved modules."""
    path = tmp_path / "mine.gin"
    path.write_text("import packtrain.alpacka_runner\ninclude 'impala/catch.gin'\n")
    assert config.load([path], [], {}).imports[0] == "packtrain.alpacka_runner"


def test_a_foreign_file_that_mine_includes_may_not_import(tmp_path):
    run = run_folder(tmp_path)
    (run / "other.gin").write_text("import evil_module_for_test\n")
    (tmp_path / "mine.gin").write_text(f"include '{run / 'other.gin'}'\ninclude 'impala/catch.gin'\n")
    with pytest.raises(ConfigError, match="evil_module_for_test.*--trust-config"):
        config.load([tmp_path / "mine.gin"], [], {})
    with pytest.raises(ConfigError, match="evil_module_for_test.*failed"):
        config.load([tmp_path / "mine.gin"], [], {}, trust_config=True)


def test_a_knob_that_was_set_to_none_reads_back_from_the_run_folder(tmp_path):
    """Its type stands in the comment. Mutation: the type of knobs alone whose default is None."""
    file = knobs.find_config("r2d2/atari")[0]
    before = config.load([file], [], {"updates_per_step": None, "slack": None})
    config.build(before)
    (tmp_path / "mine.gin").write_text(before.text())
    found = knobs.read_knobs(tmp_path / "mine.gin")
    assert found["updates_per_step"].default is None and found["updates_per_step"].type is float
