"""Everything about Kafka: access, clients, topics, and reading them to the end."""
