"""How what is held goes out: at once, by clocks, or by destination.

The interface is `Release` in engine/interfaces.py, which the engine calls without knowing which of these it is. An
order names its release by its class attribute `release_type`.
"""
