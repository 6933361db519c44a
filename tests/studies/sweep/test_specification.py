"""mrunner specifications: what they may contain, what becomes of it, and that nothing else is run."""

import sys
import types

import pytest

from packtrain.errors import ConfigError
from packtrain.studies.sweep import mrunner_stub, specification

SEED_001 = """
from mrunner.helpers.specification_helper import create_experiments_helper

experiments_list = create_experiments_helper(
    experiment_name='Shooting Agent in CartPole',
    base_config={'Runner.n_envs': 5,
                 'Runner.n_epochs': 1},
    params_grid={'ShootingAgent.n_rollouts': [10, 100, 1000],
                 'ShootingAgent.rollout_time_limit': [10, 100]},
    script='python3 -m alpacka.runner --mrunner --output_dir=./out'
           ' --config_file=alpacka/configs/shooting_random_cartpole.gin',
    exclude=['.pytest_cache', 'alpacka.egg-info'],
    python_path='',
    tags=[globals()['script'][:-3]],
    with_neptune=True
)
"""
HEAD = "from mrunner.helpers.specification_helper import create_experiments_helper\n"


def written(tmp_path, text, name="spec.py"):
    path = tmp_path / name
    path.write_text(text)
    return path


def made(tmp_path, **arguments):
    given = {
        "experiment_name": "e",
        "base_config": {},
        "params_grid": {},
        "script": "python -m alpacka.runner --config_file=x.gin",
    } | arguments
    text = ", ".join(f"{name}={value!r}" for name, value in given.items())
    return specification.load(written(tmp_path, f"{HEAD}experiments_list = create_experiments_helper({text})\n"))


def test_the_specification_of_alpackas_readme(tmp_path):
    """Mutations: another order; a lost base_config; `script` without the file's name."""
    found = specification.load(written(tmp_path, SEED_001, "my_spec.py"))
    grid = [
        (one.parameters["ShootingAgent.n_rollouts"], one.parameters["ShootingAgent.rollout_time_limit"])
        for one in found
    ]
    assert grid == [(a, b) for a in (10, 100, 1000) for b in (10, 100)]
    first = found[0]
    assert first.name == "Shooting Agent in CartPole" and first.tags == ["my_spec"] and first.with_neptune
    assert first.bindings == [
        "Runner.n_envs = 5",
        "Runner.n_epochs = 1",
        "ShootingAgent.n_rollouts = 10",
        "ShootingAgent.rollout_time_limit = 10",
    ]
    assert first.words == ["--config_file=alpacka/configs/shooting_random_cartpole.gin"]
    assert first.dropped == ["--output_dir=./out"] and first.env == {}


def test_lists_of_grids_follow_each_other_and_zipped_names_go_together():
    """mrunner's order: the zipped values outside, the product of the others inside."""
    grid = {"a": [1, 2], "x___": ["p", "q"], "y___": [7, 8]}
    found = mrunner_stub.combinations([grid, {"a": [5]}, {}])
    assert found == [
        *({"x": x, "y": y, "a": a} for x, y in (("p", 7), ("q", 8)) for a in (1, 2)),
        {"a": 5},
        {},
    ]
    with pytest.raises(ConfigError, match="x___ has 2, y___ has 1"):
        mrunner_stub.combinations({"x___": [1, 2], "y___": [1]})
    for wrong in ("abc", 3, {"a": 1}):
        with pytest.raises(ConfigError, match="must be a list"):
            mrunner_stub.combinations({"a": wrong})


def test_the_grid_wins_over_the_base_and_each_experiment_has_its_own_copy(tmp_path):
    found = made(tmp_path, base_config={"A.x": 1, "A.list": [1]}, params_grid={"A.x": [2, 3]})
    assert [one.parameters["A.x"] for one in found] == [2, 3]
    assert found[0].parameters["A.list"] is not found[1].parameters["A.list"]


def test_values_become_gin(tmp_path):
    """Mutations: an empty string that crashes; a reference that is quoted; a string that is not."""
    base = {
        "A.text": "hello",
        "A.empty": "",
        "A.reference": "@alpacka.batch_steppers.LocalBatchStepper",
        "A.constant": "%ToyMRMaps.FULL_MAP",
        "A.call": "@Thing()",
        "A.tuple": "(1, @Thing)",
        "A.none": None,
        "A.list": [1, "a"],
        "alpacka.agents.ShootingAgent.n": 3,
        "imports": ["alpacka.extra", "mine.alpacka"],
    }
    (found,) = made(tmp_path, base_config=base)
    assert found.bindings == [
        "A.text = 'hello'",
        "A.empty = ''",
        "A.reference = @packtrain.batch_steppers.LocalBatchStepper",
        "A.constant = %ToyMRMaps.FULL_MAP",
        "A.call = @Thing()",
        "A.tuple = (1, @Thing)",
        "A.none = None",
        "A.list = [1, 'a']",
        "packtrain.agents.ShootingAgent.n = 3",
        "import packtrain.extra",
        "import mine.alpacka",
    ]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("python3 -m alpacka.runner --mrunner --config_file=a.gin", ["--config_file=a.gin"]),
        ("python alpacka/runner.py --config_file a.gin --output_dir out", ["--config_file", "a.gin"]),
        ("python -m packtrain.runner --config_file=a.gin --seed 3", ["--config_file=a.gin", "--seed", "3"]),
        ("python -m packtrain train impala/catch --fresh", ["impala/catch"]),
        ("packtrain train impala/catch --savedir=x --xpid y", ["impala/catch"]),
    ],
)
def test_scripts_are_understood(tmp_path, script, words):
    assert made(tmp_path, script=script)[0].words == words


