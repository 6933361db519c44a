"""Configurations of marltas_core: the YAML that is read, every key of the four scripts, and the .gin files of them."""

import json
import sys
from pathlib import Path

import pytest

from packtrain import config, knobs
from packtrain.acting.arms import Bandit
from packtrain.cli import main
from packtrain.convert.marltas_to_gin import GONE, translate
from packtrain.convert.marltas_yaml import KEYS, SCRIPTS, choose_script, read
from packtrain.errors import ConfigError
from packtrain.runtime import preparation

EPISODIC = "intrinsic_reward.episodic_curiosity"
NOVEL = {"intrinsic_reward.enable": True}
CURIOUS = {**NOVEL, f"{EPISODIC}.enable": True}
# The tables of the specification: key → default of the CNN scripts, of the RNN scripts (– is none), another value.
NONE = "–"
SHARED = {
    "obs_shape": ([4, 84, 84], [4, 84, 84], [8]),
    "seq_len": (NONE, 16, 24),
    "n_step": (3, 3, 5),
    "gamma": (0.997, 0.997, 0.9),
    "apply_value_scaling": (False, False, True),
    "env.name": ("PongNoFrameskip-v4", "PongNoFrameskip-v4", "BreakoutNoFrameskip-v4"),
    "env.wrap_atari": (True, True, False),
    "replay_buffer.prioritized_replay": (True, True, False),
    "replay_buffer.capacity": (10_000, 10_000, 5_000),
    "replay_buffer.error_min": (0.0, 0.0, 0.1),
    "replay_buffer.error_max": (1.0, 1.0, 2.0),
    "replay_buffer.eps": (1e-4, 1e-4, 1e-3),
    "replay_buffer.alpha": (0.6, 0.6, 0.9),
    "replay_buffer.initial_beta": (0.4, 0.4, 0.5),
    "replay_buffer.max_step_beta": (100_000, 100_000, 50),
    "evaluator.eps": (0.02, 0.02, 0.01),
    "evaluator.n_eval": (3, 3, 7),
    "evaluator.custom_metric_keys": ([], [], ["score"]),
    "evaluator.custom_metric_types": ([], [], ["sum"]),
    "actor.vector_env_size": (3, 3, 5),
    "actor.window_skip": (NONE, 8, 4),
    "model.action_size": (6, 6, 4),
    "model.dueling": (True, True, False),
    "model.lstm_hidden_size": (NONE, 128, 48),
    "learner.batch_size": (64, 32, 16),
    "learner.target_sync_interval": (1000, 1000, 500),
    "learner.gpu_id": (None, None, 1),
    "learner.adam_lr": (1e-4, 1e-4, 3e-4),
    "learner.adam_eps": (1e-8, 1e-8, 1e-5),
    "learner.double_dqn": (True, True, False),
    "intrinsic_reward.enable": (False, False, True),
    "intrinsic_reward.feature_size": (64, 64, 16),
    "intrinsic_reward.predictor_train_window_size": (NONE, 5, 3),
    "intrinsic_reward.reward_ratio": (0.15, 0.15, 0.25),
    "intrinsic_reward.use_ucb": (False, False, True),
    f"{EPISODIC}.enable": (False, False, True),
    f"{EPISODIC}.L": (5.0, 5.0, 4.0),
    f"{EPISODIC}.capacity": (1000, 1000, 300),
    f"{EPISODIC}.k": (10, 10, 5),
    f"{EPISODIC}.c": (0.001, 0.001, 0.01),
    f"{EPISODIC}.xi": (0.008, 0.008, 0.01),
    f"{EPISODIC}.eps": (1e-4, 1e-4, 1e-3),
    f"{EPISODIC}.s_m": (8.0, 8.0, 2.0),
    f"{EPISODIC}.distance_moving_decay": (0.99, 0.99, 0.9),
    f"{EPISODIC}.feature_size": (32, 32, 16),
    "local_buffer_size": (10, 10, 20),
    "send_sample_interval": (10, 10, 20),
    "update_param_interval": (1, 1, 20),
    "trainer.initial_sample_size": (100, 100, 200),
    "trainer.max_global_step": (100, 100, 5000),
    "trainer.param_sync_interval": (5, 5, 7),
    "trainer.eval_interval": (100, 100, 50),
    "trainer.log_interval": (10, 10, 20),
    "trainer.snap_interval": (100, 100, 300),
    "trainer.actor_manager.init_eps_base": (0.7, 0.7, 0.5),
    "trainer.actor_manager.final_eps_base": (0.1, 0.1, 0.2),
    "trainer.actor_manager.init_alpha": (7.0, 7.0, 6.0),
    "trainer.actor_manager.final_alpha": (3.0, 3.0, 4.0),
    "trainer.actor_manager.final_eps_alpha_step": (30_000, 30_000, 10),
    "trainer.actor_manager.min_eps": (0.02, 0.02, 0.01),
}
ASYNC = {
    "actor_manager_url": ("localhost:1111", "localhost:1111", "head:1111"),
    "evaluator_url": ("localhost:2222", "localhost:2222", "head:2222"),
    "param_distributor_url": ("localhost:3333", "localhost:3333", "head:3333"),
    "replay_buffer_url": ("localhost:4444", "localhost:4444", "head:4444"),
    "n_actor_process": (3, 3, 4),
    "trainer.epsilon_greedy_eps_base": (0.7, 0.7, 0.5),
    "trainer.epsilon_greedy_alpha_base": (5.0, 5.0, 4.0),
}
SYNC = {"trainer.learner_step_per_global_step": (1, 1, 2)}
TABLES = SHARED | ASYNC | SYNC
README = """
### Example of async-rnn train's configuration ###

# URL and port of gRPC server
actor_manager_url: localhost:1111
evaluator_url: localhost:2222
param_distributor_url: localhost:3333
replay_buffer_url: localhost:4444

seq_len: 16  # Sequential length of training sample
n_actor_process: 3  # Number of actor(s) in a node
n_step: 3  # N of n-step learning algorithm
gamma: 0.997  # Discount factor

actor:
  vector_env_size: 3  # vector env size at a actor process
  window_skip: 8  # Time step interval to collect sequence sample

env:
  name: PongNoFrameskip-v4  # name of gym.make
  wrap_atari: true

evaluator:
  n_eval: 3

learner:
  adam_lr: 0.0001
  batch_size: 32
  gpu_id: 0
  target_sync_interval: 1000

model:
  action_size: 6

replay_buffer:
  capacity: 10000

trainer:  # Intervals are in the number of online network updates
  eval_interval: 10000
  initial_sample_size: 100
  log_interval: 500
  max_global_step: 150000
  param_sync_interval: 1
  snap_interval: 150000
"""
SMALL = {
    **{"num_actors": 2, "warm_up": 40, "replay_size": 400, "batch_size": 2, "dueling_size": 8, "total_steps": 60},
    "storage": "host",
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text, name="mine.yaml"):
    Path(name).write_text(text)
    return Path(name)


