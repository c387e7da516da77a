"""Segments on the network: the address, the socket, and the thread that drives the protocol of udfs/peers/.

address.py      `udp://239.255.70.80:17080%eth0`, read and checked
interfaces.py   the network interfaces of this machine
sockets.py      the one place that opens a socket, and what a network does to it
link.py         one `Segment` on one socket
runner.py       the thread that drives links
opening.py      from settings to a running link
"""
