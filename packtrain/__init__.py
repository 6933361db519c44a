"""packtrain: planning, trust-but-verify, IMPALA, value expansion and recurrent replay on one core.

    import packtrain

    run = packtrain.train("ppo/cartpole", total_steps=50_000)
    policy = packtrain.load(run.path)

`docs/python.md` describes the functions. They are imported when they are first used: `import packtrain` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from packtrain.api import (
        Callbacks,
        Metrics,
        Policy,
        Run,
        evaluate,
        explore,
        list_configs,
        load,
        make_env,
        report,
        train,
    )
    from packtrain.studies.pairwise import compare

__all__ = [
    "Callbacks",
    "Metrics",
    "Policy",
    "Run",
    "compare",
    "evaluate",
    "explore",
    "list_configs",
    "load",
    "make_env",
    "report",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import a name of `__all__` when it is first accessed."""
    if name not in __all__:
        raise AttributeError(f"module 'packtrain' has no attribute {name!r}")
    import importlib

    module = "packtrain.studies.pairwise" if name == "compare" else "packtrain.api"
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
