"""Damaged and foreign files: every command ends with a result or one line, never with a fault (exit code 1).

`make fuzz` runs 150 times as many examples, about ten minutes; PACKTRAIN_FUZZ is that factor.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from packtrain.cli import main
from packtrain.runtime import checkpoint

GOLDEN = Path(__file__).parent / "golden/runs/0.2.0"
CONFIGS = Path(__file__).parent.parent / "packtrain/configs"
FACTOR = int(os.environ.get("PACKTRAIN_FUZZ", "1"))
pytestmark = pytest.mark.timeout(900 * max(1, FACTOR // 10))

PLAIN = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20)
JSON = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4)
)


def examples(number):
    return settings(
        max_examples=number * FACTOR,
        deadline=None,
        derandomize=FACTOR == 1,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )


@contextlib.contextmanager
def elsewhere():
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def ends_well(argv):
    """One line of error at most, and no fault of packtrain."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in argv])
        except SystemExit as stop:  # argparse
            code = stop.code
    errors = [line for line in err.getvalue().splitlines() if line.startswith("packtrain: error:")]
    assert code in (0, 2, 3), (code, err.getvalue())
    assert len(errors) == (code != 0) or "usage:" in err.getvalue(), err.getvalue()
    assert "Traceback" not in err.getvalue()
    return code


def places(tree, path=()):
    """Every place in a JSON value."""
    yield path
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inner:
        yield from places(value, (*path, key))


def replace(tree, path, value):
    if not path:
        return value
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[path[0]] = replace(tree[path[0]], path[1:], value)
    return copy


def sign(folder):
    """Make the manifest agree with the files, as for a forged checkpoint."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    for name in manifest["files"]:
        data = (folder / name).read_bytes()
        manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("family", ["impala", "r2d2"])
@examples(5)
@given(data=st.data())
def test_a_forged_state_of_a_run_is_refused_or_read(family, data):
    """Its hashes fit. Mutation: a value of the state is used before its type is checked."""
    with elsewhere() as here:
        shutil.copytree(GOLDEN / family, here / "run")
        (folder,) = (here / "run/checkpoints").iterdir()
        state = json.loads((folder / "state.json").read_bytes())
        chosen = data.draw(st.sampled_from(sorted(places(state), key=repr)))
        (folder / "state.json").write_text(json.dumps(replace(state, chosen, data.draw(JSON))))
        sign(folder)
        ends_well(["eval", "run", "--num_episodes", "1", "--greedy"])
        ends_well(["report", "run"])


@examples(15)
@given(data=st.data())
def test_forged_bytes_of_a_checkpoint_are_refused_or_read(data):
    with elsewhere() as here:
        shutil.copytree(GOLDEN / "impala", here / "run")
        (folder,) = (here / "run/checkpoints").iterdir()
        file = folder / data.draw(st.sampled_from(sorted(path.name for path in folder.iterdir())))
        content = bytearray(file.read_bytes())
        for _ in range(data.draw(st.integers(1, 5))):
            at = data.draw(st.integers(0, len(content) - 1))
            content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
            content = content or bytearray(b"x")
        file.write_bytes(content)
        if file.name != "manifest.json":
            sign(folder)
        with contextlib.suppress(checkpoint.CheckpointError):
            checkpoint.load(folder)


@examples(6)
@given(lines=st.lists(st.text(max_size=60) | JSON.map(json.dumps), max_size=6), before=st.booleans())
def test_foreign_lines_in_the_metrics_end_no_report(lines, before):
    with elsewhere() as here:
        shutil.copytree(GOLDEN / "impala", here / "run")
        metrics = here / "run/metrics.jsonl"
        text, foreign = metrics.read_text(), "\n".join(lines)
        metrics.write_text(f"{foreign}\n{text}" if before else text + foreign, errors="replace", encoding="utf-8")
        ends_well(["report", "run"])


@examples(25)
@given(data=st.data())
def test_damaged_configurations_are_one_line(data):
    """Mutation: an error of gin's own parser passes through."""
    names = ["impala/catch", "r2d2/small_base", "steve/steve", "planning/shooting_random_cartpole"]
    name = data.draw(st.sampled_from(names))
    lines = (CONFIGS / f"{name}.gin").read_text().splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    what = data.draw(st.sampled_from(["delete", "swap", "text", "value", "cut"]))
    if what == "delete":
        del lines[at]
    elif what == "swap":
        lines[at], lines[-1] = lines[-1], lines[at]
    elif what == "cut":
        lines[at] = lines[at][: data.draw(st.integers(0, len(lines[at])))]
    else:
        own = st.text(max_size=30) if what == "text" else JSON.map(lambda value: f"num_actors = {value!r}")
        lines.insert(at, data.draw(own))
    with elsewhere() as here:
        (here / "mine.gin").write_text("\n".join(lines), errors="replace", encoding="utf-8")
        ends_well(["show-config", "mine.gin"])


STEVE = {"env": {"name": "Hopper-v1", "obs_dims": [11], "action_dim": 3}, "policy_config": {"algo": "ddpg"}}
MARLTAS = {"env": {"name": "PongNoFrameskip-v4"}, "n_step": 3, "replay_buffer": {"capacity": 100}, "seq_len": 16}


@pytest.mark.parametrize("suffix, known", [(".json", STEVE), (".yaml", MARLTAS)])
@examples(25)
@given(data=st.data())
def test_converters_refuse_or_read_foreign_configurations(suffix, known, data):
    if data.draw(st.booleans()):
        value = replace(known, data.draw(st.sampled_from(sorted(places(known), key=repr))), data.draw(JSON))
        text = json.dumps(value)
    else:
        text = data.draw(st.text(max_size=200))
    with elsewhere() as here:
        (here / f"old{suffix}").write_text(text, errors="replace", encoding="utf-8")
        ends_well(["convert", f"old{suffix}", "--out", "new.gin"])


@examples(15)
@given(content=st.binary(max_size=300), archive=st.sampled_from([b"", b"PK\x03\x04", b"\x80\x02", b"model.pkl\0"]))
def test_the_converter_of_checkpoints_refuses_whatever_is_none(content, archive):
    with elsewhere() as here:
        (here / "model.tar").write_bytes(archive + content)
        assert ends_well(["convert", "model.tar", "--output_dir", "run"]) == 2
        assert not (here / "run").exists()
