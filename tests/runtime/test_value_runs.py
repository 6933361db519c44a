"""Runs of Q-learners: what is repeated bit for bit, what survives a kill, and acting beside learning."""

import json
import re
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from packtrain import cli, knobs
from packtrain.acting.embedding_versions import EmbeddingVersions
from packtrain.algorithms.q_learning import QLearning
from packtrain.cli import main
from packtrain.errors import ConfigError, DivergedError, EnvSetupError
from packtrain.metrics.console import PlainConsole
from packtrain.runtime import checkpoint, local, multi_seed, preparation, serial
from packtrain.runtime.folder import RunFolder
from packtrain.runtime.loops.ratio import Ratio
from packtrain.runtime.training import RunSetup, Training
from packtrain.testing import chaos

SMALL = {
    **{"total_steps": 360, "warm_up": 120, "num_actors": 4, "batch_size": 4, "lstm_size": 8, "hidden_sizes": (8,)},
    **{"dueling_size": 8, "updates_per_step": 0.1, "log_every": 60, "eval_every": 0, "checkpoint_secs": 1000.0},
    **{"target_period": 5, "replay_size": 400},
}
NOVEL = {
    **{**SMALL, "arms": 3, "novelty_memory": 20, "neighbours": 2, "sequence_length": 8, "stride": 8},
    **{"recurrent": True, "burn_in": 7},
}
BANDIT = ["Arms.bandit = @Bandit()", "Bandit.window = 6"]
TIMES = ("wall_s", "steps_per_second", "actor_busy", "learner_busy", "rss_mb")


def prepare(name, bindings=(), seed=0, **values):
    given = {**(NOVEL if name.startswith("ngu") else SMALL), **values}
    if name.startswith("dqn"):
        del given["lstm_size"]
    file, _ = knobs.find_config(name)
    return preparation.prepare([file], list(bindings), given, seed, True)


def training(path, name="r2d2/catch", bindings=(), saved=None, seed=0, **values):
    configuration, experiment, spec = prepare(name, bindings, seed, **values)
    folder = RunFolder(path)
    folder.checkpoints.mkdir(parents=True, exist_ok=True)
    console = PlainConsole("x", experiment.run.total_steps)
    setup = RunSetup(experiment, spec, folder, configuration, torch.device("cpu"), console, exact=True)
    return Training(setup, saved)


def rows(path, kind="train"):
    found = [json.loads(line) for line in (Path(path) / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMES} for row in found if row["kind"] == kind]


def finish(run):
    serial.run(run)
    run.saver.save(required=True)
    weights = {name: leaf.clone() for name, leaf in run.learning.learners["values"].network.state_dict().items()}
    run.close()
    return weights


