"""The order query: from the raw topic through the kernel to one Kafka transaction per batch."""
