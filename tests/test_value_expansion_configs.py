"""The configurations of value expansion: every method on every task, and the released numbers where promised."""

import itertools

import gymnasium as gym
import pytest
import torch

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
            lines = knobs.read_text(knobs.find_config(name)[0]).splitlines()
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
    if method == "ddpg":
        assert control.dynamics is None and set(experiment.learners) == {"value"}
        return
    assert learner.target.tdk_trick == method.endswith("mve_tdk")
    model, sizes = experiment.learners["model"], control.dynamics
    assert learner.target.horizon == 3 and learner.model_period == 500
    assert (sizes.transitions, sizes.rewards) == (members, members)
    assert (sizes.hidden_size, sizes.num_layers, sizes.aux_hidden_size, sizes.aux_num_layers) == (512, 7, 128, 3)
    assert not sizes.probabilistic and not sizes.normalise
    assert (sizes.activation, sizes.initialisation, control.initialisation) == ("relu", "glorot", "glorot")
    assert sizes.elites is None and sizes.known_end is None and not control.layer_norm
    assert not model.learner.holdout and not model.learner.bootstrap and model.learner.rows == learner.rows == "split"
    assert (model.learner.batch_size, model.learner.learning_rate, model.learner.weight_decay) == (512, 3e-4, 1e-4)
    assert model.ratio == 4.0 and experiment.pretraining("model") == 10_000


@pytest.mark.parametrize("method", METHODS)
def test_a_paper_episode_of_hardcore_is_cut_after_1000_steps(method):
    """Its own limit is 2,000. Mutation: a file that leaves it."""
    limits = [built(f"steve/{method}_hardcore{end}").streams.environment.kwargs for end in ("_paper", "")]
    assert [limit.get("max_episode_steps") for limit in limits] == [1000, None]


def test_the_best_configurations_have_the_numbers_that_were_measured():
    """Those behind docs/results/value_expansion.md, with plain targets and STEVE's alike where they share them."""
    for method, task in itertools.product(("steve", "sac"), ("halfcheetah", "hopper", "walker2d")):
        experiment = built(f"steve/{method}_{task}")
        control, use = experiment.policy, experiment.learners["value"]
        learner = use.learner
        assert (control.hidden_size, control.num_layers, control.critics, control.layer_norm) == (256, 2, 4, True)
        assert (learner.core, learner.rows, learner.batch_size, learner.learning_rate) == ("sac", "all", 256, 3e-4)
        assert (learner.target_period, learner.polyak, learner.policy_delay, use.ratio) == (None, 0.005, 2, 8.0)
        assert learner.target_entropy == (-0.3333 if task == "hopper" else -0.5)
        assert experiment.streams.num_actors == 1 and experiment.warm_up == 5000
        if method == "sac":
            continue
        sizes, model = control.dynamics, experiment.learners["model"]
        assert learner.target.horizon == 2 and not learner.target.tdk_trick and learner.model_period is None
        assert (sizes.transitions, sizes.rewards, sizes.hidden_size, sizes.num_layers) == (5, 5, 200, 3)
        assert (sizes.aux_hidden_size, sizes.aux_num_layers, sizes.activation) == (128, 3, "silu")
        assert sizes.probabilistic and sizes.normalise and sizes.elites is None and not model.learner.bootstrap
        assert (model.ratio, model.learner.batch_size, model.learner.rows) == (1.0, 256, "all")
        assert (model.learner.learning_rate, model.learner.weight_decay) == (1e-3, 1e-5)
        assert experiment.pretraining("model") == 5000


@pytest.mark.parametrize(
    ("task", "actions", "entropy"),
    [("hopper", 3, -1), ("halfcheetah", 6, -3), ("walker2d", 6, -3), ("ant", 8, -4), ("humanoid", 17, -2)],
)
def test_target_entropies_are_those_of_mbpo_and_redq(task, actions, entropy):
    """In nats of a whole action. Mutation: −0.5 a dimension on Humanoid, which makes −8.5 of −2."""
    for method in ("sac", "steve", "steve_cov", "mve_tdk", "mve_mean", "mve_tdlambda", "ensemble_mve_tdk"):
        learner = built(f"steve/{method}_{task}").learners["value"].learner
        assert learner.core == "sac" and actions * learner.target_entropy == pytest.approx(entropy, abs=0.001)


def test_only_methods_that_compare_members_have_several_models():
    """Mutation: MVE with and without ensembles the same, as it was."""
    for task in TASKS:
        for method in METHODS[1:]:
            sizes = built(f"steve/{method}_{task}").policy.dynamics
            several = method in ("ensemble_mve_tdk", "steve", "steve_cov")
            assert (sizes.transitions > 1) == (sizes.rewards > 1) == several, (method, task)


def test_the_initialisation_is_that_of_all_networks():
    """Mutation: the world model without it."""
    given = {"initialisation": "original"}
    experiment = config.build(config.load([knobs.find_config("steve/steve_hopper")[0]], [], given))
    assert experiment.policy.initialisation == experiment.policy.dynamics.initialisation == "original"


@pytest.mark.parametrize("task", ["hopper", "walker2d", "ant", "humanoid"])
def test_known_ends_are_those_of_the_task(task):
    """Random play until it has fallen often. Mutations: a bound; the place of the height."""
    experiment = built(f"steve/steve_{task}_known_ends")
    rule, env = experiment.policy.dynamics.known_end, gym.make(experiment.streams.environment.id)
    env.action_space.seed(0)
    obs, ended = env.reset(seed=0)[0], 0
    rule.check(len(obs))
    for _ in range(4000):
        before, action = obs, env.action_space.sample()
        obs, _, terminated, truncated, _ = env.step(action)
        assert bool(rule.ended(*(torch.from_numpy(part) for part in (before, action, obs)))) == terminated
        ended += terminated
        if terminated or truncated:
            obs, _ = env.reset()
        if ended == 10:
            break
    assert ended == 10, "too few ends to tell"


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
