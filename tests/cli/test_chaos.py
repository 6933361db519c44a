"""Fault injection at full size: `make chaos`, about an hour on two quiet cores. Each test prints its figures.

The same at the size of CI: tests/cli/test_train.py (F6), tests/runtime/test_checkpoint.py (S1, S2),
tests/cli/test_faults.py (E1, E2). `PACKTRAIN_CHAOS=0.1 make chaos` makes a tenth of it.
"""

import os
import random
import shutil
import statistics
import time
from pathlib import Path

import pytest

from packtrain.cli import main
from packtrain.errors import CheckpointError
from packtrain.metrics.intervals import student_t
from packtrain.metrics.reading import read_metrics
from packtrain.runtime import checkpoint
from packtrain.testing import chaos, faults

pytestmark = [pytest.mark.long, pytest.mark.timeout(4 * 3600)]
SHARE = float(os.environ.get("PACKTRAIN_CHAOS", "1"))
GOLDEN = Path(__file__).parent.parent / "golden/runs/0.2.0"
SMALL = "--num_actors 4 --batch_size 4 --unroll_length 5 --hidden_size 16 --log_every 200 --eval_every 0".split()
FLAKY = "packtrain.testing.faulty:packtrain/FlakyCartPole-v0"
FAMILIES = {"impala": ["impala/gym"], "r2d2": ["r2d2/small_base", "--num_actors", "16"]}


def size(number):
    return max(1, round(SHARE * number))


def say(text):
    print(f"\n  {text}", flush=True)


def test_f6_kills_of_the_process_group_while_checkpoints_are_written(tmp_path):
    """Every kill is followed by a load; checkpoints are due all the time, so most kills fall into one."""
    kills, rng, last, writing, back = size(200), random.Random(0), -1, 0, 0
    argv = ["train", "impala/catch", "--output_dir", "run", *SMALL, "--total_steps", "100000000"]
    folder = tmp_path / "run/checkpoints"
    with faults.expect("kill", kills):
        for _ in range(kills):
            run = chaos.Command([*argv, "--checkpoint_secs", "0.02"], tmp_path)
            chaos.wait_until(lambda: not run.running or max(checkpoint.steps(folder), default=-1) > last, 300)  # noqa: B023
            if rng.random() < 0.7:  # in the middle of a write
                end = time.monotonic() + 1
                while not list(folder.glob(".writing-*")) and time.monotonic() < end:
                    time.sleep(0.0005)
            else:
                time.sleep(rng.uniform(0, 0.2))
            assert run.running, run.output()
            writing += bool(list(folder.glob(".writing-*")))
            run.kill_group()
            step, state = checkpoint.load_newest(folder)
            assert state["run"]["step"] == step and "damaged" not in run.output()
            back += step < last
            last = step
    assert back == 0
    say(f"F6: {kills} kills, {writing} of them during a write: 0 corrupt loads, step {last:,}, never less than before")


def test_s1_s2_bit_flips_and_truncations(tmp_path):
    """On the checkpoints of all families: each damage is noticed, and the older checkpoint is taken."""
    rng, noticed, unused = random.Random(0), {"flipped bit": 0, "truncation": 0}, 0
    wanted = {"flipped bit": size(200), "truncation": size(50)}
    families = sorted(path.name for path in GOLDEN.iterdir())
    with faults.expect(at_least=sum(wanted.values())):
        for kind, number in wanted.items():
            for turn in range(number):
                (source,) = (GOLDEN / families[turn % len(families)] / "checkpoints").iterdir()
                place = tmp_path / f"{kind}-{turn}"
                shutil.copytree(source, place)
                whole = checkpoint.load(place)["run"]
                file = rng.choice(sorted(place.iterdir()))
                if kind == "flipped bit":
                    chaos.flip_bit(file, rng)
                else:
                    chaos.truncate(file, rng.randrange(file.stat().st_size))
                try:
                    assert checkpoint.load(place)["run"] == whole, "a partial load"
                    unused += file.name == "manifest.json"  # white space, or its unused step: nothing is changed by it
                except CheckpointError as error:
                    assert "\n" not in str(error)
                    noticed[kind] += 1
                shutil.rmtree(place)
    assert sum(noticed.values()) + unused == sum(wanted.values()) and noticed["truncation"] == wanted["truncation"]
    say(
        f"S1, S2: {noticed['flipped bit']} of {wanted['flipped bit']} bit flips noticed, {unused} without effect (in "
        f"the manifest's white space or step); {noticed['truncation']} of {wanted['truncation']} truncations noticed"
    )


def interval(run):
    """Mean return of the last fifth of the steps over the seeds, its 95 % half-width, and replacements per seed."""
    scores, replaced = [], []
    for seed in sorted(run.glob("seed_*")):
        rows = [row for row in read_metrics(seed) if row["kind"] == "train"]
        late = [row["episode_return"] for row in rows if row["step"] > 0.8 * rows[-1]["step"]]
        scores.append(statistics.fmean(late))
        replaced.append(rows[-1]["envs_replaced"])
    half = student_t(len(scores) - 1) * statistics.stdev(scores) / len(scores) ** 0.5
    return statistics.fmean(scores), half, replaced


@pytest.mark.parametrize("family", FAMILIES)
def test_e1_runs_with_failing_environments_learn_as_well(tmp_path, monkeypatch, family):
    """Five seeds, 100,000 steps, each fails with probability 0.001: the return is within the unharmed interval."""
    monkeypatch.chdir(tmp_path)
    steps, found = size(100_000), {}
    for probability in (0.0, 0.001):
        argv = ["train", *FAMILIES[family], "--env", FLAKY, "--total_steps", str(steps), "--num_seeds", "5"]
        argv += ["--eval_every", "0", "--log_every", str(steps // 10), "--output_dir", str(probability)]
        argv += ["--config", f"Environment.kwargs = {{'probability': {probability}}}"]
        assert main([*argv, "--config", "Environment.restarts = 20"]) == 0
        found[probability] = interval(tmp_path / str(probability))
    (sound, width, none), (harmed, other, replaced) = found[0.0], found[0.001]
    say(f"E1 {family}: {sound:.1f} ± {width:.1f} unharmed, {harmed:.1f} ± {other:.1f} with {replaced} replacements")
    assert not any(none) and min(replaced) > 0, "no failure was injected"
    assert abs(harmed - sound) <= max(width, other)
