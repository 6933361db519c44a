"""The fast attacks, one test each; `make attack` runs all of them."""

import importlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cases import CASES  # noqa: E402

for path in sorted(Path(__file__).parent.glob("*_cases.py")):
    importlib.import_module(path.stem)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.fast and case.known_limit is None])
def test_attack(tmp_path, name):
    CASES[name].check(tmp_path)


def test_every_known_limit_says_its_reason_and_every_case_what_it_expects():
    for case in CASES.values():
        assert case.attacks and case.expected
        assert case.known_limit is None or len(case.known_limit.split()) > 5
