"""F12 in one process: no schedule of stalls leaves the acting and the learning loop waiting for each other."""

import contextlib
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain.runtime.experiment import Collect, Repeat, Update
from packtrain.runtime.loops import Learn, ratio


class Run:
    """What the ratio loop needs of a run, as plain numbers: steps in the memory, updates of the learner."""

    def __init__(self, total, warm_up, pretrain, actors, updates_per_step, slack, max_updates):
        stages = [Collect("replay", policy="random", steps=warm_up)] if warm_up else []
        stages += [Update("values", pretrain)] if pretrain else []
        experiment = SimpleNamespace(
            schedule=(*stages, Repeat((Collect("replay"), Update("values")))),
            learners={"values": SimpleNamespace(ratio=updates_per_step, slack=slack)},
            streams=SimpleNamespace(num_actors=actors),
            pretraining=lambda name: pretrain,
            total_steps=total,
            warm_up=warm_up,
        )
        memory = SimpleNamespace(ready=lambda: self.acted > 0)
        self.learner = SimpleNamespace(updates=0, max_updates=max_updates)
        learning = SimpleNamespace(
            learners={"values": self.learner}, memory_of=lambda name: memory, event=contextlib.nullcontext
        )
        self.ratio, self.experiment = ratio.Ratio(experiment, self, learning), experiment
        self.acted = self.step = 0
        self.collect_until = None
        self.stop = None

    @property
    def finished(self):
        return self.step >= self.experiment.total_steps

    @property
    def goes_on(self):
        return not self.finished

    def tidy(self):
        self.step = self.acted

    def loop(self):
        return ratio.run(self.ratio, SimpleNamespace(begin_stage=lambda stage: None), self.tidy, catch_up=False)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    run=st.builds(
        Run,
        total=st.integers(20, 200),
        warm_up=st.sampled_from([0, 1, 10, 40]),
        pretrain=st.sampled_from([0, 0, 7]),
        actors=st.integers(1, 9),
        updates_per_step=st.sampled_from([0.01, 0.1, 0.5, 1.0, 2.5]),
        slack=st.sampled_from([1, 2, 10, 100]),
        max_updates=st.sampled_from([1, 4, 32]),
    ),
    stalls=st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=12),
)
def test_f12_no_schedule_of_stalls_stops_a_replaying_run(run, stalls):
    """While one side stalls the other goes on until it must wait; then both take turns, and the run ends with exactly
    the updates that its steps allow (E6: the limiter is within 1 %, here exact). Mutation: acting waits at a backlog of
    `slack` while the learner counts less than one update as due; the slack is ignored."""
    due = run.loop()
    use, most = run.experiment.learners["values"], 0.0

    def act():
        if run.ratio.acting_is_ahead():
            return False
        run.acted += run.experiment.streams.num_actors
        return True

    over = False

    def learn():
        nonlocal over
        item = next(due, None)
        over = item is None
        if isinstance(item, Learn):
            assert 1 <= item.updates <= run.learner.max_updates
            run.learner.updates += item.updates
        return over or isinstance(item, Learn)

    for acts, turns in [*stalls, *[(True, 1), (False, 1)] * 4000]:
        moved = 0
        for _ in range(turns):
            if not over:
                moved += act() if acts else learn()
                backlog = run.ratio.due("values") if run.acted >= run.experiment.warm_up else 0
                most = max(most, backlog - run.experiment.pretraining("values"))
        if over:
            break
        waits = run.ratio.acting_is_ahead() and run.collect_until is None
        stuck = waits and not run.ratio.due("values") and not run.finished
        assert not (stuck and run.acted < run.experiment.total_steps), "both sides wait for each other"
    assert over, "the run does not end"
    wanted = int(use.ratio * (min(run.acted, run.experiment.total_steps) - run.experiment.warm_up)) if run.acted else 0
    made = run.learner.updates - run.experiment.pretraining("values")
    assert wanted - use.ratio * run.experiment.streams.num_actors - 1 <= made <= max(wanted, 0)
    assert most <= use.slack + use.ratio * run.experiment.streams.num_actors + 1, "acting ran ahead of the slack"
