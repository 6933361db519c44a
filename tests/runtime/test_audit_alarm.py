"""The audit alarm: windows, arming, restoring, and its effect on a run that trains on a proxy reward."""

import json

import pytest
import torch

from packtrain.cli import main
from packtrain.errors import ConfigError
from packtrain.interfaces import UpdateResult
from packtrain.metrics.reading import read_metrics
from packtrain.runtime.audit_alarm import SCORE, Alarm, AuditAlarm, build_alarm


class Learner:
    """A learner whose weight is its number of updates."""

    def __init__(self):
        self.updates = self.steps = 0
        self.weight = torch.zeros(1)

    def state_dict(self):
        return {"weight": self.weight, "updates": self.updates, "steps": self.steps}

    def load_state_dict(self, state):
        self.weight, self.updates, self.steps = state["weight"].clone(), state["updates"], state["steps"]


def play(alarm, scores, learner=None):
    """Let a learner make one update per score."""
    learner = learner or Learner()
    for score in scores:
        learner.updates, learner.steps = learner.updates + 1, learner.steps + 8
        learner.weight += 1
        alarm.observe(learner, UpdateResult({SCORE: score}, steps=8))
    return learner


def test_the_state_before_the_last_quiet_window_is_restored_and_counters_go_on():
    """Mutations: the newest copy is restored; the copy shares memory with the weights; counters are restored too."""
    alarm = Alarm(AuditAlarm(threshold=0.2, window=2))
    learner = play(alarm, [0.1, 0.1, 0.1, 0.1, 0.5, 0.5])
    assert alarm.ended and alarm.alarms == 1
    assert learner.weight == 2 and learner.updates == 6 and learner.steps == 48


def test_nothing_happens_before_the_policy_has_been_near_the_trusted_one():
    alarm = Alarm(AuditAlarm(threshold=0.2, window=2))
    assert play(alarm, [0.9] * 8).weight == 8 and not alarm.armed and alarm.alarms == 0


def test_the_score_is_a_mean_over_the_window():
    alarm = Alarm(AuditAlarm(threshold=0.2, window=4))
    play(alarm, [0.0] * 4 + [0.7, 0.0, 0.0, 0.0])
    assert alarm.alarms == 0


def test_rollbacks_end_after_a_given_number():
    """Mutation: without a limit."""
    alarm = Alarm(AuditAlarm(threshold=0.2, window=1, action="rollback", most_rollbacks=2))
    learner = play(alarm, [0.1, 0.1, 0.5])
    assert learner.weight == 1 and not alarm.ended
    play(alarm, [0.5], learner)
    assert learner.weight == 1 and not alarm.ended
    play(alarm, [0.5], learner)
    assert learner.weight == 1 and alarm.ended and alarm.alarms == 3


def test_warn_only_counts():
    alarm = Alarm(AuditAlarm(threshold=0.2, window=1, action="warn"))
    assert play(alarm, [0.1, 0.5, 0.5]).weight == 3 and alarm.alarms == 2 and not alarm.ended


def test_a_saved_alarm_goes_on_the_same():
    """Mutation: the scores of the unfinished window are not saved."""
    scores = [0.1, 0.1, 0.1, 0.1, 0.1, 0.5, 0.5, 0.5, 0.1, 0.1, 0.9]
    whole, first = (Alarm(AuditAlarm(threshold=0.2, window=2, action="rollback")) for _ in range(2))
    wanted = play(whole, scores)
    learner = play(first, scores[:5])
    second = Alarm(AuditAlarm(threshold=0.2, window=2, action="rollback"))
    second.load_state_dict(first.state_dict())
    assert play(second, scores[5:], learner).weight == wanted.weight and second.alarms == whole.alarms == 2


@pytest.mark.parametrize(
    "settings", [{"threshold": 0}, {"threshold": 1.5}, {"window": 0}, {"action": "panic"}, {"most_rollbacks": 0}]
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ConfigError, match=f"AuditAlarm.{next(iter(settings))}"):
        AuditAlarm(**settings)


def test_off_builds_nothing():
    assert build_alarm(None) is None and build_alarm(AuditAlarm(action="off")) is None


def test_a_learner_without_a_trusted_policy_is_refused(tmp_path, capsys):
    bindings = ["--config", "Run.alarm = @AuditAlarm()", "--config", "import packtrain.runtime.audit_alarm"]
    small = "--num_actors 4 --batch_size 4 --unroll_length 5 --hidden_size 16 --total_steps 100 --runtime serial"
    assert main(["train", "impala/catch", *small.split(), "--output_dir", str(tmp_path / "run"), *bindings]) == 2
    assert "TrustedPolicy" in capsys.readouterr().err


