"""Peers on a segment: over loopback as processes, and in the simulation, beside what the documents print."""
