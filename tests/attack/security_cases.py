"""Attacks through files that somebody else wrote: code, links, sizes, and texts that are shown."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from cases import SMALL, case, refused, run, small_run


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
