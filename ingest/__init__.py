"""How messages get in: topics, producer, gateways and the memory of what a sender has sent."""
