"""Two couriers delay, reorder, repeat and lose a group's messages, and the kernel orders them: no Kafka needed.

python examples/lossy_path.py
"""

import json

from precede import Holdback
from precede.demo.lossy_path import Courier, LossyPath
from precede.udfs.records.wire import encode_message

MESSAGES = 1000
MEMBERS = ["ann", "bob", "chen", "dara"]

holdback = Holdback(order="s_b")
log: list[bytes] = []


def publish(value: bytes) -> None:
    holdback.receive(value, b"g", partition=0, offset=len(log), timestamp_ms=0)
    log.append(value)


couriers = [
    Courier(publish, LossyPath(seed=1, delay_s=(0.0, 2.0), repeat=0.1)),
    Courier(publish, LossyPath(seed=2, delay_s=(0.0, 30.0), repeat=0.1, loss=0.01)),
]
seqs = dict.fromkeys(MEMBERS, 0)
parent: list[tuple[str, int, int]] = []
for number in range(MESSAGES):
    sender = MEMBERS[number % len(MEMBERS)]
    seqs[sender] += 1
    value = encode_message("g", sender, 0, seqs[sender], after=parent, data=number)
    parent = [(sender, 0, seqs[sender])] if number % 10 else []  # threads of ten
    for courier in couriers:
        courier.pump(now_s=number)
    couriers[number % 2].take(value, now_s=number)
for courier in couriers:
    courier.pump(now_s=MESSAGES + 100)

delivered = [json.loads(record) for record in holdback.ordered]
waited = sum(record["released_offset"] != record["offset"] for record in delivered)
held = list(holdback.held())
missing = {tuple(id_) for one in held for id_ in one.missing}
print(f"{MESSAGES} sent, {sum(courier.lost for courier in couriers)} lost, {len(log)} arrived")
print(f"{len(delivered)} delivered, {waited} of them after a wait; {holdback.duplicates} copies dropped")
print(f"{len(held)} still held, waiting for {len(missing)} missing messages")
