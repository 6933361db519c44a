"""Read configurations of marltas_core (YAML), and infer which of its four scripts a file was written for.

A file is merged into the defaults of a script key by key. Nothing in a file is executed.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packtrain import knobs
from packtrain.convert.gin_file import short
from packtrain.convert.plain_yaml import read_yaml
from packtrain.errors import ConfigError
from packtrain.files import read_text

WHOLE, NUMBER, FLAG, TEXT = "a whole number", "a number", "true or false", "a text"
GPU, SHAPE, TEXTS = "a whole number, or null", "a list of 1 or 3 whole numbers", "a list of texts"


@dataclass(frozen=True)
class Key:
    """One key: the allowed values and the default."""

    kind: str
    default: Any
    feed_forward: Any = None  # default of the CNN scripts; None: the same
    only: str = ""  # rnn, async, sync: only these scripts have it; empty: all
    least: int = 1  # minimum of a whole number


CURIOSITY = "intrinsic_reward.episodic_curiosity."
SCHEDULE = "trainer.actor_manager."
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
    f"{CURIOSITY}enable": Key(FLAG, False),
    f"{CURIOSITY}L": Key(NUMBER, 5.0),
    f"{CURIOSITY}capacity": Key(WHOLE, 1000),
    f"{CURIOSITY}k": Key(WHOLE, 10),
    f"{CURIOSITY}c": Key(NUMBER, 0.001),
    f"{CURIOSITY}xi": Key(NUMBER, 0.008),
    f"{CURIOSITY}eps": Key(NUMBER, 1e-4),
    f"{CURIOSITY}s_m": Key(NUMBER, 8.0),
    f"{CURIOSITY}distance_moving_decay": Key(NUMBER, 0.99),
    f"{CURIOSITY}feature_size": Key(WHOLE, 32),
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
    f"{SCHEDULE}init_eps_base": Key(NUMBER, 0.7),
    f"{SCHEDULE}final_eps_base": Key(NUMBER, 0.1),
    f"{SCHEDULE}init_alpha": Key(NUMBER, 7.0),
    f"{SCHEDULE}final_alpha": Key(NUMBER, 3.0),
    f"{SCHEDULE}final_eps_alpha_step": Key(WHOLE, 30_000),
    f"{SCHEDULE}min_eps": Key(NUMBER, 0.02),
}
"""Every key by its section and name, with the defaults of the scripts."""

SECTIONS = {section for place in KEYS if (section := place.rpartition(".")[0])}


@dataclass(frozen=True)
class Script:
    """One of the four training programs."""

    mode: str  # async, sync
    core: str  # rnn, cnn

    @property
    def name(self) -> str:
        """Return the script's file name without .py."""
        return f"{self.mode}_{self.core}_train"

    @property
    def recurrent(self) -> bool:
        """Return whether it trains an LSTM on sequences."""
        return self.core == "rnn"

    @property
    def family(self) -> str:
        """Return the folder of its equivalent configurations."""
        return "r2d2" if self.recurrent else "dqn"

    @property
    def counterpart(self) -> str:
        """Return the shipped configuration with its hyper-parameters."""
        return f"{self.family}/marltas_{self.mode}.gin"


SCRIPTS = {
    script.name: script for mode in ("async", "sync") for core in ("rnn", "cnn") for script in [Script(mode, core)]
}


def read(path: Path) -> dict[str, Any]:
    """Return the content of a file: key → value, both checked; ConfigError with the line of the first error."""
    try:
        text = read_text(path, "utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or an invalid file name
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(f"{path} cannot be read: {reason}") from None
    given: dict[str, Any] = {}
    for place, (value, line) in read_yaml(text, str(path)).items():
        if place in KEYS:
            given[place] = _value(value, KEYS[place], f"{path}:{line}: {place}")
        elif place not in SECTIONS:
            raise ConfigError(f"{path}:{line}: unknown key {short(place)}{_nearest(place)}")
        elif value is not None:
            raise ConfigError(f"{path}:{line}: {place} = {short(value)} must be a section with keys")
    return given


def _nearest(place: str) -> str:
    """Return a suggestion with the closest key of the same section, or else one of the same name in another."""
    section, _, name = place.rpartition(".")
    beside = {known.rpartition(".")[2]: known for known in [*SECTIONS, *KEYS] if known.rpartition(".")[0] == section}
    close = [beside[one] for one in difflib.get_close_matches(name, beside, n=1)]
    elsewhere = [known for known in KEYS if known.rpartition(".")[2] == name]
    close = close or difflib.get_close_matches(place, elsewhere or [*KEYS], n=1, cutoff=0.0 if elsewhere else 0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _value(value: Any, key: Key, place: str) -> Any:
    """Return a value of the key's kind; whole numbers as int."""
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


def choose_script(given: dict[str, Any], asked: str | None, source: str) -> Script:
    """Return the script that a file was for: as requested, or else inferred from keys that only some of the four have.

    Args:
      given: result of `read`.
      asked: the name of a script from the user.
      source: the file's name in messages.

    Raises:
      ConfigError: the file is ambiguous, or has keys that no single script has.
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
                f"--script {short(asked)} is not one of {', '.join(SCRIPTS)}{knobs.nearest(asked, list(SCRIPTS))}"
            )
        for only, place in own.items():
            if only not in (script.mode, script.core):
                raise ConfigError(f"{source}: {place} is not a key of {script.name}, only of the {only} scripts")
        return script
    fitting = [
        script
        for script in SCRIPTS.values()
        if script.mode in ([only for only in ("async", "sync") if only in own] or ("async", "sync"))
        and script.core in (["rnn"] if "rnn" in own else ("rnn", "cnn"))
    ]
    if len(fitting) > 1:
        names = " or ".join(f"--script {script.name}" for script in fitting)
        raise ConfigError(f"{source} has no key that shows which script it belongs to: {names}")
    return fitting[0]
