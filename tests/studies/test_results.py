"""Records of results: what is read from them, what is refused, and what may be run."""

import json
import os
from pathlib import Path

import pytest

from packtrain.cli import main
from packtrain.errors import ConfigError
from packtrain.studies import results

ROOT = Path(__file__).parent.parent.parent
SHA = "0" * 64
RUN = {"config": "impala/catch", "knobs": {}, "identity": SHA, "state": SHA, "rows": SHA, "scalars": {}, "parts": {}}


def write(path, record):
    path.write_text(json.dumps({"record": record, "runs": {}}))
    return path


def test_every_published_result_has_a_record_with_a_digest():
    names = results.names(ROOT / "docs/results")
    assert len(names) >= 27
    for name in names:
        result = results.load(ROOT / "docs/results" / f"{name}.json")
        assert result.commands and result.machine and result.page, name
        assert (ROOT / "docs/results" / result.page).is_file(), result.page
        assert result.runs and result.fingerprint, name


def test_commands_of_published_results_name_shipped_configurations_and_knobs():
    """Those of benchmarks/ are run from the repository; a command with --config is not run from a file."""
    for name in results.names(ROOT / "docs/results"):
        for command in results.load(ROOT / "docs/results" / f"{name}.json").commands:
            found = results.arguments_of(command)
            assert isinstance(found, list) or command.startswith("python benchmarks/") or "--config" in command, found


def test_unknown_fields_stay_unknown(tmp_path, capsys):
    path = write(tmp_path / "a.json", {"schema": 1, "commands": ["packtrain train impala/catch"], "before": "0.2"})
    assert main(["reproduce", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "# machine: unknown" in printed and "# seeds: unknown" in printed and "measured before 0.2" in printed


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"config": "evil.gin"}, "shipped configuration"),
        ({"config": "<script>alert(1)</script>"}, "shipped configuration"),
        ({"knobs": {"env": "os:system"}}, "plain literal"),
        ({"knobs": {"env": "../../etc/passwd"}}, "plain literal"),
        ({"knobs": {"env": "/etc/passwd"}}, "plain literal"),
        ({"knobs": {"a": {"b": 1}}}, "plain literal"),
        ({"knobs": {"a": "x" * 2_000_000}}, "plain literal"),
        ({"knobs": {"a": 10**400}}, "plain literal"),
        ({"knobs": []}, "table"),
        ({"state": "zz"}, "SHA-256"),
        ({"state": None}, "SHA-256"),
        ({"updates": -1}, "whole number"),
        ({"updates": 10**9}, "whole number"),
        ({"seed": True}, "whole number"),
        ({"scalars": {"x": "1"}}, "numbers"),
        ({"secs": "1"}, "seconds"),
    ],
)
def test_hostile_runs_are_one_line(tmp_path, capsys, change, problem):
    path = write(tmp_path / "a.json", {"schema": 1, "verify": {"fingerprint": {}, "runs": [{**RUN, **change}]}})
    assert main(["verify", str(path)]) == 2
    error = capsys.readouterr().err
    assert problem in error and error.count("\n") == 1 and len(error) < 600


@pytest.mark.parametrize(
    "text",
    [
        '{"record": {"schema": 1, "date": NaN}}',
        '{"record": {"schema": 1e400}}',
        '{"record": {"schema": 2}}',
        '{"record": []}',
        '{"record": {"schema": 1, "title": ["x"]}}',
        '{"record": {"schema": 1, "commands": "rm"}}',
        "[" * 200_000,
        '{"record": {"schema": 1, "verify": ' + '{"runs": [' * 50_000,
        '{"runs": {}}',
        "not json",
        "",
    ],
)
def test_hostile_files_are_one_line(tmp_path, capsys, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    for command in ("verify", "reproduce"):
        assert main([command, str(path)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and len(error) < 600


def test_links_pipes_and_missing_files_are_one_line(tmp_path, capsys):
    write(tmp_path / "a.json", {"schema": 1})
    (tmp_path / "link.json").symlink_to(tmp_path / "a.json")
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("link.json", "pipe.json", "missing.json"):
        assert main(["verify", str(tmp_path / name)]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_control_characters_do_not_reach_the_terminal(tmp_path, capsys):
    record = {"schema": 1, "title": "a\x1b[31mb\u202ec", "commands": ["packtrain train impala/catch \x07"]}
    assert main(["reproduce", str(write(tmp_path / "a.json", record))]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed and "\u202e" not in printed and "\x07" not in printed


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf /",
        "packtrain train evil.gin",
        "packtrain train impala/catch --trust-config",
        "packtrain train impala/catch --config 'Environment.id = \"os:system\"'",
        "packtrain train impala/catch --env os:system",
        "packtrain train impala/catch --env=os:system",
        "packtrain train impala/catch --output_dir /etc/x",
        "packtrain train impala/catch --output_dir ../x",
        "packtrain train impala/catch; rm -rf /",
        "packtrain train impala/catch --env_kwargs '{}'",
        "packtrain convert x",
        "packtrain eval ../x",
        "packtrain train 'impala/catch",
        "packtrain",
    ],
)
def test_commands_that_are_not_run(command):
    assert isinstance(results.arguments_of(command), str)


def test_commands_that_are_run():
    command = "packtrain train impala/catch --num_seeds 5 --output_dir runs/catch --learning_rate=0.001"
    assert results.arguments_of(command) == command.split()[1:]
    assert results.arguments_of("packtrain eval runs/catch") == ["eval", "runs/catch"]


def test_writing_data_keeps_the_record(tmp_path):
    path = write(tmp_path / "a.json", {"schema": 1, "title": "ä"})
    results.write_data(path, '{"runs": {"a": [1]}}\n')
    assert json.loads(path.read_text()) == {"record": {"schema": 1, "title": "ä"}, "runs": {"a": [1]}}
    results.write_data(path, "[\n1,\n2\n]\n")
    assert results.data_of(json.loads(path.read_text())) == [1, 2]
    results.write_data(tmp_path / "new.json", '{"runs": {}}')
    assert json.loads((tmp_path / "new.json").read_text()) == {"runs": {}}


def test_unknown_names_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no folder"):
        results.find("catch")
    monkeypatch.chdir(ROOT)
    with pytest.raises(ConfigError, match="did you mean 'catch'"):
        results.find("cach")
