"""Register with gin what every configuration may name; algorithms are imported by the files that use them."""

from packtrain import alpacka_runner  # noqa: F401
from packtrain.acting import epsilon_greedy, mpc, noise, planner_policy, sampling  # noqa: F401
from packtrain.memory import episodes, replay, sequence_settings, unroll  # noqa: F401
from packtrain.networks import perception, world_model  # noqa: F401
