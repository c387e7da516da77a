"""The job seen from outside: counts, metrics, health."""
