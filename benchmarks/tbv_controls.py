"""Why best-first search that trusts its model stands still: ablations of `tbv/bfs_hanoi`.

python benchmarks/tbv_controls.py run --folder runs/controls --jobs 2
python benchmarks/tbv_controls.py run --folder runs/controls7 --scale published --device cuda --only rounded
python benchmarks/tbv_controls.py table --folder runs/controls --data docs/results/tbv_controls.json

Each variant differs from `plain` in what its row says. Two scales: `published` is 7 disks at the published sizes, and
`small` is 6 disks with smaller networks and the same ratios. Per epoch of play, the random data is 32 epochs, the
model's memory holds 15.6 epochs, and each member sees 6.4 samples per environment step; pre-training takes 100 epochs.
Variants whose random data and pre-training are alike begin from the same pre-trained model of their seed.

`run` starts one process per variant and seed. It can be stopped and repeated: finished runs are left alone, others go
on from their checkpoints. `table` prints the distances to the goal over the planner's steps, and writes them together
with what the last checkpoints hold: how pairs of the ensemble's members predict every transition of the true graph, and
what is in the model's memory.
"""

import argparse
import datetime
import itertools
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from packtrain.envs.hanoi import Hanoi
from packtrain.metrics.reading import is_run_folder, read_metrics
from packtrain.networks.ensembles import EnsembleMlp
from packtrain.networks.world_model import WorldModel
from packtrain.planning.learned.ensemble_decoding import decode_delta
from packtrain.studies.results import write_data

DISTANCE = "graph/min_distance_to_goal_in_history"
STATES = "exploration/total_experienced_states_in_history"
ENVS = 32


@dataclass(frozen=True)
class Scale:
    """Sizes of a setting."""

    disks: int
    limit: int  # steps of an episode
    members: int
    mask: int
    hidden: tuple[int, ...]
    batch: int
    updates: int  # per epoch
    memory: int  # steps, about 15.6 epochs
    marks: tuple[int, ...]  # steps in the table

    def knobs(self, memory: int | None = None) -> list[str]:
        """The sizes as options of `packtrain train`."""
        return [
            *("--disks", str(self.disks), "--episode_time_limit", str(self.limit), "--n_envs", str(ENVS)),
            *("--members", str(self.members), "--mask_size", str(self.mask)),
            *("--model_hidden_sizes", str(self.hidden).replace(" ", "")),
            *("--model_batch_size", str(self.batch), "--model_n_steps_per_epoch", str(self.updates)),
            *("--model_replay_buffer_capacity", str(memory or self.memory)),
        ]


SCALES = {
    "small": Scale(6, 250, 4, 2, (128,) * 4, 256, 200, 125_000, (8_000, 40_000, 125_000, 250_000, 480_000)),
    "published": Scale(7, 1000, 8, 4, (250,) * 4, 1024, 200, 500_000, (32_000, 160_000, 500_000, 1_000_000, 1_500_000)),
}
PLANNED_EPOCHS = {"small": 55, "published": 42}  # after 5 that only collect


@dataclass(frozen=True)
class Variant:
    """One ablation."""

    what: str  # what differs from `plain`
    knobs: tuple[str, ...] = ()  # of play
    before: tuple[str, ...] = ()  # of random data and pre-training, and of play
    small_memory: bool = False  # a tenth: the 50,000 steps that the paper's text gives
    config: str = "tbv/bfs_hanoi"


ROUNDED = ("--config", "LearnedModel.factored=False")
EPSILON = {"small": "0.004", "published": "0.001"}  # one random action per episode
VARIANTS = {
    "plain": Variant("the shipped control: every disk is decoded to one peg"),
    "rounded": Variant("coordinates are rounded one by one, as published", ROUNDED),
    "small_memory": Variant("a tenth of the memory", small_memory=True),
    "rounded_small_memory": Variant("rounded, and a tenth of the memory", ROUNDED, small_memory=True),
    "rounded_heap": Variant(
        "rounded, and the published code's heap of equal keys",
        (*ROUNDED, "--fringe", "artefact", "--expand_heuristic", "neg_distance"),
    ),
    "rounded_no_tuning": Variant(
        "rounded, and the model stays as pre-trained", (*ROUNDED, "--fine_tune_on_agent_data", "False")
    ),
    "no_decay": Variant("no weight decay", before=("--config", "WorldModelLearning.weight_decay=0.0")),
    "all_members": Variant("every environment uses all members", ("--mask_size", "MEMBERS")),
    "epsilon": Variant("one random action per episode", ("EPSILON",)),
    "rounded_epsilon": Variant("rounded, and one random action per episode", (*ROUNDED, "EPSILON")),
    "no_penalty": Variant("no penalty of visited states", ("--avoid_history_coeff", "0.0")),
    "verifies": Variant("the rule, QR 0.9", ("--quantile_rank", "0.9")),
    "no_tuning": Variant("the model stays as pre-trained", ("--fine_tune_on_agent_data", "False")),
    "perfect": Variant(
        "the true transitions in place of the model",
        (
            *("--config", "Runner.callback_classes=(@ExplorationCallback,)"),
            *("--config", "BestFirstSearchAgent.avoid_history_coeff=-0.2"),
            *("--config", "BestFirstSearchAgent.use_value=False"),
            *("--config", "Run.until_solved=True"),
        ),
        config="planning/bfs_hanoi",
    ),
}


