"""The table of exploration methods: what a cell writes, and how limits and missing cells are shown."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "tbv_table.py"


@pytest.fixture(scope="module")
def table():
    spec = importlib.util.spec_from_file_location("tbv_table", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_cell_that_was_cut_is_shown_as_more_than_its_steps(table):
    """Mutations: a cut cell counted as solved; a median that ranks it by the steps it made."""
    cells = [{"solved": True, "steps": 3000}, {"solved": False, "steps": 1000}, {"solved": True, "steps": 2000}]
    assert table.shown(cells, "steps") == "2.0 K, 3.0 K, > 1.0 K"
    four = [*cells, {"solved": False, "steps": 5000}]
    assert table.shown(four, "steps") == "> 1.0 K (2.0 K – > 5.0 K)"
    solved = [{"solved": True, "steps": steps} for steps in (1000, 2000, 4000, 9000)]
    assert table.shown(solved, "steps") == "3.0 K (1.0 K – 9.0 K)"


def test_methods_without_cells_are_named_as_not_run(table, tmp_path, capsys):
    cell = {"env": "hanoi7", "method": "frontier", "seed": 0, "solved": True, "steps": 31136, "planner_steps": 31136}
    versions = {"python": "3", "torch": "2", "numba": "absent", "machine": "2 cores", "date": "today"}
    (tmp_path / "a.json").write_text(json.dumps({**cell, "distance": 0, **versions}))
    cut = {**cell, "method": "tbv", "solved": False, "steps": 320000, "planner_steps": 0}
    (tmp_path / "b.json").write_text(json.dumps({**cut, "distance": None, **versions}))
    data = tmp_path / "data" / "all.json"
    data.parent.mkdir()
    table.render(type("Options", (), {"paths": [tmp_path], "data": data}))
    printed = capsys.readouterr().out
    table.render(type("Options", (), {"paths": [data], "data": None}))
    assert capsys.readouterr().out == printed
    assert "| tabular frontier search, no model | 1 | 1 of 1 | 31.1 K | 31.1 K | 0 |" in printed
    (missing,) = [line for line in printed.splitlines() if line.startswith("Not run: ")]
    assert "the paper's TBV" in missing and "tabular" not in missing


@pytest.mark.slow
def test_a_cell_runs_from_a_checkout_and_counts_all_steps(tmp_path):
    command = [sys.executable, str(SCRIPT), "cell", "one_room", "frontier", "0", "--out", str(tmp_path)]
    subprocess.run(command, check=True, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"})
    (path,) = tmp_path.glob("*.json")
    found = json.loads(path.read_text())
    assert found["solved"] and found["ended"] == "solved" and found["steps"] == found["planner_steps"] > 16
