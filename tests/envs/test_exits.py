"""What an environment raises to end the program is its own fault; what a user types is not."""

import signal
import threading

import gymnasium as gym
import pytest

from packtrain.envs.environment import Environment
from packtrain.envs.exits import exits_are_faults
from packtrain.errors import EnvError, EnvSetupError
from packtrain.testing.faulty import Faulty


class Stepping:
    """Environments of which one is in the middle of a step, or none."""

    def __init__(self, busy):
        self.busy_since = 1.0 if busy else None

    def describe_busy(self):
        return "environment 3 (Some-v0, seed 5) at its step 7"


@pytest.fixture
def run_has_its_own_handler():
    before = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("error", [SystemExit(0), SystemExit("over"), KeyboardInterrupt(), GeneratorExit()])
def test_what_would_end_the_program_is_a_fault_that_names_the_environment(run_has_its_own_handler, error):
    with pytest.raises(EnvError) as caught, exits_are_faults([Stepping(False), Stepping(True)]):
        raise error
    said = f"environment 3 (Some-v0, seed 5) at its step 7 raised {type(error).__name__}"
    assert str(caught.value).startswith(said) and caught.value.exit_code == 3


def test_a_users_own_ctrl_c_passes():
    """Mutation: Ctrl-C during an evaluation is reported as a broken environment."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), exits_are_faults([Stepping(True)]):
        signal.raise_signal(signal.SIGINT)


def test_in_another_thread_it_is_never_the_user():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    caught = []

    def act():
        try:
            with exits_are_faults():
                raise KeyboardInterrupt
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    thread.join()
    assert isinstance(caught[0], EnvError) and "an environment raised KeyboardInterrupt" in str(caught[0])


def test_other_errors_pass_as_they_are():
    error = ValueError("x")
    with pytest.raises(ValueError) as caught, exits_are_faults():
        raise error
    assert caught.value is error


@pytest.mark.parametrize("fault, said", [("sys_exit", "SystemExit: 0"), ("interrupt", "KeyboardInterrupt")])
def test_an_environment_that_ends_the_program_when_it_is_first_reset_is_refused(fault, said):
    """Mutation: exit code 0 before anything was written."""
    assert Faulty.metadata is not None and "packtrain/Faulty-v0" in gym.registry
    environment = Environment(id="packtrain/Faulty-v0", kwargs={"fault": fault, "at_step": 0})
    with pytest.raises(EnvSetupError, match=f"did not start: it raised {said}"):
        environment.probe()