# -- running


class Runs:
    """Processes of `packtrain train`, at most `jobs` at a time, until the budget is over."""

    def __init__(self, folder: Path, scale: str, device: str, seeds: range, jobs: int, budget: float, joined: bool):
        self._folder, self._scale, self._device = folder, scale, device
        self._jobs, self._end = jobs, time.monotonic() + budget
        self._seeds = seeds
        self._joined = joined  # all seeds of a variant play in one process, in the folders seed_0, seed_1, ...

    def _place(self, kind: str, seed: int) -> Path:
        return self._folder / kind / f"seed_{seed - self._seeds.start if self._joined else seed}"

    def pretrained(self, variant: Variant, seed: int) -> Path:
        """The folder of a seed's random data and pre-training, shared by variants that agree on them."""
        kind = "_".join(("pre", *(["small_memory"] if variant.small_memory else []), *variant.before[1:]))
        return self._place(kind.replace("=", "_"), seed)

    def pretrain(self, names: list[str], index: int | None) -> None:
        """Pre-train the models of variants, for all seeds or one; end with an error if one did not finish."""
        for name, seed in itertools.product(names, self._seeds if index is None else [self._seeds[index]]):
            place = self.pretrained(VARIANTS[name], seed)
            self._pretrain(place, VARIANTS[name], seed)
            if not place.with_name(f"{place.name}.done").exists():
                raise SystemExit(f"tbv_controls: pre-training did not finish: {place}")

    def run(self, names: list[str]) -> None:
        """Pre-train what is needed, then play; whatever has the pre-training it needs starts in the order of names."""
        first = {
            self.pretrained(VARIANTS[n], s): (VARIANTS[n], s) for s in self._seeds for n in names if n != "perfect"
        }
        with ThreadPoolExecutor(self._jobs) as pool:
            begun = {path: pool.submit(self._pretrain, path, *what) for path, what in first.items()}
            for name, seed in itertools.product(names, self._seeds):
                if self._joined and seed != self._seeds.start:
                    continue
                needs = begun.get(self.pretrained(VARIANTS[name], seed))
                pool.submit(self._play, name, seed, needs)

    def _pretrain(self, path: Path, variant: Variant, seed: int) -> None:
        more = ["--n_epochs", "0", "--n_precollect_epochs", "0", *variant.before]
        self._start(["tbv/bfs_hanoi", *self._sizes(variant), *more], path, seed)

    def _play(self, name: str, seed: int, needs: Any) -> None:
        if needs is not None:
            needs.result()
        variant = VARIANTS[name]
        epochs = PLANNED_EPOCHS[self._scale]
        replaced = {"EPSILON": ["--epsilon", EPSILON[self._scale]], "MEMBERS": [str(SCALES[self._scale].members)]}
        knobs = [part for knob in variant.knobs for part in replaced.get(knob, [knob])]
        if variant.config == "tbv/bfs_hanoi":
            start = self.pretrained(variant, seed)
            begin = ["--start_from", str(start.parent if self._joined else start), "--until_solved", "True"]
            arguments = [*self._sizes(variant), *variant.before, *begin]
        else:
            sizes = SCALES[self._scale]
            arguments = ["--disks", str(sizes.disks), "--episode_time_limit", str(sizes.limit), "--n_envs", str(ENVS)]
        place = self._place(name, seed)
        if self._joined:
            place, arguments = place.parent, [*arguments, "--num_seeds", str(len(self._seeds))]
        self._start([variant.config, *arguments, "--n_epochs", str(epochs), *knobs], place, seed)

    def _sizes(self, variant: Variant) -> list[str]:
        sizes = SCALES[self._scale]
        knobs = sizes.knobs(sizes.memory // 10 if variant.small_memory else None)
        own = {knob for knob in variant.knobs if knob.startswith("--") and knob != "--config"}
        pairs = (
            itertools.batched(knobs, 2) if sys.version_info >= (3, 12) else zip(knobs[::2], knobs[1::2], strict=True)
        )
        return [part for pair in pairs if pair[0] not in own for part in pair]

    def _start(self, arguments: list[str], output: Path, seed: int) -> None:
        left = self._end - time.monotonic()
        done = output.parent / f"{output.name}.done"
        if left <= 0 or done.exists():
            return
        output.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "packtrain", "train", *arguments, "--seed", str(seed)]
        command += ["--device", self._device, "--output_dir", str(output)]
        with (output.parent / f"{output.name}.log").open("a") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
            try:
                code = process.wait(left)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)  # it saves and leaves
                code = None
                process.wait()
        if code == 0:
            done.touch()
        print(f"{output}: ended with {code} after {left - (self._end - time.monotonic()):.0f} s", flush=True)


