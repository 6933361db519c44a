"""Convert snapshots of marltas_core (`online_model_STEP.pkl`) to run folders, without executing anything in them.

A snapshot is the state dict of the online Q network: no target network, optimiser, replay, counters or settings. Its
weights are matched by order and shape, not by name: convolutions, fully connected layers, the LSTM, and the two
dueling streams, of which the value stream has one output. Of a model with intrinsic rewards, the extrinsic network is
taken, which is the first of the two and the one that evaluations there used.

The new run folder is at step 0. Evaluations play its weights. A run that goes on from it has these weights, with a new
optimiser and an empty replay.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from packtrain import knobs
from packtrain.config import Configuration
from packtrain.convert.torch_file import is_plain, load, shown
from packtrain.convert.torchbeast import write_run
from packtrain.errors import CheckpointError, ConfigError, RunFolderError
from packtrain.metrics.recorder import Recorder
from packtrain.metrics.rolling import Rolling
from packtrain.networks.q_network import QValueNetwork
from packtrain.runtime import preparation
from packtrain.runtime.experiment import Experiment
from packtrain.runtime.folder import RunFolder

SYSTEM = "marltas_core"
LSTM = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
OTHERS = ("rnd_target_model", "rnd_predictor_model", "ec_embedding_model", "ec_inverse_model")


class Snapshot(NamedTuple):
    """Weights of one Q network of old, by their place."""

    convolutions: list[tuple[Tensor, Tensor]]  # weight and bias, in order
    layers: list[tuple[Tensor, Tensor]]  # fully connected layers before the LSTM or the streams
    core: tuple[Tensor, ...]  # weights of the LSTM as in LSTM; empty without one
    advantage: list[tuple[Tensor, Tensor]]  # the hidden layer and the last one; only the last one without dueling
    value: list[tuple[Tensor, Tensor]]  # likewise; empty without dueling
    second: bool  # the file has a second network, for intrinsic rewards

    @property
    def knobs(self) -> dict[str, Any]:
        """Return the knobs of the network's size."""
        found: dict[str, Any] = {"dueling_size": len(self.advantage[0][1]) if self.value else None}
        if self.core:
            found["lstm_size"] = self.core[1].shape[1]
        sizes = tuple(len(bias) for _, bias in self.layers)
        if sizes and sizes != (512,):
            found["hidden_sizes"] = sizes
        return found


def read(path: Path) -> Snapshot:
    """Return the weights of a snapshot; CheckpointError if they are not those of a Q network of marltas_core."""
    content = load(path, SYSTEM)
    if not isinstance(content, dict) or not content:
        raise CheckpointError(f"{path} is not a snapshot of {SYSTEM}: it has no weights by name")
    for name, weight in content.items():
        if not isinstance(name, str) or not is_plain(weight):
            raise CheckpointError(f"{path}: the weight {shown(name)} is not a plain array of finite numbers")
    networks = list(_networks(content))
    if not 1 <= len(networks) <= 2:
        raise CheckpointError(f"{path} has {len(networks)} networks, and 1 or 2 are needed")
    return _placed(path, networks[0], second=len(networks) == 2)


