"""The job: settings, start checks, Spark session, both queries, status."""