def test_variables_and_folders_go_to_the_processes(tmp_path):
    found = made(
        tmp_path, script="A=1 B='x y' python -m alpacka.runner", python_path="one:two", env={"A": "0", "C": "3"}
    )[0]
    folders = found.env.pop("PYTHONPATH").split(":")
    assert found.env == {"A": "1", "B": "x y", "C": "3"}
    assert [folder.rpartition("/")[2] for folder in folders] == ["one", "two"] and folders[0].startswith("/")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("x = 1\n", "does not define `experiments_list`"),
        ("experiments_list = []\n", "at least one experiment"),
        ("experiments_list = [3]\n", "int, which is not an experiment"),
        ("x = 1\nraise ValueError('a\\nb')\n", "spec.py:2: ValueError: a$"),
        ("import sys\nsys.exit(3)\n", "spec.py:2: SystemExit: 3"),
        ("def f(:\n", "SyntaxError"),
        ("import nowhere_at_all\n", "spec.py:1: ModuleNotFoundError"),
        (HEAD + "create_experiments_helper()\n", "spec.py:2: TypeError"),
    ],
)
def test_a_wrong_specification_is_one_line(tmp_path, text, part):
    with pytest.raises(ConfigError, match=part):
        specification.load(written(tmp_path, text))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"script": "python train.py"}, "not a command that trains"),
        ({"script": "python -m 'alpacka"}, "not a command line"),
        ({"script": ""}, "not a command that trains"),
        ({"base_config": {"A.x = 1\nB.y": 3}}, "not the name of a parameter"),
        ({"base_config": {"A.x": float("nan")}}, "not a literal"),
    ],
)
def test_a_wrong_experiment_is_one_line(tmp_path, arguments, part):
    text = HEAD + "nan = float('nan')\n"
    given = {"experiment_name": "e", "base_config": {}, "params_grid": {}, "script": "packtrain train x"} | arguments
    call = ", ".join(f"{name}={value!r}" for name, value in given.items())
    with pytest.raises(ConfigError, match=part):
        specification.load(written(tmp_path, f"{text}experiments_list = create_experiments_helper({call})\n"))


def test_pickles_and_programs_of_run_folders_are_refused(tmp_path):
    """Mutation: a specification in a run folder runs."""
    (tmp_path / "spec.pkl").write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    with pytest.raises(ConfigError, match="never a pickled experiment"):
        specification.load(tmp_path / "spec.pkl")
    with pytest.raises(ConfigError, match="does not exist"):
        specification.load(tmp_path / "nowhere.py")
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").touch()
    path = written(run, f"open({str(tmp_path / 'ran')!r}, 'w')\nexperiments_list = 1\n")
    with pytest.raises(ConfigError, match="lies in a run folder"):
        specification.load(path)
    assert not (tmp_path / "ran").exists()
    with pytest.raises(ConfigError, match="experiments_list"):
        specification.load(path, trust=True)
    assert (tmp_path / "ran").exists()


def test_the_stand_in_for_mrunner_is_there_for_specifications_alone(tmp_path):
    specification.load(written(tmp_path, SEED_001))
    assert not [name for name in sys.modules if name.split(".")[0] == "mrunner"]


def test_an_installed_mrunner_is_used(tmp_path, monkeypatch):
    """Mutation: the stand-in shadows it. An installed one has attributes of its own."""
    folder = tmp_path / "site" / "mrunner" / "helpers"
    folder.mkdir(parents=True)
    for place in (folder.parent, folder):
        (place / "__init__.py").touch()
    (folder / "specification_helper.py").write_text(
        "from types import SimpleNamespace\n"
        "def create_experiments_helper(**given):\n"
        "    parts = dict(parameters={'A.installed': 1}, name='n', env={}, tags=[])\n"
        "    return [SimpleNamespace(script=given['script'], **parts)]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    try:
        (found,) = specification.load(written(tmp_path, SEED_001))
        assert found.bindings == ["A.installed = 1"]
        assert isinstance(sys.modules["mrunner"], types.ModuleType) and sys.modules["mrunner"].__file__
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "mrunner"]:
            del sys.modules[name]
