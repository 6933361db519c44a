"""Numbers a run leaves behind: counters with units, the writers that store them, and the reader of a run folder."""
