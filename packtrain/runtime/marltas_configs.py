"""Configurations of marltas_core (YAML) as configurations of ours (gin): read, translated, written.

A file of theirs says what differs from the defaults of one of four scripts. It is merged onto them key by key; there a
section that was begun lost the script's other values, and prioritised replay with them. What a file does not say is
left to our counterpart of its script. Of YAML only what such files need is read; nothing in a file is run.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packtrain import config, knobs
from packtrain.envs.atari import is_atari
from packtrain.errors import ConfigError
from packtrain.files import read_text, write_whole
from packtrain.runtime.plain_yaml import PlainYaml, short

WHOLE, NUMBER, FLAG, TEXT = "a whole number", "a number", "true or false", "a text"
GPU, SHAPE, TEXTS = "a whole number, or null", "a list of 1 or 3 whole numbers", "a list of texts"


@dataclass(frozen=True)
class Key:
    """One key: what its value must be, and what it is where a file does not say it."""

    kind: str
    default: Any
    feed_forward: Any = None  # the default of the CNN scripts; None: the same
    only: str = ""  # rnn, async, sync: the scripts that have it; empty: all
    least: int = 1  # of a whole number


_CURIOSITY = "intrinsic_reward.episodic_curiosity."
_SCHEDULE = "trainer.actor_manager."
KEYS: dict[str, Key] = {
    "obs_shape": Key(SHAPE, [4, 84, 84]),
    "seq_len": Key(WHOLE, 16, only="rnn"),
    "n_step": Key(WHOLE, 3),
    "gamma": Key(NUMBER, 0.997),
    "apply_value_scaling": Key(FLAG, False),
    "env.name": Key(TEXT, "PongNoFrameskip-v4"),
    "env.wrap_atari": Key(FLAG, True),
    "replay_buffer.prioritized_replay": Key(FLAG, True),
    "replay_buffer.capacity": Key(WHOLE, 10_000),
    "replay_buffer.error_min": Key(NUMBER, 0.0),
    "replay_buffer.error_max": Key(NUMBER, 1.0),
    "replay_buffer.eps": Key(NUMBER, 1e-4),
    "replay_buffer.alpha": Key(NUMBER, 0.6),
    "replay_buffer.initial_beta": Key(NUMBER, 0.4),
    "replay_buffer.max_step_beta": Key(WHOLE, 100_000),
    "evaluator.eps": Key(NUMBER, 0.02),
    "evaluator.n_eval": Key(WHOLE, 3),
    "evaluator.custom_metric_keys": Key(TEXTS, []),
    "evaluator.custom_metric_types": Key(TEXTS, []),
    "actor.vector_env_size": Key(WHOLE, 3),
    "actor.window_skip": Key(WHOLE, 8, only="rnn"),
    "model.action_size": Key(WHOLE, 6),
    "model.dueling": Key(FLAG, True),
    "model.lstm_hidden_size": Key(WHOLE, 128, only="rnn"),
    "learner.batch_size": Key(WHOLE, 32, feed_forward=64),
    "learner.target_sync_interval": Key(WHOLE, 1000),
    "learner.gpu_id": Key(GPU, None, least=0),
    "learner.adam_lr": Key(NUMBER, 1e-4),
    "learner.adam_eps": Key(NUMBER, 1e-8),
    "learner.double_dqn": Key(FLAG, True),
    "intrinsic_reward.enable": Key(FLAG, False),
    "intrinsic_reward.feature_size": Key(WHOLE, 64),
    "intrinsic_reward.predictor_train_window_size": Key(WHOLE, 5, only="rnn"),
    "intrinsic_reward.reward_ratio": Key(NUMBER, 0.15),
    "intrinsic_reward.use_ucb": Key(FLAG, False),
    f"{_CURIOSITY}enable": Key(FLAG, False),
    f"{_CURIOSITY}L": Key(NUMBER, 5.0),
    f"{_CURIOSITY}capacity": Key(WHOLE, 1000),
    f"{_CURIOSITY}k": Key(WHOLE, 10),
    f"{_CURIOSITY}c": Key(NUMBER, 0.001),
    f"{_CURIOSITY}xi": Key(NUMBER, 0.008),
    f"{_CURIOSITY}eps": Key(NUMBER, 1e-4),
    f"{_CURIOSITY}s_m": Key(NUMBER, 8.0),
    f"{_CURIOSITY}distance_moving_decay": Key(NUMBER, 0.99),
    f"{_CURIOSITY}feature_size": Key(WHOLE, 32),
    "actor_manager_url": Key(TEXT, "localhost:1111", only="async"),
    "evaluator_url": Key(TEXT, "localhost:2222", only="async"),
    "param_distributor_url": Key(TEXT, "localhost:3333", only="async"),
    "replay_buffer_url": Key(TEXT, "localhost:4444", only="async"),
    "n_actor_process": Key(WHOLE, 3, only="async"),
    "local_buffer_size": Key(WHOLE, 10),
    "send_sample_interval": Key(WHOLE, 10),
    "update_param_interval": Key(WHOLE, 1),
    "trainer.initial_sample_size": Key(WHOLE, 100),
    "trainer.max_global_step": Key(WHOLE, 100),
    "trainer.param_sync_interval": Key(WHOLE, 5),
    "trainer.eval_interval": Key(WHOLE, 100),
    "trainer.log_interval": Key(WHOLE, 10),
    "trainer.snap_interval": Key(WHOLE, 100),
    "trainer.learner_step_per_global_step": Key(WHOLE, 1, only="sync"),
    "trainer.epsilon_greedy_eps_base": Key(NUMBER, 0.7, only="async"),
    "trainer.epsilon_greedy_alpha_base": Key(NUMBER, 5.0, only="async"),
    f"{_SCHEDULE}init_eps_base": Key(NUMBER, 0.7),
    f"{_SCHEDULE}final_eps_base": Key(NUMBER, 0.1),
    f"{_SCHEDULE}init_alpha": Key(NUMBER, 7.0),
    f"{_SCHEDULE}final_alpha": Key(NUMBER, 3.0),
    f"{_SCHEDULE}final_eps_alpha_step": Key(WHOLE, 30_000),
    f"{_SCHEDULE}min_eps": Key(NUMBER, 0.02),
}
"""Every key by its place, with the defaults of the scripts."""

SECTIONS = {section for place in KEYS if (section := place.rpartition(".")[0])}

SAME = {
    "n_step": "n_step",
    "gamma": "discount",
    "replay_buffer.initial_beta": "importance_exponent",
    "replay_buffer.max_step_beta": "importance_steps",
    "evaluator.eps": "eval_epsilon",
    "evaluator.n_eval": "eval_episodes",
    "learner.batch_size": "batch_size",
    "learner.target_sync_interval": "target_period",
    "learner.adam_lr": "learning_rate",
    "learner.adam_eps": "adam_epsilon",
    "learner.double_dqn": "double",
    f"{_SCHEDULE}init_eps_base": "epsilon_base",
    f"{_SCHEDULE}final_eps_base": "epsilon_base_end",
    f"{_SCHEDULE}init_alpha": "epsilon_alpha",
    f"{_SCHEDULE}final_alpha": "epsilon_alpha_end",
    f"{_SCHEDULE}min_eps": "epsilon_least",
}
SAME_RECURRENT = {
    "seq_len": "sequence_length",
    "actor.window_skip": "stride",
    "model.lstm_hidden_size": "lstm_size",
}
SAME_EPISODIC = {
    f"{_CURIOSITY}L": "largest_modulator",
    f"{_CURIOSITY}capacity": "novelty_memory",
    f"{_CURIOSITY}k": "neighbours",
    f"{_CURIOSITY}c": "pseudo_count",
    f"{_CURIOSITY}xi": "cluster_distance",
    f"{_CURIOSITY}eps": "kernel_epsilon",
    f"{_CURIOSITY}s_m": "most_similar",
    f"{_CURIOSITY}distance_moving_decay": "novelty_decay",
    f"{_CURIOSITY}feature_size": "embedding_size",
}
"""Key → the knob that says the same: of all scripts, of the recurrent ones, and of novelty within an episode."""

IN_STEPS = {
    "trainer.eval_interval": "eval_every",
    "trainer.log_interval": "log_every",
    "trainer.snap_interval": "keep_every",
}
"""Intervals → the knob that counts steps."""

_ONE_PROCESS = "there are no servers: actors, replay, learner and evaluations share one process"
_NOT_CLIPPED = "errors are not clipped on their way to priorities"
_METRICS = "evaluations report returns and lengths; nothing is read from info"
GONE = {
    "obs_shape": "read from the environment",
    "model.action_size": "read from the environment",
    "replay_buffer.error_min": _NOT_CLIPPED,
    "replay_buffer.error_max": _NOT_CLIPPED,
    "replay_buffer.eps": "0.0001 is added to errors, as it was by default",
    "evaluator.custom_metric_keys": _METRICS,
    "evaluator.custom_metric_types": _METRICS,
    "actor_manager_url": _ONE_PROCESS,
    "evaluator_url": _ONE_PROCESS,
    "param_distributor_url": _ONE_PROCESS,
    "replay_buffer_url": _ONE_PROCESS,
    "local_buffer_size": "every step goes into the replay; none waits in an actor and none is dropped",
    "send_sample_interval": "every step goes into the replay at once",
    "update_param_interval": "actors take up new weights as they come, every publish_period updates",
    "trainer.epsilon_greedy_eps_base": "never read there; trainer.actor_manager says it",
    "trainer.epsilon_greedy_alpha_base": "never read there; trainer.actor_manager says it",
}
"""Keys without a knob, and where to look for what they did."""


@dataclass(frozen=True)
class Script:
    """One of the four training programs."""

    mode: str  # async, sync
    core: str  # rnn, cnn

    @property
    def name(self) -> str:
        """As it was started, without .py."""
        return f"{self.mode}_{self.core}_train"

    @property
    def recurrent(self) -> bool:
        """Whether it learns from sequences, with an LSTM."""
        return self.core == "rnn"

    @property
    def family(self) -> str:
        """The folder of our files that it belongs to."""
        return "r2d2" if self.recurrent else "dqn"

    @property
    def counterpart(self) -> str:
        """Our file with its numbers."""
        return f"{self.family}/marltas_{self.mode}.gin"


SCRIPTS = {
    script.name: script for mode in ("async", "sync") for core in ("rnn", "cnn") for script in [Script(mode, core)]
}


# -- reading


def read(path: Path) -> dict[str, Any]:
    """What a file says: place of a key → value, both checked; ConfigError with the line of the first mistake."""
    try:
        text = read_text(path, "utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a name that no file can have
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(f"{path} cannot be read: {reason}") from None
    given: dict[str, Any] = {}
    for place, (value, line) in PlainYaml(text, str(path)).read().items():
        if place in KEYS:
            given[place] = _value(value, KEYS[place], f"{path}:{line}: {place}")
        elif place not in SECTIONS:
            raise ConfigError(f"{path}:{line}: unknown key {short(place)}{_nearest(place)}")
        elif value is not None:
            raise ConfigError(f"{path}:{line}: {place} = {short(value)} must be a section with keys")
    return given


def _nearest(place: str) -> str:
    """The closest key of the same section, to be put behind a wrong one; else one called the same in another."""
    section, _, name = place.rpartition(".")
    beside = {known.rpartition(".")[2]: known for known in [*SECTIONS, *KEYS] if known.rpartition(".")[0] == section}
    close = [beside[one] for one in difflib.get_close_matches(name, beside, n=1)]
    elsewhere = [known for known in KEYS if known.rpartition(".")[2] == name]
    close = close or difflib.get_close_matches(place, elsewhere or [*KEYS], n=1, cutoff=0.0 if elsewhere else 0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _value(value: Any, key: Key, place: str) -> Any:
    """A value of its kind; whole numbers as int."""
    fits: dict[str, Callable[[Any], bool]] = {
        WHOLE: _is_whole,
        GPU: lambda value: value is None or _is_whole(value),
        NUMBER: _is_number,
        FLAG: lambda value: isinstance(value, bool),
        TEXT: lambda value: isinstance(value, str),
        SHAPE: lambda value: isinstance(value, list) and len(value) in (1, 3) and all(map(_is_whole, value)),
        TEXTS: lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
    }
    if not fits[key.kind](value):
        raise ConfigError(f"{place} = {short(value)} must be {key.kind}")
    if key.kind == SHAPE:
        return [int(one) for one in value]
    if key.kind in (WHOLE, GPU) and value is not None:
        if value < key.least:
            raise ConfigError(f"{place} = {int(value)} must be at least {key.least}")
        return int(value)
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15


def _is_whole(value: Any) -> bool:
    return _is_number(value) and value == int(value)


# -- which script


def choose_script(given: dict[str, Any], asked: str | None, source: str) -> Script:
    """The script that a file was for: as it was asked for, else by keys that only some of the four have.

    Args:
      given: what `read` gives.
      asked: the name of a script, if the user says it.
      source: what messages call the file.

    Raises:
      ConfigError: the file does not say it, or has keys that no one script has.
    """
    own = {KEYS[place].only: place for place in reversed(given) if KEYS[place].only}
    if "async" in own and "sync" in own:
        raise ConfigError(
            f"{source}: {own['async']} is a key of the async scripts and {own['sync']} one of the sync scripts; "
            "no script has both"
        )
    if asked is not None:
        name = Path(asked).name.removesuffix(".py").removesuffix("_train")
        script = SCRIPTS.get(f"{name}_train")
        if script is None:
            raise ConfigError(
                f"--script {short(asked)} is none of {', '.join(SCRIPTS)}{knobs.nearest(asked, list(SCRIPTS))}"
            )
        for only, place in own.items():
            if only not in (script.mode, script.core):
                raise ConfigError(f"{source}: {place} is no key of {script.name}, only of the {only} scripts")
        return script
    fitting = [
        script
        for script in SCRIPTS.values()
        if script.mode in ([only for only in ("async", "sync") if only in own] or ("async", "sync"))
        and script.core in (["rnn"] if "rnn" in own else ("rnn", "cnn"))
    ]
    if len(fitting) > 1:
        names = " or ".join(f"--script {script.name}" for script in fitting)
        raise ConfigError(f"{source} does not say which script it was for: {names}")
    return fitting[0]


# -- translating


@dataclass
class Translation:
    """A configuration in our words."""

    title: str  # method and task
    after: str  # the old one's name, and its script
    include: str  # a shipped file
    defaults: dict[str, Any]  # the script's numbers where that file has others
    values: dict[str, Any]  # knobs that the old file says
    bindings: dict[str, str]  # what has no knob → its text
    comments: dict[str, str]  # knob or binding → the keys it comes from
    remarks: list[str]  # for people
    device: str | None  # to be given when it is trained

    def text(self) -> str:
        """The file's text: include, knobs, bindings."""
        lines = [f"# {self.title}, after {self.after}", f"include '{self.include}'"]
        if self.defaults:
            lines += ["", "# what its script had, and the file does not say"]
            lines += [f"{name} = {value!r}" for name, value in self.defaults.items()]
        return "\n".join(lines + knobs.written(self.values, self.bindings, self.comments)) + "\n"


