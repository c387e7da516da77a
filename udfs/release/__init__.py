"""How held messages are let go: at once, by clocks, by destination."""
