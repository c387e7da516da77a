"""The order in one process, without Spark: a consumer, the kernel, and a transactional producer."""
