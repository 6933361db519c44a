"""The exam: cells, card, resuming, and that a broken equation lowers a score."""

import json

import pytest
import torch

from packtrain import knobs
from packtrain.algorithms import impala
from packtrain.cli import main
from packtrain.equations.vtrace import vtrace
from packtrain.errors import ConfigError
from packtrain.studies import exam, exam_card
from packtrain.studies.exam_card import ABILITIES, FAMILIES, Cell


def test_every_cell_is_a_shipped_configuration_and_every_ability_and_family_has_one():
    cells = exam_card.cells()
    assert {cell.ability for cell in cells} == set(ABILITIES) and len(ABILITIES) == 10
    assert {cell.family for cell in cells} == set(FAMILIES)
    assert {cell.config for cell in cells} <= set(knobs.shipped())


@pytest.mark.parametrize(("families", "abilities"), [(["impale"], []), (["impala"], ["memry"]), (["ddpg"], ["memory"])])
def test_unknown_and_impossible_cells_are_refused(families, abilities):
    with pytest.raises(ConfigError, match="impala|memory|applies"):
        exam_card.cells(families, abilities)


def test_scores_are_normalised():
    assert ABILITIES["credit"].score(0.25) == 0 and ABILITIES["credit"].score(1.0) == 1
    assert ABILITIES["control"].score(-5.56) == 0 and ABILITIES["control"].score(-0.4375) == 1


def test_card_shows_mean_interval_and_absent_cells():
    scores = {Cell("impala", "memory"): {0: 1.0, 1: 0.8, 2: 0.9}, Cell("dqn", "credit"): {0: -0.5}}
    lines = exam_card.summarise(scores)
    assert lines[0]["score"] == pytest.approx(0.9) and lines[0]["high"] - lines[0]["low"] == pytest.approx(
        0.4968, abs=1e-3
    )
    assert lines[1]["low"] is None
    text = exam_card.table(lines).splitlines()
    assert "0.90 ±0.25" in text[1] and "·" in text[1] and text[2].endswith("−0.50")
    svg = exam_card.picture(lines, "<script>")
    assert "<script>" not in svg and "&lt;script&gt;" in svg and svg.count("<g>") == 2
    assert exam_card.markdown(lines).splitlines()[1].count("---") == 11


def job(tmp_path, family="impala", ability="credit", steps=None):
    (found,) = exam.jobs([Cell(family, ability)], 1, tmp_path, steps)
    return found


def score(outcome):
    assert outcome.value is not None, outcome.problem
    return ABILITIES[outcome.job.cell.ability].score(outcome.value)


def test_a_broken_vtrace_lowers_the_score_of_credit_assignment(tmp_path, monkeypatch):
    """The exam notices a V-trace that forgets the discount: it sees immediate rewards only, and stays near chance."""
    torch.set_num_threads(1)
    whole = score(exam.play(job(tmp_path / "whole")))

    def broken(v_tm1, v_t, r_t, discount_t, *rest, **options):
        return vtrace(v_tm1, v_t, r_t, torch.zeros_like(discount_t), *rest, **options)

    monkeypatch.setattr(impala, "vtrace", broken)
    lower = score(exam.play(job(tmp_path / "broken")))
    assert whole > 0.6 and lower < 0.35


def test_finished_runs_are_taken_and_other_settings_run_again(tmp_path):
    first = exam.play(job(tmp_path, "shooting", "depth"))
    assert not first.known
    again = exam.play(job(tmp_path, "shooting", "depth"))
    assert again.known and again.value == first.value
    result = first.job.folder / exam.RESULT
    stored = json.loads(result.read_text())
    result.write_text(json.dumps({**stored, "identity": "another"}))
    assert not exam.play(job(tmp_path, "shooting", "depth")).known
    result.write_text("[" * 5000)
    assert exam.play(job(tmp_path, "shooting", "depth")).value == first.value


def test_configurations_that_do_not_fit_an_environment_do_not_apply(tmp_path):
    outcome = exam.play(job(tmp_path, "sac/pendulum", "memory", 200))
    assert not outcome.applies and outcome.problem


def test_command_writes_card_json_and_picture(tmp_path, capsys):
    argv = ["exam", "best_first", "--abilities", "depth", "--seeds", "2", "--jobs", "1", "--out", str(tmp_path / "out")]
    assert main(argv) == 0
    printed = capsys.readouterr().out
    assert "2 of 2" in printed and "best-first search, true model" in printed and "1.00" in printed
    card = json.loads((tmp_path / "out/exam.json").read_text())
    assert card["scores"][0]["seeds"] == {"0": 1.0, "1": 1.0} and not card["failed"]
    assert (tmp_path / "out/exam.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    "argv", [["--seeds", "0"], ["--jobs", "-1"], ["nothing"], ["--abilities", "luck"], ["--out", ""]]
)
def test_bad_arguments_are_one_line(argv, capsys):
    assert main(["exam", *argv]) == 2
    assert capsys.readouterr().err.count("\n") == 1
