"""The groups of a log: which there are, and changing them."""
