"""L1: the judgement of long runs, and a short one through the whole of benchmarks/soak.py."""

import dataclasses
import importlib.util
import sys
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("soak", Path(__file__).parent.parent.parent / "benchmarks/soak.py")
soak = importlib.util.module_from_spec(spec)
sys.modules["soak"] = soak
spec.loader.exec_module(soak)


def samples(minutes=20.0, **changes):
    """Samples of a sound run every 5 s: memory rises in the first minutes only; `changes` are functions of seconds."""
    found = []
    for k in range(int(60 * minutes / 5)):
        secs = 5.0 * k
        one = soak.Sample(secs, 400 + min(secs, 300) / 3, secs / 2, int(100 * secs), 20, 8, 1, 0.0)
        found.append(dataclasses.replace(one, **{name: change(secs, one) for name, change in changes.items()}))
    return found


def test_a_sound_run_is_within_all_limits():
    found = soak.evaluate(samples())
    assert found.broken == () and found.rate == pytest.approx(1.0) and abs(found.slope) < 1e-6
    assert "within all limits" in soak.line("impala", found)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rss_mb": lambda secs, one: 400 + 1.2 * secs / 60}, "memory grows by 1.20 MB/min"),
        ({"step": lambda secs, one: int(100 * secs - secs**2 / 60)}, "the rate falls to"),
        ({"files": lambda secs, one: 20 + int(secs) // 300}, "more open files"),
        ({"threads": lambda secs, one: 8 + int(secs) // 300}, "more threads"),
        ({"gpu_mb": lambda secs, one: secs / 60}, "more MB on the GPU"),
    ],
)
def test_each_limit_is_noticed(changes, said):
    (broken,) = soak.evaluate(samples(**changes)).broken
    assert said in broken


def test_a_run_without_steps_is_no_result():
    with pytest.raises(ValueError, match="too little was seen"):
        soak.evaluate(samples(step=lambda secs, one: 0))


@pytest.mark.parametrize("family", soak.FAMILIES)
def test_the_arguments_of_each_family_name_a_configuration_and_its_knobs(family):
    from packtrain import knobs

    argv = soak.argv(family, "cpu")
    knobs.find_config(argv[1])
    assert argv[0] == "train" and str(soak.ENDLESS) in argv or "--n_epochs" in argv


@pytest.mark.slow
def test_l1_a_run_of_some_seconds_is_measured_and_stopped(tmp_path, monkeypatch):
    """Mutation: the run is not stopped; its steps are not read."""
    monkeypatch.setattr(soak, "SAMPLE_SECS", 0.2)
    found = soak.soak("impala", 0.15, tmp_path, "cpu")
    assert found.steps > 0 and found.cpu_secs > 0 and found.minutes > 0.1
    assert len((tmp_path / "impala.jsonl").read_text().splitlines()) > 10
