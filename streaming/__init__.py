"""The streaming job: settings, Spark session and jars, sources, the two queries, sinks."""
