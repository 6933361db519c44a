"""Launches: many updates at once are those one at a time, joined runs are those alone, and both can be saved."""

import shutil
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch

from packtrain.acting.noise import Control
from packtrain.algorithms.batched_updates import ROOM, UNIT, Launches, ReplayLearner, transitions
from packtrain.algorithms.dynamics import DynamicsLearning
from packtrain.algorithms.value_expansion import Mve, Steve, ValueExpansion
from packtrain.errors import CheckpointError
from packtrain.memory.replay import Replay
from packtrain.networks.dynamics import Dynamics
from packtrain.runtime import checkpoint
from packtrain.types import Spec

OBS, ACTIONS, ROWS = 3, 2, 12
SPEC = Spec(gym.spaces.Box(-np.inf, np.inf, (OBS,)), gym.spaces.Box(-1, 1, (ACTIONS,)))
CPU = torch.device("cpu")
DYNAMICS = DynamicsLearning(ROWS, 0.003, rows="random", bootstrap=True, holdout=True, validation_period=3)
PERIODS = {"target_period": 3, "model_period": 4, "publish_period": 5}
CASES = {
    "steve": ValueExpansion(Steve(2), batch_size=ROWS, rows="random", learning_rate=0.003, **PERIODS),
    "mve": ValueExpansion(Mve(2), batch_size=ROWS, rows="split", learning_rate=0.003, **PERIODS),
    "td3": ValueExpansion(
        Steve(2), "td3", batch_size=ROWS, rows="all", learning_rate=0.003, target_period=None, policy_delay=2
    ),
    "sac": ValueExpansion(
        Steve(2), "sac", batch_size=ROWS, rows="all", learning_rate=0.003, model_period=None, publish_period=None
    ),
}


class Run:
    """One run: a network, a memory of its own, and the learners of model and critic."""

    def __init__(self, seed, case="steve", steps=100, device=CPU, **more):
        torch.manual_seed(seed)
        dynamics = Dynamics(3, 3, 8, 1, 6, 1, probabilistic=True, normalise=True, elites=2)
        control = Control(8, 1, 3, layer_norm=case == "sac", stochastic=case == "sac", dynamics=dynamics)
        self.network = control.build_network(SPEC).to(device)
        self.memory = Replay(100, ROWS).build([1], 0, device)
        self.memory.reseed(seed)
        rng = np.random.default_rng(seed)
        normal = lambda *shape: rng.normal(size=(steps, *shape)).astype(np.float32)  # noqa: E731
        made = {"obs": normal(OBS), "action": np.tanh(normal(ACTIONS)), "reward": normal(), "after": normal(OBS)}
        self.memory.add(made | {name: rng.random(steps) < 0.2 for name in ("terminated", "truncated")})
        self.learners = [replace(settings, **more).build(self.network, 0) for settings in (DYNAMICS, CASES[case])]
        for place, learner in enumerate(self.learners):
            learner.reseed(10 * seed + place)


def turn(runs, place, count):
    """So many updates of a learner of all runs, as they are joined or alone; metrics of each run."""
    learners = [run.learners[place] for run in runs]
    batches = [run.learners[place].draw(run.memory, count) for run in runs]
    if learners[0]._launches.runs == len(runs):
        return [result.metrics for result in learners[0].apply(batches)]
    return [learner.update(batch) for learner, batch in zip(learners, batches, strict=True)]


def train(runs, turns):
    """Model and critic in turns of so many updates; all metrics."""
    return [turn(runs, place, count) for count in turns for place in (0, 1)]


def everything(run):
    """All that a run is, as flat numbers."""
    leaves = dict(run.network.state_dict())
    for learner in run.learners:
        state = learner.state_dict()
        for name, moments in state["optimisers"].items():
            leaves |= {f"{name}/{key}": leaf for key, leaf in moments.items()}
        leaves[f"{state['updates']} updates"] = torch.zeros(())
    return leaves


def same(one, other, **tolerance):
    mine, theirs = (everything(run) if isinstance(run, Run) else run for run in (one, other))
    assert set(mine) == set(theirs)
    for name in mine:
        torch.testing.assert_close(mine[name], theirs[name], **{"atol": 2e-5, "rtol": 2e-4, **tolerance}, msg=name)


EXACT = {"atol": 0, "rtol": 0}


