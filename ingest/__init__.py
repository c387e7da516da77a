"""How messages get into the log: everything about Kafka, the producer, and the memory of what a sender has sent."""