@dataclass
class _Old:
    """What a file says while it is translated, on the defaults of its script."""

    given: dict[str, Any]
    script: Script
    env: str  # that is played
    values: dict[str, Any] = field(default_factory=dict)  # knob → value, of everything
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)  # knob → the keys it comes from
    comments: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def find(self, place: str) -> Any:
        """What the file says of a key, else the script."""
        if place in self.given:
            return self.given[place]
        key = KEYS[place]
        return key.default if self.script.recurrent or key.feed_forward is None else key.feed_forward

    def note(self, knob: str, value: Any, *places: str, comment: str | None = None) -> None:
        """A knob, and the keys that it follows from."""
        self.values[knob], self.keys[knob] = value, places
        said = ", ".join(f"{place} = {_written(self.find(place))}" for place in places)
        self.comments[knob] = comment or (places[0] if len(places) == 1 else said)

    @property
    def columns(self) -> int:
        """Games that are played at once."""
        processes = self.find("n_actor_process") if self.script.mode == "async" else 1
        return self.find("actor.vector_env_size") * processes

    @property
    def updates(self) -> int:
        """Updates of a global step."""
        return self.find("trainer.learner_step_per_global_step") if self.script.mode == "sync" else 1

    @property
    def is_vector(self) -> bool:
        """Whether observations are vectors, for which the networks were smaller."""
        return not is_atari(self.env) and len(self.find("obs_shape")) == 1


