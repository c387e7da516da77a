"""The engine Spark: what runs the job as streaming queries of Spark."""
