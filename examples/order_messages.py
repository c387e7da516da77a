"""The kernel alone, without Spark and Kafka: messages go in out of order and come out in order.

python examples/order_messages.py
"""

from precede import Holdback

BOB = b'{"group": "travel", "sender": "bob", "seq": 1, "after": [["ann", 0, 1]], "data": "I do."}'
ANN = b'{"group": "travel", "sender": "ann", "seq": 1, "after": [], "data": "Who comes along?"}'

kernel = Holdback(order="s_b")
for number, record in enumerate([BOB, ANN]):
    kernel.receive(record, offset=number)
    for message in kernel.held():
        print(f"{message.sender}:{message.seq} is held; missing: {message.missing}")
    for ordered in kernel.ordered:
        print(f"record {number} lets go: {ordered.decode()}")
    kernel.clear()
