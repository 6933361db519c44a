"""What an acting side sends back, as values that may travel between processes."""

from __future__ import annotations

from typing import NamedTuple

from packtrain.envs.stream import Finished


class Report(NamedTuple):
    """What one actor step added."""

    env_steps: int  # decisions that reached an environment, since the beginning of the run
    finished: list[Finished]  # episodes that ended
    random: bool  # whether actions are uniformly random to gather data
