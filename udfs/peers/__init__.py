"""The documents' group protocols between members, without a log, as pure objects.

Nothing here reads a clock, draws a random number or opens a socket. The caller passes in received messages, the time
and random waits, and sends the results to everyone on the medium, including the sender itself.
"""