CASES = {
    "r2d2": ("r2d2/catch", ()),
    "dqn": ("dqn/catch", ()),
    "ngu": ("ngu/key_door", BANDIT),
    "on disk": ("r2d2/catch", ("Sequences.storage = 'disk'",)),
    "old weights": ("r2d2/catch", ("QLearning.publish_period = 7", "Epsilons.base_end = 0.1", "Epsilons.updates = 20")),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_is_broken_off_anywhere_goes_on_as_if_it_had_not_been(tmp_path, case):
    """Replay, priorities, bandit, novelty and counters come back. Mutations: own state, or keys, not saved;
    acting with the learner's weights where they have not been published.
    """
    name, bindings = CASES[case]
    wanted = finish(training(tmp_path / "whole", name, bindings))
    for stop in (33, 95, 117):
        path = tmp_path / str(stop)
        run = training(path, name, bindings)
        for count, wish in enumerate(serial.loop(run)):
            if count == stop:
                break
            serial.carry_out(run, wish)
        run.saver.save(required=True)
        run.close()
        got = finish(training(path, name, bindings, saved=checkpoint.load_newest(path / "checkpoints")))
        assert all(torch.equal(wanted[leaf], got[leaf]) for leaf in wanted), stop
        assert rows(path) == rows(tmp_path / "whole"), stop
        newest = checkpoint.steps(path / "checkpoints")[-1]
        for file in ("memories", "learners", "actor"):
            mine, theirs = (
                load_file(folder / "checkpoints" / str(newest) / f"{file}.safetensors")
                for folder in (path, tmp_path / "whole")
            )
            assert all(torch.equal(mine[leaf], theirs[leaf]) for leaf in theirs), (stop, file)


class Loop(gym.Env):
    """Eight observations in turn, over and over, whatever is done; 200 steps an episode."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (6,), np.float32), gym.spaces.Discrete(3)
    shown = np.random.default_rng(0).uniform(-1, 1, (8, 6)).astype(np.float32)

    def __init__(self, render_mode=None):
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.shown[0], {}

    def step(self, action):
        self.steps += 1
        return self.shown[self.steps % 8], 0.0, False, self.steps == 200, {}


gym.register("LoopForTests-v0", Loop)


def novelty_in_a_loop(path, runtime):
    """Episodic rewards of the last 100 steps of later episodes, and how often weights were published in an episode."""
    bindings = ["Environment.kwargs = {}", "Novelty.distillation = None"]
    values = {
        **{"env": "LoopForTests-v0", "num_actors": 2, "total_steps": 1220, "warm_up": 100, "recurrent": False},
        **{"burn_in": 0, "novelty_memory": 300, "neighbours": 10, "kernel_epsilon": 0.0001, "updates_per_step": 0.15},
        **{"slack": 4 if runtime is local else None, "embedding_learning_rate": 0.003, "replay_size": 4000},
    }
    run = training(path, "ngu/deep_sea", bindings, **values)
    late, versions, episodes = [], [], []
    for actor_state in run.acting.actor.actor_states:

        def act(row, actor_state=actor_state, act=actor_state.act):
            decision = act(row)
            episode = run.acting.actor.steps // 400
            if episode >= 1:
                versions.append((episode, run.acting.policy.version))
                if int(actor_state._policy.own["number"].min()) > 100 and not row.first.any():
                    late.extend(decision.row.last_reward["intrinsic"].tolist())
            return decision

        actor_state.act = act
    runtime.run(run)
    run.close()
    episodes = {episode for episode, _ in versions}
    published = min(len({version for e, version in versions if e == episode}) for episode in list(episodes)[:-1])
    assert len(late) > 300
    return np.array(late), published


FLOOR = 1 / (10**0.5 + 0.001)


@pytest.mark.parametrize("runtime", [serial, local], ids=["serial", "local"])
def test_a_loop_of_eight_states_loses_its_novelty_while_the_learner_publishes(tmp_path, runtime):
    """Ten equal neighbours pay 1 / (√10 + c). Mutation: embedding weights that change within an episode."""
    late, published = novelty_in_a_loop(tmp_path, runtime)
    assert published >= 20, "weights must change within the episode for this to show anything"
    np.testing.assert_allclose(late, FLOOR, rtol=1e-3)


def test_a_loop_of_eight_states_stays_novel_if_the_embedding_changes_within_an_episode(tmp_path, monkeypatch):
    """The negative control: all environments take the newest weights at every row, and keep their memories."""
    begin_episodes = EmbeddingVersions.begin_episodes

    def at_every_row(self, first, version):
        self.begin()
        begin_episodes(self, first, version)
        return first

    monkeypatch.setattr(EmbeddingVersions, "begin_episodes", at_every_row)
    late, _ = novelty_in_a_loop(tmp_path, serial)
    assert late.mean() > 2 * FLOOR


def test_segments_that_nothing_refers_to_are_deleted(tmp_path, monkeypatch):
    """Those of all groups of columns count on. Mutations: deleting none; deleting what a kept checkpoint needs."""
    monkeypatch.setattr("packtrain.memory.segments.SEGMENT_ROWS", 64)
    run = training(tmp_path, total_steps=1600)
    for count, wish in enumerate(serial.loop(run)):
        serial.carry_out(run, wish)
        if count % 40 == 39:
            run.saver.save(required=True)
    run.close()
    (folder,) = (tmp_path / "replay").iterdir()
    files = {path.name for path in folder.glob("*.safetensors")}
    kept = [checkpoint.load(tmp_path / "checkpoints" / str(s)) for s in checkpoint.steps(tmp_path / "checkpoints")]
    referred = {name for one in kept for name in re.findall(r"'name': '(\d+\.safetensors)'", str(one["memories"]))}
    assert len(referred) >= 6 and referred <= files and len(files - referred) <= 2
    assert min(referred) > "00000008.safetensors", "the first have gone"
    again = training(tmp_path, total_steps=1600, saved=checkpoint.load_newest(tmp_path / "checkpoints"))
    assert again.progress.acted > 1500 and not again.learning.memories["replay"].lost
    again.close()


def test_updates_follow_steps_and_seeds_differ(tmp_path):
    """Mutations: learning while there is no sequence; a ratio of batches to turns."""
    run = training(tmp_path / "a")
    weights = finish(run)
    assert run.learning.learners["values"].updates == int(0.1 * ((360 - 120) // 4 * 4))
    assert rows(tmp_path / "a")[-1]["updates/values"] == run.learning.learners["values"].updates
    other = finish(training(tmp_path / "b", seed=1))
    assert not torch.equal(weights["target.extrinsic.value.0.weight"], other["target.extrinsic.value.0.weight"])


def test_acting_and_learning_at_once_keep_their_ratio_within_slack(tmp_path):
    """Mutations: an actor that does not wait; a learner that runs ahead of what was acted."""
    run = training(tmp_path, total_steps=4000, slack=4, updates_per_step=0.02, warm_up=200)
    assert run.experiment.overlaps and not multi_seed.can_share(run.experiment)
    behind = []
    learn = run.learn

    def watched(name, count):
        behind.append(Ratio(run.experiment, run.progress, run.learning).due(name))
        learn(name, count)

    run.learn = watched
    local.run(run)
    learner = run.learning.learners["values"]
    assert run.progress.finished and min(behind) >= 1 and max(behind) <= 4 + 2
    assert learner.updates <= 0.02 * (run.progress.acted - 200) + 1 and learner.updates >= 0.02 * (4000 - 200) - 8
    run.close()


def test_the_first_turns_are_random_and_none_after_a_resume(tmp_path):
    """However slow the learner's thread is.

    Mutations: an actor that starts before its stage, or acts on after it; a warm-up that begins again when it is over.
    """
    for saved in (False, True):
        state = checkpoint.load_newest(tmp_path / "checkpoints") if saved else None
        run = training(tmp_path, total_steps=1600 if saved else 800, slack=4, warm_up=400, saved=state)
        acted, act = [], run.acting.actor.turn

        def turn(run=run, act=act, acted=acted):
            acted.append((run.progress.acted, bool(run.acting.policy.random)))
            act()

        run.acting.actor.turn = turn
        local.run(run)
        run.saver.save(required=True)
        run.close()
        assert all(random == (steps < 400) for steps, random in acted), acted[:5]


def test_without_a_ratio_both_run_freely(tmp_path):
    run = training(tmp_path, total_steps=3000, updates_per_step=None)
    local.run(run)
    assert run.progress.finished and run.learning.learners["values"].updates > 3
    run.close()


def test_environments_that_cannot_be_saved_leave_replay_and_bandit(tmp_path, monkeypatch):
    """Mutations: the bandit is reset; the replay of a run whose episodes are lost is lost with them."""
    monkeypatch.setattr("packtrain.envs.gymnasium_vector_env.exact_saving", lambda env: None)
    name, values = "ngu/key_door", {"env": "CartPole-v1", "total_steps": 300}
    bindings = [*BANDIT, "Environment.kwargs = {}"]
    run = training(tmp_path, name, bindings, **values)
    serial.run(run)
    run.saver.save(required=True)
    kept, actor_state = len(run.learning.memories["replay"]), run.acting.actor.actor_states[0]
    assert actor_state._policy.own["window_number"].min() > 0
    run.close()
    again = training(tmp_path, name, bindings, saved=checkpoint.load_newest(tmp_path / "checkpoints"), **values)
    mine = again.acting.actor.actor_states[0]._policy.own
    assert len(again.learning.memories["replay"]) >= kept
    for leaf in ("window_arm", "window_value", "window_number", "error_mean", "distance_mean"):
        assert torch.equal(mine[leaf], actor_state._policy.own[leaf]), leaf
    again.close()


def test_every_step_that_was_made_is_in_the_replay(tmp_path):
    """No sample is lost between actor and replay. Mutation: rows of one group not handed on."""
    run = training(tmp_path, replay_size=4000)
    serial.run(run)
    memory = run.learning.memories["replay"]
    under_way = run.acting.actor.steps - memory.count  # sent, and not yet seen again
    assert 0 <= under_way <= 4
    run.close()


@pytest.mark.slow
def test_kills_lose_nothing(tmp_path):
    """kill −9 at odd moments, resumed by the same command each time: the same curve, and all of the replay."""
    argv = ["train", "ngu/key_door", "--output_dir", str(tmp_path / "run")]
    values = {**NOVEL, "checkpoint_secs": 0.05}
    argv += [f"--{name}={value}" for name, value in values.items()] + ["--runtime", "serial"]
    argv += [part for binding in BANDIT for part in ("--config", binding)]
    assert chaos.kill_after_checkpoints(argv, tmp_path / "run", kills=5) >= 3
    assert cli.main(argv) == 0
    finish(training(tmp_path / "whole", "ngu/key_door", BANDIT, checkpoint_secs=0.05))
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")


@pytest.mark.parametrize(
    ("name", "values", "bindings", "line"),
    [
        ("r2d2/catch", {"burn_in": 10}, [], "Sequences.burn_in = 10 must be less than Sequences.sequence_length = 10"),
        ("r2d2/catch", {"burn_in": 500}, [], "Sequences.burn_in = 500 with 10 steps to learn from takes"),
        ("r2d2/catch", {"replay_size": 30}, [], "Sequences.capacity = 30 is less than a batch of 4 sequences of 10"),
        ("r2d2/catch", {"n_step": 11}, [], "Sequences.n_step = 11 is more than Sequences.sequence_length = 10"),
        ("r2d2/catch", {"stride": 11}, [], "Sequences.stride = 11 is more than Sequences.sequence_length = 10"),
        (
            "r2d2/catch",
            {"env": "Pendulum-v1"},
            ["Environment.kwargs = {}"],
            "DQN, R2D2 and NGU need discrete actions, but the action space is Box(-2.0, 2.0, (1,), float32)",
        ),
        ("r2d2/catch", {"slack": 0}, [], "LearnerUse.slack = 0 must be at least 1"),
        ("r2d2/catch", {"updates_per_step": -1.0}, [], "LearnerUse.ratio = -1.0 must be above 0"),
        ("r2d2/catch", {"epsilon_base": 1.5}, [], "Epsilons.base = 1.5 must lie between 0 and 1"),
        ("r2d2/catch", {}, ["QLearning.n_step = 2"], "QLearning.n_step = 2 and Sequences.n_step = 5 differ"),
        (
            "r2d2/catch",
            {},
            ["Sequences.extras = ()", "QLearning.returns = 'retrace'"],
            "needs 'behaviour_prob' in the memory",
        ),
        ("ngu/key_door", {}, ["Sequences.extras = ('behaviour_prob',)"], "needs 'arm' in the memory"),
        ("r2d2/catch", {}, ["Sequences.eta = 0.5"], "QLearning.eta = 0.9 and Sequences.eta = 0.5 differ"),
        ("r2d2/catch", {"largest_decay": 0.0}, [], "Sequences.largest_decay = 0.0 must be above 0 and at most 1"),
        (
            "ngu/deep_sea",
            {"arm_discounts": "one"},
            [],
            "QLearning.discount = None with Arms.discounts = 'one' leaves no",
        ),
        ("r2d2/catch", {}, ["QLearning.discount = None"], "QLearning.discount = None without arms leaves no discount"),
        ("ngu/key_door", {"neighbours": 0}, [], "Novelty.neighbours = 0 must lie between 1 and"),
        ("r2d2/catch", {}, ["Experiment.policy = @Control()"], "lstm_size is set but not used"),
    ],
)
def test_bad_input_is_one_clear_line(name, values, bindings, line):
    with pytest.raises((ConfigError, EnvSetupError), match=re.escape(line)) as caught:
        _, experiment, spec = prepare(name, bindings, **values)
        experiment.memories["replay"].build([4], 0, torch.device("cpu"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("flag", [["--discount", "0.997"], ["--config", "QLearning.discount = 0.9"]])
def test_a_discount_is_refused_where_arms_have_their_own(tmp_path, capsys, flag):
    """Mutation: it is accepted and not used. Settings that all arms share are allowed."""
    assert main(["train", "ngu/deep_sea", *flag, "--output_dir", str(tmp_path / "run")]) == 2
    assert not (tmp_path / "run").exists()
    said = capsys.readouterr().err
    assert "would be ignored: with Arms.discounts = 'ngu' each arm has its own; leave --discount out" in said
    assert prepare("ngu/deep_sea", arm_discounts="one", discount=0.9)[1].learners["values"].learner.discount == 0.9


def test_a_run_that_was_made_with_an_ignored_discount_goes_on(tmp_path, monkeypatch):
    """Its folder says the discount that was not used. Mutations: such a run can be neither resumed nor evaluated."""
    argv = ["train", "ngu/deep_sea", "--discount", "0.997", "--output_dir", str(tmp_path / "run")]
    argv += [f"--{name}={value}" for name, value in {**NOVEL, "recurrent": False, "burn_in": 0}.items()]
    with monkeypatch.context() as patch:
        patch.setattr(QLearning, "check_new_run", lambda *_: None)
        assert main([*argv, "--total_steps", "200"]) == 0
    assert main([*argv, "--total_steps", "240"]) == 0 and rows(tmp_path / "run")[-1]["step"] >= 240
    assert main(["eval", str(tmp_path / "run"), "--num_episodes", "1"]) == 0


def test_a_memory_without_room_for_a_sequence_is_refused_before_there_is_a_folder(tmp_path, capsys):
    argv = ["train", "r2d2/catch", "--replay_size", "400", "--output_dir", str(tmp_path / "run")]
    assert main(argv) == 2 and not (tmp_path / "run").exists()
    assert "gives each of 32 columns 12 rows, and a sequence takes 16" in capsys.readouterr().err


@pytest.mark.parametrize(("steps", "said"), [(64, True), (640, False)])
def test_a_run_that_only_warms_up_says_so(tmp_path, capsys, steps, said):
    argv = ["train", "r2d2/catch", "--warm_up", "320", "--eval_every", "0", "--output_dir", str(tmp_path / "run")]
    assert main([*argv, "--total_steps", str(steps)]) == 0
    assert ("nothing is learned: all 64 steps are random" in capsys.readouterr().out) == said


def test_priorities_that_are_not_numbers_stop_the_run(tmp_path):
    run = training(tmp_path)
    serial.run(run)
    memory = run.learning.memories["replay"]
    sample = memory.sample()
    with pytest.raises(DivergedError, match="not finite"):
        memory.update_priorities(sample.keys, torch.full((4,), float("nan")))
    run.close()


@pytest.mark.parametrize(
    ("name", "reduction"),
    [
        *[(f"{name}", "sum") for name in ("r2d2/atari", "ngu/atari", "ngu/montezuma", "ngu/agent57")],
        *[(f"{name}", "mean") for name in ("r2d2/pong", "r2d2/catch", "ngu/deep_sea", "r2d2/marltas_async")],
    ],
)
def test_configurations_with_the_papers_numbers_sum_the_loss_over_time(name, reduction):
    """Adam's ε = 1e-3 of R2D2, and NGU's 1e-4, belong to sums. Mutation: the mean with the paper's ε."""
    found = knobs.read_knobs(knobs.find_config(name)[0])
    assert found["reduction"].default == reduction
    assert (found["adam_epsilon"].default >= 1e-4) == (reduction == "sum")


ATARI = "r2d2/atari r2d2/atari_paper r2d2/pong dqn/atari dqn/pong ngu/atari ngu/montezuma ngu/agent57".split()


@pytest.mark.parametrize("name", ATARI)
def test_atari_configurations_replay_each_step_as_often_on_every_machine(name):
    """1.5 times in SEED, 13 in r2d2/pong. Mutation: as many updates as the learner can make."""
    found = knobs.read_knobs(knobs.find_config(name)[0])
    ratio, size, length = (found[knob].default for knob in ("updates_per_step", "batch_size", "sequence_length"))
    assert found["slack"].default is not None, "acting and learning overlap"
    assert 1.5 <= ratio * size * length <= 14
    assert found["updates_per_step"].parse("None") is None


PAPER = {
    "r2d2/atari_paper": {
        **{"num_actors": 256, "replay_size": 4_000_000, "batch_size": 64, "sequence_length": 80, "burn_in": 40},
        **{"stride": 40, "n_step": 5, "discount": 0.997, "priority_exponent": 0.9, "importance_exponent": 0.6},
        **{"learning_rate": 1e-4, "adam_epsilon": 1e-3, "target_period": 2500, "eta": 0.9, "lstm_size": 512},
        **{"epsilon_base": 0.4, "epsilon_alpha": 7.0, "new_priority": "given", "reduction": "sum"},
    },
    "ngu/atari": {
        **{"batch_size": 64, "sequence_length": 80, "stride": 40, "replay_size": 5_000_000, "trace_lambda": 0.95},
        **{"adam_epsilon": 1e-4, "target_period": 1500, "eval_epsilon": 0.01, "arms": 32, "novelty_memory": 30_000},
    },
    "ngu/agent57": {
        **{"batch_size": 64, "sequence_length": 160, "stride": 80, "replay_size": 5_000_000, "adam_epsilon": 1e-4},
        **{"importance_exponent": 0.0, "importance_exponent_end": 0.0, "eval_epsilon": 0.01, "bandit_explore": 0.5},
    },
}


@pytest.mark.parametrize("name", PAPER)
def test_configurations_of_papers_have_the_numbers_of_their_tables(name):
    found = {knob: one.default for knob, one in knobs.read_knobs(knobs.find_config(name)[0]).items()}
    assert {knob: found[knob] for knob in PAPER[name]} == PAPER[name]


def test_every_number_of_the_papers_configuration_has_its_source():
    """Mutation: a knob without one."""
    lines = knobs.find_config("r2d2/atari_paper")[0].read_text().splitlines()
    set_here = [line for line in lines if " = " in line]
    assert len(set_here) > 30 and all(re.search(r"# \[.+\]$", line) for line in set_here)