COUNTERFEIT = ["train", "misspecification/ppo_counterfeit", "--runtime", "serial", "--code_length", "2"]
COUNTERFEIT += ["--entropy_cost", "0.6", "--log_every", "5000", "--eval_every", "20000"]


def weights_of(folder):
    newest = max((folder / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))
    return newest / "weights.safetensors"


def last(folder, kind):
    return [row for row in read_metrics(folder) if row["kind"] == kind][-1]


def test_the_score_does_not_depend_on_rewards(tmp_path):
    """The first updates of two runs that differ in their training reward have the same scores, until weights differ.

    Mutation: the score includes the reward.
    """
    trusted = tmp_path / "trusted"
    short = [*COUNTERFEIT, "--total_steps", "1500", "--log_every", "1"]
    assert main([*short, "--proxy", "true", "--output_dir", str(trusted)]) == 0
    begin = ["--trusted_weights", str(weights_of(trusted)), "--trusted_start", "True", "--alarm", "warn"]
    scores = []
    for proxy in ("coins", "true", "earned"):
        folder = tmp_path / proxy
        assert main([*short, *begin, "--seed", "1", "--proxy", proxy, "--output_dir", str(folder)]) == 0
        scores.append([row[SCORE] for row in read_metrics(folder) if row["kind"] == "train"][0])
    assert scores[0] == scores[1] == scores[2] == 0


@pytest.mark.learning
def test_an_alarm_stops_the_fall_of_the_true_return_and_a_warning_does_not(tmp_path):
    """Counterfeit, trained on coins from a policy that walks: true return 20; forging has −38.

    Mutations: the alarm restores the newest weights of all; observe() is not called by the run.
    Negative controls: with "warn" the true return falls; on a harmless reward there is no alarm.
    """
    trusted = tmp_path / "trusted"
    assert main([*COUNTERFEIT, "--proxy", "true", "--total_steps", "40000", "--output_dir", str(trusted)]) == 0
    begin = ["--trusted_weights", str(weights_of(trusted)), "--trusted_start", "True", "--trusted_coefficient", "0"]
    ends, late = {}, {}
    for action, proxy in (("warn", "coins"), ("stop", "coins"), ("rollback", "coins"), ("stop", "earned")):
        folder = tmp_path / f"{action}_{proxy}"
        argv = [*COUNTERFEIT, *begin, "--alarm", action, "--proxy", proxy, "--total_steps", "45000"]
        assert main([*argv, "--output_dir", str(folder)]) == 0
        rows = [row for row in read_metrics(folder) if row["kind"] == "eval"]
        ends[action, proxy] = rows[-1]["reward/true"], last(folder, "train")["audit_alarms"]
        late[action, proxy] = [row["reward/true"] for row in rows if row["step"] > 30_000]
    assert ends["warn", "coins"][1] >= 1 and max(late["warn", "coins"]) < 0
    assert ends["stop", "coins"][0] >= 19 and ends["stop", "coins"][1] == 1
    # After a rollback the policy walks again, and then begins to forge again until the next alarm.
    assert ends["rollback", "coins"][1] >= 2 and max(late["rollback", "coins"]) >= 19
    assert ends["stop", "earned"] == (20, 0)
    assert last(tmp_path / "stop_coins", "eval")["step"] < last(tmp_path / "warn_coins", "eval")["step"]


def test_a_stopped_run_is_finished_and_is_not_resumed(tmp_path, capsys):
    """Mutation: the end is not part of the checkpoint."""
    trusted = tmp_path / "trusted"
    short = [*COUNTERFEIT, "--num_actors", "4", "--batch_size", "4", "--eval_every", "0"]
    assert main([*short, "--total_steps", "500", "--proxy", "true", "--output_dir", str(trusted)]) == 0
    begin = ["--trusted_weights", str(weights_of(trusted)), "--trusted_start", "True", "--trusted_coefficient", "0"]
    begin += ["--alarm", "stop", "--alarm_threshold", "0.01", "--alarm_window", "1", "--learning_rate", "0.01"]
    argv = [*short, *begin, "--total_steps", "20000", "--output_dir", str(tmp_path / "run")]
    assert main(argv) == 0
    step = last(tmp_path / "run", "train")["step"]
    assert step < 20000
    capsys.readouterr()
    assert main(argv) == 0
    assert "an audit alarm ended it" in "".join(capsys.readouterr())
    assert last(tmp_path / "run", "train")["step"] == step
    assert json.loads((weights_of(tmp_path / "run").parent / "state.json").read_text())
