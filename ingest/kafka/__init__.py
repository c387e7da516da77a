"""Everything about Kafka: how to get in, clients, topics, reading to the end, trying again."""
