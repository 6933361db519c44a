"""Analysis of runs: statistics over seeds, charts and the report page; and studies, experiments without actors."""
