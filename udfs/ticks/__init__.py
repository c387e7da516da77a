"""What passing time does: gaps are asked for, silent members evicted."""
