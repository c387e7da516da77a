"""A member of a group: sending, receiving, objects."""