def as_yaml(given):
    """Places and values as a file of theirs."""
    tree = {}
    for place, value in given.items():
        *sections, name = place.split(".")
        inner = tree
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    lines = []

    def add(inner, indent):
        for name, value in inner.items():
            lines.append(
                f"{indent}{name}:"
                + (f" {json.dumps(value, ensure_ascii=False)}" if not isinstance(value, dict) else "")
            )
            if isinstance(value, dict):
                add(value, f"{indent}  ")

    add(tree, "")
    return "\n".join(lines) + "\n"


def convert(given, *flags):
    out = Path("out.gin")
    out.unlink(missing_ok=True)
    text = given if isinstance(given, str) else as_yaml(given)
    assert main(["convert", str(write(text)), "--out", str(out), *flags]) == 0
    return out


def translated(given, script):
    return translate(given, SCRIPTS[script], "mine.yaml", "mine.yaml")


def built(out):
    """The experiment that a .gin file makes; a line of it that nothing uses is an error."""
    return config.build(config.load([Path(out)], [], {}))


def lines(out):
    """The knobs and bindings of a .gin file, as text."""
    found = [line.partition(" = ")[::2] for line in Path(out).read_text().splitlines() if " = " in line]
    return {name: value for name, value in found if not name.startswith("#")}


def one_line(capsys):
    error = capsys.readouterr().err
    assert error.startswith("packtrain: error: ") and len(error.splitlines()) == 1, error
    return error


def default_of(place, script):
    return TABLES[place][SCRIPTS[script].recurrent]


def places_of(script):
    own = SHARED | (ASYNC if script.startswith("async") else SYNC)
    return [place for place in own if default_of(place, script) != NONE]


# -- reading


