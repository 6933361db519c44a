"""Translate configurations of the original STEVE project into .gin files."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym

from packtrain import config, knobs
from packtrain.convert import gin_file
from packtrain.convert.gin_file import short
from packtrain.convert.steve_json import Group, read
from packtrain.envs import registration  # noqa: F401  (registers our environments with Gymnasium)
from packtrain.errors import ConfigError

_REPLAY = "the rows of the replay are written once, under replay in the run folder, and stay"
GONE = {
    "output_root": "--savedir names the folder of run folders (runs), --output_dir the run folder itself",
    "log_path": "metrics.jsonl and log.txt lie in the run folder",
    "save_model_path": "checkpoints lie in the run folder, under checkpoints",
    "keep_all_replay_buffers": _REPLAY,
    "env.obs_dims": "read from the environment",
    "env.action_dim": "read from the environment",
    "agent_config.reload_every_n": "actors take up new weights as they come, every publish_period updates",
    "agent_config.full_random_n": "never read there; warm_up says how many decisions are random",
    "evaluator_config.count": "there are no evaluators; --eval_every STEPS says how often one evaluates",
    "evaluator_config.batch_size": "--eval_episodes says how many episodes an evaluation has",
    "evaluator_config.reload_every_n": "an evaluation plays with the weights of its step",
    "evaluator_config.full_random_n": "never read there",
    "policy_config.algo": "never read there; the target says which algorithm it is",
    "policy_config.pretrain_n": "only the model is trained beforehand here",
    "policy_config.keep_all_replay_buffers": _REPLAY,
    "model_config.keep_all_replay_buffers": _REPLAY,
}
"""Keys without a knob, and where their function is found."""

SHARED = {
    "replay_size": "there is one replay for both learners, of the policy's size",
    "log_every_n": "there is one log for both learners, as often as the policy's",
    "backup_every_n": "a checkpoint holds both learners, and is kept as often as the policy's",
}
"""Keys of the model's learner that are used only if they differ from the policy's."""

TASKS = {
    **{name: (name.lower(), 3) for name in ("Swimmer", "Hopper", "HalfCheetah", "Walker2d", "Humanoid", "Ant")},
    "BipedalWalkerHardcore": ("hardcore", 2),
    "RoboschoolHumanoid": ("humanoid_run", 1),
    "RoboschoolHumanoidFlagrun": ("flagrun", 1),
    "packtrain/HumanoidRun": ("humanoid_run", -1),
    "packtrain/HumanoidFlagrun": ("flagrun", -1),
}
"""Environment without its version → name in shipped files, and the last version that is no longer available."""

METHODS = {
    "ddpg": ("DDPG", "OneStep"),
    "mve_tdk": ("MVE", "Mve"),
    "ensemble_mve_tdk": ("MVE with ensembles", "Mve"),
    "mve_mean": ("the mean over depths of MVE", "MveMean"),
    "mve_tdlambda": ("TD(lambda) over depths of MVE", "MveTdLambda"),
    "steve": ("STEVE", "Steve"),
    "steve_cov": ("STEVE with covariances between depths", "SteveCov"),
}
"""Name of a method in shipped files → its title, and its target."""


@dataclass
class Translation:
    """A translated configuration."""

    title: str  # method and task
    after: str  # name of the original
    includes: list[str]  # shipped files
    values: dict[str, Any]  # knobs that differ from those files
    bindings: dict[str, str]  # settings without a knob → text
    comments: dict[str, str]  # knob or binding → comment
    remarks: list[str]  # printed for the user

    @property
    def files(self) -> list[Path]:
        """Return the included files' paths."""
        return [knobs.CONFIGS / name for name in self.includes]

    def text(self) -> str:
        """Return the file's text: includes, knobs, bindings."""
        lines = [f"# {self.title}, after {self.after}.json of the STEVE project"]
        lines += [f"include '{name}'" for name in self.includes]
        return "\n".join(lines + knobs.written(self.values, self.bindings, self.comments)) + "\n"


