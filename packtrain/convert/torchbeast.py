"""Convert TorchBeast's checkpoints (`model.tar`) to run folders, without executing anything in them.

Two networks are supported. MonoBeast's AtariNet, also with the deeper and wider fully connected layers of the
reward-misspecification fork, becomes `Conv`; PolyBeast's network becomes `ResNet`. Sizes are taken from the weights,
hyper-parameters from the file's flags, and RMSprop's averages are kept, so that training can continue.
"""

from __future__ import annotations

import argparse
import logging
import re
import shutil
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from packtrain import knobs
from packtrain.config import Configuration
from packtrain.convert.torch_file import is_plain, is_scalar, load, shown
from packtrain.envs.atari import is_atari
from packtrain.errors import CheckpointError, ConfigError, RunFolderError
from packtrain.metrics.recorder import Recorder
from packtrain.metrics.rolling import Rolling
from packtrain.runtime import checkpoint, preparation
from packtrain.runtime.experiment import Experiment
from packtrain.runtime.folder import RunFolder

T = TypeVar("T")
log = logging.getLogger("packtrain")

PARTS = ("model_state_dict", "optimizer_state_dict", "scheduler_state_dict", "flags")
CONFIGS = {"AtariNet": "impala/torchbeast", "ResNet": "impala/pong_deep"}
WAYS = {"optimiser": "rmsprop", "reduction": "sum", "lr_schedule": "linear", "reward_scale": 1.0}
"""Settings that TorchBeast hard-codes."""
ELSEWHERE = set(
    "mode xpid savedir disable_checkpoint disable_cuda device learner_device actor_device num_actions num_servers "
    "num_learner_threads num_threads num_inference_threads max_learner_queue_size pipes_basename "
    "write_profiler_trace num_episodes".split()
)
"""Flags of the file that have no effect on acting and learning of this network."""


class Old(NamedTuple):
    """Content of a TorchBeast file."""

    kind: Literal["AtariNet", "ResNet"]
    weights: dict[str, Tensor]  # under TorchBeast's names
    flags: dict[str, Any]
    step: int  # environment steps learned from
    updates: int
    moments: dict[str, dict[str, Any]]  # RMSprop's state of each weight, same names; empty if it does not match


# -- reading


class _Nothing:
    """Replaces NumPy's scalars and dtypes in PolyBeast's `stats`: accepts any arguments, and does nothing."""

    def __init__(self, *_: Any):
        pass

    def __setstate__(self, _: Any) -> None:
        pass


def read(path: Path) -> Old:
    """Read a `model.tar`; nothing in it is executed.

    Raises:
      CheckpointError: it cannot be read, needs more than tensors and plain values, or is not TorchBeast's.
    """
    names = ("numpy.dtype", "numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar")
    content = load(path, "TorchBeast", [argparse.Namespace, *[(_Nothing, name) for name in names]])
    if not isinstance(content, dict) or not all(part in content for part in PARTS):
        lacking = [part for part in PARTS if not isinstance(content, dict) or part not in content]
        raise CheckpointError(f"{path} is not a TorchBeast checkpoint: it has no {', '.join(lacking)}")
    flags = content["flags"]
    flags = vars(flags) if isinstance(flags, argparse.Namespace) else flags
    weights, scheduler, stats = content["model_state_dict"], content["scheduler_state_dict"], content.get("stats") or {}
    for part, value in (("flags", flags), ("model_state_dict", weights), ("scheduler_state_dict", scheduler)):
        if not isinstance(value, dict):
            raise CheckpointError(f"{path} is not a TorchBeast checkpoint: its {part} is a {type(value).__name__}")
    for name, weight in weights.items():
        if not isinstance(name, str) or not is_plain(weight):
            raise CheckpointError(f"{path}: the weight {shown(name)} is not a plain array of finite numbers")
    updates = _count(scheduler.get("last_epoch"), path, "scheduler_state_dict's last_epoch")
    step = stats.get("step") if isinstance(stats, dict) else None
    if step is None:  # MonoBeast does not save it, but every update uses T·B steps
        sizes = [_count(flags.get(name), path, f"the flag {name}") for name in ("unroll_length", "batch_size")]
        step = updates * sizes[0] * sizes[1]
    step = _count(step, path, "stats' step")
    moments = _moments(content["optimizer_state_dict"], weights)
    return Old(_kind(path, weights), dict(weights), dict(flags), step, updates, moments)


