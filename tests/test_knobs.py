"""Finding configurations and reading their knobs without gin."""

import subprocess
import sys

import pytest

from packtrain import knobs
from packtrain.errors import ConfigError


def write(tmp_path, text, name="c.gin"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_reads_leading_literals_with_type_and_comment(tmp_path):
    path = write(
        tmp_path, "# title\nimport packtrain.algorithms.impala\na = 1  # the a\nb = 'x # y'\nFoo.bar = 3\nc = 2\n"
    )
    found = knobs.read_knobs(path)
    assert list(found) == ["a", "b"]  # c comes after a binding
    assert (found["a"].type, found["a"].comment, found["a"].where) == (int, "the a", f"{path}:3")
    assert found["b"].default == "x # y"


def test_included_knobs_keep_comment_and_type_when_set_again(tmp_path):
    write(tmp_path, "rate = 0.5  # how fast\nsize = None  # how big; type: int\n", "base.gin")
    found = knobs.read_knobs(write(tmp_path, "include 'base.gin'\nrate = 1\nsize = 4\n"))
    assert found["rate"].type is float and found["rate"].default == 1 and found["rate"].comment == "how fast"
    assert found["size"].type is int and found["size"].parse("7") == 7


def test_none_needs_a_type(tmp_path):
    with pytest.raises(ConfigError, match="type: int"):
        knobs.read_knobs(write(tmp_path, "size = None  # how big\n"))


def test_program_flags_cannot_be_knobs(tmp_path):
    with pytest.raises(ConfigError, match="seed"):
        knobs.read_knobs(write(tmp_path, "seed = 3\n"))


@pytest.mark.parametrize(
    "default, text, want",
    [
        ("1", "7", 7),
        ("1", "1e6", 1_000_000),
        ("0.5", "3", 3.0),
        ("True", "no", False),
        ("'a'", "b", "b"),
        ("(1, 2)", "(3,)", (3,)),
    ],
)
def test_values_are_parsed_by_the_default(tmp_path, default, text, want):
    assert knobs.read_knobs(write(tmp_path, f"k = {default}\n"))["k"].parse(text) == want


@pytest.mark.parametrize("default, text", [("1", "1.5"), ("1", "x"), ("0.5", "fast"), ("True", "maybe"), ("(1,)", "3")])
def test_wrong_types_are_refused(tmp_path, default, text):
    with pytest.raises(ConfigError, match="--k"):
        knobs.read_knobs(write(tmp_path, f"k = {default}\n"))["k"].parse(text)


def test_none_can_be_typed_where_the_help_says_what_it_means(tmp_path):
    """Mutation: only where it is the default."""
    text = "a = 0.5  # how much; None: all of it; type: float\nb = 0.5  # how much\n"
    found = knobs.read_knobs(write(tmp_path, text))
    assert found["a"].parse("None") is None and found["a"].parse("0.25") == 0.25
    with pytest.raises(ConfigError, match="--b 'None' is not a number"):
        found["b"].parse("None")


def test_a_file_that_includes_itself(tmp_path):
    with pytest.raises(ConfigError, match="includes itself"):
        knobs.read_knobs(write(tmp_path, "include 'c.gin'\n"))


def test_a_missing_path_with_a_shipped_file_name_means_that_config():
    path, said = knobs.find_config("some/old/place/cartpole.gin")
    assert path == knobs.CONFIGS / "impala" / "cartpole.gin" and "impala/cartpole" in said


def test_unknown_name_gets_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'impala/catch'"):
        knobs.find_config("impala/cach")


@pytest.mark.parametrize(
    "name, config, expected",
    [
        ("total-timesteps", "ppo/gym", "total_steps"),
        ("num-envs", "ppo/gym", "num_actors"),
        ("lambda_", "ppo/gym", "trace_lambda"),
        ("gamma", "sac/gym", "discount"),
        ("net_arch", "dqn/gym", "hidden_sizes"),
        ("num_env_runners", "ppo/gym", "workers"),
    ],
)
def test_a_name_of_another_library_gets_ours(name, config, expected):
    """Mutations: hyphens that are not read as underscores; a similar spelling that goes before the same meaning."""
    known = [*knobs.read_knobs(knobs.CONFIGS / f"{config}.gin"), *knobs.PROGRAM_FLAGS]
    assert knobs.nearest(name, known) == f" (did you mean {expected!r}?)"


def test_every_name_of_another_library_leads_to_a_knob_or_a_flag():
    """Mutation: a knob renamed, and the suggestion forgotten."""
    known = {name for config in knobs.shipped() for name in knobs.read_knobs(knobs.CONFIGS / f"{config}.gin")}
    meant = {ours for names in knobs._OTHER_NAMES.values() for ours in names}
    assert meant <= known | set(knobs.PROGRAM_FLAGS)


def test_task_files_are_short():
    """One base file a family, or a few where it has branches; task files are differences, but for tables of papers."""
    for name in knobs.shipped():
        if not name.endswith(("base", "/atari_paper")):
            text = knobs.read_text(knobs.CONFIGS / f"{name}.gin")
            lines = [x for x in text.splitlines() if x.strip() and x[0] != "#"]
            assert len(lines) <= 26, name


def test_every_shipped_config_has_the_common_knobs():
    for name in knobs.shipped():
        found = knobs.read_knobs(knobs.CONFIGS / f"{name}.gin")
        if "\nStudy." not in knobs.read_text(knobs.CONFIGS / f"{name}.gin"):  # a study has no agent, no environment
            assert "total_steps" in found, name
            assert "checkpoint_secs" in found, name
            planner = "n_epochs" in found or name.startswith("tbv/")  # its environment is a class
            assert "env" in found or planner, name
        assert all(knob.comment for knob in found.values()), name


def test_list_and_help_do_not_import_torch():
    """They must answer at once. Mutation: an import of config in cli.py."""
    code = (
        "import sys; from packtrain.cli import main; main(['list']);\n"
        "try: main(['train', 'impala/catch', '--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'numpy', 'gymnasium'} & set(sys.modules), 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_comment_in_brackets_says_where_a_value_comes_from_and_keeps_what_the_knob_is(tmp_path):
    """Mutations: the comment of before is lost, and with it that None may be given; sources pile up."""
    (tmp_path / "base.gin").write_text("clip = 40.0  # of the gradient norm; None: not clipped; type: float\n")
    (tmp_path / "mine.gin").write_text("include 'base.gin'\nclip = 10.0  # [a paper]\n")
    (tmp_path / "other.gin").write_text("include 'mine.gin'\nclip = 20.0  # [another]\n")
    mine, other = (knobs.read_knobs(tmp_path / f"{name}.gin")["clip"] for name in ("mine", "other"))
    assert mine.comment == "of the gradient norm; None: not clipped [a paper]" and mine.default == 10.0
    assert other.comment == "of the gradient norm; None: not clipped [another]" and other.parse("None") is None
