"""Versions of weights whose copies are launched and come later, as on a GPU; tests/acting/test_actor.py has the rest"""

import pytest
import torch
from torch import nn

from packtrain.runtime import weights as subject
from packtrain.runtime.weights import Weights


class Event:
    """Stands for a GPU's: what is launched now is there when `done` says so."""

    made: list["Event"] = []

    def __init__(self):
        self.done = False
        Event.made.append(self)

    def record(self):
        pass

    def wait(self):
        pass

    def query(self):
        return self.done


@pytest.fixture
def published(monkeypatch):
    Event.made = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    learner, weights = nn.Linear(1, 1), Weights()
    weights.publish("policy", learner, 0)
    weights._newest["policy"].on_gpu = True
    make = subject._Version.__init__

    def on_gpu(self, like):
        make(self, like)
        self.on_gpu = True

    monkeypatch.setattr(subject._Version, "__init__", on_gpu)

    def publish(version):
        nn.init.constant_(learner.weight, version)
        weights.publish("policy", learner, version)

    return weights, publish


def pull(weights, have):
    acting = nn.Linear(1, 1)
    return weights.pull("policy", acting, have), float(acting.weight.detach())


def test_who_does_not_wait_takes_the_newest_that_is_there(published):
    """Mutations: a pending version handed out; two places that are never swapped; a version overwritten on its way."""
    weights, publish = published
    weights.waits = False
    publish(1)
    assert pull(weights, -1)[0] == 0 and weights.version("policy") == 0  # 1 is on its way
    coming = Event.made[0]
    publish(2)  # passed over: 1 is not there yet
    coming.done = True
    assert pull(weights, 0) == (1, 1.0)
    publish(3)
    assert pull(weights, 0) == (1, 1.0)
    for event in Event.made:
        event.done = True
    assert pull(weights, 1) == (3, 3.0)
    publish(4)
    Event.made[-1].done = True
    publish(5)  # 4 has come meanwhile: 5 may go
    assert pull(weights, 3) == (4, 4.0)


def test_who_waits_takes_the_newest_of_all(published):
    """Also of a version that was on its way when it began to wait. Mutation: the older one read after all."""
    weights, publish = published
    weights.waits = False
    publish(1)
    weights.waits = True
    assert pull(weights, 0) == (1, 1.0)
    publish(2)
    assert pull(weights, 1) == (2, 2.0)
    weights.waits = False
    publish(3)
    weights.waits = True
    publish(4)
    assert pull(weights, 2) == (4, 4.0)
