"""Sinks: what trackers receive, that their failures are warnings, and that a tracker without its package is refused."""

import contextlib
import errno
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from packtrain.cli import main
from packtrain.errors import ConfigError, MissingExtraError
from packtrain.metrics import sinks
from packtrain.metrics.sinks import About, Forgiving, Sink, TensorBoard, numbers, trackers

SMALL = ["--total_steps", "300", "--num_actors", "2", "--batch_size", "2", "--unroll_length", "5", "--log_every", "100"]


def row(step, **values):
    return {"step": step, "wall_s": 1.0, "kind": "train", "x": 0.5, **values}


def about(tmp_path):
    return About("run", tmp_path, "env = 'Catch'\n", {"Impala.entropy_cost": "0.01"})


def test_numbers_are_the_finite_metrics():
    assert numbers(row(3, nan=float("nan"), text="a", flag=2)) == {"train/x": 0.5, "train/flag": 2.0}


def test_tensorboard_on_a_full_disk_is_a_warning_and_goes_on_in_another_file(tmp_path, monkeypatch, capsys):
    """Its own writer never recovers from an error. Mutation: the same writer again."""
    made = []

    class Events:
        def __init__(self):
            self.full, self.rows = not made, []
            made.append(self)

        def add_scalar(self, name, value, step):
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.rows.append((name, value, step))

        def add_text(self, *_):
            pass

        def close(self):
            pass

    monkeypatch.setattr(TensorBoard, "_open", lambda self: Events())
    sink = Forgiving("tensorboard", TensorBoard())
    sink.begin(about(tmp_path))
    for step in (1, 2):
        sink.write(row(step))
    sink.close()
    assert len(made) == 2 and made[1].rows == [("train/x", 0.5, 2)]
    assert capsys.readouterr().err.count("No space left on device; the run goes on") == 1


def test_tensorboard_has_scalars_the_configuration_and_hyper_parameters(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (sink,) = trackers(["tensorboard"])
    sink.begin(about(tmp_path))
    sink.write(row(1))
    sink.write({"step": 2, "wall_s": 2.0, "kind": "eval", "return_mean": 7.0})
    sink.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"tensors": 0}).Reload()
    assert {"train/x", "eval/return_mean", "final/eval/return_mean"} <= set(events.Tags()["scalars"])
    assert any("config" in tag for tag in events.Tags()["tensors"])
    assert "_hparams_/session_start_info" in events.summary_metadata


def test_a_tracker_that_fails_is_a_warning_and_the_run_goes_on(tmp_path, monkeypatch, capsys):
    """Mutations: a tracker that could not begin gets rows; an error ends the run."""

    class Broken(Sink):
        package, extra = "json", "wandb"
        calls: list = []

        def begin(self, about):
            raise ConnectionError("no network")

        def write(self, row):
            self.calls.append(row)

    monkeypatch.setitem(sinks.TRACKERS, "wandb", Broken)
    assert main(["train", "impala/catch", "--output_dir", str(tmp_path / "run"), "--track", "wandb", *SMALL]) == 0
    assert "wandb: ConnectionError: no network; the run goes on without it" in capsys.readouterr().err
    assert not Broken.calls


FAKES = {
    "wandb": ["init", "log", "finish"],
    "trackio": ["init", "log", "finish"],
    "mlflow": ["create_run", "log_param", "log_metric", "set_terminated"],
}


class Recorder:
    """Stands for a tracker's module, client and run at once, and notes the calls."""

    def __init__(self):
        self.calls = []
        self.info = types.SimpleNamespace(run_id="7")

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*given, **named):
            self.calls.append((name, given, named))
            if name == "init" and (folder := named.get("dir")):  # as wandb does
                (Path(folder) / "wandb" / "run-1").mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileExistsError):
                    (Path(folder) / "wandb" / "latest-run").symlink_to("run-1")
            return None if name == "get_experiment_by_name" else self

        return call


def stand_in(name, monkeypatch):
    """The recorder of a tracker's module, which takes its place."""
    fake = Recorder()
    module = types.ModuleType(name)
    module.init = fake.init
    if name == "mlflow":
        module.tracking, module.exceptions = types.ModuleType("mlflow.tracking"), types.ModuleType("mlflow.exceptions")
        module.tracking.MlflowClient = lambda: fake
        module.exceptions.MlflowException = ZeroDivisionError
        monkeypatch.setitem(sys.modules, "mlflow.tracking", module.tracking)
        monkeypatch.setitem(sys.modules, "mlflow.exceptions", module.exceptions)
    monkeypatch.setitem(sys.modules, name, module)
    return fake


