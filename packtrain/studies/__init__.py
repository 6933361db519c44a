"""What people do with runs: statistics over seeds, charts and the report page; and studies that run by themselves."""
