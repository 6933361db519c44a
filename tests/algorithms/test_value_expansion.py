"""The name `ValueExpansion`: which algorithm its settings stand for, and what it refuses."""

import pytest

from packtrain.algorithms.ddpg import DDPG
from packtrain.algorithms.mbpo import MBPO
from packtrain.algorithms.model_rollouts import ModelRollouts
from packtrain.algorithms.mve import MVE
from packtrain.algorithms.sac import SAC
from packtrain.algorithms.steve import STEVE
from packtrain.algorithms.td3 import TD3
from packtrain.algorithms.value_expansion import (
    Mve,
    MveMean,
    MveTdLambda,
    OneStep,
    Steve,
    SteveCov,
    ValueExpansion,
)
from packtrain.errors import ConfigError
from packtrain.testing.plain_value_expansion import build


@pytest.mark.parametrize(
    "target, algorithm",
    [
        (Mve(2, False), lambda base: MVE(base, 2, False, model_period=7, calibration_period=9)),
        (MveMean(2), lambda base: MVE(base, 2, False, None, 7, 9)),
        (MveTdLambda(2, 0.5, True), lambda base: MVE(base, 2, True, 0.5, 7, 9)),
        (Steve(2, 1e-3, True), lambda base: STEVE(base, 2, 1e-3, None, True, 7, 9)),
        (SteveCov(2, 0.1), lambda base: STEVE(base, 2, ridge=0.1, model_period=7, calibration_period=9)),
        (OneStep(), lambda base: base),
    ],
)
def test_core_and_target_name_the_algorithm(target, algorithm):
    """Mutations: a number that is left at its default; one core for all."""
    shared = {"batch_size": 8, "discount": 0.9, "reward_scale": 2.0, "learning_rate": 0.1, "rows": "random"}
    shared |= {"target_period": 3, "polyak": 0.2, "publish_period": 4, "policy_delay": 3, "compile": False}
    own = {
        "ddpg": (DDPG, {"policy_regulariser": 0.5}),
        "td3": (TD3, {"target_noise": 0.4, "target_noise_clip": 0.3}),
        "sac": (SAC, {"temperature": 0.6, "target_entropy": -2.0}),
    }
    for core, (kind, numbers) in own.items():
        found = ValueExpansion(target, core, model_period=7, calibration_period=9, **shared, **numbers).algorithm
        assert found == algorithm(kind(**shared, **numbers))


def test_model_steps_in_batches_make_mbpo():
    rollouts = ModelRollouts(0.3, 2)
    found = ValueExpansion(core="td3", augmentation=rollouts, model_period=None).algorithm
    assert found == MBPO(ValueExpansion(core="td3").algorithm, rollouts, None)
    assert ValueExpansion(Steve(2), augmentation=rollouts).algorithm.augmentation == rollouts


def test_only_targets_with_a_model_analyse_filmed_episodes():
    assert not ValueExpansion().analyses_episodes and not DDPG().analyses_episodes
    assert ValueExpansion(Steve(2)).analyses_episodes and STEVE(DDPG(), 2).analyses_episodes


@pytest.mark.parametrize(
    "values, line",
    [
        ({"batch_size": 0}, "ValueExpansion.batch_size = 0 must be above 0"),
        ({"policy_delay": 0}, "ValueExpansion.policy_delay = 0 must be above 0"),
        ({"target_period": 0}, "ValueExpansion.target_period = 0 must be at least 1, or None"),
        ({"discount": 1.1}, "ValueExpansion.discount = 1.1 must lie between 0 and 1"),
        ({"polyak": -0.1}, "ValueExpansion.polyak = -0.1 must lie between 0 and 1"),
        ({"temperature": -1.0}, "ValueExpansion.temperature = -1.0 must not be negative"),
        ({"target_noise_clip": -0.5}, "ValueExpansion.target_noise_clip = -0.5 must not be negative"),
    ],
)
def test_numbers_out_of_range_are_refused(values, line):
    with pytest.raises(ConfigError, match=line):
        ValueExpansion(**values)


@pytest.mark.parametrize(
    "make, line",
    [
        (lambda: Steve(0), "Steve.horizon = 0 must be at least 1; without a model there is @OneStep"),
        (lambda: Mve(0), "Mve.horizon = 0 must be at least 1"),
        (lambda: Steve(epsilon=0.0), "Steve.epsilon = 0.0 must be above 0"),
        (lambda: SteveCov(ridge=0.0), "SteveCov.ridge = 0.0 must be above 0"),
        (lambda: MveTdLambda(trace_lambda=1.5), "MveTdLambda.trace_lambda = 1.5 must lie between 0 and 1"),
    ],
)
def test_targets_out_of_range_are_refused(make, line):
    with pytest.raises(ConfigError, match=line):
        make()


@pytest.mark.parametrize(
    "network, values, line",
    [
        ({"model": False}, {"target": Steve()}, "ValueExpansion.target = @Steve.. needs a world model"),
        ({"core": "sac"}, {}, "ValueExpansion.core = 'ddpg' and Control.stochastic = True do not fit"),
        ({}, {"core": "sac"}, "ValueExpansion.core = 'sac' and Control.stochastic = False do not fit"),
        ({}, {"batch_size": 7}, "ValueExpansion.batch_size = 7 cannot be split between Control.critics = 3"),
    ],
)
def test_networks_that_do_not_fit_are_refused(network, values, line):
    with pytest.raises(ConfigError, match=line):
        ValueExpansion(**values).build(build(**network), 0)
    ValueExpansion(batch_size=7, rows="all").build(build(), 0)
    ValueExpansion(target=Steve(), batch_size=6).build(build(), 0)