def test_what_is_read_of_yaml():
    text = """---
# a comment
seq_len:   24   # another
gamma: .99
"n_step": +5
apply_value_scaling: yes
obs_shape:
- 4
- 84  # as saved files have lists
- 84
'actor': {vector_env_size: 2, window_skip: 4}
env:

    name: 'PongNoFrameskip-v4'
    # deeper than usual
    wrap_atari: False
evaluator:
  custom_metric_keys: [a, 'b # c', "d, \\"e\\""]
  custom_metric_types:
    - sum
    - 'it''s'  # no reduction
    - >
      of two
      lines
learner:
  adam_lr: 1e-4
  adam_eps: 1.0e-08
  gpu_id: ~
model:
intrinsic_reward: {episodic_curiosity: {k: 3, L: 1_0}, enable: off}
replay_buffer_url: head#1:4444
"""
    assert read(write(text)) == {
        **{"seq_len": 24, "gamma": 0.99, "n_step": 5, "apply_value_scaling": True, "obs_shape": [4, 84, 84]},
        **{"actor.vector_env_size": 2, "actor.window_skip": 4, "env.name": "PongNoFrameskip-v4"},
        **{"env.wrap_atari": False, "evaluator.custom_metric_keys": ["a", "b # c", 'd, "e"']},
        "evaluator.custom_metric_types": ["sum", "it's", "of two lines\n"],
        **{"learner.adam_lr": 1e-4, "learner.adam_eps": 1e-8, "learner.gpu_id": None, f"{EPISODIC}.k": 3},
        **{f"{EPISODIC}.L": 10, "intrinsic_reward.enable": False, "replay_buffer_url": "head#1:4444"},
    }
    assert read(write("obs_shape: [1,\n  2, 3]")) == {"obs_shape": [1, 2, 3]}
    assert read(write("")) == read(write("# nothing\n\n")) == {}
    assert read(write("\ufeffgamma: 1\r\nn_step: 2\r\n")) == {"gamma": 1, "n_step": 2}


