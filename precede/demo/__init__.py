"""The demo: a broker, the job, a busy group and a view of it."""
