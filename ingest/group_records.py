"""Writes the records that create a group, change its members and abandon messages.

Epochs and last seqs come from the sender's memory (sender_state.py). So `precede send` and `precede.Member` continue
with the epoch that is joined here, and a `leave` ends it after their last message. The kernel's own reader reads each
record before it is sent: what the group would refuse as malformed is refused here.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from precede.ingest import epochs, sender_state
from precede.ingest.producer import Publisher
from precede.ingest.sender_state import KnownSender, SenderState
from precede.ingest.sending import publish_pending
from precede.ingest.signing import public_text
from precede.udfs.errors import Refused
from precede.udfs.limits import Limits
from precede.udfs.orders import ORDERS
from precede.udfs.peers.views import OUT, Standing
from precede.udfs.records.messages import EPOCH_MAX, Id
from precede.udfs.records.signatures import read_key, sign
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import read

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


class Written(NamedTuple):
    """A record that is in the log."""

    epoch: int
    """The epoch of the member that the record is about."""
    place: tuple[int, int] | None
    """Its partition and offset; None if nothing had to be written."""


class Writer:
    """Writes one member's records into one log.

    Without a state file it uses the one that `precede.Member` keeps for this name in each group. Every method raises
    Refused if the record cannot be written as things are, AccessDenied if an access rule is missing, and Unconfirmed
    if Kafka did not confirm the record.
    """

    def __init__(
        self,
        publisher: Publisher,
        log: str,
        state_file: Path | None,
        name: str,
        key: "Ed25519PrivateKey | None" = None,
        *,
        senders: str | None = None,
    ) -> None:
        """`senders` is the file of `precede send`, if the setting `state` names it."""
        self.name = name
        self._key = key
        self._publisher = publisher
        self._log = log
        self._state_file = state_file
        self._senders = senders

    def create(self, group: str, *, members: list[str], options: dict[str, Any]) -> Written:
        """Create a group; the members named in it may send with epoch 0, this one included."""
        value = encode("create", group, sender=self.name, options=options, members=members)
        with self._opened(group) as state:
            if self.name in members and state.memory.find(self._log, group, self.name) is None:
                state.memory.add(KnownSender(self._log, group, self.name))
                state.save()
        return self._publish(group, value, 0)

    def join(self, group: str, standing: Standing | None, new_key: str | None = None) -> Written:
        """Join with an epoch that was never used; a member writes nothing, unless it changes its key."""
        with self._opened(group) as state:
            known = state.memory.find(self._log, group, self.name)
            if new_key is not None:
                self._check_may_change(new_key)
                if known is not None and known.pending is not None:
                    publish_pending(self._publisher, state, known)  # under the old key, which this epoch still has
                used = max(-1 if known is None else known.epoch, 0 if standing is None else standing[0])
                standing = used, OUT  # the old epoch ends, and the new key counts from the next one on
            elif known is not None and standing is not None and standing[0] == known.epoch and standing[1] is not OUT:
                return Written(known.epoch, None)
            epoch = self._epoch_to_join(group, known, standing)
            if known is None or epoch != known.epoch:
                known = state.memory.begin(self._log, group, self.name, epoch)
            known.joined = True
            state.save()
            # In a group with keys a newcomer brings its own; other groups ignore it.
            keys = {} if self._key is None else {"key": new_key or public_text(self._key)}
            return self._publish(group, encode("join", group, sender=self.name, epoch=epoch, **keys), epoch)

    def _check_may_change(self, key: str) -> None:
        if self._key is None:
            raise Refused("A new key only counts if it is signed with a key that the group knows: give that one, too.")
        if read_key(key) is None:
            raise Refused(
                f"{key[:60]} is no public key; `precede key FILE --show` prints the public key of a private one."
            )

    def admit(self, group: str, member: str, standing: Standing | None, key: str) -> Written:
        """As the group's service: admit a member with this public key, which replaces any that it had."""
        self._check_may_change(key)
        above = -1 if standing is None else standing[0]
        epoch = self._free_epoch(group, member, None, above)
        return self._publish(group, encode("join", group, sender=member, epoch=epoch, key=key), epoch)

    def _epoch_to_join(self, group: str, known: KnownSender | None, standing: Standing | None) -> int:
        """An epoch above every one that joined before; one that only sent in an open group may continue."""
        above = -1 if standing is None else standing[0]
        if known is not None and known.epoch <= EPOCH_MAX:
            return epochs.check_epoch(max(known.epoch, above + 1, known.left + 1), group, self.name)
        return self._free_epoch(group, self.name, self._key, above)

    def _free_epoch(self, group: str, name: str, key: "Ed25519PrivateKey | None", above: int) -> int:
        log = self._publisher
        return epochs.free_epoch(log.bootstrap, log.topic, group, name, key, above=above, partitioner=log.partitioner)

    def leave(self, group: str, standing: Standing | None, last: int | None) -> Written:
        """Leave after the last message that was sent, or after the seq `last`."""
        with self._opened(group) as state:
            known = state.memory.find(self._log, group, self.name)
            epoch = self._epoch_to_leave(group, known, standing)
            if last is None:
                last = self._last(state, known, group, epoch)
            written = self._publish(group, encode("leave", group, sender=self.name, epoch=epoch, last=last), epoch)
            self._note_left(state, group, epoch)
            return written

    def undo_leave(self, group: str) -> None:
        """The group refused the `leave` that was written last: what this name says still counts."""
        with self._opened(group) as state:
            self._note_left(state, group, -1)

    def _note_left(self, state: SenderState, group: str, epoch: int) -> None:
        """Note it for `precede send`, which does not read the group."""
        known = state.memory.find(self._log, group, self.name)
        if known is not None:
            known.left = epoch
            state.save()

    def _epoch_to_leave(self, group: str, known: KnownSender | None, standing: Standing | None) -> int:
        """The epoch that joined; in an open group, it may be one that only sent."""
        if standing is not None and standing[1] is not OUT:
            return standing[0]
        if known is None or (standing is not None and known.epoch <= standing[0]):
            raise Refused(f"{self.name} is not in {group}{'' if standing is None else ' any more'}.")
        return known.epoch

    def _last(self, state: SenderState, known: KnownSender | None, group: str, epoch: int) -> int:
        if known is None or known.epoch != epoch:
            raise Refused(
                f"The state file {state.path} does not know the last message of {self.name} in {group} with epoch"
                f" {epoch}: give the seq of its last message with --last, 0 if it sent none."
            )
        if known.pending is not None:
            publish_pending(self._publisher, state, known)
            state.save()
        return known.seq

    def evict(self, group: str, member: str, epoch: int, cut: int) -> Written:
        """Put a member out: of its messages only seqs up to the cut still count."""
        return self._publish(group, encode("evict", group, sender=self.name, member=[member, epoch], cut=cut), epoch)

    def abandon(self, group: str, first: Id, last: int) -> Written:
        """Abandon a run of one sender's messages."""
        return self._publish(group, encode("abandon", group, sender=self.name, ids=[[*first, last]]), first[1])

    def _opened(self, group: str) -> AbstractContextManager[SenderState]:
        if self._state_file is None:  # a member that is open holds its lock
            path = sender_state.member_file(self._log, group, self.name, self._senders)
            return sender_state.opened(path, wait=False)
        return sender_state.opened(self._state_file)

    def _publish(self, group: str, value: bytes, epoch: int) -> Written:
        self._publisher.publish(group, value if self._key is None else sign(value, self._key))
        self._publisher.flush()
        assert self._publisher.placed is not None
        return Written(epoch, self._publisher.placed)


def encode(kind: str, group: str, **fields: Any) -> bytes:
    """One control record; raises Refused if the kernel would not read it."""
    options = fields.get("options", {})
    order = options.get("order")
    if isinstance(order, str) and order not in ORDERS:
        raise Refused(f"There is no order {order!r}: choose one of {', '.join(ORDERS)}.")
    try:
        value = msgspec.json.encode({"group": group, "kind": kind, **fields})
        read(value, Limits())
    except Malformed as error:
        raise Refused(f"This cannot be a `{kind}` record: {error.reason}") from error
    except (TypeError, UnicodeEncodeError) as error:
        raise Refused(f"This cannot be a `{kind}` record: {error}.") from error
    return value
