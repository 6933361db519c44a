"""`packtrain verify`: passes on the code that stored a digest, fails when one number of the code is another."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from packtrain.cli import main
from packtrain.errors import ConfigError
from packtrain.studies import digest, verify

SMALL = {"num_actors": 8, "batch_size": 4, "unroll_length": 10, "total_steps": 2000}
RUN = {"config": "impala/catch", "reduced": SMALL, "seed": 0, "updates": 4}
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A file of results with a digest of four updates of IMPALA."""
    path = tmp_path_factory.mktemp("results") / "small.json"
    record = {"schema": 1, "verify": {"fingerprint": digest.fingerprint(), "runs": [verify.store(RUN)]}}
    path.write_text(json.dumps({"record": record}))
    return path


def in_child(path, before):
    """Exit code and output of `packtrain verify PATH` in a process of its own, after some lines of Python."""
    code = f"import sys\n{before}\nfrom packtrain.cli import main\nsys.exit(main(['verify', {str(path)!r}]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def test_verify_passes_in_another_process(stored):
    code, printed = in_child(stored, "")
    assert code == 0 and "equal to the bit" in printed and "1 of 1 passed" in printed


def test_verify_fails_when_one_number_of_the_code_is_changed(stored):
    """The trace of V-trace is cut a little: lambda 0.9 in place of 1."""
    change = """import packtrain.equations.vtrace as v
whole = v.vtrace_targets
v.vtrace_targets = lambda *a, **k: whole(*a, **{**k, "trace_lambda": 0.9 * k["trace_lambda"]})"""
    code, printed = in_child(stored, change)
    assert code == 1 and "the weights and the state of the run differ" in printed and "0 of 1 passed" in printed


def test_a_changed_default_is_named(stored, tmp_path):
    document = json.loads(stored.read_text())
    run = document["record"]["verify"]["runs"][0]
    run["identity"], run["parts"]["Impala"] = "1" * 64, "00000000"
    (tmp_path / "a.json").write_text(json.dumps(document))
    code, printed = in_child(tmp_path / "a.json", "")
    assert code == 1 and "the configuration differs in Impala" in printed


def test_another_processor_is_compared_within_the_tolerance(stored, tmp_path, capsys):
    """Mutation: a tolerance of 0 on other values, or none at all: the norm is 10 % larger in the second file."""
    document = json.loads(stored.read_text())
    document["record"]["verify"]["fingerprint"]["cpu"] = "another"
    run = document["record"]["verify"]["runs"][0]
    run["state"] = run["rows"] = "1" * 64
    (tmp_path / "a.json").write_text(json.dumps(document))
    assert main(["verify", str(tmp_path / "a.json")]) == 0
    assert "within the tolerance" in capsys.readouterr().out
    run["scalars"]["norm of weights: impala"] *= 1.1
    (tmp_path / "b.json").write_text(json.dumps(document))
    assert main(["verify", str(tmp_path / "b.json")]) == 1
    assert "norm of weights: impala" in capsys.readouterr().out


def test_runs_that_cannot_be_made_fail_in_one_line(stored, tmp_path, capsys):
    for knobs, problem in (
        ({"env": "nowhere"}, "nowhere"),
        ({"no_such_knob": 1}, "has no knob"),
        ({"hidden_size": "x"}, "hidden_size"),
    ):
        document = json.loads(stored.read_text())
        document["record"]["verify"]["runs"][0]["knobs"] = knobs
        (tmp_path / "a.json").write_text(json.dumps(document))
        assert main(["verify", str(tmp_path / "a.json"), "--json"]) == 1
        printed = capsys.readouterr()
        assert problem in json.loads(printed.out.splitlines()[-1])["verdicts"][0]["problems"][0]
        assert "Traceback" not in printed.err


def test_code_outside_packtrain_is_not_run(tmp_path):
    with pytest.raises(ConfigError, match="names code outside"):
        digest.measure(digest.ShortRun("impala/catch", {"env": "antigravity:Env"}))


def test_a_run_that_takes_too_long_is_given_up():
    with pytest.raises(ConfigError, match="took longer"):
        digest.measure(digest.ShortRun("impala/catch", SMALL, updates=4, within_secs=0.0))


def test_no_arguments_or_both_are_refused(capsys):
    assert main(["verify"]) == 2 and main(["verify", "--all", "catch"]) == 2
    assert capsys.readouterr().err.count("\n") == 2
