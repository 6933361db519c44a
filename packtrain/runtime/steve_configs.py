"""Configurations of the original STEVE project (JSON) as configurations of ours (gin): read, translated, written.

A file of theirs names others that it inherits, merged in order, and its own updates, merged last. A group written
"*name" is a ghost: who inherits it takes it only where `name` is there already. Keys that are missing read as False.
Unknown keys are refused here; there a misspelt one went unnoticed. Nothing in a file is run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym

from packtrain import config, knobs
from packtrain.envs import ours  # noqa: F401  (registers our environments with Gymnasium)
from packtrain.errors import ConfigError
from packtrain.files import read_text, write_whole

WHOLE, NUMBER, FLAG, TEXT, ANYTHING = "a whole number", "a number", "true or false", "a text", "anything"

_ENSEMBLE = dict.fromkeys(("ensemble_size", "train_sample_count", "eval_sample_count"), WHOLE)
_EXPANSION = {
    "rollout_len": WHOLE,
    "lambda_return": NUMBER,
    **dict.fromkeys(("tdk_trick", "mean_k_return", "steve_reweight", "covariances"), FLAG),
}
_LEARNER = {
    **dict.fromkeys(("batch_size", "replay_size", "frames_before_learning", "pretrain_n"), WHOLE),
    **dict.fromkeys(("log_every_n", "epoch_every_n", "backup_every_n"), WHOLE),
    "frames_per_update": NUMBER,
    "keep_all_replay_buffers": FLAG,
}
_WORKERS = dict.fromkeys(("count", "batch_size", "reload_every_n", "full_random_n"), WHOLE)
KEYS: dict[str, Any] = {
    **dict.fromkeys(("output_root", "save_model_path", "log_path"), TEXT),
    "keep_all_replay_buffers": FLAG,
    "env": {
        "name": TEXT,
        **dict.fromkeys(("obs_dims", "action_dim"), ANYTHING),
        **dict.fromkeys(("reward_scale", "discount"), NUMBER),
        "max_frames": WHOLE,
    },
    "agent_config": _WORKERS,
    "evaluator_config": _WORKERS,
    "policy_config": {
        **_LEARNER,
        "algo": ANYTHING,
        "hidden_dim": WHOLE,
        **dict.fromkeys(("explore_chance", "ddpg_explore_chance"), NUMBER),
        "bayesian": _ENSEMBLE,
        "value_expansion": _EXPANSION,
    },
    "model_config": {
        **_LEARNER,
        **dict.fromkeys(("transition_hidden_dim", "aux_hidden_dim"), WHOLE),
        "bayesian": {"transition": _ENSEMBLE, "reward": _ENSEMBLE},
    },
    "value_expansion": _EXPANSION,  # of a file that has it outside of policy_config
}
"""What a merged configuration may hold: a group of keys, or what a value must be."""

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
"""Keys without a knob, and where to look for what they did."""

SHARED = {
    "replay_size": "there is one replay for both learners, of the policy's size",
    "log_every_n": "there is one log for both learners, as often as the policy's",
    "backup_every_n": "a checkpoint holds both learners, and is kept as often as the policy's",
}
"""Keys of the model's learner that count only where they differ from the policy's."""

TASKS = {
    **{name: (name.lower(), 3) for name in ("Swimmer", "Hopper", "HalfCheetah", "Walker2d", "Humanoid", "Ant")},
    "BipedalWalkerHardcore": ("hardcore", 2),
    "RoboschoolHumanoid": ("humanoid_run", 1),
    "RoboschoolHumanoidFlagrun": ("flagrun", 1),
    "packtrain/HumanoidRun": ("humanoid_run", -1),
    "packtrain/HumanoidFlagrun": ("flagrun", -1),
}
"""Environment without its version → how our files call it, and the last version that is no longer to be had."""

METHODS = {
    "ddpg": ("DDPG", "OneStep"),
    "mve_tdk": ("MVE", "Mve"),
    "ensemble_mve_tdk": ("MVE with ensembles", "Mve"),
    "mve_mean": ("the mean over depths of MVE", "MveMean"),
    "mve_tdlambda": ("TD(lambda) over depths of MVE", "MveTdLambda"),
    "steve": ("STEVE", "Steve"),
    "steve_cov": ("STEVE with covariances between depths", "SteveCov"),
}
"""How our files call a method → its name for people, and its target."""


class Group(dict[str, Any]):
    """A group of settings; a ghost is one that was written "*name"."""

    def __init__(self, ghost: bool = False):
        super().__init__()
        self.ghost = ghost

    def find(self, place: str) -> Any:
        """What stands at "group.key"; False where nothing does."""
        found: Any = self
        for name in place.split("."):
            found = found.get(name, False) if isinstance(found, Group) else False
        return found


# -- reading


def read(path: Path) -> tuple[Group, list[str]]:
    """A configuration with all that it inherits, and remarks on what had to be mended to read it."""
    remarks: list[str] = []
    if not _is_file(path):
        raise ConfigError(f"{path} is not there, or not a file")
    try:
        return _resolve(path, (), {}, remarks), remarks
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply to be a configuration") from None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _resolve(path: Path, above: tuple[Path, ...], done: dict[Path, Group], remarks: list[str]) -> Group:
    """One file and what it inherits; a file that is inherited twice is read once."""
    real = path.resolve()
    if real in above:
        chain = " → ".join(file.name for file in [*above[above.index(real) :], real])
        raise ConfigError(f"{path} inherits itself: {chain}")
    if real in done:
        return done[real]
    inherits, updates = _load(path)
    merged = Group()
    for name in inherits:
        found = _find(name, path, remarks)
        _merge(merged, _resolve(found, (*above, real), done, remarks), own=False)
    _merge(merged, updates, own=True)
    done[real] = merged
    return merged


def _load(path: Path) -> tuple[list[str], Group]:
    """What one file inherits and what it updates, its keys and values checked."""
    text = ""
    try:
        text = read_text(path)
        content = json.loads(text, parse_constant=_refuse_constant)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        if text.startswith("ROOT GPU"):
            raise ConfigError(
                f"{path} is what a run noted of its settings, which is not JSON; convert the file it was started with"
            ) from None
        raise ConfigError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a STEVE configuration: it must be an object with 'inherits' and 'updates'")
    for key in content:
        if key not in ("inherits", "updates"):
            near = knobs.nearest(key, ["inherits", "updates"])
            raise ConfigError(f"{path}: unknown key {_short(key)}{near}; there are 'inherits' and 'updates'")
    inherits, updates = content.get("inherits", False), content.get("updates", False)
    inherits = [] if inherits is False else inherits
    updates = {} if updates is False else updates
    if not isinstance(inherits, list) or not all(isinstance(name, str) for name in inherits):
        raise ConfigError(f"{path}: inherits = {_short(inherits)} must be a list of paths")
    if not isinstance(updates, dict):
        raise ConfigError(f"{path}: updates = {_short(updates)} must be an object")
    return inherits, _checked(updates, KEYS, path, "")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _find(name: str, inheriting: Path, remarks: list[str]) -> Path:
    """The file that an entry of `inherits` means: from the current folder, or from one above the inheriting file."""
    for ending in ("", ".json"):
        for folder in [Path(), *inheriting.resolve().parents]:
            found = folder / f"{name}{ending}"
            if not _is_file(found):
                continue
            if ending:
                remarks.append(
                    f"{inheriting.name} inherits {_short(name)} without .json, and could not load there; read with it"
                )
            return found
    raise ConfigError(
        f"{inheriting} inherits {_short(name)}, which is neither below the current folder nor below one above the file"
    )


def _checked(given: dict[str, Any], known: dict[str, Any], path: Path, place: str) -> Group:
    """One level of `updates`; ConfigError with the first key or value that cannot be meant."""
    group = Group()
    for key, value in given.items():
        name = key.removeprefix("*")
        is_ghost = name != key
        if name not in known:
            raise ConfigError(f"{path}: unknown key {_short(place + name)}{knobs.nearest(name, list(known))}")
        if isinstance(value, dict) and isinstance(known[name], dict):
            inner = _checked(value, known[name], path, f"{place}{name}.")
            inner.ghost = is_ghost
            _merge(group, {name: inner}, own=True)
        elif is_ghost or (isinstance(known[name], dict) and value is not False):
            raise ConfigError(f"{path}: {place}{key} = {_short(value)} must be an object")
        else:
            group[name] = False if value is False else _value(value, known[name], path, place + name)
    return group


def _value(value: Any, kind: str, path: Path, place: str) -> Any:
    """A value of its kind; whole numbers as int."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15
    fits = {
        WHOLE: is_number and value == int(value),
        NUMBER: is_number,
        FLAG: isinstance(value, bool),
        TEXT: isinstance(value, str),
        ANYTHING: True,
    }
    if not fits[kind]:
        also = "" if kind == FLAG else ", or false"
        raise ConfigError(f"{path}: {place} = {_short(value)} must be {kind}{also}")
    return int(value) if kind == WHOLE else value


