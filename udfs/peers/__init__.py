"""The members' side of the documents' group protocols: what peers tell each other, as pure objects.

Nothing here reads a clock, draws a number or opens a socket. Whoever drives an object hands in what it heard, the time
and the chance, and sends what comes out to everybody on the medium, the sender itself included.
"""
