"""Reading what was delivered or refused: topics, tables, files."""
