"""Schedules, and agents with the parameters of an epoch."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from packtrain import config
from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.planning.schedules import LinearAnnealing, RsqrtAnnealing, Schedule, check_schedules, scheduled


@configurable
@dataclass(frozen=True)
class Inner:
    heat: float = 1.0
    parameter_schedules: dict[str, Schedule] = field(default_factory=dict)


@configurable
@dataclass(frozen=True)
class Outer:
    weight: float = 2
    passes: int = 10
    inner: Any = Inner()
    parameter_schedules: dict[str, Schedule] = field(default_factory=dict)

    def __post_init__(self):
        if self.passes < 1:
            raise ConfigError(f"Outer.passes = {self.passes} must be at least 1")
        check_schedules(self)


@pytest.mark.parametrize("epoch, value", [(0, 5.0), (1, 4.0), (2, 3.0), (4, 1.0), (5, 1.0), (100, 1.0)])
def test_linear_annealing_reaches_its_minimum_at_n_epochs(epoch, value):
    """Mutation: a slope over n_epochs − 1, or no floor."""
    assert LinearAnnealing(5.0, 1.0, 4)(epoch) == pytest.approx(value)


@pytest.mark.parametrize("epoch, value", [(0, 3.0), (4, 3 / 2**0.5), (12, 1.5), (32, 1.0)])
def test_rsqrt_annealing_falls_with_the_root_of_the_epoch(epoch, value):
    assert RsqrtAnnealing(3.0, 4.0)(epoch) == pytest.approx(value)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: LinearAnnealing(1.0, 0.0, 0), "LinearAnnealing.n_epochs = 0 must be at least 1"),
        (lambda: LinearAnnealing(0.0, 1.0, 3), "LinearAnnealing.max_value = 0.0 must be at least min_value = 1.0"),
        (lambda: RsqrtAnnealing(scale=0.0), "RsqrtAnnealing.scale = 0.0 must be above 0"),
        (lambda: Outer(parameter_schedules={"wieght": RsqrtAnnealing()}), r"has no parameter 'wieght' \(did you mean"),
        (lambda: Outer(parameter_schedules={"inner.cold": RsqrtAnnealing()}), "Inner has no parameter 'cold'"),
        (lambda: Outer(parameter_schedules={"weight.heat": RsqrtAnnealing()}), "has no parameter 'heat'"),
        (lambda: Outer(parameter_schedules={"weight": [1, 2]}), "is not a schedule"),
    ],
)
def test_bad_values_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_an_agent_takes_the_values_of_the_epoch():
    """Whole numbers are rounded, numbers are not, and the agent given stays as it is."""
    line = LinearAnnealing(10.0, 1.0, 4)
    agent = Outer(parameter_schedules={"weight": line, "passes": line, "inner.heat": line})
    later = scheduled(agent, 1)
    assert (later.weight, later.passes, later.inner.heat) == (7.75, 8, 7.75)
    assert (agent.weight, agent.passes, agent.inner.heat) == (2, 10, 1.0)
    assert scheduled(Outer(), 3) == Outer()


def test_an_inner_agent_follows_its_own_schedule():
    agent = Outer(inner=Inner(parameter_schedules={"heat": RsqrtAnnealing()}))
    assert scheduled(agent, 3).inner.heat == 0.5


def test_a_scheduled_value_is_checked_like_a_configured_one():
    agent = Outer(parameter_schedules={"passes": LinearAnnealing(4.0, 0.0, 2)})
    assert scheduled(agent, 1).passes == 2
    with pytest.raises(ConfigError, match="Outer.passes = 0 must be at least 1"):
        scheduled(agent, 2)


def test_a_schedule_leaves_the_configuration_as_it_was(monkeypatch):
    """The values of an epoch are not configured ones. Mutation: make the new agent with dataclasses.replace."""
    configuration = config.Configuration()
    monkeypatch.setattr(config, "_state", configuration)
    agent = Outer(parameter_schedules={"weight": LinearAnnealing(10.0, 1.0, 4)})
    before = configuration.hash()
    scheduled(agent, 3)
    assert configuration.hash() == before
