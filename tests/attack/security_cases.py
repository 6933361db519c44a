"""Attacks through files from other people: code, links, sizes, and texts that are shown."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import pickle
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from cases import SMALL, STEPS, case, cheaply_refused, refused, run, small_run

import packtrain


def _evil(place: Path) -> str:
    """A module that leaves a trace when it is imported, beside the run folders; the import line."""
    (place / "evil.py").write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n")
    return "import evil\n"


def _importing(place: Path) -> Path:
    """A run whose config.gin imports that module; the run folder."""
    folder = small_run(place)
    config = folder / "config.gin"
    config.write_text(_evil(place) + config.read_text())
    return folder


def _nothing_ran(place: Path, *command: str) -> None:
    refused(list(command), place, "--trust-config")
    assert not (place / "ran").exists(), "code of the run folder ran"


# -- code


@case("import in a run's config, eval", attacks="config.gin: an import", expected="refused, nothing runs")
def import_and_eval(place: Path) -> None:
    _importing(place)
    _nothing_ran(place, "eval", "run")


@case("import in a run's config, train", attacks="config.gin: an import", expected="refused, nothing runs")
def import_and_train(place: Path) -> None:
    _importing(place)
    _nothing_ran(place, "train", "run/config.gin", "--output_dir", "run")


@case("import in a run's config, show-config", attacks="config.gin: an import", expected="refused, nothing runs")
def import_and_show_config(place: Path) -> None:
    _importing(place)
    _nothing_ran(place, "show-config", "run/config.gin")


@case("import in a run's config, audit", attacks="config.gin: an import", expected="refused, nothing runs")
def import_and_audit(place: Path) -> None:
    small_run(place, "other")
    _importing(place)
    _nothing_ran(place, "audit", "run", "--trusted", "other")


@case("import in a run's config, --start_from", attacks="config.gin: an import", expected="refused, nothing runs")
def import_and_start_from(place: Path) -> None:
    _importing(place)
    _nothing_ran(place, "train", "impala/catch", "--output_dir", "new", "--start_from", "run")


@case("import in a run's config, report", attacks="config.gin: an import", expected="shown, nothing runs")
def import_and_report(place: Path) -> None:
    _importing(place)
    code, output = run(["report", "run"], place)
    assert code == 0 and not (place / "ran").exists(), output


@case("other file of a run folder", attacks="RUN/other.gin: an import", expected="refused, nothing runs")
def other_file(place: Path) -> None:
    folder = _importing(place)
    (folder / "config.gin").rename(folder / "other.gin")
    _nothing_ran(place, "train", "run/other.gin", "--output_dir", "new")


@case("link to a run's config", attacks="mine.gin → RUN/config.gin: an import", expected="refused, nothing runs")
def link_to_config(place: Path) -> None:
    (place / "mine.gin").symlink_to(_importing(place) / "config.gin")
    _nothing_ran(place, "train", "mine.gin", "--output_dir", "new")


@case("folder with a config.gin alone", attacks="config.gin: an import", expected="refused, nothing runs")
def lone_config(place: Path) -> None:
    (place / "run").mkdir()
    (place / "run/config.gin").write_text(_evil(place) + "include 'impala/catch.gin'\n")
    _nothing_ran(place, "train", "run/config.gin", "--output_dir", "new")


@case("run's config included by mine", attacks="RUN/config.gin: an import", expected="refused, nothing runs")
def included_config(place: Path) -> None:
    _importing(place)
    (place / "mine.gin").write_text("include 'run/config.gin'\n")
    _nothing_ran(place, "train", "mine.gin", "--output_dir", "new")


@case("module in an environment's id", attacks="config.gin: env = 'evil:X-v0'", expected="refused, nothing runs")
def module_in_id(place: Path) -> None:
    _evil(place)
    config = small_run(place) / "config.gin"
    config.write_text(config.read_text().replace("env = 'Catch'", "env = 'evil:X-v0'"))
    assert "evil" in config.read_text()
    _nothing_ran(place, "eval", "run")


@case("module in a Simulator's id", attacks="config.gin: kwargs = {'env': 'evil:X-v0'}", expected="nothing runs")
def module_in_simulator(place: Path) -> None:
    _evil(place)
    config = small_run(place) / "config.gin"
    text = config.read_text().replace("env = 'Catch'", "env = 'Simulator'")
    config.write_text(text + "Environment.kwargs = {'env': 'evil:X-v0'}\n")
    _nothing_ran(place, "eval", "run")


@case("include outside a run folder", attacks="config.gin: include of an importing file", expected="refused")
def include_outside(place: Path) -> None:
    config = small_run(place) / "config.gin"
    (place / "far.gin").write_text(_evil(place))
    config.write_text("include '../far.gin'\n" + config.read_text())
    _nothing_ran(place, "eval", "run")


# -- links out of a run folder


def _linked(place: Path, name: str, folder: bool = False) -> Callable[[], None]:
    """Put a link at RUN/NAME to a file or folder of the victim's; what asserts that nothing happened to that."""
    victim = place / "victim"
    victim.mkdir()
    (victim / "1").mkdir()
    (victim / "1/kept.txt").write_text("secret-of-the-victim")
    (victim / "file.txt").write_text("secret-of-the-victim")
    before = {path: path.stat().st_mtime_ns for path in victim.rglob("*")}
    part = place / "run" / name
    if part.is_dir():
        shutil.rmtree(part)
    elif part.exists():
        part.unlink()
    part.symlink_to(victim if folder else victim / "file.txt")

    def check() -> None:
        assert {path: path.stat().st_mtime_ns for path in victim.rglob("*")} == before
        assert (victim / "file.txt").read_text() == "secret-of-the-victim"

    return check


