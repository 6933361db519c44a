"""The configurations of value expansion: every method on every task, and the released numbers where promised."""

import itertools

import pytest

from packtrain import config, knobs

METHODS = ("ddpg", "mve_tdk", "mve_mean", "mve_tdlambda", "ensemble_mve_tdk", "steve", "steve_cov")
TASKS = (
    *("pendulum", "halfcheetah", "hopper", "swimmer", "walker2d", "humanoid", "ant", "hardcore"),
    *("humanoid_run", "flagrun"),
)
TARGETS = {
    **{"ddpg": "OneStep", "mve_tdk": "Mve", "mve_mean": "MveMean", "mve_tdlambda": "MveTdLambda"},
    **{"ensemble_mve_tdk": "Mve", "steve": "Steve", "steve_cov": "SteveCov"},
}


def built(name):
    configuration = config.load([knobs.find_config(name)[0]], [], {})
    return config.build(configuration)


def test_every_method_has_every_task_in_a_few_lines():
    for method, task in itertools.product(METHODS, TASKS):
        for name in (f"steve/{method}_{task}", f"steve/{method}_{task}_paper"):
            lines = (knobs.CONFIGS / f"{name}.gin").read_text().splitlines()
            assert len(lines) <= 12, name


@pytest.mark.parametrize("method", METHODS)
def test_a_paper_configuration_has_the_released_numbers(method):
    """Specification 8.1, 4 and 8.3: sizes, counts, rates, periods; ensembles of 4 or none."""
    experiment = built(f"steve/{method}_hopper_paper")
    control, value = experiment.policy, experiment.learners["value"]
    members = 4 if method in ("ensemble_mve_tdk", "steve", "steve_cov") else 1
    assert (control.hidden_size, control.num_layers, control.critics) == (128, 3, members)
    assert (control.explore_chance, control.explore_std, control.explore_in) == (0.0, 1.0, "pre_tanh")
    assert experiment.streams.num_actors == 8 and experiment.warm_up == 10_000
    learner = value.learner
    assert type(learner.target).__name__ == TARGETS[method] and learner.core == "ddpg"
    assert (learner.batch_size, learner.learning_rate, learner.discount) == (512, 3e-4, 0.99)
    assert (learner.target_period, learner.publish_period, learner.policy_regulariser) == (500, 500, 0.001)
    assert value.ratio == 4.0 and experiment.memories["replay"].capacity == 1_000_000
    assert learner.target.tdk_trick == method.endswith("mve_tdk")
    if method == "ddpg":
        assert control.dynamics is None and set(experiment.learners) == {"value"}
        return
    model, sizes = experiment.learners["model"], control.dynamics
    assert learner.target.horizon == 3 and learner.model_period == 500
    assert (sizes.transitions, sizes.rewards) == (members, members)
    assert (sizes.hidden_size, sizes.num_layers, sizes.aux_hidden_size, sizes.aux_num_layers) == (512, 7, 128, 3)
    assert not sizes.probabilistic and not sizes.normalise
    assert (model.learner.batch_size, model.learner.learning_rate, model.learner.weight_decay) == (512, 3e-4, 1e-4)
    assert model.ratio == 4.0 and experiment.pretraining("model") == 10_000


def test_ablations_and_speedruns_say_what_they_change():
    """The released horizon files all had 1. Mutation: one file copied three times."""
    assert [built(f"steve/steve_humanoid_{h}h").learners["value"].learner.target.horizon for h in (1, 2, 5)] == [
        1,
        2,
        5,
    ]
    assert built("steve/mve_75tdlambda_humanoid").learners["value"].learner.target.trace_lambda == 0.75
    critics = built("steve/steve_humanoid_critics_only").policy
    model = built("steve/steve_humanoid_model_only").policy
    assert (critics.critics, critics.dynamics.transitions, critics.dynamics.rewards) == (4, 1, 1)
    assert (model.critics, model.dynamics.transitions, model.dynamics.rewards) == (1, 4, 4)
    for method in ("ddpg", "mve_tdk", "steve"):
        for task in ("humanoid", "flagrun"):
            experiment = built(f"steve/{method}_{task}_speedrun")
            assert all(use.ratio is None for use in experiment.learners.values())
            assert experiment.pretraining("model") == 0