@dataclass
class _Old:
    """A merged configuration during translation, with its remarks."""

    settings: Group
    source: str  # its name in messages
    remarks: list[str] = field(default_factory=list)
    comments: dict[str, str] = field(default_factory=dict)

    def find(self, place: str) -> Any:
        """Return the value of "group.key"; False if it is missing."""
        return self.settings.find(place)

    def number(self, place: str) -> float:
        """Return a number that the original requires."""
        value = self.find(place)
        if value is False:
            raise ConfigError(f"{self.source} and the files it inherits do not set {place}")
        return value

    def whole(self, place: str, least: int) -> int:
        """Return a required whole number of at least `least`."""
        value = self.number(place)
        if value < least:
            raise ConfigError(f"{self.source}: {place} = {value} must be at least {least}")
        return int(value)

    def rate(self, group: str) -> float | None:
        """Return a learner's frames per update; None if its updates do not wait for frames."""
        rate = self.find(f"{group}.frames_per_update")
        if rate is False:
            return None
        if rate < 1e-9:
            raise ConfigError(f"{self.source}: {group}.frames_per_update = {rate} must be above 0, or false")
        return float(rate)

    def members(self, place: str) -> int:
        """Return the size of an ensemble; 1 if there is none."""
        if self.find(place) is False:
            return 1
        size = self.whole(f"{place}.ensemble_size", 1)
        for name in ("train_sample_count", "eval_sample_count"):
            count = self.find(f"{place}.{name}")
            if count is not False and not 1 <= count <= size:
                raise ConfigError(
                    f"{self.source}: {place}.{name} = {count} must lie between 1 and ensemble_size = {size}"
                )
            if count is not False and count < size:
                self.remarks.append(f"{place}.{name} = {count}: all {size} members take part here")
        return size

    def expansion(self) -> Group:
        """Return the horizon of targets and how depths are combined; empty without a model."""
        found = [self.find(place) for place in ("policy_config.value_expansion", "value_expansion")]
        found = [group for group in found if group is not False]
        if len(found) > 1:
            raise ConfigError(f"{self.source} has value_expansion twice: in policy_config and outside of it")
        return found[0] if found else Group()


def translate(settings: Group, name: str, source: str, env: str | None = None) -> Translation:
    """Return the translation of a merged configuration.

    Args:
      settings: result of `read`.
      name: of the configuration; that of a horizon ablation determines the horizon.
      source: its name in messages.
      env: replaces the file's environment.

    Raises:
      ConfigError: a setting that the original requires is missing or invalid.
    """
    old = _Old(settings, source)
    said = _environment_of(old) if env is None else env
    values = _acting_values(old) | _policy_values(old)
    method = _choose_method(old, name, values)
    if method != "ddpg":
        values |= _model_values(old, values)
    _split_rows(old, values)
    task, is_gone = _find_task(said)
    includes = _choose_files(method, task)
    known: dict[str, knobs.Knob] = {}
    for include in includes:
        known.update(knobs.read_knobs(knobs.CONFIGS / include))
    values["env"] = known["env"].default if is_gone else said
    if is_gone:
        old.remarks.append(f"env.name = {said!r}: {values['env']} here, on a simulator of today; scores may differ")
    elif task is None:
        old.comments["env"] = "not one of the paper's tasks: the name is as it was given"
        old.remarks.append(f"env.name = {said!r}: not one of the paper's tasks; the name is kept")
    bindings = _choose_bindings(old, method, task) | _episode_limit(old, includes, values["env"])
    for place, where in GONE.items():
        if (value := old.find(place)) is not False:
            old.remarks.append(f"{place} = {short(value)}: {where}")
    old.remarks.append(f"no end but by hand: --total_steps {known['total_steps'].default}")
    old.remarks.append("GPU and GPU + 1 on the command line: --device, which both learners share")
    differing = {key: value for key, value in values.items() if key in known and known[key].default != value}
    title = f"{METHODS[method][0]} on {said}"
    after = "".join(letter for letter in name if letter.isprintable())
    return Translation(title, after, includes, differing, bindings, old.comments, old.remarks)


def _environment_of(old: _Old) -> str:
    """Return the file's environment. It may not name a module, which would be imported when a run begins."""
    name = old.find("env.name")
    if name is False:
        raise ConfigError(f"{old.source} and the files it inherits do not set env.name; name an environment with --env")
    return gin_file.checked_environment(name, old.source)


def _find_task(env: str) -> tuple[str | None, bool]:
    """Return a task's name in shipped files, and whether its simulator is no longer available."""
    match = re.fullmatch(r"(.+)-v(\d{1,3})", env)
    task, last = TASKS.get(match[1], (None, -1)) if match else (None, -1)
    return task, match is not None and int(match[2]) <= last