def _link_case(name: str, argv: list[str], folder: bool = False) -> None:
    @case(f"link at {name}, {argv[0]}", attacks=f"RUN/{name} → a {'folder' if folder else 'file'} elsewhere",
          expected="refused in one line; nothing there is read, written or deleted")  # fmt: skip
    def check(place: Path) -> None:
        small_run(place)
        untouched = _linked(place, name, folder)
        line = refused(argv, place, "is a symbolic link")
        assert "secret-of-the-victim" not in line
        untouched()
        assert not (place / "run/report.html").exists()


RESUME = [*SMALL, "--total_steps", "800"]
EVAL = ["eval", "run", "--num_episodes", "2"]
for _name in ("config.gin", "metrics.jsonl", "log.txt", ".lock"):
    _link_case(_name, RESUME)
for _name in ("checkpoints", "replay", "checkpoints/7"):
    _link_case(_name, RESUME, folder=True)
for _name in ("eval.json", "config.gin", "checkpoints/best.json"):
    _link_case(_name, EVAL)
for _name in ("checkpoints", "videos"):
    _link_case(_name, EVAL, folder=True)
for _name in ("log.txt", "metrics.jsonl", "config.gin", "eval.json", "picture.svg"):
    _link_case(_name, ["report", "run"])
for _name in ("videos", "seed_0"):
    _link_case(_name, ["report", "run"], folder=True)


@case("link to a run folder", attacks="runs/latest → RUN", expected="it is followed: the user named it")
def link_to_run(place: Path) -> None:
    small_run(place)
    (place / "latest").symlink_to("run")
    code, output = run(["eval", "latest", "--num_episodes", "2"], place)
    assert code == 0 and (place / "run/eval.json").is_file(), output


# -- what reading a file may cost


def _read_case(name: str, write: Callable[[Path], None], *parts: str, ending: str, attacks: str) -> None:
    """A hostile file for `convert`: refused within the bounds."""

    @case(name, attacks=attacks, expected="refused in one line, ≤ 256 MB, ≤ 1 s")
    def check(place: Path) -> None:
        from packtrain.convert import marltas_yaml, steve_json, torchbeast

        read = {"tar": torchbeast.read, "json": steve_json.read, "yaml": marltas_yaml.read}[ending]
        path = place / f"model.{ending}"
        write(path)
        cheaply_refused(lambda: read(path), *parts)


def _bomb(path: Path) -> None:
    import torch

    torch.save({"weights": torch.zeros(2**20)}, path)
    with zipfile.ZipFile(path) as whole:
        parts = {name: whole.read(name) for name in whole.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            if not name.endswith("data/0"):
                archive.writestr(name, data)
        with archive.open(next(name for name in parts if name.endswith("data/0")), "w", force_zip64=True) as file:
            for _ in range(400):
                file.write(bytes(2**20))


def _nested(depth: int, zipped: bool) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        instructions = b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b"."
        if not zipped:  # torch's old format: magic number, protocol, system, and then the object
            head = b"".join(pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {}))
            path.write_bytes(head + instructions)
            return
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model/data.pkl", instructions)
            archive.writestr("model/version", "3\n")

    return write