def _written(value: Any) -> str:
    """A value as YAML has it."""
    words = {True: "true", False: "false", None: "null"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def translate(given: dict[str, Any], script: Script, name: str, source: str, env: str | None = None) -> Translation:
    """What a file says, in our words.

    Args:
      given: what `read` gives.
      script: that the file was for.
      name: of the file.
      source: what messages call it.
      env: an environment in place of the file's.

    Raises:
      ConfigError: the environment's name cannot be one.
    """
    old = _Old(given, script, _environment_of(given, source) if env is None else env)
    _acting_values(old, env)
    _replay_values(old)
    _network_values(old)
    _values_in_steps(old)
    has_novelty, bindings = old.find("intrinsic_reward.enable"), {}
    if has_novelty:
        bindings = _novelty(old)
    _remark(old)
    include = script.counterpart
    if has_novelty or not is_atari(old.env):
        include = f"{'ngu' if has_novelty else script.family}/{'atari' if is_atari(old.env) else 'base'}.gin"
    known = knobs.read_knobs(knobs.CONFIGS / include)
    usual = {knob.name: knob.default for knob in knobs.read_knobs(knobs.CONFIGS / script.counterpart).values()}
    said = {knob: value for knob, value in old.values.items() if any(key in given for key in old.keys[knob])}
    if env is not None:
        said["env"] = env
    wanted = {knob: value for knob, value in usual.items() if knob in known}  # without Atari some are not
    wanted |= {knob: value for knob, value in old.values.items() if knob not in usual or not old.keys[knob]} | said
    differing = {knob: value for knob, value in wanted.items() if known[knob].default != value}
    method = {"r2d2": "R2D2", "dqn": "DQN"}[script.family] + " with rewards for novelty" * has_novelty
    after = "".join(letter for letter in name if letter.isprintable())
    device = old.find("learner.gpu_id")
    return Translation(
        f"{method} on {old.env}",
        f"{after} of marltas_core ({script.name})",
        include,
        {knob: value for knob, value in differing.items() if knob not in said},
        {knob: value for knob, value in differing.items() if knob in said},
        bindings,
        old.comments,
        old.remarks,
        None if device is None else f"cuda:{device}",
    )


def _environment_of(given: dict[str, Any], source: str) -> str:
    """The file's environment. It may not name a module, which would be imported when a run begins."""
    name = given.get("env.name", KEYS["env.name"].default)
    if not re.fullmatch(r"[\w./-]+", name, re.ASCII):
        raise ConfigError(f"{source}: env.name = {short(name)} is no environment's name; --env says what is meant")
    return name


def _acting_values(old: _Old, env: str | None) -> None:
    """Knobs of environments, and of how they are acted in."""
    old.note("env", old.env, "env.name", comment=None if env is None else "--env")
    processes = ["n_actor_process"] if old.script.mode == "async" else []
    old.note("num_actors", old.columns, "actor.vector_env_size", *processes)
    if not is_atari(old.env):  # only the wrappers of Atari games took the sign of rewards
        old.note("reward_clipping", "none")
    elif not old.find("env.wrap_atari"):
        old.remarks.append("env.wrap_atari = false: Atari games are always wrapped here")
    if old.given.get("env.wrap_atari") and not is_atari(old.env):
        old.remarks.append(f"env.wrap_atari = true: {old.env} is no Atari game, and is played as it is")
    old.note(
        "epsilon_updates",
        old.find(f"{_SCHEDULE}final_eps_alpha_step") * old.updates,
        f"{_SCHEDULE}final_eps_alpha_step",
        *["trainer.learner_step_per_global_step"] * (old.script.mode == "sync"),
    )


def _replay_values(old: _Old) -> None:
    """Knobs that say the same, and those of the replay."""
    for place, knob in (SAME | (SAME_RECURRENT if old.script.recurrent else {})).items():
        old.note(knob, old.find(place), place)
    prioritised = old.find("replay_buffer.prioritized_replay")
    places = ("replay_buffer.prioritized_replay", "replay_buffer.alpha")
    old.note("priority_exponent", old.find(places[1]) if prioritised else 0.0, *places)
    begun = any(place.startswith("replay_buffer.") for place in old.given)
    if begun and "replay_buffer.prioritized_replay" not in old.given:
        old.remarks.append(
            "replay_buffer: prioritised, as by default; there a section without prioritized_replay was uniform "
            "(--priority_exponent 0)"
        )
    between = ["actor.window_skip"] if old.script.recurrent else []
    stride = old.find("actor.window_skip") if between else 1
    length = old.find("seq_len") if between else 1
    old.note("replay_size", old.find("replay_buffer.capacity") * stride, "replay_buffer.capacity", *between)
    # A column gives its first sequence after `length` steps, and one more every `stride`.
    waits = max(old.find("trainer.initial_sample_size"), old.columns if between else 1)
    steps = max(waits * stride + old.columns * (length - stride), 1)
    old.note("warm_up", steps, "trainer.initial_sample_size", *["seq_len"] * bool(between), *between)
    old.note("rescaling", 0.001 if old.find("apply_value_scaling") else None, "apply_value_scaling")


def _network_values(old: _Old) -> None:
    """Knobs of the network; there were two sizes of it, for pictures and for vectors."""
    size = 32 if old.is_vector else 128
    shape = ["obs_shape"] * old.is_vector
    old.note("dueling_size", size if old.find("model.dueling") else None, "model.dueling", *shape)
    if old.is_vector:
        last = ["model.lstm_hidden_size"] if old.script.recurrent else []
        old.note("hidden_sizes", (32, old.find(last[0]) if last else 64), *shape, *last)


def _values_in_steps(old: _Old) -> None:
    """Knobs that count steps, or updates, where the trainer counted its own steps: one of all games with its updates.

    Async, games and learner ran freely, and how many steps there were to an update is not known.
    """
    is_sync = old.script.mode == "sync"
    guess = "" if is_sync else "; a guess"
    for place, knob in (*IN_STEPS.items(), ("trainer.max_global_step", "total_steps")):
        steps = old.find(place) * old.columns
        after = ""
        if knob == "total_steps":
            steps += old.values["warm_up"]
            after = f", after {old.values['warm_up']}"
        comment = f"{place} = {old.find(place)}, times {old.columns} games{after}{guess}"
        old.note(knob, steps, place, comment=comment)
    rate = ["trainer.learner_step_per_global_step"] if is_sync else []
    if interval := old.given.get("trainer.param_sync_interval"):
        old.note("publish_period", interval * old.updates, "trainer.param_sync_interval", *rate)
    if is_sync:
        old.note("updates_per_step", round(old.updates / old.columns, 10), *rate, "actor.vector_env_size")
    counted = [place for place in (*IN_STEPS, "trainer.max_global_step") if place in old.given]
    if counted and not is_sync:
        old.remarks.append(
            f"{', '.join(counted)}: they count updates, and our knobs steps; a guess: {old.columns} steps, one of each "
            "game, for an update"
        )
    if "trainer.max_global_step" not in old.given:
        total = knobs.read_knobs(knobs.CONFIGS / old.script.counterpart)["total_steps"].default
        old.remarks.append(f"trainer.max_global_step is not said: 100 there, to try it out; --total_steps {total} here")


def _novelty(old: _Old) -> dict[str, str]:
    """Knobs of rewards for novelty; returns what has no knob."""
    episodic, bandit = old.find(f"{_CURIOSITY}enable"), old.find("intrinsic_reward.use_ucb")
    old.note("separate_intrinsic", True)
    old.note("distillation_learning_rate", old.find("learner.adam_lr"), "learner.adam_lr")
    old.note("distillation_size", old.find("intrinsic_reward.feature_size"), "intrinsic_reward.feature_size")
    if old.script.recurrent:
        place = "intrinsic_reward.predictor_train_window_size"
        old.note("novelty_steps", old.find(place), place)
    else:
        old.note("novelty_steps", 1)
    bindings = {"QNetwork.use_last_intrinsic": "False"}
    if episodic:
        old.note("embedding_learning_rate", old.find("learner.adam_lr"), "learner.adam_lr")
        for place, knob in SAME_EPISODIC.items():
            old.note(knob, old.find(place), place)
    else:
        bindings["Novelty.embedding"] = "None"
        old.comments["Novelty.embedding"] = f"{_CURIOSITY}enable = false"
    if bandit:
        old.note("arm_discounts", "one")
        bindings |= {"Arms.bandit": "@Bandit()", "Bandit.window": "520", "Bandit.explore": "0.1"}
        old.comments["Arms.bandit"] = "intrinsic_reward.use_ucb"
        old.remarks.append("intrinsic_reward.use_ucb = true: here the networks are told the arm; there they were not")
    else:
        ratio = old.find("intrinsic_reward.reward_ratio")
        bindings |= {"ActionValues.arms": "None", "QNetwork.arms": "0", "ActionValues.novelty_weight": repr(ratio)}
        old.comments["ActionValues.arms"] = "intrinsic_reward.use_ucb = false"
        old.comments["ActionValues.novelty_weight"] = "intrinsic_reward.reward_ratio"
    if old.is_vector:
        bindings |= {f"RandomDistillation.{name}": "(32, 64)" for name in ("target_sizes", "predictor_sizes")}
        old.comments["RandomDistillation.target_sizes"] = f"obs_shape = {old.find('obs_shape')}"
    return bindings


def _remark(old: _Old) -> None:
    """What there is to say of keys that became no line."""
    for where in dict.fromkeys(GONE.values()):
        places = [place for place, reason in GONE.items() if reason == where and place in old.given]
        if places:
            said = ", ".join(f"{place} = {short(old.given[place])}" for place in places)
            old.remarks.append(f"{said}: {where}")
    if "learner.gpu_id" in old.given:
        gpu = old.given["learner.gpu_id"]
        flag = "--device cpu, the default" if gpu is None else f"--device cuda:{gpu}, for actors too"
        old.remarks.append(f"learner.gpu_id = {_written(gpu)}: {flag}")
    for place in old.given:
        section, _, name = place.rpartition(".")
        if not section.startswith("intrinsic_reward") or place == "intrinsic_reward.enable":
            continue
        value = _written(old.given[place])
        if not old.find("intrinsic_reward.enable"):
            old.remarks.append(f"{place} = {value}: not used without intrinsic_reward.enable")
        elif f"{section}." == _CURIOSITY and name != "enable" and not old.find(f"{_CURIOSITY}enable"):
            old.remarks.append(f"{place} = {value}: not used without {_CURIOSITY}enable")
        elif name == "reward_ratio" and old.find("intrinsic_reward.use_ucb"):
            old.remarks.append(f"{place} = {value}: not used with intrinsic_reward.use_ucb, which chooses it")


# -- writing


def convert(path: Path, out: Path, env: str | None, script: str | None) -> str:
    """Write a configuration of ours for one of marltas_core's.

    Args:
      path: the YAML file.
      out: the .gin file, which must not exist.
      env: an environment in place of the file's.
      script: that the file was for; None if its keys say it.

    Returns:
      What was found, what has another place now and what can be done with it, a few lines for people.
    """
    if out.suffix != ".gin":
        raise ConfigError(f"{out} must end in .gin; choose another --out")
    if os.path.lexists(out):
        raise ConfigError(f"{out} is there already; choose another --out")
    if env is not None and not re.fullmatch(r"[\w./:-]+", env, re.ASCII):
        raise ConfigError(f"--env {short(env)} is no environment's name")
    given = read(path)
    translation = translate(given, choose_script(given, script, str(path)), path.name, str(path), env)
    _try(translation, path)
    try:
        write_whole(out, translation.text().encode())
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}; choose another --out") from None
    lines = [f"{path}: {translation.title}, as {translation.after.rpartition(' (')[2].rstrip(')')} had it"]
    lines += [f"  {remark}" for remark in translation.remarks]
    device = f" --device {translation.device}" if translation.device else ""
    lines.append(f"packtrain train {shlex.quote(str(out))}{device}   trains it")
    return "\n".join(lines)


def _try(translation: Translation, path: Path) -> None:
    """ConfigError, as of the old file, if what was translated cannot be built."""
    bindings = [f"{name} = {value}" for name, value in translation.bindings.items()]
    values = translation.defaults | translation.values
    try:
        config.build(config.load([knobs.CONFIGS / translation.include], bindings, values))
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be converted: {str(error).partition('; set in')[0]}") from None
