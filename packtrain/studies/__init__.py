"""What people do with runs once they are there: statistics over seeds, charts and the report page."""