@pytest.mark.parametrize(
    "text, message",
    [
        ("gama: 1", "1: unknown key 'gama' (did you mean 'gamma'?)"),
        ("\nlearner:\n  batchsize: 3", "3: unknown key 'learner.batchsize' (did you mean 'learner.batch_size'?)"),
        ("lerner:\n  adam_lr: 3", "2: unknown key 'lerner.adam_lr' (did you mean 'learner.adam_lr'?)"),
        ("window_skip: 3", "1: unknown key 'window_skip' (did you mean 'actor.window_skip'?)"),
        (f"intrinsic_reward: {{{EPISODIC.split('.')[1]}: {{kk: 3}}}}", f"1: unknown key '{EPISODIC}.kk' (did you mean"),
        ("zzzzzz: 3", "1: unknown key 'zzzzzz'"),
        ("lerner:", "1: unknown key 'lerner' (did you mean 'learner'?)"),
        ("gamma:\n  x: 1", "2: unknown key 'gamma.x'"),
        ("learner: 3", "1: learner = 3 must be a section with keys"),
        ("learner: [a]", "1: learner = ['a'] must be a section with keys"),
        ("seq_len: sixteen", "1: seq_len = 'sixteen' must be a whole number"),
        ("seq_len: 16.5", "1: seq_len = 16.5 must be a whole number"),
        ("seq_len: true", "1: seq_len = True must be a whole number"),
        ("seq_len: 016", "1: seq_len = '016' must be a whole number"),
        ("seq_len:", "1: seq_len = None must be a whole number"),
        ("seq_len: 0", "1: seq_len = 0 must be at least 1"),
        ("learner:\n  gpu_id: -1", "2: learner.gpu_id = -1 must be at least 0"),
        ("learner:\n  gpu_id: cuda", "2: learner.gpu_id = 'cuda' must be a whole number, or null"),
        ("gamma: .inf", "1: gamma = '.inf' must be a number"),
        ("gamma: 1e400", "1: gamma = inf must be a number"),
        ("gamma: 1e300", "1: gamma = 1e+300 must be a number"),
        ("env: {wrap_atari: 1}", "1: env.wrap_atari = 1 must be true or false"),
        ("env: {name: 3}", "1: env.name = 3 must be a text"),
        ("obs_shape: [1, 2]", "1: obs_shape = [1, 2] must be a list of 1 or 3 whole numbers"),
        ("obs_shape: [[1]]", "1: obs_shape = [[1]] must be a list of 1 or 3 whole numbers"),
        ("gamma: 1\ngamma: 2", "2: 'gamma' occurs twice"),
        ("env:\n  name: a\nenv:\n  wrap_atari: no", "3: 'env' occurs twice"),
        ("env: {name: a, name: b}", "1: 'env.name' occurs twice"),
        ("gamma: 1\n  n_step: 2", "2: not YAML: mapping values are not allowed here"),
        ("  gamma: 1\nn_step: 2", "2: not YAML: expected '<document start>'"),
        ("env:\n\tname: a", r"2: not YAML: found character '\t' that cannot start any token"),
        ("gamma: !!python/object/apply:os.mkdir [ran]", "1: tags, anchors and aliases are not supported"),
        ("!!python/name:os.mkdir\ngamma: 1", "1: tags, anchors and aliases are not supported"),
        ("env: &a\n  name: b", "1: tags, anchors and aliases are not supported"),
        ("env: *a", "1: tags, anchors and aliases are not supported"),
        ("env:\n  <<: *a", "2: tags, anchors and aliases are not supported"),
        ("env: {name: a", "1: not YAML: expected ',' or '}'"),
        ("obs_shape: [1,\n  2, {a: 3}]", "2: sections in lists are not supported"),
        ("? [1]\n: 2", "1: a key must be a word of letters"),
        ("'a b': 2", "1: a key must be a word of letters, digits and _, not 'a b'"),
        ("env: {name}", "1: env.name = None must be a text"),
        ("obs_shape: [1] 2", "1: not YAML: expected <block end>, but found '<scalar>'"),
        ("env:\n  name: 'a", "2: not YAML: found unexpected end of stream"),
        ("env:\n  name: a: b", "2: not YAML: mapping values are not allowed here"),
        ("- 1\n- 2", "1: must begin with 'key: value'"),
        ("obs_shape:\n- 1\n- - 2", "1: obs_shape = [1, [2]] must be a list of 1 or 3 whole numbers"),
        (
            "gamma: 1\n---\ngamma: 2",
            "2: not YAML: expected a single document in the stream, but found",
        ),
        ("gamma", "1: must begin with 'key: value'"),
        ("obs_shape: " + "[" * 100_000, "1: nested too deeply"),
        ("".join(f"{'  ' * depth}a:\n" for depth in range(20)), "9: nested too deeply"),
        ("\n".join(f"a{n}: 1" for n in range(5_000)), "1000: more than 2,000 keys and values"),
        ("gamma: 1 # " + "x" * 2**18, " longer than 262,144 characters"),
        ("gamma: " + "9" * 10_000, "1: gamma = '999"),
        ("\x00: 1", r"1: the character '\x00' is not allowed"),
    ],
)
def test_what_is_not_read_is_one_line_with_its_number(capsys, text, message):
    assert main(["convert", str(write(text)), "--script", "async_rnn_train"]) == 2
    assert f"mine.yaml:{message}" in one_line(capsys)
    assert not Path("mine.gin").exists() and not Path("ran").exists()


def test_a_bomb_of_aliases_is_refused_at_its_first_anchor(capsys):
    """Mutation: anchors read, and lists of lists multiplied."""
    bomb = "a: &a [1, 2]\n" + "".join(f"{chr(n + 1)}: &{chr(n + 1)} [*{chr(n)}, *{chr(n)}]\n" for n in range(97, 120))
    assert main(["convert", str(write(bomb)), "--script", "async_rnn_train"]) == 2
    assert "mine.yaml:1: tags, anchors and aliases are not supported" in one_line(capsys)


