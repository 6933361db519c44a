"""The table of reliability tests in docs/operations.md: every number of the list has a test, and each test exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
IDS = [
    *(f"F{k}" for k in range(1, 13)),
    *(f"D{k}" for k in range(1, 9)),
    *(f"S{k}" for k in range(1, 7)),
    *(f"E{k}" for k in range(1, 9)),
    *(f"L{k}" for k in range(1, 5)),
    *(f"X{k}" for k in range(1, 10)),
]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows():
    """id → [CI, larger size, measured]."""
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    section = text.partition("## What was tested\n")[2].partition("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return {first: rest for first, *rest in cells if re.fullmatch(r"[FDSELX]\d+", first)}


def marks_in(path):
    """Test functions of a file, and which of them are `long`, by themselves or with their module or class."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    marked = [
        ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)
    ]
    module = any("mark.long" in text for text in marked)
    return {
        node.name: module or any("mark.long" in ast.unparse(one) for one in node.decorator_list)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_number_has_a_row_in_order():
    assert list(rows()) == IDS


@pytest.mark.parametrize("number", IDS)
def test_each_row_names_a_test_that_ci_runs(number):
    ci = TEST.findall(rows()[number][1])
    assert ci, f"{number}: no test is named"
    for path, name in ci:
        assert name in marks_in(path), f"{number}: {path} has no {name}"
        assert not marks_in(path)[name], f"{number}: {name} is long, so CI does not run it"


@pytest.mark.parametrize("number", IDS)
def test_larger_sizes_name_a_target_that_exists(number):
    larger = rows()[number][2]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make ([\w-]+)", larger):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{number}: make {target}"
    for path, name in TEST.findall(larger):
        assert name in marks_in(path), f"{number}: {path} has no {name}"
    assert larger == "–" or "`make" in larger, f"{number}: how is the larger size run?"


def test_the_check_sees_long_tests_and_missing_ones():
    """The negative control."""
    found = marks_in("tests/cli/test_chaos.py")
    assert found and all(found.values()), "all of them are long"
    assert not marks_in("tests/test_reliability_table.py")["test_every_number_has_a_row_in_order"]
