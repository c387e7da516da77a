"""The groups of a log: lists and changes them."""
