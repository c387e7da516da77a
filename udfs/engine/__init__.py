"""One group, record by record: what is held, settled, delivered or refused."""
