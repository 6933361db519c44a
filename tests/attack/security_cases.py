"""Attacks through files that somebody else wrote: code, links, sizes, and texts that are shown."""

from __future__ import annotations

from pathlib import Path

from cases import case, refused, run, small_run


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
