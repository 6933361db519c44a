"""Injected faults of disks and clocks, and their count."""

import errno
import random
import re
import time
from pathlib import Path

import pytest

from packtrain.cli import main
from packtrain.metrics.reading import read_metrics
from packtrain.runtime import checkpoint
from packtrain.testing import chaos, faults

SMALL = "--num_actors 4 --batch_size 4 --unroll_length 5 --hidden_size 16 --log_every 100 --eval_every 0".split()


def test_a_test_without_faults_fails():
    with pytest.raises(AssertionError, match="0 faults were injected, 1 are the least"), faults.expect():
        pass
    with pytest.raises(AssertionError, match="0 faults of kind 'kill'"), faults.expect("kill"):
        faults.count("signal")


def test_damage_is_counted(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    with faults.expect(at_least=2) as found:
        chaos.flip_bit(tmp_path / "file", random.Random(0))
        chaos.truncate(tmp_path / "file", 2)
    assert found == {"flipped bit": 1, "truncation": 1}


def test_a_full_disk_refuses_writes_in_its_folder_only(tmp_path):
    """Mutation: a way to open files is not covered."""
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir(), outside.mkdir()
    with faults.Disk(inside, room=10) as disk:
        (inside / "a").write_bytes(b"12345")
        (outside / "a").write_bytes(b"x" * 100)
        for write in (
            lambda: (inside / "b").write_bytes(b"123456"),
            lambda: (inside / "c").write_text("123456"),
            lambda: checkpoint.save(inside / "checkpoints", 1, {"run": {"step": 1}}),
        ):
            with pytest.raises(OSError) as error:
                write()
            assert error.value.errno == errno.ENOSPC
        assert disk.refused == 3 and (inside / "a").read_bytes() == b"12345"
        disk.room = None
        (inside / "b").write_bytes(b"1" * 1000)
    (inside / "b").write_bytes(b"1" * 1000)


def test_a_slow_disk_takes_its_time(tmp_path):
    begin = time.monotonic()
    with faults.Disk(tmp_path, bytes_per_sec=1000), faults.expect("slow write"):
        (tmp_path / "a").write_bytes(b"1" * 200)
    assert time.monotonic() - begin >= 0.2


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["local", "serial"])
def test_s3_a_disk_that_is_full_for_a_while_ends_no_run(tmp_path, monkeypatch, runtime, capsys):
    """S3 without root. Mutation: an error of a checkpoint or of the metrics ends the run."""
    monkeypatch.chdir(tmp_path)
    argv = ["train", "impala/catch", "--output_dir", "run", "--runtime", runtime, *SMALL, "--checkpoint_secs", "0.05"]
    assert main([*argv, "--total_steps", "400"]) == 0
    disk = faults.Disk(Path("run"))
    take, writes = disk.take, iter(range(10**9))

    def fills_and_empties(size):
        disk.room = 0 if next(writes) >= 40 and disk.refused < 4 else None
        take(size)

    monkeypatch.setattr(disk, "take", fills_and_empties)
    with disk, faults.expect("full disk", at_least=3):
        assert main([*argv, "--total_steps", "4000"]) == 0
    assert "No space left on device" in capsys.readouterr().err
    assert checkpoint.load_newest(Path("run/checkpoints"))[0] >= 4000
    steps = [row["step"] for row in read_metrics("run") if row["kind"] == "train"]
    assert steps == sorted(set(steps)) and steps[-1] >= 4000


@pytest.mark.slow
def test_s4_a_clock_that_is_set_back_changes_nothing(tmp_path, monkeypatch):
    """S4. Mutation: an interval or a deadline by the wall clock."""
    monkeypatch.chdir(tmp_path)
    rng = random.Random(0)
    argv = ["train", "impala/catch", "--runtime", "serial", *SMALL, "--total_steps", "1500"]
    assert main([*argv, "--output_dir", "sound"]) == 0
    from packtrain.runtime.training import Training

    with faults.Clock() as clock, faults.expect("clock jump", at_least=10):
        act = Training.act

        def jumps(self, patience=None):
            if rng.random() < 0.1:
                clock.jump(rng.uniform(-7200, 3600))
            act(self, patience)

        monkeypatch.setattr(Training, "act", jumps)
        assert main([*argv, "--output_dir", "jumps", "--checkpoint_secs", "0.1"]) == 0
    (one, other) = (Path(name) / "checkpoints" for name in ("sound", "jumps"))
    for file in sorted((one / str(checkpoint.steps(one)[-1])).glob("*.safetensors")):
        assert file.read_bytes() == (other / str(checkpoint.steps(other)[-1]) / file.name).read_bytes()
    assert all(row["wall_s"] >= 0 for row in read_metrics("jumps"))


@pytest.mark.slow
def test_s4_a_slow_disk_does_not_hold_up_the_learner(tmp_path, monkeypatch):
    """A checkpoint takes 2 s, the learner's longest pause less than half of that. Mutation: the local runtime writes
    checkpoints in the learner's thread."""
    monkeypatch.chdir(tmp_path)
    argv = ["train", "impala/catch", "--output_dir", "run", *SMALL, "--runtime", "local", "--checkpoint_secs", "0.2"]
    assert main([*argv, "--total_steps", "400"]) == 0
    folder, secs = Path("run/checkpoints"), 2.0
    first = checkpoint.steps(folder)[-1]
    size = sum(file.stat().st_size for file in (folder / str(first)).iterdir())
    from packtrain.runtime.training import Training

    learn, times = Training.learn, []

    def timed(self, name, count=1):
        times.append(time.monotonic())
        if len([step for step in checkpoint.steps(folder) if step > first]) >= 2:
            self.progress.stop = KeyboardInterrupt()
        return learn(self, name, count)

    monkeypatch.setattr(Training, "learn", timed)
    with faults.Disk(Path("run"), bytes_per_sec=size / secs), faults.expect("slow write", at_least=3):
        assert main([*argv, "--total_steps", "100000000"]) == 0
    assert times[-1] - times[0] >= secs, "no checkpoint was slow"
    assert max(b - a for a, b in zip(times, times[1:], strict=False)) < secs / 2


@pytest.mark.slow
def test_the_example_of_the_docs_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parent.parent.parent / "docs/operations.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page.partition("## Test your own faults")[2], re.DOTALL)
    (tmp_path / "runs").mkdir()
    exec(compile(example, "docs/operations.md", "exec"), {})