def _choose_files(method: str, task: str | None) -> list[str]:
    """Return the shipped files to build on: that of method and task, or else those for any task."""
    if task is not None:
        return [f"steve/{method}_{task}_paper.gin"]
    if method == "ddpg":
        return ["steve/base.gin", "steve/paper.gin"]
    return ["steve/model_base.gin", "steve/paper/model_base.gin"]


def _choose_method(old: _Old, name: str, values: dict[str, Any]) -> str:
    """Return the method that the flags select, a key of METHODS; its members and horizon are added to the values."""
    expansion, has_model = old.expansion(), old.find("model_config") is not False
    horizon = int(expansion.find("rollout_len"))
    if horizon < 0:
        raise ConfigError(f"{old.source}: rollout_len = {horizon} must not be negative")
    values["critics"] = old.members("policy_config.bayesian")
    if not (has_model and horizon):
        if has_model:
            old.remarks.append("model_config: no target looks into the model (rollout_len); there is none here")
        if horizon:
            old.remarks.append("value_expansion: there is no model to look into (model_config); this is DDPG")
        return "ddpg"
    for member in ("transition", "reward"):
        values[f"{member}s"] = old.members(f"model_config.bayesian.{member}")
    meant = re.search(r"(?:^|_)([1-9]\d?)h\d*$", name)
    if meant and horizon == 1 != int(meant[1]):
        horizon = int(meant[1])
        old.remarks.append(f"rollout_len = 1: a slip of the released ablations, which all say 1; horizon = {horizon}")
        old.comments["horizon"] = "the file says 1, a slip of the released ablations; its name says what was meant"
    values |= {"horizon": horizon, "trace_lambda": float(expansion.find("lambda_return"))}
    flags = [f for f in ("mean_k_return", "lambda_return", "steve_reweight") if expansion.find(f) is not False]
    old.remarks += [f"value_expansion.{flag}: {flags[0]} goes before it, as it did there" for flag in flags[1:]]
    covariances = expansion.find("covariances")
    if covariances and flags[:1] != ["steve_reweight"]:
        old.remarks.append("value_expansion.covariances: not used without steve_reweight, as in the original")
    if not flags:
        single = values["critics"] == values["transitions"] == values["rewards"] == 1
        return "mve_tdk" if single else "ensemble_mve_tdk"
    steve = "steve_cov" if covariances else "steve"
    return {"mean_k_return": "mve_mean", "lambda_return": "mve_tdlambda", "steve_reweight": steve}[flags[0]]


def _acting_values(old: _Old) -> dict[str, Any]:
    """Return the knobs of acting. The original reads an exploration probability that none of its files has."""
    chance = old.find("policy_config.ddpg_explore_chance")
    if chance is False:
        chance = old.find("policy_config.explore_chance")
        if chance:
            old.comments["explore_chance"] = "the released code never read this and used 0; the paper used 0.05"
            old.remarks.append(
                f"policy_config.explore_chance = {chance}: used here; the released code never read it and used 0 "
                "(--explore_chance 0), the paper used 0.05"
            )
    return {
        "num_actors": old.whole("agent_config.count", 1) * old.whole("agent_config.batch_size", 1),
        "explore_chance": float(chance),
    }


def _policy_values(old: _Old) -> dict[str, Any]:
    """Return the knobs of policy and critics, and of intervals."""
    rate, period = old.rate("policy_config"), old.whole("policy_config.epoch_every_n", 1)
    values: dict[str, Any] = {
        "warm_up": old.whole("policy_config.frames_before_learning", 0),
        "updates_per_step": None if rate is None else 1 / rate,
        "batch_size": old.whole("policy_config.batch_size", 1),
        "replay_size": old.whole("policy_config.replay_size", 1),
        "hidden_size": old.whole("policy_config.hidden_dim", 1),
        "discount": old.number("env.discount"),
        "reward_scale": old.number("env.reward_scale"),
        "target_period": period,
        "publish_period": period,
    }
    for name, knob in (("log_every_n", "log_every"), ("backup_every_n", "keep_every")):
        updates = old.whole(f"policy_config.{name}", 1)
        if rate is None:
            old.remarks.append(
                f"policy_config.{name} = {updates} updates: without frames_per_update these are no number of steps, "
                f"which --{knob} counts"
            )
        else:
            values[knob] = max(1, round(updates * rate))
            old.comments[knob] = f"steps: {name} = {updates} updates"
    return values


