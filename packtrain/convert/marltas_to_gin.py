"""Translate configurations of marltas_core into .gin files.

The original dropped all defaults of a section that a file mentioned, and thereby prioritised replay. Here a file
changes only the keys that it has. All other settings are those of the shipped file for its script.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packtrain import knobs
from packtrain.convert import gin_file
from packtrain.convert.gin_file import short
from packtrain.convert.marltas_yaml import CURIOSITY, KEYS, SCHEDULE, Script, choose_script, read
from packtrain.envs.atari import is_atari

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
    f"{SCHEDULE}init_eps_base": "epsilon_base",
    f"{SCHEDULE}final_eps_base": "epsilon_base_end",
    f"{SCHEDULE}init_alpha": "epsilon_alpha",
    f"{SCHEDULE}final_alpha": "epsilon_alpha_end",
    f"{SCHEDULE}min_eps": "epsilon_least",
}
SAME_RECURRENT = {
    "seq_len": "sequence_length",
    "actor.window_skip": "stride",
    "model.lstm_hidden_size": "lstm_size",
}
SAME_EPISODIC = {
    f"{CURIOSITY}L": "largest_modulator",
    f"{CURIOSITY}capacity": "novelty_memory",
    f"{CURIOSITY}k": "neighbours",
    f"{CURIOSITY}c": "pseudo_count",
    f"{CURIOSITY}xi": "cluster_distance",
    f"{CURIOSITY}eps": "kernel_epsilon",
    f"{CURIOSITY}s_m": "most_similar",
    f"{CURIOSITY}distance_moving_decay": "novelty_decay",
    f"{CURIOSITY}feature_size": "embedding_size",
}
"""Key → equivalent knob: of all scripts, of the recurrent ones, and of novelty within an episode."""

IN_STEPS = {
    "trainer.eval_interval": "eval_every",
    "trainer.log_interval": "log_every",
    "trainer.snap_interval": "keep_every",
}
"""Intervals → the knob in steps."""

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
"""Keys without a knob, and where their function is found."""


@dataclass
class Translation:
    """A translated configuration."""

    title: str  # method and task
    after: str  # names of the original file and its script
    include: str  # a shipped file
    defaults: dict[str, Any]  # defaults of the script that differ from that file
    values: dict[str, Any]  # knobs that the original file sets
    bindings: dict[str, str]  # settings without a knob → text
    comments: dict[str, str]  # knob or binding → original keys
    remarks: list[str]  # printed for the user
    device: str | None  # to pass when it is trained

    def text(self) -> str:
        """The file's text: include, knobs, bindings."""
        lines = [f"# {self.title}, after {self.after}", f"include '{self.include}'"]
        if self.defaults:
            lines += ["", "# what its script had, and the file does not say"]
            lines += [f"{name} = {value!r}" for name, value in self.defaults.items()]
        return "\n".join(lines + knobs.written(self.values, self.bindings, self.comments)) + "\n"


@dataclass
class _Old:
    """The content of a file during translation, with the defaults of its script."""

    given: dict[str, Any]
    script: Script
    env: str  # environment
    values: dict[str, Any] = field(default_factory=dict)  # knob → value, of all keys
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)  # knob → original keys
    comments: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def find(self, place: str) -> Any:
        """Return the file's value of a key, or else the script's."""
        if place in self.given:
            return self.given[place]
        key = KEYS[place]
        return key.default if self.script.recurrent or key.feed_forward is None else key.feed_forward

    def note(self, knob: str, value: Any, *places: str, comment: str | None = None) -> None:
        """Record a knob with the keys that it is computed from."""
        self.values[knob], self.keys[knob] = value, places
        said = ", ".join(f"{place} = {_written(self.find(place))}" for place in places)
        self.comments[knob] = comment or (places[0] if len(places) == 1 else said)

    @property
    def columns(self) -> int:
        """Return the number of games that are played at once."""
        processes = self.find("n_actor_process") if self.script.mode == "async" else 1
        return self.find("actor.vector_env_size") * processes

    @property
    def updates(self) -> int:
        """Return the number of updates per global step."""
        return self.find("trainer.learner_step_per_global_step") if self.script.mode == "sync" else 1

    @property
    def is_vector(self) -> bool:
        """Return whether observations are vectors, for which the networks were smaller."""
        return not is_atari(self.env) and len(self.find("obs_shape")) == 1