def _merge(receiver: Group, given: dict[str, Any], own: bool) -> None:
    """Put settings into others, key by key; of ghosts in what is inherited only those whose name is there."""
    for key, value in given.items():
        if not isinstance(value, Group):
            receiver[key] = value
            continue
        there = receiver.get(key)
        if not isinstance(there, Group):
            if value.ghost and not own:
                continue
            there = receiver[key] = Group(value.ghost)
        there.ghost &= value.ghost
        _merge(there, value, own)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# -- translating


@dataclass
class Translation:
    """A configuration in our words."""

    title: str  # method and task
    after: str  # the old one's name
    includes: list[str]  # shipped files
    values: dict[str, Any]  # knobs that differ from those files
    bindings: dict[str, str]  # what has no knob → its text
    comments: dict[str, str]  # knob or binding → what to know of it
    remarks: list[str]  # for people

    @property
    def files(self) -> list[Path]:
        """The included files' paths."""
        return [knobs.CONFIGS / name for name in self.includes]

    def text(self) -> str:
        """The file's text: includes, knobs, bindings."""
        lines = [f"# {self.title}, after {self.after}.json of the STEVE project"]
        lines += [f"include '{name}'" for name in self.includes]
        return "\n".join(lines + knobs.written(self.values, self.bindings, self.comments)) + "\n"


