"""Read checkpoints and configurations of other projects, and write them as run folders and .gin files."""