def _written(value: Any) -> str:
    """Return a value as written in YAML."""
    words = {True: "true", False: "false", None: "null"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def translate(given: dict[str, Any], script: Script, name: str, source: str, env: str | None = None) -> Translation:
    """Return the translation of a file.

    Args:
      given: result of `read`.
      script: the script that the file is for.
      name: of the file.
      source: the file's name in messages.
      env: replaces the file's environment.

    Raises:
      ConfigError: the environment's name is invalid.
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
    wanted = {knob: value for knob, value in usual.items() if knob in known}  # some do not exist without Atari
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
    """Return the file's environment. It may not name a module, which would be imported when a run begins."""
    name = given.get("env.name", KEYS["env.name"].default)
    return gin_file.checked_environment(name, source)


def _acting_values(old: _Old, env: str | None) -> None:
    """Return the knobs of environments and acting."""
    old.note("env", old.env, "env.name", comment=None if env is None else "--env")
    processes = ["n_actor_process"] if old.script.mode == "async" else []
    old.note("num_actors", old.columns, "actor.vector_env_size", *processes)
    if not is_atari(old.env):  # only the wrappers of Atari games used the sign of rewards
        old.note("reward_clipping", "none")
    elif not old.find("env.wrap_atari"):
        old.remarks.append("env.wrap_atari = false: Atari games are always wrapped here")
    if old.given.get("env.wrap_atari") and not is_atari(old.env):
        old.remarks.append(f"env.wrap_atari = true: {old.env} is no Atari game, and is played as it is")
    old.note(
        "epsilon_updates",
        old.find(f"{SCHEDULE}final_eps_alpha_step") * old.updates,
        f"{SCHEDULE}final_eps_alpha_step",
        *["trainer.learner_step_per_global_step"] * (old.script.mode == "sync"),
    )


def _replay_values(old: _Old) -> None:
    """Return equivalent knobs, and those of the replay."""
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
    # An environment yields its first sequence after `length` steps, and one more every `stride`.
    waits = max(old.find("trainer.initial_sample_size"), old.columns if between else 1)
    steps = max(waits * stride + old.columns * (length - stride), 1)
    old.note("warm_up", steps, "trainer.initial_sample_size", *["seq_len"] * bool(between), *between)
    old.note("rescaling", 0.001 if old.find("apply_value_scaling") else None, "apply_value_scaling")


def _network_values(old: _Old) -> None:
    """Return the knobs of the network; it had two sizes, for images and for vectors."""
    size = 32 if old.is_vector else 128
    shape = ["obs_shape"] * old.is_vector
    old.note("dueling_size", size if old.find("model.dueling") else None, "model.dueling", *shape)
    if old.is_vector:
        last = ["model.lstm_hidden_size"] if old.script.recurrent else []
        old.note("hidden_sizes", (32, old.find(last[0]) if last else 64), *shape, *last)


def _values_in_steps(old: _Old) -> None:
    """Return the knobs in steps or updates; the original counted a step of all games with its updates as one.

    In async mode, games and learner ran independently, and the number of steps per update is unknown.
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
    """Record the knobs of intrinsic rewards; return the settings without a knob."""
    episodic, bandit = old.find(f"{CURIOSITY}enable"), old.find("intrinsic_reward.use_ucb")
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
        old.comments["Novelty.embedding"] = f"{CURIOSITY}enable = false"
    if bandit:
        old.note("arm_discounts", "one")
        bindings |= {"Arms.bandit": "@Bandit()", "Bandit.window": "520", "Bandit.explore": "0.1"}
        old.comments["Arms.bandit"] = "intrinsic_reward.use_ucb"
        old.remarks.append("intrinsic_reward.use_ucb = true: here networks get the arm as input; there they did not")
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
    """Return remarks about keys that are not translated."""
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
        elif f"{section}." == CURIOSITY and name != "enable" and not old.find(f"{CURIOSITY}enable"):
            old.remarks.append(f"{place} = {value}: not used without {CURIOSITY}enable")
        elif name == "reward_ratio" and old.find("intrinsic_reward.use_ucb"):
            old.remarks.append(f"{place} = {value}: not used with intrinsic_reward.use_ucb, which chooses it")


def convert(path: Path, out: Path, env: str | None, script: str | None) -> str:
    """Write a .gin file for a configuration of marltas_core.

    Args:
      path: the YAML file.
      out: the .gin file, which must not exist.
      env: replaces the environment of the YAML file if given.
      script: the script that the YAML file was for; None: inferred from its keys.

    Returns:
      A few lines for the user: what was found, which keys have another place now, and the command to run.
    """
    gin_file.check_target(out, env)
    given = read(path)
    translation = translate(given, choose_script(given, script, str(path)), path.name, str(path), env)
    values = translation.defaults | translation.values
    gin_file.check_builds(path, [knobs.CONFIGS / translation.include], translation.bindings, values)
    gin_file.write(out, translation.text())
    lines = [f"{path}: {translation.title}, as {translation.after.rpartition(' (')[2].rstrip(')')} had it"]
    lines += [f"  {remark}" for remark in translation.remarks]
    device = f" --device {translation.device}" if translation.device else ""
    lines.append(f"packtrain train {shlex.quote(str(out))}{device}   trains it")
    return "\n".join(lines)