@dataclass
class _Old:
    """A merged configuration while it is translated, and what there is to say of it."""

    settings: Group
    source: str  # what messages call it
    remarks: list[str] = field(default_factory=list)
    comments: dict[str, str] = field(default_factory=dict)

    def find(self, place: str) -> Any:
        """What stands at "group.key"; False where nothing does."""
        return self.settings.find(place)

    def number(self, place: str) -> float:
        """A number without which the original could not have run."""
        value = self.find(place)
        if value is False:
            raise ConfigError(f"{self.source} does not say {place}, nor does what it inherits")
        return value

    def whole(self, place: str, least: int) -> int:
        """The same where it is a whole one, of at least this."""
        value = self.number(place)
        if value < least:
            raise ConfigError(f"{self.source}: {place} = {value} must be at least {least}")
        return int(value)

    def rate(self, group: str) -> float | None:
        """A learner's frames for each update; None if its updates do not wait for frames."""
        rate = self.find(f"{group}.frames_per_update")
        if rate is False:
            return None
        if rate < 1e-9:
            raise ConfigError(f"{self.source}: {group}.frames_per_update = {rate} must be above 0, or false")
        return float(rate)

    def members(self, place: str) -> int:
        """The size of an ensemble; 1 where there is none."""
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
        """How far targets look into the model, and how depths are mixed; empty if they do not."""
        found = [self.find(place) for place in ("policy_config.value_expansion", "value_expansion")]
        found = [group for group in found if group is not False]
        if len(found) > 1:
            raise ConfigError(f"{self.source} has value_expansion twice: in policy_config and outside of it")
        return found[0] if found else Group()


def translate(settings: Group, name: str, source: str, env: str | None = None) -> Translation:
    """A merged configuration in our words.

    Args:
      settings: what `read` gives.
      name: of the configuration; that of a horizon's ablation says which horizon was meant.
      source: what messages call it.
      env: an environment in place of the file's.

    Raises:
      ConfigError: something without which the original could not have run is missing or impossible.
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
            old.remarks.append(f"{place} = {_short(value)}: {where}")
    old.remarks.append(f"no end but by hand: --total_steps {known['total_steps'].default}")
    old.remarks.append("GPU and GPU + 1 on the command line: --device, which both learners share")
    differing = {key: value for key, value in values.items() if key in known and known[key].default != value}
    title = f"{METHODS[method][0]} on {said}"
    after = "".join(letter for letter in name if letter.isprintable())
    return Translation(title, after, includes, differing, bindings, old.comments, old.remarks)


def _environment_of(old: _Old) -> str:
    """The file's environment. It may not name a module, which would be imported when a run begins."""
    name = old.find("env.name")
    if name is False:
        raise ConfigError(f"{old.source} does not say env.name, nor does what it inherits; --env names an environment")
    if not re.fullmatch(r"[\w./-]+", name, re.ASCII):
        raise ConfigError(f"{old.source}: env.name = {_short(name)} is no environment's name; --env says what is meant")
    return name


