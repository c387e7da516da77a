"""Compares the orders on one trace."""
