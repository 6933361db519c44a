"""An alarm for a run whose policy stops acting like a trusted one: the run stops early, or goes back.

The learner measures the mean Hellinger distance per decision between its policy and the trusted one, in the states of
its own batches (`algorithms/trusted_policy.py`). That is the score "mean_hellinger" of `packtrain audit`, computed
during training. It depends on observations and action distributions only: neither the true reward nor the proxy is
used.

One audit is the mean score of `window` updates. The first audit at or below the threshold arms the alarm, so that a
policy that begins at random is not an anomaly. The state that is restored was followed by a whole window at or below
the threshold: at the end of each window the learner is copied, and the copy counts as audited after the next one.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from typing import Any, Literal

import torch

from packtrain import check
from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.interfaces import Learner, UpdateResult

log = logging.getLogger("packtrain")

SCORE = "trusted_hellinger"  # metric of the learner that has a trusted policy


@configurable
@dataclass(frozen=True)
class AuditAlarm:
    """When an audit of the training policy sets off an alarm, and what the run does then."""

    threshold: float = 0.2  # largest mean Hellinger distance per decision from the trusted policy, above 0 to 1
    window: int = 10  # updates per audit
    # off: no audits; warn: log it; stop: restore the last audited weights and end the run; rollback: restore them and
    # train on
    action: Literal["off", "warn", "stop", "rollback"] = "stop"
    most_rollbacks: int = 20  # the next alarm ends the run, with the audited weights

    def __post_init__(self) -> None:
        check.positive(self, "threshold")
        check.at_least(self, 1, "window", "most_rollbacks")
        if self.threshold > 1:
            raise ConfigError(f"AuditAlarm.threshold = {self.threshold} must be at most 1: it is a Hellinger distance")
        if self.action not in ("off", "warn", "stop", "rollback"):
            raise ConfigError(f"AuditAlarm.action = {self.action!r} is not one of 'off', 'warn', 'stop', 'rollback'")


class Alarm:
    """Audits the updates of one learner, and restores it after an alarm."""

    def __init__(self, settings: AuditAlarm):
        """Begin unarmed.

        Args:
          settings: the numbers.
        """
        self._settings = settings
        self._scores: list[Any] = []  # of this window, 0-d tensors or floats
        self._audited: dict[str, Any] | None = None  # learner state before a window that was at or below the threshold
        self._newest: dict[str, Any] | None = None  # learner state at the end of the last such window
        self.armed = False
        self.ended = False  # the run is over
        self.alarms = 0

    def observe(self, learner: Learner, result: UpdateResult) -> None:
        """Count an update, audit at the end of a window, and restore the learner after an alarm if so configured.

        Args:
          learner: made the update.
          result: of the update; without a score it is not counted.
        """
        if SCORE not in result.metrics:
            if result.metrics:
                raise ConfigError(
                    "Run.alarm needs a learner with a trusted policy: set PPO.trusted or Impala.trusted to a "
                    "TrustedPolicy with weights; its coefficient may be 0"
                )
            return  # an update that was left out because it was not finite
        self._scores.append(result.metrics[SCORE])
        if len(self._scores) < self._settings.window:
            return
        score = sum(float(one) for one in self._scores) / len(self._scores)
        self._scores.clear()
        if score <= self._settings.threshold:
            self.armed = True
            self._audited, self._newest = self._newest, copy.deepcopy(learner.state_dict())
            return
        if self.armed:
            self._sound(learner, score)

    def _sound(self, learner: Learner, score: float) -> None:
        """Log the alarm and act on it."""
        self.alarms += 1
        settings, kept = self._settings, self._audited or self._newest
        assert kept is not None
        found = f"the policy's mean Hellinger distance from the trusted one is {score:.3f}, above {settings.threshold}"
        if settings.action == "warn":
            log.warning("audit alarm %d: %s", self.alarms, found)
            return
        self.ended = settings.action == "stop" or self.alarms > settings.most_rollbacks
        what = "the run ends with" if self.ended else "it goes on from"
        log.warning("audit alarm %d: %s; %s the weights of update %d", self.alarms, found, what, kept["updates"])
        updates, steps = learner.updates, learner.steps
        learner.load_state_dict(kept)
        learner.updates, learner.steps = updates, steps  # counters go on: they are the version of the weights
        self._audited, self._newest = None, kept

    def row(self) -> dict[str, Any]:
        """Return metrics for training rows."""
        return {"audit_armed": int(self.armed), "audit_alarms": self.alarms}

    def state_dict(self) -> dict[str, Any]:
        """Return the full state, learner states included."""
        return {
            "scores": [torch.as_tensor(one).clone() for one in self._scores],
            "audited": self._audited,
            "newest": self._newest,
            "armed": self.armed,
            "ended": self.ended,
            "alarms": self.alarms,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self._scores = list(state["scores"])
        self._audited, self._newest = state["audited"], state["newest"]
        self.armed, self.ended, self.alarms = bool(state["armed"]), bool(state["ended"]), int(state["alarms"])


def build_alarm(settings: AuditAlarm | None) -> Alarm | None:
    """Return an alarm that is not armed yet; None if there are no audits."""
    return None if settings is None or settings.action == "off" else Alarm(settings)