def test_without_pyyaml_the_extra_is_named(capsys, monkeypatch):
    """Mutation: PyYAML imported at the top of a module."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert main(["convert", str(write(README))]) == 2
    assert "pip install 'packtrain[convert]'" in one_line(capsys)


def test_files_that_cannot_be_read(capsys):
    Path("folder.yaml").mkdir()
    Path("bytes.yaml").write_bytes(b"gamma: \xff")
    for name in ("nowhere.yaml", "folder.yaml", "bytes.yaml", "\0.yaml"):
        assert main(["convert", name]) == 2
        assert "cannot be read: " in one_line(capsys)


# -- which script


@pytest.mark.parametrize(
    "given, asked, name",
    [
        ({"seq_len": 16, "n_actor_process": 3}, None, "async_rnn_train"),
        ({"actor.window_skip": 8, "replay_buffer_url": "a:1"}, None, "async_rnn_train"),
        ({"model.lstm_hidden_size": 8, "trainer.learner_step_per_global_step": 1}, None, "sync_rnn_train"),
        ({"trainer.epsilon_greedy_eps_base": 0.7}, "async_cnn", "async_cnn_train"),
        ({}, "bin/sync_cnn_train.py", "sync_cnn_train"),
        ({"seq_len": 16}, "sync_rnn_train", "sync_rnn_train"),
        ({"local_buffer_size": 10}, "sync_rnn_train", "sync_rnn_train"),
    ],
)
def test_keys_say_which_script_it_was(given, asked, name):
    assert choose_script(given, asked, "mine.yaml").name == name


@pytest.mark.parametrize(
    "given, asked, message",
    [
        (
            {},
            None,
            "shows which script it belongs to: --script async_rnn_train or --script async_cnn_train",
        ),
        ({"seq_len": 16}, None, "it belongs to: --script async_rnn_train or --script sync_rnn_train"),
        ({"n_actor_process": 2}, None, "it belongs to: --script async_rnn_train or --script async_cnn_train"),
        ({"seq_len": 16}, "async_cnn", "mine.yaml: seq_len is not a key of async_cnn_train, only of the rnn scripts"),
        ({"evaluator_url": "a"}, "sync_cnn", "evaluator_url is not a key of sync_cnn_train, only of the async scripts"),
        (
            {"n_actor_process": 2, "trainer.learner_step_per_global_step": 1},
            "sync_rnn",
            "n_actor_process is a key of the async scripts and trainer.learner_step_per_global_step one of the sync",
        ),
        (
            {},
            "async_rnn_trian",
            "is not one of async_rnn_train, async_cnn_train, sync_rnn_train, sync_cnn_train (did you",
        ),
    ],
)
def test_what_no_script_had_is_refused(given, asked, message):
    with pytest.raises(ConfigError) as error:
        choose_script(given, asked, "mine.yaml")
    assert message in str(error.value)


# -- every key


def test_the_keys_are_those_of_the_specification_with_their_defaults():
    """Mutation: a key left out, or another default."""
    assert set(KEYS) == set(TABLES) and len(TABLES) == 68
    for place, (feed_forward, recurrent, _) in TABLES.items():
        key = KEYS[place]
        assert key.default == recurrent
        if feed_forward == NONE:
            assert key.only == "rnn"
        else:
            assert (key.default if key.feed_forward is None else key.feed_forward) == feed_forward
            assert key.only == ("async" if place in ASYNC else "sync" if place in SYNC else "")


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_key_becomes_a_line_that_names_it_or_is_spoken_of(script):
    """Mutation: a key that is accepted and ignored."""
    for place in places_of(script):
        needed = CURIOUS if place.startswith(EPISODIC) else NOVEL if place.startswith("intrinsic_reward") else {}
        before = {key: value for key, value in needed.items() if key != place}
        one, other = (translated({**before, place: v}, script) for v in (default_of(place, script), TABLES[place][2]))
        changed = one.text() != other.text()
        named = any(place in comment for comment in other.comments.values()) and place in other.text()
        spoken = [
            remark for remark in other.remarks if place in remark and remark not in translated(before, script).remarks
        ]
        assert (changed and named) or spoken or (changed and place.endswith(".enable")), place
        assert (place in GONE) == (not changed) or place in ("learner.gpu_id", "env.wrap_atari"), place
    assert translated(NOVEL, script).include == "ngu/atari.gin"


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_file_of_nothing_but_defaults_is_our_counterpart(script):
    """Our four files hold the scripts' numbers. How long runs are, and what is written when, differs."""
    given = {place: default_of(place, script) for place in places_of(script)}
    found = translated(given, script)
    assert found.include == SCRIPTS[script].counterpart and not found.bindings and not found.defaults
    lengths = {"total_steps", "log_every", "eval_every", "keep_every"}
    assert set(found.values) - {"warm_up"} == lengths
    columns = 9 if script.startswith("async") else 3
    warm_up = 800 + 8 * columns if SCRIPTS[script].recurrent else 100  # a sequence every 8 steps, the first after 16
    there = 872 if script == "async_rnn_train" else 100  # what our file says
    assert found.values.get("warm_up", there) == warm_up
    assert found.values["total_steps"] == 100 * columns + warm_up and found.values["log_every"] == 10 * columns
    assert translated({}, script).values == {}


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("extra", [{}, NOVEL, CURIOUS, {**CURIOUS, "intrinsic_reward.use_ucb": True}])
@pytest.mark.parametrize("env", [{}, {"env.name": "CartPole-v1", "env.wrap_atari": False, "obs_shape": [4]}])
def test_every_key_at_once_builds(script, extra, env):
    """Mutation: a line that nothing uses, as an embedding's size without an embedding."""
    given = {
        place: TABLES[place][2] for place in places_of(script) if place.partition(".")[0] not in ("env", "obs_shape")
    }
    given = {place: value for place, value in given.items() if not place.startswith("intrinsic_reward")}
    made = built(convert({**given, **env, **extra}, "--script", script))
    learning, memory = made.learners["values"].learner, made.memories["replay"]
    recurrent = SCRIPTS[script].recurrent
    assert (learning.discount, learning.n_step, learning.double, memory.batch_size) == (0.9, 5, False, 16)
    assert (learning.learning_rate, learning.adam_epsilon, learning.target_period) == (3e-4, 1e-5, 500)
    assert (learning.returns, learning.grad_norm_clipping, learning.huber) == ("n_step", None, None)
    assert learning.reward_clipping == ("none" if env else "abs_one")
    assert (memory.sequence_length, memory.stride, memory.burn_in) == ((24, 4, 0) if recurrent else (1, 1, 0))
    assert memory.capacity == (20_000 if recurrent else 5_000) and memory.priority_exponent == 0.0
    assert (memory.importance_exponent, memory.importance_exponent_end, memory.importance_steps) == (0.5, 1.0, 50)
    epsilons, network = made.policy.epsilons, made.policy.network
    assert (epsilons.base, epsilons.base_end, epsilons.alpha, epsilons.alpha_end) == (0.5, 0.2, 6.0, 4.0)
    assert (epsilons.least, epsilons.evaluation, made.policy.rescaling) == (0.01, 0.01, 0.001)
    assert network.recurrent == recurrent and network.dueling_size is None
    assert not (network.use_last_action or network.use_last_reward or network.use_last_intrinsic)
    assert network.separate_intrinsic == bool(extra) and network.lstm_size == (48 if recurrent else 512)
    assert network.hidden_sizes == ((32, 48 if recurrent else 64) if env else None)
    is_async = script.startswith("async")
    columns, updates = (20, 1) if is_async else (5, 2)
    warm_up = 200 * 4 + columns * 20 if recurrent else 200
    assert made.streams.num_actors == columns and made.warm_up == warm_up
    assert made.learners["values"].ratio == (None if is_async else 0.4)
    assert learning.publish_period == 7 * updates and epsilons.updates == 10 * updates
    assert made.run.total_steps == 5000 * columns + warm_up and made.run.log_every == 20 * columns
    assert made.run.keep_every == 300 * columns
    assert (made.evaluation.every, made.evaluation.num_episodes) == (50 * columns, 7)
    novelty, arms = made.policy.novelty, made.policy.arms
    assert (novelty is not None) == bool(extra)
    if novelty is not None:
        assert (novelty.embedding is not None) == (extra != NOVEL)
        assert novelty.embedding is None or learning.embedding_learning_rate == 3e-4
        assert novelty.distillation.representation == 64 and learning.distillation_learning_rate == 3e-4
        assert novelty.distillation.target_sizes == novelty.distillation.predictor_sizes == ((32, 64) if env else ())
        assert learning.novelty_steps == (5 if recurrent else 1)
        assert (arms is None) == ("intrinsic_reward.use_ucb" not in extra) and network.arms == (
            arms.count if arms else 0
        )
        if arms is None:
            assert made.policy.novelty_weight == 0.15
        else:
            assert (arms.count, arms.largest_weight, arms.discounts) == (32, 0.3, "one")
            assert arms.bandit == Bandit(window=520, rule="ucb1_tuned", explore=0.1)


