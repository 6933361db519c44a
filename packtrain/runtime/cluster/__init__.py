"""Acting on many machines through Ray: flow control, planning, the engine and the `node` command."""
