"""Analyses of groups and orders: what an order promises, what is held and why."""