@pytest.mark.parametrize("case", list(CASES))
def test_many_at_once_are_those_one_at_a_time(case):
    """Metrics of many are means. Mutations: copies at the end of a call only; inputs of the first for all.

    What is random is drawn in other portions, so the inputs of one call are dealt out by hand.
    """
    many, single = Run(1, case), Run(1, case)
    for place in (0, 1, 0, 1):
        batch = many.learners[place].draw(many.memory, 7)
        other = single.learners[place].draw(single.memory, 7)
        assert all(torch.equal(batch[name], other[name]) for name in batch)
        pieces = [{name: leaf[k : k + 1] for name, leaf in other.items()} for k in range(7)]
        end, single.learners[place].rule.end = single.learners[place].rule.end, lambda: None
        found = [single.learners[place].update(piece) for piece in pieces]
        single.learners[place].rule.end = end
        end()  # copies that are due after a call: the caller sees only one call
        metrics = many.learners[place].update(batch)
        for name, mean in metrics.items():
            each = torch.stack([one[name] for one in found if name in one])
            torch.testing.assert_close(mean, each.mean(), atol=1e-5, rtol=1e-5)
    same(many, single, **EXACT)
    assert many.learners[0].updates == many.learners[1].updates == 14


@pytest.mark.parametrize("case", list(CASES))
def test_recorded_updates_equal_plain_ones(case):
    """Of two joined runs, bit for bit. Mutations: one recording for all kinds of updates; one kept after a join."""
    both = [[Run(seed, case) for seed in (1, 2)] for _ in range(2)]
    for run in both[1]:
        train([run], [2])  # recordings of each alone, which must not be replayed once they are joined
    for run in both[0]:
        for learner in run.learners:
            learner.capture = False
        train([run], [2])
    for runs, records in zip(both, (False, True), strict=True):
        ReplayLearner.join([run.learners for run in runs])
        for learner in runs[0].learners:
            assert learner._launches._records == records
    told = [train(runs, [9, 2, 13]) for runs in both]
    for plain, taped in zip(*both, strict=True):
        same(plain, taped, **EXACT)
    assert told[0] == told[1]
    for learner in both[1][0].learners:
        assert all(each._calls is not None for each in learner._launches._recorded.values())


def test_compiled_updates_are_not_recorded():
    """A recording would not contain them."""
    run = Run(1, "steve", compile=True)
    assert not any(learner._launches._records for learner in run.learners)


@pytest.mark.parametrize("case", list(CASES))
def test_steps_laid_out_for_a_launch_are_the_plain_ones(case):
    """The way through a GPU's launches, on a CPU: a cursor through inputs in place, units where nothing is due between.

    Mutations: a cursor that is not set back; units across a copy that is due; kinds of the first update for all.
    """
    plain, laid = Run(1, case), Run(1, case)
    for learner in plain.learners:
        learner.capture = False
    for learner in laid.learners:
        learner._launches._on_gpu = True
    first, second = (train([run], [9, 2, 13]) for run in (plain, laid))
    same(plain, laid, **EXACT)
    for (one,), (other,) in zip(first, second, strict=True):
        for name in one:
            torch.testing.assert_close(one[name], other[name])
    units = {len(kinds) for kinds in laid.learners[0]._launches._recorded}
    assert units == {1, UNIT}  # the model's updates go by fours, and the rest one by one
    kinds = set(laid.learners[1]._launches._recorded)
    if case in ("steve", "mve"):  # something is due after 3, 4, 5, 6, 8 …: four never fit
        assert kinds == {(True,)}
    elif case == "td3":
        assert {(False, True, False, True), (True,), (False,)} <= kinds


@pytest.mark.parametrize("case", list(CASES))
def test_joined_runs_learn_what_they_would_alone(case):
    """Weights, Adam's moments, copies, elites, counters and metrics, of the second run too.

    Mutations: moments lost at the join; those of run 0 for all; losses averaged over runs; batches in the wrong order.
    """
    apart, together = ([Run(seed, case) for seed in (1, 2)] for _ in range(2))
    for runs in (apart, together):
        train(runs, [3])
    before = [everything(run) for run in together]
    ReplayLearner.join([run.learners for run in together])
    for run, state in zip(together, before, strict=True):
        same(run, state, **EXACT)  # a join changes nothing
    first, second = (train(runs, [4, 1, 5]) for runs in (apart, together))
    for mine, theirs in zip(apart, together, strict=True):
        same(mine, theirs)
        assert theirs.learners[1].updates == 13
    for alone, joint in zip(first, second, strict=True):
        for mine, theirs in zip(alone, joint, strict=True):
            assert set(mine) == set(theirs)
            for name in mine:
                torch.testing.assert_close(mine[name], theirs[name], atol=1e-4, rtol=1e-3, msg=name)
    assert any(not torch.equal(before[1][name], everything(together[1])[name]) for name in before[1])
    differ = [
        not torch.equal(a, b) for a, b in zip(*(run.network.policy.parameters() for run in together), strict=True)
    ]
    assert any(differ)  # two runs, not one twice


