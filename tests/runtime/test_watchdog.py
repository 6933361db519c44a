"""The watchdog: which calls are taken for hangs, and which are not."""

import threading
import time
from types import SimpleNamespace

import pytest

from packtrain.runtime import watchdog
from packtrain.runtime.watchdog import Watchdog, is_in_environment


class Busy:
    """VectorEnv whose call began when they were made."""

    starting = times_itself = False

    def __init__(self, **more):
        self.busy_since = time.monotonic()
        vars(self).update(more)

    def describe_busy(self):
        return "environment 3 (X, seed 5) at its step 7"


def watched(columns, secs, deadline=0.1, start=0.1, **more):
    """What a watchdog says within so many seconds; it is waited for as long as it may still say something."""
    told, said = [], threading.Event()

    def on_hang(error):
        told.append(str(error))
        said.set()

    with Watchdog([columns], deadline, start, on_hang, **more):
        said.wait(secs)
    return told


LONG = 20  # seconds after which a test that waits for the watchdog has failed


def test_a_call_beyond_the_deadline_is_named():
    assert watched(Busy(), LONG) == ["environment 3 (X, seed 5) at its step 7 did not answer within 0.1 s"]


def test_a_first_reset_has_a_deadline_of_its_own():
    assert watched(Busy(starting=True), 0.5, start=60) == []
    assert watched(Busy(starting=True), LONG, deadline=0.05, start=0.2)[0].endswith("within 0.2 s")


def test_calls_that_follow_each_other_are_not_one():
    class Steps(Busy):
        @property
        def busy_since(self):
            return time.monotonic()

        @busy_since.setter
        def busy_since(self, value):
            pass

    assert watched(Steps(), 0.5) == []


@pytest.mark.parametrize("deadline", [0.4, 4.0])
def test_time_in_which_the_process_was_stopped_is_forgiven(monkeypatch, deadline):
    """A clock that jumps by an hour is what a process sees that was stopped. Mutation: taking the jump for a hang."""
    jump = [0.0]
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + jump[0]))
    threading.Timer(0.15, lambda: jump.__setitem__(0, 3600.0)).start()
    begin = time.monotonic()
    told = watched(Busy(), LONG if deadline < 1 else 1.2, deadline=deadline)
    if deadline < 1:
        assert len(told) == 1 and time.monotonic() - begin > 0.3, "two ticks of a tenth of a second are what it counts"
    else:
        assert told == []


def test_a_run_that_was_asked_to_stop_does_not_wait_for_the_deadline(monkeypatch):
    """Mutation: SIGTERM, then a minute until an environment that hangs is noticed."""
    monkeypatch.setattr(watchdog, "STOP_SECS", 0.3)
    (text,) = watched(Busy(), LONG, deadline=2.0, stopping=lambda: True)
    assert text.endswith("did not answer within 0.3 s after the run was asked to stop")
    assert watched(Busy(), 1.0, deadline=60.0, stopping=lambda: False) == []


def test_columns_that_time_themselves_are_left_to_it_until_the_run_is_asked_to_stop(monkeypatch):
    monkeypatch.setattr(watchdog, "STOP_SECS", 0.3)
    assert watched(Busy(times_itself=True), 0.5) == []
    assert len(watched(Busy(times_itself=True), LONG, stopping=lambda: True)) == 1


def test_a_thread_inside_an_environment_is_distinguished_from_others():
    from packtrain.envs.functional_vector_env import FunctionalVectorEnv
    from packtrain.testing.sleepy import Sleepy

    inside, over = threading.Event(), threading.Event()

    class Waiting(Sleepy):
        def initial(self, n, rng):
            inside.set()
            over.wait()
            return super().initial(n, rng)

    thread = threading.Thread(target=FunctionalVectorEnv(Waiting(), 1, 0, "raise", "Waiting").reset)
    other = threading.Thread(target=over.wait)
    thread.start()
    other.start()
    inside.wait()
    assert is_in_environment(thread) and not is_in_environment(other)
    over.set()
    thread.join()
    other.join()
    assert not is_in_environment(thread)
