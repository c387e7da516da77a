"""The kernel alone, without Spark and Kafka: messages go in out of order and come out in order.

python examples/order_messages.py
"""

from precede import Holdback

LOG = [
    b'{"group": "travel", "sender": "bob", "seq": 1, "after": [["ann", 0, 1]], "data": "Me! Mountains or sea?"}',
    b'{"group": "travel", "sender": "ann", "seq": 1, "after": [], "data": "Who is in for a trip?"}',
    b'{"group": "travel", "sender": "chen", "seq": 1, "after": [["dara", 0, 1]], "data": "Dara is right."}',
]

kernel = Holdback(order="s_b")
for number, line in enumerate(LOG):
    kernel.receive(line, offset=number)
    for record in kernel.ordered:
        print(f"record {number} lets go: {record.decode()}")
    kernel.clear()
for message in kernel.held():
    print(f"{message.sender}:{message.seq} is held; missing: {message.missing}")
