"""Reads what was delivered or refused: from topics, tables and files."""
