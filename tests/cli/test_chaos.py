"""Fault injection at full size: `make chaos`, about two hours on two quiet cores. Each test prints its figures.

The table in docs/operations.md names the test of each number at the size of CI. `PACKTRAIN_CHAOS=0.1 make chaos` makes
a tenth of it.
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
from packtrain.runtime.training import Training
from packtrain.testing import chaos, faults, tiny_runs

pytestmark = [pytest.mark.long, pytest.mark.timeout(4 * 3600)]
SHARE = float(os.environ.get("PACKTRAIN_CHAOS", "1"))
GOLDEN = Path(__file__).parent.parent / "golden/runs/0.2.0"
SMALL = "--num_actors 4 --batch_size 4 --unroll_length 5 --hidden_size 16 --log_every 200 --eval_every 0".split()
FLAKY = "packtrain.testing.faulty:packtrain/{}-v0"
FAMILIES = ("impala", "r2d2", "steve", "planning")


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


def test_f3_a_killed_run_goes_on_and_learns(tmp_path):
    """SIGKILL at 30 random moments, the same command each time: at most one interval is lost, counters never fall, and
    the policy learns what a run that is left alone does."""
    kills, rng, last = size(30), random.Random(1), 0
    argv = ["train", "impala/catch", "--output_dir", "run", "--eval_every", "0", "--checkpoint_secs", "2"]
    folder = tmp_path / "run/checkpoints"
    with faults.expect("kill", kills):
        for _ in range(kills):
            run = chaos.Command([*argv, "--total_steps", "100000000"], tmp_path)
            chaos.wait_until(lambda: not run.running or max(checkpoint.steps(folder), default=-1) > last, 300)  # noqa: B023
            time.sleep(rng.uniform(0, 2.5))
            assert run.running, run.output()
            newest = checkpoint.steps(folder)[-1]
            run.kill_group()
            step, _ = checkpoint.load_newest(folder)
            assert step >= newest > last, "more than one interval was lost"
            last = step
    total = last + 100_000
    assert chaos.Command([*argv, "--total_steps", str(total)], tmp_path).wait(1200) == 0
    rows = [row for row in read_metrics(tmp_path / "run") if row["kind"] == "train"]
    steps = [row["step"] for row in rows]
    assert steps == sorted(set(steps)), "a row is doubled"
    assert rows[-1]["episode_return"] > 0.9, "random play: −0.6"
    say(f"F3: {kills} kills, step {last:,}; the return of the finished run is {rows[-1]['episode_return']:.2f}")


@pytest.mark.parametrize("family", ["r2d2", "steve", "planning"])
def test_d3_a_run_resumed_at_random_steps_is_that_of_one_go(tmp_path, monkeypatch, family):
    """20 stops, by the number of actor steps: in the warm-up, in episodes, in sequences. IMPALA's is D2 with kills."""
    monkeypatch.chdir(tmp_path)
    env = "CartPole" if family == "planning" else None  # built in: states of a Simulator cannot be saved
    total, stops, rng = 1200, size(20), random.Random(0)
    argv = [*tiny_runs.argv(family, "--runtime", "serial", env=env, total=total)]
    argv += [] if family == "planning" else ["--eval_every", "0"]
    assert main([*argv, "--output_dir", "straight"]) == 0
    act, made = Training.act, [0, 0]  # actor steps of this process, and the one to stop after

    def stopping(self, patience=None):
        act(self, patience)
        made[0] += 1
        if made[0] == made[1]:
            self.progress.stop = KeyboardInterrupt()

    monkeypatch.setattr(Training, "act", stopping)
    stopped = 0
    for _ in range(stops):
        made[:] = 0, rng.randrange(1, total // 10)
        assert main([*argv, "--output_dir", "stopped"]) == 0
        stopped += made[0] == made[1]
    made[:] = 0, -1
    assert main([*argv, "--output_dir", "stopped"]) == 0
    assert stopped >= stops // 3, "the run was over before it could be stopped"
    one, other = (Path(name) / "checkpoints" for name in ("straight", "stopped"))
    files = [folder / str(checkpoint.steps(folder)[-1]) for folder in (one, other)]
    assert files[0].name == files[1].name
    for file in sorted(files[0].glob("*.safetensors")):
        assert file.read_bytes() == (files[1] / file.name).read_bytes(), file.name
    say(f"D3 {family}: stopped {stopped} times, every array of the last checkpoint is equal")


def flaky_run(family, probability, steps, folder):
    """Arguments of five seeds in environments of which each step fails with this probability."""
    kwargs = {"probability": probability}
    env = FLAKY.format("FlakyPendulum" if family == "steve" else "FlakyCartPole")
    if family == "planning":  # 24 steps of the simulator for each that is acted, all of which may fail
        kwargs |= {"saves_generator": False, "sound_steps": 50}
        epochs = max(1, steps // 5 // 400)  # 4 environments; episodes take about 100 steps
        epochs = ["--n_envs", "4", "--episode_time_limit", "200", "--n_epochs", str(epochs)]
        argv = [*tiny_runs.argv(family, env=env), *epochs]
    else:
        configs = {"impala": ["impala/gym"], "r2d2": ["r2d2/small_base", "--num_actors", "16"]}
        start = ["train", *configs.get(family, tiny_runs.TINY[family]), "--env", env, "--total_steps", str(steps)]
        argv = [*start, "--eval_every", "0", "--log_every", str(steps // 10)]
    bindings = [f"Environment.kwargs = {kwargs}", "Environment.restarts = 20"]
    argv += [word for binding in bindings for word in ("--config", binding)]
    return [*argv, "--num_seeds", "5", "--output_dir", str(folder)]


def interval(run):
    """Mean return of the last fifth of the steps over the seeds, its 95 % half-width, and replacements per seed."""
    scores, replaced = [], []
    for seed in sorted(run.glob("seed_*")):
        rows = [row for row in read_metrics(seed) if row["kind"] == "train"]
        late = [row["episode_return"] for row in rows if row["step"] > 0.8 * rows[-1]["step"]]
        late = [score for score in late if score is not None]  # a row in which no episode ended
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
        assert main(flaky_run(family, probability, steps, probability)) == 0
        found[probability] = interval(tmp_path / str(probability))
    (sound, width, none), (harmed, other, replaced) = found[0.0], found[0.001]
    say(f"E1 {family}: {sound:.1f} ± {width:.1f} unharmed, {harmed:.1f} ± {other:.1f} with {replaced} replacements")
    assert not any(none) and min(replaced) > 0, "no failure was injected"
    assert abs(harmed - sound) <= max(width, other)
