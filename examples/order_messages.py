"""The kernel alone: no Spark, no Kafka, messages in any order in, one order out.

python examples/order_messages.py
"""

import json

from precede import Holdback

ARRIVALS = [
    {"group": "travel", "sender": "bob", "seq": 1, "after": [["ann", 0, 1]], "data": "Me! Mountains or sea?"},
    {"group": "travel", "sender": "eli", "seq": 1, "after": [["bob", 0, 1]], "data": "Mountains."},
    {"group": "travel", "sender": "ann", "seq": 1, "after": [], "data": "Who is in for a trip?"},
    {"group": "travel", "sender": "chen", "seq": 1, "after": [["dara", 0, 1]], "data": "Dara is right."},
]

holdback = Holdback(order="s_b")
for offset, message in enumerate(ARRIVALS):
    holdback.receive(json.dumps(message).encode(), b"travel", partition=0, offset=offset, timestamp_ms=1000 * offset)
    print(f"arrives  {message['sender']}: {message['data']}")
    for record in map(json.loads, holdback.ordered):
        print(f"    {record['position']}  {record['sender']}: {record['data']}")
    holdback.clear()

for held in holdback.held():
    print(f"{held.sender}:{held.seq} is held; missing: {[f'{sender}:{seq}' for sender, _, seq in held.missing]}")
