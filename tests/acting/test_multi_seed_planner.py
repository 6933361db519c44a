"""One search for the environments of several runs, which do not influence each other."""

import numpy as np
import pytest
import torch
from torch import nn

from packtrain import trees
from packtrain.acting.actor import Actor
from packtrain.acting.multi_seed_planner import Joint, Routed
from packtrain.acting.planner_policy import PlannerPolicy
from packtrain.envs.functional_vector_env import FunctionalVectorEnv
from packtrain.envs.hanoi import Hanoi
from packtrain.envs.stream import Stream
from packtrain.networks.ensembles import EnsembleMlp
from packtrain.networks.world_model import WorldModel
from packtrain.planning.best_first import BestFirstSearchAgent
from packtrain.planning.learned import LearnedModel

CPU, COLUMNS, SEED = torch.device("cpu"), 3, 11
AGENT = BestFirstSearchAgent(
    n_nodes_per_step=4,
    expand_heuristic="bonus",
    top_level_heuristic="solved_then_auxiliary_then_bonus",
    avoid_history_coeff=-0.2,
    bonus_quantile_threshold=0.5,
)


class Kept:
    """A sink that keeps what it is given."""

    def __init__(self):
        self.rows = []

    def add(self, row, carry, extras):
        self.rows.append(trees.map(np.copy, (row.obs, row.last_action, row.terminated, extras)))


class Run:
    """A run as the joint actor state sees it: its network, its environments, its actor."""

    def __init__(self, seed, limit=9, scale=1.0):
        core = Hanoi(3)
        torch.manual_seed(seed)
        network = nn.ModuleDict(
            {"model": WorldModel(EnsembleMlp(3, (8,))).build(core.observation_space, core.action_space)}
        )
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(3.0 * scale)
        model = LearnedModel(members=3, mask_size=2, verified_edges="run")
        self.stream = Stream(FunctionalVectorEnv(core, COLUMNS, seed, "raise", "test", True, limit), COLUMNS)
        self.policy = PlannerPolicy(AGENT, network, CPU, seed, None, model)
        self.sink = Kept()
        self.actor = Actor([self.stream], self.policy, [self.sink], lambda: 0)

    def seen(self):
        return self.sink.rows


def joined(runs, seed=SEED):
    return Joint([r.actor for r in runs], [r.policy for r in runs], [r.stream for r in runs], seed)


def same(one, other):
    pairs = list(zip(trees.flatten(one), trees.flatten(other), strict=True))
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)


def play(runs, turns, joint=None):
    joint = joint or joined(runs)
    for _ in range(turns):
        joint.turn(range(len(runs)))
    return joint


