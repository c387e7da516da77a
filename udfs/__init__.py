"""What runs inside executors: the kernel and the one function Spark calls.

Standard library and msgspec only, and no I/O, clock, randomness or pickle: the same log gives the same bytes anywhere.
"""
