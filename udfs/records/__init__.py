"""Bytes to typed records and back: raw records, ordered records, dead letters, signatures."""