def _find_task(env: str) -> tuple[str | None, bool]:
    """How our files call a task, and whether its simulator is gone."""
    match = re.fullmatch(r"(.+)-v(\d{1,3})", env)
    task, last = TASKS.get(match[1], (None, -1)) if match else (None, -1)
    return task, match is not None and int(match[2]) <= last


def _choose_files(method: str, task: str | None) -> list[str]:
    """The shipped files to build on: that of method and task, else those of any task."""
    if task is not None:
        return [f"steve/{method}_{task}_paper.gin"]
    if method == "ddpg":
        return ["steve/base.gin", "steve/numbers/paper.gin"]
    return ["steve/model_base.gin", "steve/numbers/paper_model.gin"]


def _choose_method(old: _Old, name: str, values: dict[str, Any]) -> str:
    """The method that the flags ask for, a key of METHODS; its members and horizon go into the values."""
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
        old.remarks.append("value_expansion.covariances: nothing asks for them without steve_reweight, as there")
    if not flags:
        single = values["critics"] == values["transitions"] == values["rewards"] == 1
        return "mve_tdk" if single else "ensemble_mve_tdk"
    steve = "steve_cov" if covariances else "steve"
    return {"mean_k_return": "mve_mean", "lambda_return": "mve_tdlambda", "steve_reweight": steve}[flags[0]]


def _acting_values(old: _Old) -> dict[str, Any]:
    """Knobs of acting. The original reads a chance of exploring that none of its files has."""
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
    """Knobs of policy and critics, and of what is written when."""
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
    """Knobs of the world model; and of the policy where both learners share one."""
    rate = old.rate("model_config")
    published, began = old.whole("model_config.epoch_every_n", 1), old.whole("model_config.frames_before_learning", 0)
    fetched, warm_up = values["publish_period"], values["warm_up"]
    if published < fetched:  # the policy's learner fetches the model when it publishes
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
    """Where a batch cannot be split between members, let each of its rows train a random one, as the original did."""
    for rows, batch, ensembles in (
        ("rows", "batch_size", ("critics",)),
        ("model_rows", "model_batch_size", ("transitions", "rewards")),
    ):
        if any(name in values and values[batch] % values[name] for name in ensembles):
            values[rows] = "random"
            old.comments[rows] = "as in the original: the batch cannot be split between the members"


def _choose_bindings(old: _Old, method: str, task: str | None) -> dict[str, str]:
    """What has no knob: the target and its λ, where no file of a task says them, and the trick of training deeper."""
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
    """Where episodes end, if they would end elsewhere by themselves."""
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


# -- writing


def convert(path: Path, out: Path, env: str | None) -> str:
    """Write a configuration of ours for one of the STEVE project's.

    Args:
      path: the JSON file.
      out: the .gin file, which must not exist.
      env: an environment in place of the file's.

    Returns:
      What was found, what has another place now and what can be done with it, a few lines for people.
    """
    if out.suffix != ".gin":
        raise ConfigError(f"{out} must end in .gin; choose another --out")
    if os.path.lexists(out):
        raise ConfigError(f"{out} is there already; choose another --out")
    if env is not None and not re.fullmatch(r"[\w./:-]+", env, re.ASCII):
        raise ConfigError(f"--env {_short(env)} is no environment's name")
    settings, remarks = read(path)
    translation = translate(settings, path.stem, str(path), env)
    _try(translation, path)
    try:
        write_whole(out, translation.text().encode())
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}; choose another --out") from None
    lines = [f"{path}: {translation.title}", *[f"  {remark}" for remark in [*remarks, *translation.remarks]]]
    lines.append(f"packtrain train {shlex.quote(str(out))} --device cuda --runtime local   trains it")
    return "\n".join(lines)


def _try(translation: Translation, path: Path) -> None:
    """ConfigError, as of the old file, if what was translated cannot be built."""
    bindings = [f"{name} = {value}" for name, value in translation.bindings.items()]
    try:
        config.build(config.load(translation.files, bindings, translation.values))
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be converted: {str(error).partition('; set in')[0]}") from None
