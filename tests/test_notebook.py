"""docs/tasks/first_hour.ipynb runs from top to bottom in a kernel, in an empty folder."""

import os
import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parent.parent / "docs" / "tasks" / "first_hour.ipynb"


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("notebook")
    book = nbformat.read(NOTEBOOK, as_version=4)
    kept = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "XDG_STATE_HOME")}
    os.environ |= {"OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(folder / "state")}
    try:
        client = nbclient.NotebookClient(book, timeout=600, resources={"metadata": {"path": str(folder)}})
        client.execute()
    finally:
        for name, value in kept.items():
            os.environ.pop(name, None)
            os.environ |= {} if value is None else {name: value}
    return folder, book


def outputs(book, words):
    """The outputs of the cell with these words in its source."""
    (cell,) = [cell for cell in book.cells if cell.cell_type == "code" and words in cell.source]
    return cell.outputs


def printed(book, words):
    return "".join(part.get("text", "") for part in outputs(book, words))


@pytest.mark.slow
def test_the_notebook_trains_plots_acts_and_compares(executed):
    folder, book = executed
    assert any("image/png" in part.get("data", {}) for part in outputs(book, "plt.plot"))
    assert float(re.search(r"return (\d+)", printed(book, "policy.predict"))[1]) > 8
    compared = printed(book, "packtrain.compare")
    assert re.search(r"95 % interval -?[\d.]+ to -?[\d.]+", compared) and "probability" in compared
    assert (folder / "runs/comparison.html").stat().st_size > 10_000


@pytest.mark.slow
def test_progress_in_a_notebook_is_one_output_that_is_updated(executed):
    """Mutation: rows that are printed one below the other."""
    _, book = executed
    shown = [part for part in outputs(book, 'output_dir="runs/first", seed=1)\nrun.path')]
    updated = [part for part in shown if part.output_type == "display_data"]
    assert (
        len(updated) == 1
        and "8," in updated[0]["data"]["text/plain"]
        and "evaluation" in updated[0]["data"]["text/plain"]
    )
    assert not [part for part in shown if part.output_type == "stream" and "steps/s  actor" in part["text"]]


def test_the_notebook_is_shipped_without_outputs():
    nbformat = pytest.importorskip("nbformat")
    book = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(book)
    assert not [cell for cell in book.cells if cell.cell_type == "code" and (cell.outputs or cell.execution_count)]
