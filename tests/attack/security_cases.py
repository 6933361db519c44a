"""Attacks through files that somebody else wrote: code, links, sizes, and texts that are shown."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cases import SMALL, case, cheaply_refused, refused, run, small_run


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
        from packtrain.runtime import marltas_configs, steve_configs, torchbeast

        read = {"tar": torchbeast.read, "json": steve_configs.read, "yaml": marltas_configs.read}[ending]
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
_read_case("20,000 YAML keys", _keys("key_{}: 1"), "unknown key", ending="yaml", attacks="convert: keys in a row")
_read_case("20,000 YAML sections", _keys("key_{}:\n  inner: 1"), ending="yaml", attacks="convert: sections in a row")
_read_case("YAML nested 10,000 deep", lambda path: path.write_text("a: " + "[" * 10_000) and None, "deeply",
           ending="yaml", attacks="convert: lists in one another")  # fmt: skip
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