@pytest.mark.parametrize("place", ["run", "."])
def test_wandb_leaves_the_run_folder_usable(place, tmp_path, monkeypatch, capsys):
    """wandb makes symbolic links, which are refused inside a run folder. Mutation: dir=the run folder."""
    fake = stand_in("wandb", monkeypatch)
    monkeypatch.delenv("WANDB_DIR", raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    assert main(["train", "impala/catch", "--output_dir", place, "--track", "wandb", *SMALL]) == 0
    assert fake.calls and list(tmp_path.rglob("latest-run"))
    assert main(["eval", place, "--num_episodes", "2"]) == 0
    assert main(["report", place]) == 0
    assert main(["train", "impala/catch", "--output_dir", place, "--track", "wandb", *SMALL]) == 0
    assert "is finished" in capsys.readouterr().out


@pytest.mark.parametrize("name", FAKES)
def test_a_resumed_run_is_one_run_of_the_tracker(name, tmp_path, monkeypatch):
    """Mutations: an id that is not kept; one that two runs share."""
    monkeypatch.chdir(tmp_path)
    fake = stand_in(name, monkeypatch)
    sinks_of = []
    for folder in ("a", "a", "b"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (sink,) = trackers([name])
        sink.begin(About(folder, tmp_path / folder, "", {"x": "1"}))
        sink.close()
        sinks_of.append(sinks.known_identity(tmp_path / folder, name))
    assert sinks_of[0] == sinks_of[1] and sinks_of[0]
    if name == "mlflow":  # the stand-in gives every run the number 7
        assert [call[0] for call in fake.calls].count("create_run") == 2
        assert ("update_run", ("7",), {"status": "RUNNING"}) in fake.calls
        return
    begun = [call[2] for call in fake.calls if call[0] == "init"]
    key = {"wandb": "id", "trackio": "name"}[name]
    assert [one[key] for one in begun] == sinks_of and sinks_of[2] != sinks_of[0]
    assert {one["resume"] for one in begun} == {"allow"}


@pytest.mark.parametrize("given, expected", [("study", "study"), (None, "packtrain"), ("", "packtrain")])
def test_a_project_is_named_by_the_trackers_own_variable(given, expected, tmp_path, monkeypatch):
    """Mutation: a project of a fixed name."""
    for variable in ("WANDB_PROJECT", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(variable, raising=False)
        if given is not None:
            monkeypatch.setenv(variable, given)
    wandb, mlflow = stand_in("wandb", monkeypatch), stand_in("mlflow", monkeypatch)
    monkeypatch.chdir(tmp_path)
    for name in ("wandb", "mlflow"):
        (tmp_path / name).mkdir()
        (sink,) = trackers([name])
        sink.begin(About(name, tmp_path / name, "", {"x": "1"}))
        sink.close()
    (started,) = [call[2] for call in wandb.calls if call[0] == "init"]
    (made,) = [call[1] for call in mlflow.calls if call[0] == "create_experiment"]
    assert started["project"] == expected and made == (expected,)


@pytest.mark.parametrize("text", ["[]", "{", '{"wandb": 7}', '{"wandb": ""}', '{"wandb": "a\\u0007"}', "[" * 9999])
def test_foreign_ids_are_not_used(text, tmp_path):
    (tmp_path / sinks.IDENTITIES).write_text(text)
    assert sinks.known_identity(tmp_path, "wandb") is None


def test_films_are_added_to_tensorboard(tmp_path, capsys):
    """Mutations: no image; a folder made for runs without TensorBoard; a link followed."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    video = {"file": "videos/1_episode_1.png", "episode": 1, "height": 2, "width": 3}
    (tmp_path / "videos").mkdir()
    (tmp_path / video["file"]).write_bytes(b"\x89PNG")
    sinks.add_films(tmp_path, [video], 5)
    assert not (tmp_path / "tensorboard").exists()
    (tmp_path / "tensorboard").mkdir()
    sinks.add_films(tmp_path, [video, {**video, "file": "videos/1_episode_2.mp4"}], 5)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    (image,) = events.Images("films/episode_1")
    assert (image.step, image.encoded_image_string, image.width) == (5, b"\x89PNG", 3)
    other = tmp_path / "other"
    other.mkdir()
    (other / "tensorboard").symlink_to(tmp_path / "tensorboard")
    sinks.add_films(other, [video], 5)
    assert "is a symbolic link" in capsys.readouterr().err


@pytest.mark.parametrize("name", FAKES)
def test_each_tracker_gets_configuration_and_rows(name, tmp_path, monkeypatch):
    """Against a stand-in of its module: what a run calls, in order."""
    fake = stand_in(name, monkeypatch)
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    assert main(["train", "impala/catch", "--output_dir", str(run), "--track", name, *SMALL]) == 0
    called = [call[0] for call in fake.calls]
    for wanted in FAKES[name]:
        assert wanted in called, called
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    if name != "mlflow":
        logged = [call for call in fake.calls if call[0] == "log"]
        assert len(logged) == len(rows) and logged[-1][1][0]
        assert "Impala.entropy_cost" in fake.calls[0][2]["config"]
    else:
        params = {call[1][1] for call in fake.calls if call[0] == "log_param"}
        assert "Impala.entropy_cost" in params


def test_unknown_trackers_and_missing_packages_are_refused():
    with pytest.raises(ConfigError, match="--track 'wandv' is not one of .*did you mean 'wandb'"):
        trackers(["wandv"])
    missing = [name for name, kind in sinks.TRACKERS.items() if not _is_installed(kind.package)]
    for name in missing:
        with pytest.raises(MissingExtraError, match=rf"packtrain\[{name}\]"):
            trackers([name])


def _is_installed(package):
    try:
        __import__(package)
    except ImportError:
        return False
    return True


def test_sinks_get_episodes_and_checkpoints():
    assert Sink().episodes(None) is None and Sink().checkpoint(1, None) is None
    assert np.isfinite(list(numbers(row(1)).values())).all()
