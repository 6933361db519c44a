"""Named random seeds derived from one seed: adding a name never changes the others."""

from __future__ import annotations

import hashlib

import numpy as np


def seed_for(seed: int, *name: str | int) -> int:
    """Return a 63-bit seed for the random stream `name` of a run with this seed."""
    words = hashlib.sha256("/".join(str(part) for part in name).encode()).digest()
    entropy = [seed, *np.frombuffer(words[:16], np.uint32).tolist()]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> np.uint64(1))
