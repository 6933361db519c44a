"""What a device needs beyond torch's own calls: one-copy transfers, captured work, the precision that pays."""
