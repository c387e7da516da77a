"""What passing time does: gaps are requested or abandoned, silent members are evicted."""
