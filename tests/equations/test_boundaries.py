"""The one table that says what the end of an episode does to a row."""

import pytest
import torch

from packtrain.equations.boundaries import boundaries


def flags(*columns):
    """Strings of 0 and 1, one per column, time running to the right → [T, B] bool."""
    return torch.tensor([[mark == "1" for mark in column] for column in columns]).T


def floats(*columns):
    return torch.tensor(columns, dtype=torch.float32).T


def test_the_table():
    """One column per case. Catches any entry of the docstring's table put wrong."""
    got = boundaries(
        #           inside     terminated  truncated   lost life   both flags
        first=flags("1000000", "1000100", "0000100", "0000000", "0000100"),
        terminated=flags("000000", "001000", "000000", "001000", "001000"),
        truncated=flags("000000", "000000", "001000", "000000", "001000"),
        discount=0.9,
    )
    g = 0.9
    torch.testing.assert_close(
        got.discount_t,
        floats([g] * 6, [g, g, 0, 0, g, g], [g, g, g, 0, g, g], [g, g, 0, g, g, g], [g, g, 0, 0, g, g]),
    )
    torch.testing.assert_close(
        got.continue_t,
        floats([1] * 6, [1, 1, 0, 0, 1, 1], [1, 1, 0, 0, 1, 1], [1, 1, 0, 1, 1, 1], [1, 1, 0, 0, 1, 1]),
    )
    torch.testing.assert_close(
        got.weight_t,
        floats([1] * 6, [1, 1, 1, 0, 1, 1], [1, 1, 1, 0, 1, 1], [1] * 6, [1, 1, 1, 0, 1, 1]),
    )
    assert {part.dtype for part in got} == {torch.float32}


def test_a_reset_before_row_0_is_not_read():
    """Catches first[:-1] in place of first[1:]."""
    got = boundaries(flags("100"), flags("00"), flags("00"), 0.5)
    assert (got.weight_t == 1).all() and (got.continue_t == 1).all() and (got.discount_t == 0.5).all()


def test_a_filler_is_silent_whatever_its_flags_say():
    """Catches a truncated flag on a filler that would give it a discount."""
    got = boundaries(flags("01", "01"), flags("0", "1"), flags("1", "0"), 0.5)
    assert all((part == 0).all() for part in got)


@pytest.mark.parametrize("rows", [3, 5])
def test_first_needs_one_row_more_than_actions(rows):
    with pytest.raises(AssertionError, match="shapes differ"):
        boundaries(torch.zeros(rows, 2).bool(), torch.zeros(3, 2).bool(), torch.zeros(3, 2).bool(), 0.9)


def test_rank_is_checked():
    with pytest.raises(AssertionError, match="2 dimensions"):
        boundaries(torch.zeros(4).bool(), torch.zeros(3).bool(), torch.zeros(3).bool(), 0.9)