# -- reading


def transitions(disks: int) -> dict[str, np.ndarray]:
    """Every state but the goal with every action: the pegs and observations, and the disk that moves, or -1."""
    core = Hanoi(disks)
    states = np.array(list(itertools.product(range(3), repeat=disks)), np.uint8)
    states = states[~(states == 2).all(axis=1)].repeat(6, axis=0)
    actions = np.tile(np.arange(6), len(states) // 6)
    after = core.step(states, actions, np.random.default_rng(0))[0]
    changed = states != after
    disk = np.where(changed.any(axis=1), changed.argmax(axis=1), -1)
    return {"pegs": states, "obs": core.observe(states), "action": actions, "after": core.observe(after), "disk": disk}


def model_predictions(weights: dict[str, torch.Tensor], scale: Scale) -> dict[str, Any]:
    """How the members of each mask predict transitions: shares that are right, a loop, or an impossible state.

    "rounded" and "joint" are the two ways of decoding. "region" holds the states in which neither of the two largest
    disks has moved; "gate" the moves of the second-largest disk out of it, and "inside" and "illegal" its other pairs.
    """
    core, pairs = Hanoi(scale.disks), transitions(scale.disks)
    network = WorldModel(EnsembleMlp(scale.members, scale.hidden)).build(core.observation_space, core.action_space)
    network.load_state_dict(weights)
    with torch.inference_mode():
        guess = network({"obs": torch.from_numpy(pairs["obs"]), "action": torch.from_numpy(pairs["action"])})
    delta = guess["delta"].numpy()
    region = (pairs["pegs"][:, scale.disks - 2 :] == 0).all(axis=1)
    gate = region & (pairs["disk"] == scale.disks - 2)
    illegal = region & (pairs["disk"] < 0)
    groups = {"gate": gate, "inside": region & ~gate & ~illegal, "illegal": illegal}
    found: dict[str, list[float]] = {}
    for members in itertools.combinations(range(scale.members), scale.mask):
        for decoding, factors in (("rounded", ()), ("joint", core.factors)):
            after = decode_delta(pairs["obs"], delta[:, members], np.float32(0), np.float32(1), factors)
            seen = {
                "right": (after == pairs["after"]).all(axis=1),
                "loop": (after == pairs["obs"]).all(axis=1),
                "impossible": (after.reshape(len(after), scale.disks, 3).sum(axis=2) != 1).any(axis=1),
            }
            for (group, rows), (what, yes) in itertools.product(groups.items(), seen.items()):
                found.setdefault(f"{decoding}/{group}/{what}", []).append(float(yes[rows].mean()))
    return {name: round(statistics.fmean(values), 4) for name, values in found.items()}


def memory_content(arrays: dict[str, torch.Tensor], disks: int) -> dict[str, Any]:
    """Steps in the model's memory, the share that changes nothing, and the moves of the second-largest disk."""
    steps = loops = moves = 0
    large = slice(3 * (disks - 2), 3 * (disks - 1))
    for name, obs in arrays.items():
        if name.endswith("/ring/fields/obs"):
            rows = arrays[name.replace("fields/obs", "is_step")].nonzero()[:, 0]
            before, after = obs[rows], obs[(rows + 1) % len(obs)]
            steps += len(rows)
            loops += int((before == after).all(dim=1).sum())
            moves += int((before[:, large] != after[:, large]).any(dim=1).sum())
    return {"steps": steps, "loops": round(loops / max(steps, 1), 5), "moves_of_second_largest": moves}


def read_seed(folder: Path, scale: Scale) -> dict[str, Any]:
    """One seed: distances where they changed, when it was solved, how far it went, and its last checkpoint."""
    rows = [row for row in read_metrics(folder) if row["kind"] == "train" and row.get(DISTANCE) is not None]
    steps = [row.get("env_steps_without_random", row["env_steps"]) for row in rows]
    changes: list[tuple[int, int]] = []
    for step, row in zip(steps, rows, strict=True):
        if step and (not changes or row[DISTANCE] != changes[-1][1]):
            changes.append((step, row[DISTANCE]))
    last = rows[-1] if rows else {}
    found = {
        "distances": changes,
        "steps": steps[-1] if steps else 0,
        "solved": last.get("first_solved_step_without_random", last.get("first_solved_step")),
        "states": last.get(STATES),
    }
    saved = [path for path in (folder / "checkpoints").glob("*/weights.safetensors") if path.parent.name.isdigit()]
    if saved:  # a perfect model has none
        newest = max(saved, key=lambda path: int(path.parent.name))
        weights = {name.removeprefix("/model/model."): each for name, each in load_file(newest).items()}
        found["model"] = model_predictions(weights, scale)
        found["memory"] = memory_content(load_file(newest.with_name("memories.safetensors")), scale.disks)
    return found


def at(seed: dict[str, Any], step: int, start: int) -> int | None:
    """The distance that a seed had come to by a step; None if it did not run so far."""
    if seed["solved"] is not None and step >= seed["solved"]:
        return 0
    if step > seed["steps"] and seed["solved"] is None:
        return None
    return min((distance for when, distance in seed["distances"] if when <= step), default=start)


def table(folder: Path, scale_name: str, data: Path | None, more: dict[str, Any]) -> None:
    """Print a table of all variants in a folder, and write what it was made of."""
    scale = SCALES[scale_name]
    start = 2**scale.disks - 1
    content: dict[str, Any] = {"scale": scale_name, "start": start, **more, "variants": {}}
    print(
        "| variant | what differs | seeds |" + "".join(f" {m / 1000:g} K |" for m in scale.marks) + " states | solved |"
    )
    print("|" + " --- |" * (len(scale.marks) + 5))
    for name in (*sorted(path.name for path in folder.glob("pre*")), *VARIANTS):
        folders = sorted(path for path in (folder / name).glob("seed_*") if path.is_dir() and is_run_folder(path))
        seeds = {path.name.removeprefix("seed_"): read_seed(path, scale) for path in folders}
        if not seeds:
            continue
        content["variants"][name] = seeds
        if name not in VARIANTS:
            continue
        cells = []
        for mark in scale.marks:
            values = [at(seed, mark, start) for seed in seeds.values()]
            cells.append(", ".join("–" if value is None else str(value) for value in values))
        states = ", ".join(str(seed["states"]) for seed in seeds.values())
        solved = sum(seed["solved"] is not None for seed in seeds.values())
        row = [name, VARIANTS[name].what, str(len(seeds)), *cells, states, f"{solved} of {len(seeds)}"]
        print("| " + " | ".join(row) + " |")
    if data is not None:
        data.parent.mkdir(parents=True, exist_ok=True)
        write_data(data, json.dumps(content) + "\n")


def append_rows(arguments: argparse.Namespace, seeds: range) -> None:
    """Append what each variant and seed came to, with the device and versions, to a file of JSON lines."""
    note = f"{arguments.device}, torch {torch.__version__}, Python {platform.python_version()}, {datetime.date.today()}"
    for name, seed in itertools.product(arguments.only, seeds):
        folder = arguments.folder / name / f"seed_{seed - seeds.start if arguments.joined else seed}"
        if is_run_folder(folder):
            row = {"variant": name, "seed": seed, "note": note, **read_seed(folder, SCALES[arguments.scale])}
            with arguments.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")


def main() -> None:
    """Run variants, or read them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pretrain", "run", "table"))
    parser.add_argument("--folder", type=Path, required=True, help="where the runs are")
    parser.add_argument("--scale", choices=tuple(SCALES), default="small")
    parser.add_argument("--only", nargs="+", choices=tuple(VARIANTS), default=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--first_seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--joined", action="store_true", help="all seeds of a variant in one process")
    parser.add_argument("--pretrain_index", type=int, help="with `pretrain`: only this one of the seeds")
    parser.add_argument("--rows", type=Path, help="JSON lines that `run` appends, one per variant and seed")
    parser.add_argument("--budget", type=float, default=1e6, help="seconds after which runs save and end")
    parser.add_argument("--data", type=Path, help="JSON file that `table` writes")
    parser.add_argument("--note", default="", help="machine, versions and date, for the JSON file")
    arguments = parser.parse_args()
    if arguments.what != "table":
        scale, first = arguments.scale, arguments.first_seed
        seeds = range(first, first + arguments.seeds)
        runs = Runs(
            arguments.folder, scale, arguments.device, seeds, arguments.jobs, arguments.budget, arguments.joined
        )
        if arguments.what == "pretrain":
            runs.pretrain(arguments.only, arguments.pretrain_index)
        else:
            runs.run(arguments.only)
        if arguments.rows is not None and arguments.what == "run":
            append_rows(arguments, seeds)
    else:
        table(arguments.folder, arguments.scale, arguments.data, {"note": arguments.note})


if __name__ == "__main__":
    main()
