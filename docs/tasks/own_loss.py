"""Train with a loss of your own: advantage actor-critic in place of IMPALA's V-trace loss.

    python docs/tasks/own_loss.py

A learner's settings are a frozen dataclass with `build`. A configuration names it, and everything else of the run stays
as shipped. Here the script writes the configuration to a temporary file. For the command line put the class in a file
my_a2c.py, and `import my_a2c` at the top of a .gin file beside it.
"""

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import packtrain
from packtrain.algorithms.gradient import GradientLearner
from packtrain.algorithms.optimisers import make_optimiser
from packtrain.config import configurable
from packtrain.equations.boundaries import boundaries


@configurable
@dataclass(frozen=True)
class MyA2C:
    """Numbers of the loss and the optimiser."""

    discounting: float = 0.95
    learning_rate: float = 0.003

    def build(self, network, total_steps):
        """Return the learner."""
        optimiser = make_optimiser(network.parameters(), "adam", self.learning_rate, epsilon=1e-5)
        return GradientLearner(network, partial(loss, settings=self), optimiser, lambda steps: self.learning_rate, 1.0)


def loss(network, trajectory, settings):
    """Return the loss of a batch of unrolls [T, B], and what is logged."""
    out = network(trajectory.obs, trajectory.first, *trajectory.last_inputs(), trajectory.carry)
    ends = boundaries(trajectory.first, trajectory.terminated, trajectory.truncated, settings.discounting)
    advantage = trajectory.reward + ends.discount_t * out.value[1:].detach() - out.value[:-1]
    log_prob = network.distribution.log_prob(out.parameters[:-1], trajectory.action)
    total = (ends.weight_t * (0.5 * advantage**2 - log_prob * advantage.detach())).mean()
    return total, {"total_loss": total.detach()}


CONFIG = """
# or 'impala/cartpole.gin', or another configuration of IMPALA
include 'abilities/bandit.gin'
LearnerUse.learner = @MyA2C()
# learning_rate is a knob of the included file
MyA2C.learning_rate = %learning_rate
"""

if __name__ == "__main__":
    config = Path(tempfile.mkdtemp()) / "a2c.gin"
    config.write_text(CONFIG)
    run = packtrain.train(config, learning_rate=0.003, total_steps=20_000, output_dir="runs/a2c")
    returns = run.metrics()["episode_return"]
    print(f"return at first {returns[0]:.2f}, at the end {returns[-1]:.2f}")
