"""What a device needs beyond torch's own calls: one-copy transfers, work compiled, captured and taped, precision."""