def _doubled(path: Path) -> None:
    """A list in a list in a list …, each twice: 2^60 items if written out, as the name of a weight."""
    inner: list[Any] = []
    for _ in range(60):
        inner = [inner, inner]
    import torch

    content = {"model_state_dict": {}, "optimizer_state_dict": {}, "scheduler_state_dict": {"last_epoch": inner}}
    torch.save({**content, "flags": {"unroll_length": inner, "batch_size": inner}}, path)


def _many_parts(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(20_000):
            archive.writestr(f"model/data/{number}", b"")


def _sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(2**36)


def _keys(form: str) -> Callable[[Path], None]:
    return lambda path: path.write_text("\n".join(form.format(number) for number in range(20_000))) and None


def _aliases(path: Path) -> None:
    lines = ["a0: &a0 1", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10))]
    path.write_text("\n".join(lines))


_read_case("zip bomb", _bomb, "compressed archive", ending="tar", attacks="convert: 400 MB of zeros packed")
_read_case("deeply nested pickle", _nested(100_000, True), ending="tar", attacks="convert: 100,000 lists in a zip")
_read_case("deeply nested old pickle", _nested(2_000_000, False), ending="tar", attacks="convert: 2 M lists in a row")
_read_case("list of lists, each twice", _doubled, ending="tar", attacks="convert: 2^60 items where a number is due")
_read_case("archive of 20,000 parts", _many_parts, "parts", ending="tar", attacks="convert: parts without content")
for _ending in ("tar", "json", "yaml"):
    _read_case(f"pipe as a .{_ending} file", os.mkfifo, ending=_ending, attacks="convert: a FIFO")
    _read_case(f"/dev/zero as a .{_ending} file", lambda path: path.symlink_to("/dev/zero"), ending=_ending,
               attacks="convert: an endless device")  # fmt: skip
    _read_case(f"sparse .{_ending} file", _sparse, ending=_ending, attacks="convert: 64 GB of holes")
_read_case("20,000 YAML keys", _keys("key_{}: 1"), "keys and values", ending="yaml", attacks="convert: keys in a row")
_read_case("20,000 YAML sections", _keys("key_{}:\n  inner: 1"), ending="yaml", attacks="convert: sections in a row")
_read_case("YAML nested 10,000 deep", lambda path: path.write_text("a: " + "[" * 10_000) and None, "deeply",
           ending="yaml", attacks="convert: lists in one another")  # fmt: skip
_read_case(
    "YAML aliases, each a list of ten", _aliases, "aliases", ending="yaml", attacks="convert: 10^9 items in 10 lines"
)
_read_case("JSON nested 100,000 deep", lambda path: path.write_text("[" * 100_000) and None, "deeply", ending="json",
           attacks="convert: lists in one another")  # fmt: skip


def _checkpoint_case(name: str, attacks: str, damage: Callable[[Path], None]) -> None:
    """Damage the only checkpoint of a run, at RUN/checkpoints/STEP: loading it is refused within the bounds."""

    @case(name, attacks=attacks, expected="refused in one line, ≤ 256 MB, ≤ 1 s")
    def check(place: Path) -> None:
        from packtrain.runtime import checkpoint

        folder = small_run(place) / "checkpoints"
        steps = checkpoint.steps(folder)
        for step in steps[:-1]:
            shutil.rmtree(folder / str(step))
        path = folder / str(steps[-1])
        damage(path)
        cheaply_refused(lambda: checkpoint.load(path))
        cheaply_refused(lambda: checkpoint.load_newest(folder))
        refused(["eval", "run"], place)


def _instead(name: str, make: Callable[[Path], None], rewrite: bool = False) -> Callable[[Path], None]:
    """Put something else at a file of a checkpoint; `rewrite`: the manifest says its size and a right digest."""

    def damage(path: Path) -> None:
        (path / name).unlink()
        make(path / name)
        if rewrite:
            manifest = json.loads((path / "manifest.json").read_text())
            size = (path / name).stat().st_size
            digest = hashlib.sha256((path / name).read_bytes()).hexdigest() if size < 2**28 else "0" * 64
            manifest["files"][name] = {"bytes": size, "sha256": digest}
            (path / "manifest.json").write_text(json.dumps(manifest))

    return damage


