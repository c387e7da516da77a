"""The demo: broker, job, a lively group and a view of it."""