def test_the_numbers_of_novelty_have_their_knobs():
    given = {place: TABLES[place][2] for place in KEYS if place.startswith("intrinsic_reward")}
    made = built(convert({**given, "intrinsic_reward.use_ucb": False, "n_actor_process": 2}))
    novelty = made.policy.novelty
    assert (novelty.memory, novelty.neighbours, novelty.decay, novelty.epsilon) == (300, 5, 0.9, 1e-3)
    assert (novelty.cluster_distance, novelty.pseudo_count, novelty.most_similar) == (0.01, 0.01, 2.0)
    assert (novelty.largest, novelty.embedding.size, novelty.distillation.representation) == (4.0, 16, 16)
    assert made.policy.novelty_weight == 0.25 and made.learners["values"].learner.novelty_steps == 3


# -- what comes of it


def test_the_example_of_the_readme(capsys):
    """Its section of the replay does not turn priorities off. Mutation: other defaults for a section that is begun."""
    out = convert(README)
    assert lines(out) == {
        **{"total_steps": "1350872", "publish_period": "1", "log_every": "4500", "eval_every": "90000"},
        "keep_every": "1350000",
    }
    text = out.read_text()
    assert text.startswith("# R2D2 on PongNoFrameskip-v4, after mine.yaml of marltas_core (async_rnn_train)\n")
    assert "include 'r2d2/marltas_async.gin'" in text
    assert "# trainer.eval_interval = 10000, times 9 games; a guess\neval_every = 90000\n" in text
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == "packtrain train out.gin --device cuda:0   trains it"
    for place in (place for place in GONE if f"{place.rpartition('.')[2]}:" in README):
        assert f"{place} = " in said
    assert "learner.gpu_id = 0: --device cuda:0" in said and "a guess: 9 steps" in said
    assert "replay_buffer: prioritised, as by default" in said
    made = built(out)
    assert made.memories["replay"].priority_exponent == 0.6 and made.learners["values"].learner.publish_period == 1
    assert knobs.read_knobs(out)["eval_every"].comment == "steps between greedy evaluations; 0: none"