def _text(text: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(text) and None


def _header(path: Path) -> None:
    path.write_bytes((2**40).to_bytes(8, "little") + b"{}")


def _claim(path: Path) -> None:
    header = b'{"a":{"dtype":"F32","shape":[1073741824],"data_offsets":[0,4294967296]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header)


for _name in ("manifest.json", "state.json", "weights.safetensors"):
    _checkpoint_case(f"pipe as {_name}", f"checkpoints/STEP/{_name}: a FIFO", _instead(_name, os.mkfifo))
    _checkpoint_case(f"/dev/zero as {_name}", f"checkpoints/STEP/{_name}: a link to an endless device",
                     _instead(_name, lambda path: path.symlink_to("/dev/zero")))  # fmt: skip
    _checkpoint_case(f"folder as {_name}", f"checkpoints/STEP/{_name}: a folder", _instead(_name, os.mkdir))
_checkpoint_case("sparse manifest", "manifest.json: 64 GB of holes", _instead("manifest.json", _sparse))
_checkpoint_case("sparse weights", "weights.safetensors: 64 GB of holes, as the manifest says",
                 _instead("weights.safetensors", _sparse, True))  # fmt: skip
_checkpoint_case("huge safetensors header", "weights.safetensors: a header of 1 TB",
                 _instead("weights.safetensors", _header, True))  # fmt: skip
_checkpoint_case("4 GB claim", "weights.safetensors: 4 GB in 80 bytes",
                 _instead("weights.safetensors", _claim, True))  # fmt: skip
_checkpoint_case("deep manifest", "manifest.json: 100,000 lists", _instead("manifest.json", _text("[" * 100_000)))
_checkpoint_case("deep state", "state.json: 100,000 lists", _instead("state.json", _text("[" * 100_000), True))


@case("sparse metrics.jsonl", attacks="metrics.jsonl: 64 GB of holes", expected="refused in one line, ≤ 256 MB, ≤ 1 s")
def sparse_metrics(place: Path) -> None:
    from packtrain.metrics.reading import read_metrics

    folder = small_run(place)
    _sparse(folder / "metrics.jsonl")
    cheaply_refused(lambda: read_metrics(folder))
    refused(["report", "run"], place)


@case("pipe as config.gin", attacks="RUN/config.gin: a FIFO", expected="refused in one line, without waiting")
def pipe_as_config(place: Path) -> None:
    config = small_run(place) / "config.gin"
    config.unlink()
    os.mkfifo(config)
    refused(["eval", "run"], place)
    refused(["train", "run/config.gin", "--output_dir", "new"], place)


@case("sparse config.gin", attacks="RUN/config.gin: 64 GB of holes", expected="refused in one line")
def sparse_config(place: Path) -> None:
    _sparse(small_run(place) / "config.gin")
    refused(["eval", "run"], place, "config.gin")
    refused(["show-config", "run/config.gin"], place, "config.gin")


# -- what would end in a traceback


def _state_case(
    name: str, attacks: str, change: Callable[[dict[str, Any]], None], *parts: str, fast: bool = False
) -> None:
    """Change the state of a run's checkpoint and update its digests: both commands refuse it in one line."""

    @case(name, attacks=attacks, expected="eval and train refuse it in one line", fast=fast)
    def check(place: Path) -> None:
        from packtrain.runtime import checkpoint

        folder = small_run(place) / "checkpoints"
        step = checkpoint.steps(folder)[-1]
        for path in folder.iterdir():
            if path.name != str(step) and path.is_dir():
                shutil.rmtree(path)
        state = checkpoint.load(folder / str(step))
        change(state)
        checkpoint.save(folder, step, state)
        refused(["eval", "run"], place, *parts)
        refused(RESUME, place, *parts)


def _set(part: str, key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda state: state[part].__setitem__(key, value)


for _value in (float("nan"), -1, "many", None, 2**70, [1]):
    _state_case(f"run.step = {_value}", f"state: run.step = {_value}", _set("run", "step", _value), "step",
                fast=_value == -1)  # fmt: skip
for _key in ("step", "wall_s", "metrics_bytes", "identity", "values", "env_steps", "next_eval"):
    _state_case(
        f"state without run.{_key}", f"state: no run.{_key}", lambda state, key=_key: state["run"].pop(key), _key
    )
for _part in ("run", "weights", "learners"):
    _state_case(f"state without {_part}", f"state: no {_part}", lambda state, part=_part: state.pop(part), _part)
    _state_case(f"{_part} is a list", f"state: {_part} = []", lambda state, part=_part: state.update({part: []}), _part)
_state_case("identity of numbers", "state: run.identity = {'a': 3}", _set("run", "identity", {"a": 3}), "identity")
_state_case("repeats of texts", "state: run.repeats = ['a']", _set("run", "repeats", ["a"]), "repeats")
_state_case("weights are texts", "state: weights.policy = 'x'", _set("weights", "policy", "x"), "no arrays")
_state_case("deep identity", "state: 400 lists as run.values",
            lambda state: state["run"].update(values=functools.reduce(lambda inner, _: [inner], range(150), [])),
            "values")  # fmt: skip


def _weights(change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def apply(state: dict[str, Any]) -> None:
        (weights,) = state["weights"].values()
        name = next(name for name in weights if name.endswith("bias"))
        weights[name] = change(weights[name])

    return apply


_state_case("NaN weights", "state: a weight is NaN", _weights(lambda one: one * float("nan")), "not finite",
            fast=True)  # fmt: skip
_state_case("weights of another shape", "state: a bias of 3", _weights(lambda one: one.new_zeros(3)), "not fit",
            fast=True)  # fmt: skip
_state_case("weights without dimensions", "state: a bias of no dimension",
            _weights(lambda one: one.new_zeros(())), "not fit")  # fmt: skip
_state_case("unknown weights", "state: weights of another network",
            lambda state: [one.update(more=next(iter(one.values())).clone()) for one in state["weights"].values()],
            "not fit")  # fmt: skip


@case("recorder of another type", attacks="state: recorder = 3", expected="train refuses it in one line")
def odd_recorder(place: Path) -> None:
    from packtrain.runtime import checkpoint

    folder = small_run(place) / "checkpoints"
    step = checkpoint.steps(folder)[-1]
    state = checkpoint.load(folder / str(step))
    checkpoint.save(folder, step, {**state, "recorder": 3})
    refused(RESUME, place, "does not fit")


@case("config that includes itself", attacks="mine.gin: a cycle of includes", expected="refused in one line")
def config_cycle(place: Path) -> None:
    (place / "a.gin").write_text("include 'impala/catch.gin'\nImpala.entropy_cost = 0.1\ninclude './b.gin'\n")
    (place / "b.gin").write_text("Impala.entropy_cost = 0.2\ninclude './a.gin'\n")
    (place / "c.gin").write_text("include './c.gin'\n")
    for name in ("a", "b", "c"):
        refused(["train", f"{name}.gin", "--output_dir", "run"], place, "includes itself")


@case("config of a million includes", attacks="mine.gin: each file includes the next twice", expected="refused")
def config_of_many(place: Path) -> None:
    for number in range(20):
        (place / f"c{number}.gin").write_text(f"include 'c{number + 1}.gin'\n" * 2)
    (place / "c20.gin").write_text("include 'impala/catch.gin'\n")
    refused(["train", "c0.gin", "--output_dir", "run"], place, "more than 200 files")


@case("chain of 5,000 includes", attacks="mine.gin: each file includes the next", expected="refused in one line")
def config_chain(place: Path) -> None:
    for number in range(300):
        (place / f"c{number}.gin").write_text(f"Impala.entropy_cost = 0.1\ninclude 'c{number + 1}.gin'\n")
    refused(["show-config", "c0.gin"], place, "more than 200 files")


LONG = "n" * 300
ODD = os.fsdecode(b"caf\xe9")


@case("over-long names", attacks="arguments: names of 300 letters", expected="one line each, no traceback")
def long_names(place: Path) -> None:
    for argv, code in (
        (["train", f"{LONG}.gin"], 2),
        (["train", "impala/catch", "--output_dir", LONG], 1),
        (["eval", LONG], 1),
        (["report", LONG], 1),
        (["show-config", f"{LONG}.gin"], 2),
        (["convert", f"{LONG}.tar", "--output_dir", "out"], 2),
    ):
        refused(argv, place, code=code)


@case("names that are no text", attacks="arguments: bytes that are no UTF-8", expected="a run, and one line each")
def odd_names(place: Path) -> None:
    for argv in (["eval", ODD], ["report", ODD], ["train", f"{ODD}.gin"], ["convert", f"{ODD}.json"]):
        refused(argv, place)
    small_run(place, ODD)
    for argv in (["report", ODD], ["eval", ODD, "--num_episodes", "2"]):
        code, output = run(argv, place)
        assert code == 0, output


@case("control characters in a name", attacks="arguments: codes that clear the screen", expected="shown as escapes")
def control_characters(place: Path) -> None:
    line = refused(["eval", "a\x1b[2Jb\u202ec"], place, "a\\x1b[2Jb\\u202ec")
    assert "\x1b" not in line and "\u202e" not in line


@case("folders in place of files", attacks="RUN: folders called like its files", expected="one line each")
def folders_as_files(place: Path) -> None:
    for name in ("metrics.jsonl", "log.txt", ".lock", "config.gin"):
        run_folder = small_run(place, f"run-{name}")
        (run_folder / name).unlink(missing_ok=True)
        (run_folder / name).mkdir()
        argv = [word.replace("run", run_folder.name) if word == "run" else word for word in RESUME]
        code, output = run(argv, place)
        assert code in (1, 2) and "Traceback" not in output, f"{name}: {output}"
        assert output.count("packtrain: error:") == 1, f"{name}: {output}"


@case("folders as CONFIG and FILE", attacks="arguments: folders", expected="one line each")
def folders_as_arguments(place: Path) -> None:
    for name in ("a.gin", "a.json", "a.yaml", "a.tar"):
        (place / name).mkdir()
    refused(["train", "a.gin"], place)
    refused(["show-config", "a.gin"], place)
    for name in ("a.json", "a.yaml"):
        refused(["convert", name], place)
    refused(["convert", "a.tar", "--output_dir", "out"], place)


def _limited(place: Path, limit: str, argv: list[str]) -> tuple[int, str]:
    """Run a command below a limit of the shell's `ulimit`."""
    words = " ".join(shlex.quote(word) for word in argv)
    command = f"ulimit {limit} && exec {shlex.quote(sys.executable)} -m packtrain {words}"
    path = os.pathsep.join([str(Path(packtrain.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(["bash", "-c", command], cwd=place, env={**os.environ, "PYTHONPATH": path},
                          capture_output=True, text=True, timeout=120)  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@case("too few file descriptors", attacks="ulimit -n 40: 64 environments in processes", expected="one line", fast=False)
def few_descriptors(place: Path) -> None:
    argv = ["train", "impala/gym", "--env_processes", "true", "--num_actors", "64", "--output_dir", "run"]
    code, output = _limited(place, "-n 40", argv)
    errors = [line for line in output.splitlines() if line.startswith("packtrain: error:")]
    assert code in (1, 2, 3) and len(errors) == 1 and "Traceback" not in output, output


@case("no memory", attacks="ulimit -v: a network that does not fit", expected="one line", fast=False)
def no_memory(place: Path) -> None:
    argv = ["train", "impala/catch", "--hidden_size", "40000", "--num_layers", "4", "--output_dir", "run"]
    code, output = _limited(place, "-v 6000000", argv)
    errors = [line for line in output.splitlines() if line.startswith("packtrain: error:")]
    assert code in (1, 2) and len(errors) == 1 and "Traceback" not in output, output


@case("leftovers in a read-only folder", attacks="checkpoints/: .old-* that cannot be renamed", expected="it is played")
def read_only_leftovers(place: Path) -> None:
    from packtrain.runtime import checkpoint

    folder = small_run(place) / "checkpoints"
    (folder / ".old-5-1").mkdir()
    with mock.patch("os.rename", side_effect=PermissionError(13, "Permission denied")):
        loaded = checkpoint.load_newest(folder)
    assert loaded is not None


def _diverging(name: str, argv: list[str]) -> None:
    @case(f"learning rate of 1e38, {name}", attacks="--learning_rate 1e38", expected="one line, code 3", fast=False)
    def check(place: Path) -> None:
        refused([*argv, "--output_dir", "run", "--learning_rate", "1e38"], place, "learning rate", code=3, timeout=120)


_diverging("IMPALA", ["train", "impala/catch", "--total_steps", "8000"])
_diverging("PPO", ["train", "tbv/ppo_hanoi", "--disks", "3", "--total_steps", "40000"])
_diverging("planning", "train planning/deterministic_mcts_td_sokoban --n_envs 4 --n_epochs 2 --board_size 5".split())


@case("bias without dimensions", attacks="convert: policy.bias is a scalar", expected="refused in one line")
def lone_bias(place: Path) -> None:
    import torch

    weights = {f"{layer}.{part}": torch.zeros(4, 4) for layer in ("conv1", "conv2", "conv3", "fc", "policy", "baseline")
               for part in ("weight", "bias")}  # fmt: skip
    weights["policy.bias"] = torch.tensor(1.0)
    parts = {"optimizer_state_dict": {}, "scheduler_state_dict": {"last_epoch": 1}}
    flags = {"unroll_length": 5, "batch_size": 2, "env": "PongNoFrameskip-v4"}
    torch.save({"model_state_dict": weights, "flags": flags, **parts}, place / "model.tar")
    refused(["convert", "model.tar", "--output_dir", "out"], place, "policy.bias")


@case("a fault of packtrain", attacks="cli: an error that nothing expects", expected="one line; a log.txt has the rest")
def last_resort(place: Path) -> None:
    from packtrain import cli

    small_run(place)
    error = io.StringIO()
    with (
        mock.patch("packtrain.runtime.eval_command.refuse_no_run", side_effect=ZeroDivisionError("by\nzero")),
        contextlib.redirect_stderr(error),
    ):
        assert cli.main(["eval", str(place / "run")]) == 1
    log = place / "run/log.txt"
    assert error.getvalue() == f"packtrain: error: ZeroDivisionError: by (the traceback is in {log})\n"
    assert "ZeroDivisionError" in log.read_text() and "Traceback" in log.read_text()


# -- pages and written files


@case("markup and direction marks in a page", attacks="log.txt, config.gin: <script>, U+202E", expected="escaped")
def hostile_page(place: Path) -> None:
    folder = small_run(place)
    hostile = "# <script>alert(1)</script> \u202egnp.exe \u2066x\u2069 <img src=x onerror=alert(1)>\n"
    knob = "note = '<script>alert(1)</script> \u202egnp.exe \u2066x\u2069 <img src=x onerror=alert(1)>'\n"
    for name, more in (("log.txt", ""), ("config.gin", knob)):
        path = folder / name
        path.write_text(hostile + path.read_text(encoding="utf-8") + more, encoding="utf-8")
    code, output = run(["report", "run"], place)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert code == 0, output
    assert "<script>alert" not in page and "<img src=x" not in page and "alert(1)" in page
    assert not set("\u202e\u2066\u2069") & set(page)


@case("private umask", attacks="umask 077", expected="nothing of a run can be read by others", fast=False)
def private_umask(place: Path) -> None:
    before = os.umask(0o077)
    try:
        code, output = _limited(place, "-c unlimited && umask 077", [*SMALL, *STEPS])
        assert code == 0, output
        for command in (["eval", "run", "--num_episodes", "2"], ["report", "run"]):
            code, output = _limited(place, "-c unlimited && umask 077", command)
            assert code == 0, output
    finally:
        os.umask(before)
    readable = [path.name for path in (place / "run").rglob("*") if path.stat().st_mode & 0o077]
    assert not readable, readable


@case("markup in a folder's name", attacks="--output_dir: [/red]", expected="the panel shows it as it is")
def markup_in_name(place: Path) -> None:
    from rich import get_console

    from packtrain.metrics.console import RichConsole

    shown, before = io.StringIO(), get_console().file
    get_console().file = shown
    try:
        console = RichConsole("runs/[/red]x", 100)
        console.show({"kind": "train", "step": 3, "wall_s": 1.0})
        console.close()
    finally:
        get_console().file = before
    assert "[/red]x" in shown.getvalue()


@case(
    "python -m packtrain inside a run folder",
    attacks="RUN/json.py: a module beside the files",
    expected="nothing runs",
    known_limit="`python -m` puts the current folder first on the path before packtrain is imported; the command "
    "`packtrain` does not, and neither does `python -P -m packtrain`",
)
def module_in_current_folder(place: Path) -> None:
    raise AssertionError("Python imports it before any line of packtrain runs")
