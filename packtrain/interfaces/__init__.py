"""The contracts between environments, actors, memories and learners. Runtimes know only these, never a family.

One transition travels: environments → actor → memory → learner → weights → actor. Every method that many kinds do not
need has a default: a minimal memory is `writer`, `ready`, `sample` and its state, and a minimal learner is `update` and
its state. `packtrain/memory/episodes.py` and `packtrain/algorithms/gradient.py` are short examples.
"""

from packtrain.interfaces.learners import (
    EpisodeAnalysis,
    Learner,
    LearnerSettings,
    ObservedStep,
    SampleLearner,
    UpdateResult,
    learn,
)
from packtrain.interfaces.memories import (
    DemonstratedState,
    Memory,
    MemoryBytes,
    MemorySettings,
    MemoryShard,
    PolicyLag,
    Preloads,
    View,
    Writer,
)
from packtrain.interfaces.policies import (
    ActingPlace,
    ActorState,
    Decision,
    Policy,
    PolicySettings,
    SeedGroup,
)

__all__ = [
    "ActingPlace",
    "ActorState",
    "Decision",
    "DemonstratedState",
    "EpisodeAnalysis",
    "Learner",
    "LearnerSettings",
    "Memory",
    "MemoryBytes",
    "MemorySettings",
    "MemoryShard",
    "ObservedStep",
    "Policy",
    "PolicyLag",
    "PolicySettings",
    "Preloads",
    "SampleLearner",
    "SeedGroup",
    "UpdateResult",
    "View",
    "Writer",
    "learn",
]