def saved(run, folder):
    """A state as it comes back from disk."""
    checkpoint.save(folder, 1, {"learners": [learner.state_dict() for learner in run.learners]})
    return checkpoint.load(folder / "1")["learners"], run.memory.snapshot()


def loaded(state, case, seed=77):
    run = Run(seed, case)
    learners, memory = state
    for learner, own in zip(run.learners, learners, strict=True):
        learner.load_state_dict(own)
    run.memory.restore(memory)
    return run


@pytest.mark.parametrize("case", ["steve", "sac"])
def test_a_joined_run_goes_on_alone_and_the_reverse(case, tmp_path):
    """Mutations: moments of all runs in one's state; the generator or notes of the preparation left out; weights that
    are loaded beside the joint memory.
    """
    runs = [Run(seed, case) for seed in (1, 2)]
    ReplayLearner.join([run.learners for run in runs])
    train(runs, [5])
    state = saved(runs[1], tmp_path / "joined")
    assert state[0][1]["network"]["policy.weights.0"].shape == (1, OBS, 8)
    alone = loaded(state, case)
    same(alone, runs[1], **EXACT)
    train(runs, [4])
    train([alone], [4])
    same(alone, runs[1])  # joined goes on alone
    states = [saved(alone, tmp_path / "alone"), saved(runs[0], tmp_path / "other")]
    again = [loaded(each, case) for each in states]
    ReplayLearner.join([run.learners for run in again])
    train(again, [3])
    train([alone], [3])
    same(again[0], alone)  # alone goes on joined
    late = [Run(seed, case) for seed in (5, 6)]
    ReplayLearner.join([run.learners for run in late])  # and a state that is loaded after the join
    for run, each in zip(late, states, strict=True):
        for learner, own in zip(run.learners, each[0], strict=True):
            learner.load_state_dict(own)
        run.memory.restore(each[1])
    train(late, [3])
    same(late[0], alone)


def test_loading_goes_on_the_same(tmp_path):
    """Alone, bit by bit, and by what is saved alone: the seed of the other run is another."""
    run = Run(1)
    train([run], [2])  # elites are chosen again after 3
    again = loaded(saved(run, tmp_path), "steve")
    first, second = train([run], [3, 2]), train([again], [3, 2])
    same(run, again, **EXACT)
    assert all(torch.equal(a[0][name], b[0][name]) for a, b in zip(first, second, strict=True) for name in a[0])
    assert any("model/held_out_error" in each[0] for each in first)


def test_a_learner_saves_what_it_writes():
    """Each part of the network belongs to one learner. Mutation: a part in none, which a resume would lose."""
    run = Run(1)
    model, value = (set(learner.state_dict()["network"]) for learner in run.learners)
    assert not model & value and model | value == set(run.network.state_dict())
    assert {name.partition(".")[0] for name in model} == {"model"}


def test_runs_that_are_not_equally_far_are_refused():
    """And left as they are. Mutation: weights laid side by side before the refusal."""
    runs = [Run(1), Run(2)]
    turn(runs[:1], 1, 2)
    place = runs[0].network.policy.weights[0].data_ptr()
    with pytest.raises(CheckpointError, match="same number of updates; they have made 2, 0"):
        ReplayLearner.join([run.learners for run in runs])
    assert runs[0].network.policy.weights[0].data_ptr() == place
    train(runs, [1])


def test_a_join_of_one_run_is_that_run():
    runs = [Run(1), Run(1)]
    train(runs[:1], [3])
    train(runs[1:], [3])
    ReplayLearner.join([runs[1].learners])
    for run in runs:
        train([run], [2])
    same(*runs, **EXACT)


def test_joined_runs_update_together_or_not_at_all():
    runs = [Run(1), Run(2)]
    ReplayLearner.join([run.learners for run in runs])
    with pytest.raises(AssertionError, match="joined runs update together"):
        runs[0].learners[0].update(runs[0].learners[0].draw(runs[0].memory, 1))