def test_every_row_is_answered_by_its_own_network():
    """Against one row at a time. Mutations: answers in the order of the runs; the first network for all."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, inputs):
            return {"out": self.layer(inputs["x"]), "sum": inputs["x"].sum(-1)}

    networks = [Named() for _ in range(3)]
    routed = Routed(networks)
    for run in (rng.integers(3, size=20), np.full(5, 1), np.array([2, 0])):
        x = torch.from_numpy(rng.normal(size=(len(run), 4)).astype(np.float32))
        answer = routed({"inputs": {"x": x}, "run": torch.from_numpy(run)})
        for row, k in enumerate(run):
            alone = networks[k]({"x": x[row : row + 1]})
            assert answer["out"].shape == (len(run), 2) and answer["sum"].shape == (len(run),)
            torch.testing.assert_close(answer["out"][row : row + 1], alone["out"])
            torch.testing.assert_close(answer["sum"][row : row + 1], alone["sum"])


def test_another_run_makes_no_difference():
    """The other's network answers nonsense, or its episodes are shorter: plans, books and knowledge stay bit-equal.

    Mutations: one network for all; what one run has verified told to all; averages of all runs' decisions together.
    """
    seen = []
    for other in (Run(2), Run(2, scale=50.0), Run(5)):
        mine = Run(1)
        joint = play([mine, other], 24)
        snapshot = mine.actor.actor_states[0].snapshot()
        assert len(snapshot["verified"]["edges"]["action"]) > 5
        seen.append((mine.seen(), mine.policy.quality.drain(), mine.policy.decisions.drain(), snapshot["verified"]))
        verified = joint.actor_state.learned.verified
        theirs = other.actor.actor_states[0].snapshot()["verified"]["edges"]["action"]
        assert len(verified) == len(snapshot["verified"]["edges"]["action"]) + len(theirs)
    assert same(seen[0][0], seen[1][0]) and same(seen[0][0], seen[2][0])
    assert seen[0][1] == seen[1][1] == seen[2][1] and seen[0][1]["perfect_next_observation"] < 1
    assert seen[0][2] == seen[1][2] == seen[2][2]
    assert same(seen[0][3], seen[1][3]) and same(seen[0][3], seen[2][3])
    control = Run(1, scale=50.0)
    play([control, Run(2)], 24)
    assert not same(control.seen(), seen[0][0]), "nonsense makes a difference where it is said"


def test_a_run_that_has_left_keeps_its_index():
    """Run 1 draws the same beside run 0, beside run 2, and alone in its place. Mutation: count those who are there."""
    first, mine = Run(1), Run(2)
    play([first, mine], 15)
    alone = Run(2)
    joint = Joint([None, alone.actor], [alone.policy] * 2, [alone.stream] * 2, SEED)
    for _ in range(15):
        joint.turn([1])
    assert same(alone.seen(), mine.seen())
    elsewhere = Run(2)
    play([elsewhere], 15)
    assert not same(elsewhere.seen(), mine.seen()), "another place draws other numbers"


@pytest.mark.parametrize("wait", [3, 7])
def test_a_run_that_waits_is_left_alone(wait):
    """One run is served alone for some turns in the middle of the other's episodes, which then go on as if nothing
    had been: its last decision is not looked back on, and it plans nothing.

    Mutations: look back on the other's row again, which says that its action led nowhere; plan for all that play.
    """
    straight = [Run(1), Run(2)]
    play(straight, 12)
    stopped = [Run(1), Run(2)]
    joint = play(stopped, wait)
    before = trees.map(np.copy, stopped[1].actor.actor_states[0].snapshot()["verified"])
    decisions = joint.actor_state.planner.decisions
    for _ in range(5):
        joint.turn([0])
    assert same(before, stopped[1].actor.actor_states[0].snapshot()["verified"])
    assert len(stopped[1].seen()) == wait and len(stopped[0].seen()) == wait + 5
    joint.actor_state.planner.decisions = decisions  # as if its turns had come one after the other
    for _ in range(12 - wait):
        joint.turn([1])
    assert same(stopped[1].seen(), straight[1].seen())
    assert stopped[1].policy.quality.drain() == straight[1].policy.quality.drain()


def test_one_run_can_be_asked_alone():
    """Through the actor_state that its actor has now. Mutation: give everybody's actions to one."""
    runs = [Run(1), Run(2)]
    joint = joined(runs)
    rows = [run.actor.receive() for run in runs]
    decision = runs[1].actor.actor_states[0].act(rows[1])
    assert decision.action.shape == (COLUMNS,) and decision.row is rows[1]
    assert all(len(values) == COLUMNS for values in decision.extras.values())
    assert not runs[0].policy.decisions.drain() and runs[1].policy.decisions.drain()
    fresh = [Run(1), Run(2)]
    (again,) = joined(fresh).decide([1], [fresh[1].actor.receive()])
    assert same(again.action, decision.action), "also if nobody else has started"
    assert joint.actor_state.planner.decisions == 1


def test_random_play_is_not_planned_and_not_rated():
    """While runs gather data the model is not asked, and what they see is remembered.

    Mutations: keep planning; rate the model by random play.
    """
    runs = [Run(1), Run(2)]
    for run in runs:
        run.policy.random = True
    joint = joined(runs)
    play(runs, 9, joint)
    for run in runs:
        assert not run.policy.quality.drain() and not run.policy.marks
        assert len(run.actor.actor_states[0].snapshot()["verified"]["edges"]["action"]) > 3
    assert joint.actor_state.planner.decisions == 0 and joint.actor_state.at_random.decisions == 9
    assert not same(runs[0].seen(), runs[1].seen())


def test_an_epoch_draws_its_own_numbers():
    """Epochs draw different numbers, and the same ones when they are begun again. Mutation: count on and on."""
    seen = {}
    for name, epoch in (("a", 4), ("b", 4), ("c", 5)):
        run = Run(1)
        run.policy.random = True
        joint = joined([run])
        joint.begin_epoch(epoch)
        play([run], 8, joint)
        seen[name] = run.seen()
    assert same(seen["a"], seen["b"]) and not same(seen["a"], seen["c"])


def test_members_are_sampled_again_in_every_epoch():
    """Also in epochs without learning. Mutation: sample by the number of epochs that learned."""
    run = Run(1)
    actor_state, drawn = run.actor.actor_states[0], []
    for epoch in range(6):
        run.policy.trace_epoch = epoch
        actor_state.learned.begin(np.arange(COLUMNS), run.policy.trace_epoch)
        run.stream.restart()
        actor_state.begin()
        actor_state.act(run.stream.start())
        drawn.append(actor_state.learned._masks.copy())
    assert len({masks.tobytes() for masks in drawn}) > 2
    assert run.policy.epoch == 0


def test_answers_are_kept_for_an_epoch():
    """Weights may stay the same from one to the next, but a run that goes on has no answers from before.

    Mutation: keep them as long as the weights are the same, so that questions come in other batches after a resume.
    """
    runs = [Run(1), Run(2)]
    joint, forgotten = joined(runs), []
    joint.begin_epoch(3)
    play(runs, 2, joint)
    answers = joint.actor_state.learned.answers
    forget, answers.forget = answers.forget, lambda: forgotten.append(1) or forget()
    play(runs, 4, joint)
    assert not forgotten
    joint.begin_epoch(4)
    play(runs, 4, joint)
    assert len(forgotten) == 1
