import json
import subprocess
import sys

import pytest

from packtrain.errors import RunFolderError
from packtrain.metrics.reading import all_series, metric_names, read_metrics, seed_folders, series


def row(step, kind="train", **values):
    return {"step": step, "wall_s": step / 10, "kind": kind, **values}


def write(folder, *lines, end="\n"):
    folder.mkdir(parents=True, exist_ok=True)
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / "metrics.jsonl").write_text("\n".join(texts) + end)
    return folder


def test_rows_come_back_in_the_order_of_the_file(tmp_path):
    rows = [row(1, loss=0.5), row(1, "eval", return_mean=3), row(2, loss=None)]
    got = read_metrics(write(tmp_path, *rows))
    assert list(got) == rows
    assert got.bad_lines == 0


def test_a_half_written_last_line_is_ignored_and_not_counted(tmp_path):
    """Fails if every line that does not parse counts as bad, or if it stops the reading."""
    got = read_metrics(write(tmp_path, row(1), '{"step": 2, "wall_s": 0.2, "ki', end=""))
    assert [r["step"] for r in got] == [1]
    assert got.bad_lines == 0


def test_a_whole_last_line_without_newline_is_a_row(tmp_path):
    """Fails if the last line is dropped for its missing newline alone."""
    assert [r["step"] for r in read_metrics(write(tmp_path, row(1), row(2), end=""))] == [1, 2]


@pytest.mark.parametrize(
    "bad",
    [
        '{"step": 2, "wall',
        "[1, 2]",
        '{"kind": "train", "loss": 1}',
        '{"step": 2.5, "kind": "train"}',
        '{"step": true, "kind": "train"}',
        '{"step": 2}',
        '{"step": 1' + "0" * 30 + ', "kind": "train"}',
        '{"step": 1' + "0" * 5000 + ', "kind": "train"}',
        "[" * 100_000,
    ],
)
def test_a_bad_line_in_the_middle_is_counted_and_the_rest_is_kept(tmp_path, bad):
    got = read_metrics(write(tmp_path, row(1), bad, row(3)))
    assert [r["step"] for r in got] == [1, 3]
    assert got.bad_lines == 1


def test_bytes_that_are_not_text_are_a_bad_line(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1, "kind": "\xff"}\n\n' + json.dumps(row(2)).encode() + b"\n")
    got = read_metrics(tmp_path)
    assert [r["step"] for r in got] == [2]
    assert got.bad_lines == 1, "the empty line is not a bad one"


def test_a_run_that_has_not_logged_yet_has_no_rows(tmp_path):
    (tmp_path / "config.gin").write_text("")
    assert read_metrics(tmp_path) == []


def test_series_takes_one_kind_and_skips_what_is_no_number():
    rows = [
        row(1, x=1.5),
        row(2, x=None),
        row(3, x=float("nan")),
        row(4, x=float("inf")),
        row(5, x="7"),
        row(6, x=True),
        row(7),
        row(8, "eval", x=99),
        row(9, x=10**400),
        row(10, x=-2),
    ]
    assert series(rows, "train", "x") == ([1, 10], [1.5, -2.0])


def test_series_is_ordered_and_the_later_of_two_values_counts():
    """Fails if a step that was written twice stays twice: interpolation would divide by zero."""
    rows = [row(1, x=1), row(3, x=3), row(2, x=2), row(3, x=4), row(3, x=None)]
    assert series(rows, "train", "x") == ([1, 2, 3], [1.0, 2.0, 4.0])


def test_metric_names_are_those_with_a_number():
    rows = [row(1, b=None, a=1, note="x"), row(2, "eval", a=2), row(3, b=3, a=2)]
    assert metric_names(rows) == [("train", "a"), ("eval", "a"), ("train", "b")]


def test_an_ordinary_run_is_its_own_seed(tmp_path):
    write(tmp_path, row(1))
    assert seed_folders(tmp_path) == [tmp_path]


def test_seeds_come_in_numeric_order_without_strangers(tmp_path):
    """Fails on sorting by name (10 before 2), and on taking folders that only look like seeds."""
    (tmp_path / "config.gin").write_text("")
    for name in ("seed_10", "seed_2", "seed_0", "seed_x", "old_seed_1"):
        write(tmp_path / name, row(1))
    (tmp_path / "seed_3").mkdir()  # empty: not a run folder
    assert [folder.name for folder in seed_folders(tmp_path)] == ["seed_0", "seed_2", "seed_10"]


@pytest.mark.parametrize("function", [seed_folders, read_metrics])
def test_what_is_not_a_run_folder_is_refused_in_one_line(tmp_path, function):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for name, words in (("nowhere", "does not exist"), ("file", "metrics.jsonl"), ("folder", "metrics.jsonl")):
        with pytest.raises(RunFolderError, match=words) as error:
            function(tmp_path / name)
        assert str(tmp_path / name) in str(error.value)
        assert "\n" not in str(error.value)
    assert error.value.exit_code == 2


def test_reading_and_reporting_import_nothing_heavy():
    """Fails on a top-level import of torch, numpy, gymnasium or rich anywhere below the report."""
    code = (
        "import sys, packtrain.metrics.reading, packtrain.studies.report\n"
        "print([name for name in ('torch', 'numpy', 'gymnasium', 'gin', 'rich', 'optree') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_all_series_are_those_read_one_by_one():
    """Whole columns take a shorter way; gaps, doubled and falling steps, odd values and missing walls do not."""
    odd = [row(1, a=1.0, b=1, c=None), row(3, a=2.0, c=5.0), row(2, a=3.0, b=float("nan"), c=True)]
    odd += [row(2, a=4.0, b=10**400), {"step": 9, "kind": "train", "a": 1.5}, row(1, "eval", a=7.0)]
    plain = [row(step, a=step / 2, b=2.0 * step) for step in range(1, 9)]
    for rows in (odd, plain, plain + odd, []):
        found = all_series(rows)
        assert list(found) == metric_names(rows)
        for metric, one in found.items():
            assert (one.steps, one.values) == series(rows, *metric)
            assert len(one.walls) == len(one.steps)
    assert all_series(plain)["train", "a"].walls == [step / 10 for step in range(1, 9)]
    assert all_series(odd)["train", "a"].walls[1] == 0.2 and all_series(odd)["eval", "a"].values == [7.0]
