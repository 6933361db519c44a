"""The queue of missing cells: order, dependencies, limits, and what is written when."""

import argparse
import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "tbv_missing.py"


@pytest.fixture(scope="module")
def missing():
    spec = importlib.util.spec_from_file_location("tbv_missing", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["tbv_missing"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def queue(missing, tmp_path, monkeypatch):
    """A queue whose script is a file that writes a cell, or fails on demand."""
    script = tmp_path / "benchmarks" / "cell.py"
    script.parent.mkdir()
    script.write_text(
        "import json, pathlib, sys\n"
        "name, work, fails, seconds = sys.argv[1:]\n"
        "tries = pathlib.Path(work, name + '.tries')\n"
        "tries.write_text(tries.read_text() + 'x' if tries.exists() else 'x')\n"
        "if len(tries.read_text()) <= int(fails): sys.exit(1)\n"
        "folder = pathlib.Path(work, 'cells'); folder.mkdir(exist_ok=True)\n"
        "(folder / (name + '.json')).write_text(json.dumps({'name': name, 'seconds': float(seconds)}))\n"
    )
    monkeypatch.setattr(missing, "ROOT", tmp_path)
    (tmp_path / "out").mkdir()
    options = argparse.Namespace(seconds=100.0, jobs=2, work=tmp_path, out=tmp_path / "out", device="cpu")

    def run(tasks, **changes):
        vars(options).update(changes)
        left = missing.Queue(options).run(
            [
                missing.Task(name, ("cell.py", name, "{work}", str(fails), "{seconds}"), needs, seconds)
                for name, fails, needs, seconds in tasks
            ]
        )
        return [row["name"] for row in missing.read_rows(options.out / "tbv_cells.jsonl")], left

    return run


def test_a_cell_waits_for_its_pre_training_and_is_written_when_it_ends(queue):
    """Mutation: dependencies ignored."""
    written, left = queue([("b", 0, ("a",), 1e9), ("a", 0, (), 1e9), ("c", 0, (), 1e9)], jobs=1)
    assert written == ["a", "b", "c"] and not left


def test_a_process_that_fails_is_started_once_more_and_then_takes_its_dependents_along(queue, tmp_path):
    written, _ = queue([("a", 1, (), 1e9), ("b", 2, (), 1e9), ("c", 0, ("b",), 1e9)])
    assert written == ["a"]
    assert not (tmp_path / "c.tries").exists()


def test_nothing_starts_that_has_too_little_time_left(queue):
    written, left = queue([("a", 0, (), 1e9)], seconds=30.0)
    assert not written and [task.name for task in left] == ["a"]


def test_a_cell_gets_the_smaller_of_its_own_limit_and_the_time_left(missing, queue, tmp_path):
    queue([("a", 0, (), 33.0), ("b", 0, (), 1e9)])
    rows = {row["name"]: row["seconds"] for row in missing.read_rows(tmp_path / "out" / "tbv_cells.jsonl")}
    assert rows["a"] == 33 and 80 <= rows["b"] <= 85


def test_every_group_names_its_needs_and_known_cells_are_skipped(missing, tmp_path):
    for group in missing.GROUPS.values():
        names = [task.name for task in group()]
        assert all(need in names for task in group() for need in task.needs)
    cell = {"env": "hanoi9", "method": "tbv", "seed": 0, "solved": False, "seconds": 119.0}
    (tmp_path / "tbv_cells.jsonl").write_text(json.dumps(cell) + "\n" + json.dumps({**cell, "seed": 1, "seconds": 130}))
    assert missing.known_cells(tmp_path) == {"hanoi9-tbv-1"}


def test_merging_keeps_the_longer_of_two_cut_cells_and_adds_seeds_of_ablations(missing, tmp_path):
    cell = {"env": "hanoi9", "method": "tbv", "seed": 0, "model": "small", "solved": False, "planner_steps": 1}
    (tmp_path / "tbv_cells.json").write_text(json.dumps([{**cell, "steps": 50}, {**cell, "seed": 1, "steps": 50}]))
    (tmp_path / "tbv_controls.json").write_text(json.dumps({"variants": {"plain": {"0": {"steps": 1}}}}))
    new = tmp_path / "new"
    new.mkdir()
    rows = [{**cell, "steps": 40}, {**cell, "seed": 1, "steps": 60}, {**cell, "seed": 2, "planner_steps": 0}]
    (new / "tbv_cells.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (new / "tbv_controls.jsonl").write_text(json.dumps({"variant": "plain", "seed": 1, "steps": 2}) + "\n")
    missing.merge(argparse.Namespace(into=tmp_path, folders=[new]))
    assert [row["steps"] for row in missing.read_rows(tmp_path / "tbv_cells.json")] == [50, 60]
    content = json.loads((tmp_path / "tbv_controls.json").read_text())
    assert content["variants"]["plain"] == {"0": {"steps": 1}, "1": {"steps": 2}}