def _model_values(old: _Old, values: dict[str, Any]) -> dict[str, Any]:
    """Return the knobs of the world model, and of the policy if both learners share one."""
    rate = old.rate("model_config")
    published, began = old.whole("model_config.epoch_every_n", 1), old.whole("model_config.frames_before_learning", 0)
    fetched, warm_up = values["publish_period"], values["warm_up"]
    if published < fetched:  # the policy's learner loads the model when it publishes
        old.remarks.append(
            f"model_config.epoch_every_n = {published}: fetched every {fetched} updates, as it was there"
        )
    if began != warm_up:
        warm_up = max(began, warm_up)
        old.remarks.append(f"model_config.frames_before_learning = {began}: both learners begin after {warm_up} steps")
    for name, where in SHARED.items():
        own = old.find(f"model_config.{name}")
        if own not in (False, old.find(f"policy_config.{name}")):
            old.remarks.append(f"model_config.{name} = {own}: {where}")
    return {
        "warm_up": warm_up,
        "pretrain": int(old.find("model_config.pretrain_n")),
        "model_updates_per_step": None if rate is None else 1 / rate,
        "model_batch_size": old.whole("model_config.batch_size", 1),
        "model_hidden_size": old.whole("model_config.transition_hidden_dim", 1),
        "aux_hidden_size": old.whole("model_config.aux_hidden_dim", 1),
        "model_period": max(published, fetched),
    }


def _split_rows(old: _Old, values: dict[str, Any]) -> None:
    """Train a random member on each transition, as in the original, if a batch cannot be split between members."""
    for rows, batch, ensembles in (
        ("rows", "batch_size", ("critics",)),
        ("model_rows", "model_batch_size", ("transitions", "rewards")),
    ):
        if any(name in values and values[batch] % values[name] for name in ensembles):
            values[rows] = "random"
            old.comments[rows] = "as in the original: the batch cannot be split between the members"


def _choose_bindings(old: _Old, method: str, task: str | None) -> dict[str, str]:
    """Return the settings without a knob: the target and its λ if no task file sets them, and the TD-k trick."""
    if method == "ddpg":
        return {}
    target, expansion, bindings = METHODS[method][1], old.expansion(), {}
    if task is None:
        bindings["ValueExpansion.target"] = f"@{target}()"
        if method == "mve_tdlambda":
            bindings["MveTdLambda.trace_lambda"] = repr(float(expansion.find("lambda_return")))
    trick = expansion.find("tdk_trick")
    if trick != (target == "Mve"):
        bindings[f"{target}.tdk_trick"] = repr(trick)
        pairs = "imagined pairs too" if trick else "real pairs only"
        old.comments[f"{target}.tdk_trick"] = f"tdk_trick: the critic learns from {pairs}"
    return bindings


def _episode_limit(old: _Old, includes: list[str], env: str) -> dict[str, str]:
    """Return the episode limit, if it differs from the environment's own."""
    limit, spec = old.whole("env.max_frames", 1), gym.registry.get(env)
    if spec is None:
        old.remarks.append(
            f"env.max_frames = {limit}: {env} has one; Environment.kwargs = {{'max_episode_steps': {limit}}} sets it"
        )
        return {}
    built = config.build(config.load([knobs.CONFIGS / name for name in includes], [], {"env": env}))
    before = built.streams.environment.kwargs.get("max_episode_steps", spec.max_episode_steps)
    if before == limit:
        return {}
    old.comments["Environment.kwargs"] = f"max_frames; by themselves episodes end after {before} steps"
    return {"Environment.kwargs": f"{{'max_episode_steps': {limit}}}"}


def convert(path: Path, out: Path, env: str | None) -> str:
    """Write a .gin file for a configuration of the STEVE project.

    Args:
      path: the JSON file.
      out: the .gin file, which must not exist.
      env: replaces the environment of the JSON file if given.

    Returns:
      A few lines for the user: what was found, which keys have another place now, and the command to run.
    """
    gin_file.check_target(out, env)
    settings, remarks = read(path)
    translation = translate(settings, path.stem, str(path), env)
    gin_file.check_builds(path, translation.files, translation.bindings, translation.values)
    gin_file.write(out, translation.text())
    lines = [f"{path}: {translation.title}", *[f"  {remark}" for remark in [*remarks, *translation.remarks]]]
    lines.append(f"packtrain train {shlex.quote(str(out))} --device cuda --runtime local   trains it")
    return "\n".join(lines)
