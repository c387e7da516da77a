"""A group with keys: members sign, so no one can send in another's name. No Kafka needed.

python examples/signed_group.py
"""

import json

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from precede import Holdback
from precede.ingest.signing import public_text
from precede.udfs.records.signatures import sign
from precede.udfs.records.wire import encode_message

MEMBERS = ["ann", "bob"]
keys = {name: Ed25519PrivateKey.generate() for name in MEMBERS}

holdback = Holdback()
publics = {name: public_text(key) for name, key in keys.items()}
create = {"group": "travel", "kind": "create", "members": MEMBERS, "options": {"closed": True, "keys": publics}}
holdback.receive(json.dumps(create).encode())

question = encode_message("travel", "ann", 0, 1, after=[], data="Who comes along?")
answer = encode_message("travel", "bob", 0, 1, after=[("ann", 0, 1)], data="I do.")
holdback.receive(sign(answer, keys["bob"]))  # arrives first, and waits for the message it answers
holdback.receive(question.replace(b"Who comes along?", b"Nobody comes!"))  # from a stranger, who cannot sign
holdback.receive(sign(question, keys["bob"]))  # from bob, in ann's name
holdback.receive(sign(question, keys["ann"]))

for record in map(json.loads, holdback.ordered):
    print(record["position"], record.get("sender", "the group begins"), record.get("data", ""))
for letter in map(json.loads, holdback.dead):
    print(f"{letter['code']}: {letter['reason']}")
