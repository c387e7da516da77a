"""Segments on the network: the address, the socket, and the thread that drives the protocol of udfs/peers/.

address.py      `udp://239.255.70.80:17080%eth0`, read and checked, and the network interface that it leads to
sockets.py      the one place that opens a socket, and what a network does to it
link.py         one `SegmentProtocol` on one socket, opened from an address and a key
runner.py       the thread that drives links
peer_state.py   the files of a peer
"""