def test_uniform_replay_where_it_was_asked_for_and_nowhere_else(capsys):
    """Mutation: prioritized_replay false where a section of the replay does not say it."""
    given = {"seq_len": 16, "n_actor_process": 3, "replay_buffer.alpha": 0.9}
    assert lines(convert(given))["priority_exponent"] == "0.9"
    assert "prioritised, as by default" in capsys.readouterr().out
    out = convert({**given, "replay_buffer.prioritized_replay": False})
    assert lines(out)["priority_exponent"] == "0.0" and "as by default" not in capsys.readouterr().out


VECTOR = {"obs_shape": [4], "env.name": "CartPole-v1", "env.wrap_atari": False}
CASES = {
    "readme": (README, (), {}),
    "cnn on Atari": ({"learner.batch_size": 16}, ("--script", "async_cnn"), {}),
    "sync rnn on vectors": ({**VECTOR, "seq_len": 8}, ("--script", "sync_rnn"), {}),
    "ngu on Atari": ({**CURIOUS, f"{EPISODIC}.capacity": 20, "seq_len": 8, "n_actor_process": 2}, (), {}),
    "rnd on vectors": ({**VECTOR, **NOVEL}, ("--script", "async_cnn"), {}),
    "another environment": (README, ("--env", "CartPole-v1"), {"hidden_sizes": (8,)}),
}


@pytest.mark.parametrize("case", CASES)
def test_what_comes_of_it_is_prepared_like_any_other(case):
    """Mutation: a network that does not fit what the environment shows."""
    given, flags, values = CASES[case]
    out = convert(given, *flags)
    small = SMALL | values | ({"novelty_memory": 20} if "ngu" in case else {})
    small |= {"lstm_size": 8} if "cnn" not in out.read_text() else {}
    _, made, spec = preparation.prepare([out], [], small, 0, True)
    atari = "CartPole" not in out.read_text()
    assert spec.obs.shape == ((84, 84) if atari else (4,))
    assert made.policy.network.build(spec).context == (3 if atari else 0)


def test_a_sync_run_makes_as_many_updates_as_it_did(capsys):
    """Mutation: steps for updates, or the warm-up counted among them."""
    given = {
        **VECTOR,
        **{"seq_len": 4, "actor.window_skip": 2, "n_step": 2, "actor.vector_env_size": 2, "model.lstm_hidden_size": 8},
        **{"learner.batch_size": 4, "trainer.learner_step_per_global_step": 2, "trainer.initial_sample_size": 20},
        **{"trainer.max_global_step": 15, "trainer.log_interval": 37, "replay_buffer.capacity": 200},
    }
    out = convert(given)
    assert lines(out)["warm_up"] == "44"  # 10 sequences of each game: 4 + 9 · 2 steps
    assert main(["train", str(out), "--output_dir", "run", "--runtime", "serial"]) == 0
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 44 + 15 * 2 and rows[-1]["updates/values"] == 15 * 2


