"""packtrain: one core for planning, trust-but-verify, IMPALA, value expansion and recurrent replay."""

__version__ = "0.2.0"