def _networks(weights: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield the networks of a file: one, or two with the same parts under two prefixes."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, weight in weights.items():
        groups.setdefault(name.partition(".")[0], {})[name] = weight
    shapes = [[tuple(weight.shape) for weight in group.values()] for group in groups.values()]
    if len(groups) == 2 and shapes[0] == shapes[1]:
        yield from groups.values()
    else:
        yield weights


def _placed(path: Path, weights: dict[str, Tensor], second: bool) -> Snapshot:
    """Return the weights by their place in the network."""
    core: dict[str, Tensor] = {}
    pairs: list[tuple[Tensor, Tensor]] = []
    pending: Tensor | None = None
    before_core = 0  # pairs in front of the LSTM
    for name, weight in weights.items():
        part = re.search(r"(weight_ih|weight_hh|bias_ih|bias_hh)_l(\d+)$", name)
        if part is not None:
            if part[2] != "0" or part[1] in core:
                raise CheckpointError(f"{path} has an LSTM of several layers, and {SYSTEM}'s has one")
            core[part[1]], before_core = weight, len(pairs)
        elif weight.ndim in (2, 4) and pending is None:
            pending = weight
        elif weight.ndim == 1 and pending is not None and len(weight) == len(pending):
            pairs.append((pending, weight))
            pending = None
        else:
            raise CheckpointError(f"{path}: the weight {shown(name)} does not fit a Q network of {SYSTEM}")
    convolutions = [pair for pair in pairs if pair[0].ndim == 4]
    rest = [pair for pair in pairs if pair[0].ndim == 2]
    in_order = all(weight.ndim == 4 for weight, _ in pairs[: len(convolutions)])
    if pending is not None or len(core) not in (0, 4) or not in_order or not rest:
        raise CheckpointError(f"{path} is not a Q network of {SYSTEM}: parts are missing or in another order")
    layers, streams = _split(rest, before_core - len(convolutions) if core else None)
    advantage, value = _streams(path, streams)
    return Snapshot(convolutions, layers, tuple(core[name] for name in LSTM if core), advantage, value, second)


def _split(
    rest: list[tuple[Tensor, Tensor]], before_core: int | None
) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]:
    """Return the fully connected layers before the streams, and those of the streams."""
    if before_core is not None:
        return rest[:before_core], rest[before_core:]
    is_dueling = len(rest) >= 4 and any(len(bias) == 1 for _, bias in rest[-4:])
    streams = 4 if is_dueling else 1
    return rest[:-streams], rest[-streams:]


def _streams(
    path: Path, pairs: list[tuple[Tensor, Tensor]]
) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]:
    """Return the advantage and the value stream; each hidden layer belongs to the last layer of the same rank."""
    if len(pairs) == 1:
        return pairs, []
    outputs = [index for index, (_, bias) in enumerate(pairs) if len(bias) == 1]
    if len(pairs) != 4 or len(outputs) != 1:
        raise CheckpointError(f"{path}: its last layers are not an advantage and a value stream")
    (last,) = outputs
    in_turn = pairs[0][0].shape == pairs[2][0].shape  # hidden, last, hidden, last; else hidden, hidden, last, last
    ends = (1, 3) if in_turn else (2, 3)
    if last not in ends:
        raise CheckpointError(f"{path}: its last layers are not an advantage and a value stream")
    starts = (0, 2) if in_turn else (0, 1)
    found = {end: [pairs[start], pairs[end]] for start, end in zip(starts, ends, strict=True)}
    return next(stream for end, stream in found.items() if end != last), found[last]


def convert(model: Path, output: Path, files: list[Path], bindings: list[str], env: str | None) -> str:
    """Create a run folder from a snapshot; return a few lines for the user.

    Args:
      model: the file.
      output: the folder, which must not exist.
      files: configurations to build on; none: that of the sync script with the same kind of network.
      bindings: gin bindings that override the sizes found.
      env: the environment, which a snapshot does not contain.
    """
    if model.name.startswith(OTHERS):
        raise CheckpointError(f"{model} is not a Q network; convert online_model_STEP.pkl")
    if output.exists() or output.is_symlink():
        raise RunFolderError(f"{output} already exists; choose another --output_dir")
    if env is None and not files:
        raise ConfigError(f"{model} does not contain the environment's name; give it with --env")
    old = read(model)
    family = "r2d2" if old.core else "dqn"
    files = files or [knobs.find_config(f"{family}/marltas_sync" if old.convolutions else f"{family}/base")[0]]
    known: dict[str, knobs.Knob] = {}
    for file in files:
        known |= knobs.read_knobs(file)
    values = {name: value for name, value in old.knobs.items() if name in known}
    values |= {"env": env} if env is not None and "env" in known else {}
    if not old.convolutions:
        values |= {name: False for name in ("use_last_action", "use_last_reward") if name in known}
    configuration, experiment, spec = preparation.prepare(files, bindings, values, None)
    network = experiment.policy.build_network(spec)
    _fill(model, old, network)
    state = _state(network, configuration, experiment)
    write_run(RunFolder(output), configuration, 0, state, f"converted from {model}")
    count = sum(parameter.numel() for parameter in network.acting.values.parameters())
    lines = [
        f"{model}: a Q network{' with an LSTM' * bool(old.core)}, {len(old.advantage[-1][1])} actions, {count:,} "
        f"weights, in {experiment.streams.environment.id}",
        "What means something else:",
        "  the run is at step 0, since a snapshot has no counters; a step is a decision of one game",
        "  the target network is a copy of the online one; the optimiser and the replay begin new",
        f"  settings are those of {', '.join(file.stem for file in files)}: convert config.yaml for those of the run",
    ]
    if old.second:
        lines.append("  the network for intrinsic rewards is left out; evaluations there did not use it")
    lines.append(f"packtrain eval {output}   plays it")
    lines.append(f"packtrain train {output / 'config.gin'} --output_dir {output}   goes on with these weights")
    return "\n".join(lines)