def _count(value: Any, path: Path, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CheckpointError(f"{path} is not a TorchBeast checkpoint: {what} is {shown(value)}")
    return value


def _kind(path: Path, weights: dict[str, Tensor]) -> Literal["AtariNet", "ResNet"]:
    if any(name.startswith("feat_convs.") for name in weights):
        return "ResNet"
    if any(name.startswith("conv1.") for name in weights):
        return "AtariNet"
    raise CheckpointError(
        f"{path} contains neither MonoBeast's AtariNet nor PolyBeast's ResNet: its weights are {_some(weights)}"
    )


def _some(names: Any) -> str:
    names = [shown(name) for name in names]
    return ", ".join(names[:4]) + f" and {len(names) - 4} more" * (len(names) > 4)


def _moments(optimiser: Any, weights: dict[str, Tensor]) -> dict[str, dict[str, Any]]:
    """Return RMSprop's state of each weight; {} if it does not match.

    An optimiser numbers its parameters in the order of the module's, which is that of its weights; a weight that has
    two names (the fork's early version repeats one layer) is one parameter.
    """
    try:
        parameters, states = optimiser["param_groups"][0]["params"], optimiser["state"]
        index: dict[tuple[int, torch.Size], int] = {}
        for weight in weights.values():
            index.setdefault((weight.data_ptr(), weight.shape), len(index))
        if len(index) != len(parameters):
            return {}
        return {name: dict(states[parameters[index[w.data_ptr(), w.shape]]]) for name, w in weights.items()}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return {}


# -- names and sizes


def rename(weights: dict[str, T]) -> dict[str, T]:
    """Return weights under packtrain's names; CheckpointError with those that are unknown or missing."""
    table = _table(weights)
    for what, names in (
        ("weights that we do not know", [name for name in weights if name not in table]),
        ("no", [name for name in table if name not in weights]),
    ):
        if names:
            raise CheckpointError(f"this TorchBeast network has {what}: {_some(names)}")
    return {table[name]: weight for name, weight in weights.items()}


def _table(weights: dict[str, T]) -> dict[str, str]:
    """Return TorchBeast's names → packtrain's names, for the network that these weights match."""
    if any(name.startswith("feat_convs.") for name in weights):
        layers = {f"feat_convs.{s}.0": f"perception.convolutions.{4 * s}" for s in range(3)}
        for block, s, layer in ((b, s, i) for b in (1, 2) for s in range(3) for i in (1, 3)):
            layers[f"resnet{block}.{s}.{layer}"] = f"perception.convolutions.{4 * s + 1 + block}.inner.{layer}"
    else:
        layers = {f"conv{i + 1}": f"perception.convolutions.{2 * i}" for i in range(3)}
    numbered = {int(match[1]) for name in weights if (match := re.fullmatch(r"fc\.(\d{1,6})\.(weight|bias)", name))}
    layers |= {f"fc.{number}": f"body.{2 * i}" for i, number in enumerate(sorted(numbered))} or {"fc": "body.0"}
    layers |= {"policy": "policy", "baseline": "value"}
    table = {f"{old}.{part}": f"{new}.{part}" for old, new in layers.items() for part in ("weight", "bias")}
    recurrent = [int(match[1]) for name in weights if (match := re.fullmatch(r"core\.\w+_l(\d{1,2})", name))]
    for layer in range(max(recurrent, default=-1) + 1):
        for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            table[f"core.{part}_l{layer}"] = f"core.lstm.{part}_l{layer}"
    return table


def sizes(weights: dict[str, Tensor]) -> dict[str, Any]:
    """Return the knobs of the network's size, from weights under packtrain's names."""
    found: dict[str, Any] = {
        "hidden_size": weights["body.0.weight"].shape[0],
        "num_layers": sum(re.fullmatch(r"body\.\d+\.weight", name) is not None for name in weights),
        "use_lstm": "core.lstm.weight_ih_l0" in weights,
    }
    if found["use_lstm"]:
        width, units = weights["core.lstm.weight_ih_l0"].shape[1], weights["core.lstm.weight_hh_l0"].shape[1]
        found["lstm_size"] = None if width == units else units  # None: as many units as inputs
        found["lstm_layers"] = sum(name.startswith("core.lstm.weight_ih_l") for name in weights)
    return found


# -- writing


def convert(model: Path, output: Path, files: list[Path], bindings: list[str], env: str | None) -> str:
    """Create a run folder from a TorchBeast checkpoint.

    Args:
      model: the file.
      output: the folder, which must not exist.
      files: configurations to build on; none: the one that fits the network.
      bindings: gin bindings that override the file's settings.
      env: the game; None: the one in the file.

    Returns:
      A few lines for the user: what was found and how to use it.
    """
    if output.exists() or output.is_symlink():
        raise RunFolderError(f"{output} already exists; choose another --output_dir")
    old = read(model)
    weights = rename(old.weights)
    values, left_out = _choose_knobs(model, old, weights, files, bindings, env)
    files = files or [knobs.find_config(CONFIGS[old.kind])[0]]
    configuration, experiment, spec = preparation.prepare(files, bindings, values, None)
    network = experiment.policy.build_network(spec)
    _refuse_misfit(model, weights, network, experiment.streams.environment.id)
    state, carried = _state(old, weights, network, configuration, experiment)
    write_run(RunFolder(output), configuration, old.step, state, f"converted from {model} at step {old.step}")
    lines = [
        f"{model}: {old.kind}{' with an LSTM' * (network.core is not None)}, {len(weights['policy.bias'])} actions, "
        f"{sum(p.numel() for p in network.parameters()):,} weights, step {old.step:,} of "
        f"{experiment.total_steps:,} in {experiment.streams.environment.id}"
    ]
    if left_out:
        lines.append(f"without its flags {', '.join(left_out)}: there is nothing here that they would set")
    if not carried:
        lines.append("without the optimiser's averages, which do not fit: learning begins with new ones")
    lines.append(f"packtrain eval {output}   plays it")
    lines.append(f"packtrain train {output / 'config.gin'} --output_dir {output}   goes on with it")
    return "\n".join(lines)


def _choose_knobs(
    model: Path, old: Old, weights: dict[str, Tensor], files: list[Path], bindings: list[str], env: str | None
) -> tuple[dict[str, Any], list[str]]:
    """Return knob values that reproduce the file's settings, and the flags without an equivalent."""
    known: dict[str, knobs.Knob] = {}
    for file in files or [knobs.find_config(CONFIGS[old.kind])[0]]:
        known.update(knobs.read_knobs(file))
    values: dict[str, Any] = {name: value for name, value in WAYS.items() if name in known}
    left_out = []
    for name, value in old.flags.items():
        if name in ELSEWHERE or name == "env" or value is None:
            continue
        if name not in known:
            left_out.append(f"{shown(name)} = {shown(value)}")
            continue
        if not is_scalar(value) and not (isinstance(value, (list, tuple)) and all(map(is_scalar, value))):
            raise CheckpointError(f"a flag in {model}: {shown(name)} is {shown(value)}, which is not a plain value")
        try:
            values[name] = known[name].parse(str(value))
        except ConfigError as error:
            raise CheckpointError(f"a flag in {model}: {error}") from None
    try:
        found = sizes(weights)
    except IndexError:
        raise CheckpointError(f"{model} has weights whose shapes fit no network") from None
    if "lstm_size" in found and "lstm_size" in known and known["lstm_size"].default is not None:
        found["lstm_size"] = weights["core.lstm.weight_hh_l0"].shape[1]
    values |= {name: value for name, value in found.items() if name in known}
    game = _choose_game(model, old.flags.get("env"), env, bool(files))
    values |= {"env": game} if game is not None else {}
    for name in {binding.partition("=")[0].strip() for binding in bindings}:  # the user's settings win
        values.pop(name, None)
    return values, left_out


def _choose_game(model: Path, said: Any, env: str | None, config_named: bool) -> str | None:
    """Return the environment's id; None to use that of a configuration that the user named.

    The file's value is accepted for Atari ids only: other ids may name a module, which would be imported.
    """
    if env is not None or (said is None and config_named):
        return env
    if said is None:
        raise CheckpointError(
            f"{model} does not contain the game's name (PolyBeast's files never do); name it with --env"
        )
    if not isinstance(said, str) or not is_atari(said):
        raise CheckpointError(
            f"{model} has the game {shown(said)!r}, which is not an Atari id; give today's id with --env"
        )
    return said


def _refuse_misfit(model: Path, weights: dict[str, Tensor], network: nn.Module, env: str) -> None:
    """Raise a CheckpointError with the first weight that does not match the configuration's network."""
    wanted = network.state_dict()
    if weights["policy.bias"].ndim == 0:
        raise CheckpointError(f"{model} has weights whose shapes fit no network: policy.bias is a scalar")
    has, expected = len(weights["policy.bias"]), len(wanted["policy.bias"])
    if has != expected:
        raise CheckpointError(f"{model} has {has} actions but {env} has {expected}; name the game with --env")
    for name in sorted({*weights, *wanted}):
        ours, theirs = (list(side[name].shape) if name in side else "absent" for side in (wanted, weights))
        if ours != theirs:
            raise CheckpointError(
                f"{model} does not fit the configuration's network: {name} is {theirs} there and {ours} here"
            )


def _state(
    old: Old, weights: dict[str, Tensor], network: nn.Module, configuration: Configuration, experiment: Experiment
) -> tuple[dict[str, Any], bool]:
    """Return a checkpoint's state as `Training` reads it, and whether it has RMSprop's averages."""
    ((name, use),) = experiment.learners.items()
    learner: Any = use.learner.build(network, experiment.total_steps)
    moments = _optimiser_state(old, learner.optimiser, network)
    learner.load_state_dict({"network": weights, "optimiser": moments, "steps": old.step, "updates": old.updates})
    own = learner.state_dict()
    every = experiment.run.log_every
    state = {
        "weights": {name: own.pop("network")},
        "learners": {name: own},
        "run": {
            "step": old.step,
            "repeats": [0] * len(experiment.schedule),
            "groups": [],  # used for replay memories only, which a converted run does not have
            "wall_s": 0.0,
            "metrics_bytes": 0,
            "next_eval": old.step,
            "last_eval": -1,
            "env_steps": old.step,
            "random_steps": 0,
            "counted": old.step,
            "solved_at": None,
            "rolling": Rolling().snapshot(),
            "identity": configuration.identity(),
            "values": dict(configuration.values),
        },
        "recorder": {**Recorder(every).state_dict(), "next": (old.step // every + 1) * every},
    }
    return state, bool(moments)


def _optimiser_state(old: Old, optimiser: torch.optim.Optimizer, network: nn.Module) -> dict[str, dict[str, Tensor]]:
    """Return RMSprop's state by the new parameters' numbers; {} for another optimiser, or if a part is missing."""
    if not isinstance(optimiser, torch.optim.RMSprop) or not old.moments:
        return {}
    wanted = ["square_avg", *["momentum_buffer"] * (optimiser.param_groups[0]["momentum"] > 0)]
    renamed, found = rename(old.moments), {}
    for index, (name, parameter) in enumerate(network.named_parameters()):
        arrays: dict[str, Any] = {key: renamed[name].get(key) for key in wanted}
        if not all(is_plain(array) and array.shape == parameter.shape for array in arrays.values()):
            return {}
        averages = {key: array.float() for key, array in arrays.items()}
        found[str(index)] = {"step": torch.tensor(float(old.updates)), **averages}
    return found


def write_run(folder: RunFolder, configuration: Configuration, step: int, state: dict[str, Any], note: str) -> None:
    """Create the run folder; delete it if that fails."""
    folder.check_writable()
    folder.open()
    try:
        folder.config.write_text(configuration.text(), encoding="utf-8")
        checkpoint.save(folder.checkpoints, step, state)
        log.info("%s", note)
    except OSError as error:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise RunFolderError(
            f"{folder.shown} cannot be written: {error.strerror}; choose another --output_dir"
        ) from None
    finally:
        folder.close()