@pytest.mark.parametrize(
    "given, flags, message",
    [
        ({"env.wrap_atari": False}, (), "env.wrap_atari = false: Atari games are always wrapped here"),
        ({"env.name": "CartPole-v1", "env.wrap_atari": True}, (), "wrap_atari = true: CartPole-v1 is no Atari game"),
        ({"intrinsic_reward.use_ucb": True}, (), "use_ucb = true: not used without intrinsic_reward.enable"),
        ({f"{EPISODIC}.k": 3}, (), f"{EPISODIC}.k = 3: not used without intrinsic_reward.enable"),
        ({**NOVEL, f"{EPISODIC}.k": 3}, (), f"{EPISODIC}.k = 3: not used without {EPISODIC}.enable"),
        (
            {**NOVEL, "intrinsic_reward.use_ucb": True, "intrinsic_reward.reward_ratio": 0.2},
            (),
            "reward_ratio = 0.2: not used with intrinsic_reward.use_ucb",
        ),
        ({**NOVEL, "intrinsic_reward.use_ucb": True}, (), "here networks get the arm as input"),
        ({"learner.gpu_id": None}, (), "learner.gpu_id = null: --device cpu, the default"),
        ({}, (), "trainer.max_global_step is not said: 100 there, to try it out; --total_steps 1000000 here"),
    ],
)
def test_remarks(capsys, given, flags, message):
    convert(given, "--script", "async_rnn", *flags)
    assert message in capsys.readouterr().out


# -- what is refused


def test_a_files_word_imports_nothing(capsys, monkeypatch, tmp_path):
    """Mutation: an environment's name taken as it is; a module in it would be imported when the run begins."""
    Path("evil_module.py").write_text("import os; os.mkdir('ran')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("evil_module:CartPole-v1", "a'", "", "Häh-v1"):
        assert main(["convert", str(write(as_yaml({"env.name": name}))), "--script", "async_rnn"]) == 2
        assert "is not the name of an environment; set it with --env" in one_line(capsys)
    assert not Path("ran").exists() and not Path("mine.gin").exists()
    out = convert({}, "--script", "async_rnn", "--env", "my_envs:Mine-v0")
    assert built(out).streams.environment.id == "my_envs:Mine-v0" and "# --env\nenv = " in out.read_text()


def test_a_files_name_stays_in_its_comment():
    path = write("n_step: 2\n", "a\nimport evil_module\n.yaml")
    assert main(["convert", str(path), "--script", "sync_cnn", "--out", "out.gin"]) == 0
    assert built("out.gin").streams.num_actors == 3


@pytest.mark.parametrize(
    "given, message",
    [
        ({"gamma": 2}, "QLearning.discount = 2 must lie between 0 and 1"),
        ({"actor.window_skip": 20}, "Sequences.stride = 20 is more than Sequences.sequence_length = 16"),
        ({"replay_buffer.capacity": 3}, "Sequences.capacity = 24 is less than a batch"),
        ({**CURIOUS, f"{EPISODIC}.k": 2000}, "Novelty.neighbours = 2000 must lie between 1 and memory = 1000"),
    ],
)
def test_what_cannot_be_built_is_not_written(capsys, given, message):
    assert main(["convert", str(write(as_yaml(given))), "--script", "async_rnn"]) == 2
    error = one_line(capsys)
    assert f"mine.yaml cannot be converted: {message}" in error and "; set in" not in error
    assert not Path("mine.gin").exists()


def test_files_of_ours_are_left_alone_and_flags_checked(capsys):
    """Mutation: writing over a file."""
    path = str(write(README, "mine.yml"))
    assert main(["convert", path, "--output_dir", "mine/pong"]) == 0
    assert "packtrain train mine/pong/mine.gin --device cuda:0" in capsys.readouterr().out
    Path("mine/pong/mine.gin").write_text("mine")
    assert main(["convert", path, "--output_dir", "mine/pong"]) == 2
    assert "mine/pong/mine.gin already exists" in one_line(capsys)
    assert Path("mine/pong/mine.gin").read_text() == "mine"
    Path("file").write_text("")
    for flags, message in (
        (["--out", "a.txt"], "a.txt must end in .gin"),
        (["--out", "file/a.gin"], "file/a.gin cannot be written"),
        (["--out", "a.gin", "--output_dir", "b"], "give one or the other"),
        (["r2d2/atari"], "CONFIG or --config, which apply to checkpoints"),
        (["--env", "a b"], "--env 'a b' is not the name of an environment"),
    ):
        assert main(["convert", path, *flags]) == 2
        assert message in one_line(capsys)
    for other in ("a.json", "model.tar"):
        assert main(["convert", other, "--script", "async_rnn"]) == 2
        assert f"--script is for .yaml files of marltas_core, and {other} is not one" in one_line(capsys)
    assert not list(Path().rglob(".writing*")) and not Path("a.gin").exists()
