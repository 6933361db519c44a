"""Named streams of randomness from one seed: adding one never changes another."""

from __future__ import annotations

import hashlib

import numpy as np


def seed_for(seed: int, *name: str | int) -> int:
    """A 63-bit seed for the stream called `name` in the run with this seed."""
    words = hashlib.sha256("/".join(str(part) for part in name).encode()).digest()
    entropy = [seed, *np.frombuffer(words[:16], np.uint32).tolist()]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> np.uint64(1))
