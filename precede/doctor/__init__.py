"""What `precede doctor` checks: this machine, Kafka, and whether a start would go on with the stream."""
