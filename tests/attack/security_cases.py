"""Attacks through files that somebody else wrote: code, links, sizes, and texts that are shown."""

from __future__ import annotations

from pathlib import Path

from cases import case, refused, small_run


def _evil(place: Path) -> str:
    """A module that leaves a trace when it is imported, beside the run folders; the import line."""
    (place / "evil.py").write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n")
    return "import evil\n"


@case("import in a run's config, eval", attacks="config.gin: an import", expected="refused, nothing runs")
def eval_of_an_import(place: Path) -> None:
    config = small_run(place) / "config.gin"
    config.write_text(_evil(place) + config.read_text())
    refused(["eval", "run"], place, "--trust-config")
    assert not (place / "ran").exists()
