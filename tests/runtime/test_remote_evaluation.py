"""Evaluations in another process, without Ray: the same results as in this process, also after a kill."""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import replace

import pytest
import torch

from packtrain import knobs
from packtrain.errors import WorkersLostError
from packtrain.runtime.cluster.calls import Limits
from packtrain.runtime.evaluation import open_evaluator
from packtrain.runtime.evaluation_scheduler import Given, LocalPlayer
from packtrain.runtime.preparation import prepare
from packtrain.runtime.process_engine import ProcessEngine
from packtrain.runtime.remote_evaluation import EvaluatorSetup, RemoteEvaluator, evaluator_limits, player_opener


def experiment_of(name, **values):
    path, _ = knobs.find_config(name)
    _, experiment, spec = prepare([path], [], values, 3, False)
    return experiment, spec


def played(player, given, secs=60.0):
    """Return the result of an evaluation."""
    player.begin(given)
    return result_of(player, secs)


def result_of(player, secs=60.0):
    deadline = time.monotonic() + secs
    while (result := player.tick()) is None:
        assert time.monotonic() < deadline, player.progress()
    return result


def remote(experiment, spec, wait=0.05):
    setup = EvaluatorSetup(experiment, spec, None, tuple(sys.path))
    limits = evaluator_limits(replace(Limits(), first_delay=0.1), experiment)
    return RemoteEvaluator(ProcessEngine(lambda worker, life: setup), limits, experiment.seed, wait)


@pytest.fixture
def catch():
    experiment, spec = experiment_of("impala/catch", eval_every=1000)
    network = experiment.policy.build_network(spec)
    return experiment, spec, network


def test_an_evaluation_whose_process_is_killed_is_played_again_with_the_same_result(catch, caplog):
    """Mutations: the errand is dropped when a life ends; the new life plays with its own fresh weights; weights are
    those at the time of sending and not of `begin`."""
    experiment, spec, network = catch
    settings = experiment.evaluation
    here = LocalPlayer(*open_evaluator(experiment, spec, torch.device("cpu"), experiment.seed, settings))
    evaluator = remote(experiment, spec)
    opener = player_opener(lambda precision: evaluator)
    with contextlib.closing(here), contextlib.closing(opener("", None)) as player:
        results = []
        for scale in (1.0, -3.0):
            with torch.no_grad():
                for leaf in network.parameters():
                    leaf.mul_(scale)
            given = Given([network, network], None, 0, 0, 7)
            results.append(played(here, given))
            player.begin(given)
            saved = {name: leaf.clone() for name, leaf in network.state_dict().items()}
            with torch.no_grad():  # the learner goes on
                for leaf in network.parameters():
                    leaf.zero_()
            if scale < 0:
                (process,) = multiprocessing.active_children()
                os.kill(process.pid, signal.SIGSTOP)
                assert player.tick() is None  # the order is sent to a process that cannot answer
                os.kill(process.pid, signal.SIGKILL)
            assert result_of(player) == results[-1]
            network.load_state_dict(saved)
        assert results[0] != results[1], "both weights play alike: the test shows nothing"
        assert player.tick() is None, "a result is returned once"
    assert [line for line in caplog.messages if "evaluator 0 (life 0) ended" in line and "is played again" in line]
    assert not multiprocessing.active_children()


def test_an_evaluation_that_always_fails_ends_the_run_with_its_error(catch):
    """Mutation: the process is started again for ever."""
    experiment, spec, network = catch
    broken = {name: leaf[:1] for name, leaf in network.state_dict().items()}
    network.state_dict = lambda: broken
    setup = EvaluatorSetup(experiment, spec, None, tuple(sys.path))
    limits = evaluator_limits(Limits(errors=1), experiment)
    evaluator = RemoteEvaluator(ProcessEngine(lambda worker, life: setup), limits, 1, 0.05)
    with contextlib.closing(evaluator), pytest.raises(WorkersLostError, match=r"evaluations fail: .*size mismatch"):
        evaluator.begin("", Given([network], None, 0, 0, 0))
        result_of(evaluator)