def _fill(model: Path, old: Snapshot, network: Any) -> None:
    """Load the weights into the online and the target network; CheckpointError with the first that does not fit."""
    values = getattr(getattr(network, "acting", None), "values", None)
    if not isinstance(values, QValueNetwork):
        raise ConfigError(f"{model} is a Q network, and the configuration has none; build on dqn/… or r2d2/…")
    part = values.extrinsic
    wanted = part.state_dict()
    given = _named(part, old)
    if set(given) != set(wanted):
        missing = sorted(set(wanted) ^ set(given))[0]
        raise CheckpointError(f"{model} does not fit the configuration's network: {missing} is only on one side")
    for name, weight in given.items():
        if weight.shape != wanted[name].shape:
            shapes = f"{list(weight.shape)} there and {list(wanted[name].shape)} here"
            raise CheckpointError(f"{model} does not fit the configuration's network: {name} is {shapes}")
    part.load_state_dict(given)
    network.target.load_state_dict(copy.deepcopy(values.state_dict()))


def _named(part: nn.Module, old: Snapshot) -> dict[str, Tensor]:
    """Return the weights under our names, which are in the network's order within each kind of layer."""
    kinds = {4: iter(old.convolutions), 2: iter(old.layers)}
    given: dict[str, Tensor] = {}
    streams = {"advantage": iter(old.advantage), "value": iter(old.value)}
    for name, module in part.named_modules():
        if isinstance(module, nn.LSTM):
            given |= {f"{name}.{kind}_l0": weight for kind, weight in zip(LSTM, old.core, strict=False)}
        elif isinstance(module, (nn.Conv2d, nn.Linear)):
            source = streams.get(name.partition(".")[0], kinds[module.weight.ndim])
            pair = next(source, None)
            if pair is not None:
                given |= {f"{name}.weight": pair[0], f"{name}.bias": pair[1]}
    for left in (*kinds.values(), *streams.values()):
        if next(left, None) is not None:
            given["a layer of the snapshot"] = torch.zeros(0)
    return given


def _state(network: Any, configuration: Configuration, experiment: Experiment) -> dict[str, Any]:
    """Return a checkpoint's state at step 0, without environments and replay."""
    learners = {name: use.learner.build(network, experiment.total_steps) for name, use in experiment.learners.items()}
    states = {name: learner.state_dict() for name, learner in learners.items()}
    weights = {name: state.pop("network") for name, state in states.items()}
    run = {
        **dict.fromkeys(("step", "metrics_bytes", "next_eval", "env_steps", "random_steps", "counted"), 0),
        "repeats": [0] * len(experiment.schedule),
        "groups": [],
        "wall_s": 0.0,
        "last_eval": -1,
        "solved_at": None,
        "rolling": Rolling().snapshot(),
        "identity": configuration.identity(),
        "values": dict(configuration.values),
    }
    recorder = Recorder(experiment.run.log_every).state_dict()
    return {"weights": weights, "learners": states, "run": run, "recorder": recorder}