def test_inputs_are_the_memorys_rows():
    """Whole steps at the rows that are named, [count, B], and a learner's own size of batch.

    Mutations: the memory's batch size; fields of other rows; the same rows in every update.
    """
    run = Run(1)
    batch = run.learners[1].draw(run.memory, 5)
    assert (
        batch["row"].shape == (5, ROWS) and batch["obs"].shape == (5, ROWS, OBS) and batch["reward"].shape == (5, ROWS)
    )
    fields = transitions(run.memory.view("all"))
    for name in ("obs", "action", "reward", "after", "terminated"):
        assert torch.equal(batch[name], fields[name][batch["row"]]), name
    assert len(torch.unique(batch["row"], dim=0)) == 5
    small = ValueExpansion(batch_size=6).build(run.network, 0)
    assert small.draw(run.memory, 2)["obs"].shape == (2, 6, OBS)
    again = Run(1)
    assert torch.equal(again.learners[1].draw(again.memory, 5)["row"], batch["row"])  # the memory's seed alone
    again = Run(1)
    again.learners[1].reseed(99)
    other = again.learners[1].draw(again.memory, 5)
    assert torch.equal(other["row"], batch["row"]) and not torch.equal(other["member"], batch["member"])


def test_more_than_there_is_room_for_is_refused():
    run = Run(1)
    with pytest.raises(AssertionError, match=f"{ROOM + 1} updates at once"):
        turn([run], 0, ROOM + 1)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("case", [pytest.param("mve", marks=pytest.mark.long), "sac"])
def test_compiled_updates_are_the_plain_ones(case):
    plain, compiled = ([Run(seed, case, compile=way) for seed in (1, 2)] for way in (False, True))
    before = everything(plain[0])
    for runs in (plain, compiled):
        ReplayLearner.join([run.learners for run in runs])
    told = [train(runs, [2, 3]) for runs in (plain, compiled)]
    for one, other in zip(plain, compiled, strict=True):
        same(everything(one), everything(other), rtol=1e-3, atol=1e-5)
    assert not torch.equal(everything(plain[0])["critic.weights.0"], before["critic.weights.0"])
    for one, other in zip(*told, strict=True):
        for metrics, others in zip(one, other, strict=True):
            assert {name: float(x) for name, x in metrics.items()} == pytest.approx(
                {name: float(x) for name, x in others.items()}, rel=1e-3, abs=1e-5
            )


def test_captured_updates_are_the_plain_ones_on_a_gpu():
    """Of two joined runs, with copies, delays and several kinds of launches."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    gpu = torch.device("cuda", 0)
    for case in CASES:
        both = [[Run(seed, case, device=gpu, compile=case == "sac") for seed in (1, 2)] for _ in range(2)]
        for runs, capture in zip(both, (False, True), strict=True):
            ReplayLearner.join([run.learners for run in runs])
            for learner in runs[0].learners:
                learner._launches._records = capture
            train(runs, [9, 13, 16, 16])
        for plain, captured in zip(*both, strict=True):
            same(plain, captured, atol=2e-3, rtol=2e-2)
        assert any(each._graph is not None for each in both[1][0].learners[0]._launches._recorded.values())


def test_a_rule_is_all_that_launches_know():
    """A rule by hand: sums of what it is shown, per run. Mutation: metrics of the last update for the mean of all."""

    class Rule:
        names = ("total", "update")
        compiles = False

        def __init__(self):
            self.seen = []

        def kind(self, update):
            return update

        def begin(self):
            self.seen.append("begin")

        def stop(self, update):
            return 2 - update % 2

        def step(self, batch, kind):
            return torch.stack([batch["x"].sum(-1), torch.full((2,), float(kind))], -1)

        def between(self, update):
            self.seen.append(update)

        def end(self):
            self.seen.append("end")

    for capture in (False, True):
        rule = Rule()
        launch = Launches(rule, 2, CPU, capture)
        given = [{"x": torch.arange(6.0).reshape(3, 2)}, {"x": 10 * torch.ones(3, 2)}]
        got = launch.update(given, 4)
        assert got.tolist() == [[5.0, 5.0], [20.0, 5.0]]  # (1 + 5 + 9) / 3; updates 4, 5, 6
        assert rule.seen == ["begin", 5, 6, 7, "end"]


def test_inputs_of_another_kind_get_new_buffers():
    """Mutations: inputs are always copied to the first call's buffers; recordings keep reading those."""

    class Rule:
        names, compiles = ("total",), False
        kind = stop = lambda self, update: 1
        begin = end = between = lambda self, *_: None

        def step(self, batch, kind):
            return torch.stack([leaf.float().sum((1, 2)) for leaf in batch.values()], -1).sum(-1, keepdim=True)

    launch = Launches(Rule(), 1, CPU)
    x, y = torch.arange(12.0).reshape(3, 2, 2), torch.ones(3, 4, 1)
    for given in ({"x": x}, {"x": x}, {"x": x[:, :1]}, {"x": x, "y": y}, {"x": x.repeat(4, 1, 1)}, {"x": x.long()}):
        for _ in range(3):
            want = sum(float(leaf.sum()) / len(leaf) for leaf in given.values())
            assert launch.update([given], 0).tolist() == [[want]]
