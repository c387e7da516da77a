"""The records that begin a group, change who belongs to it and give up on messages, as a member writes them.

Epochs and last seqs come from the sender's memory (sender_state.py), so that what is joined here is what `precede send`
and `precede.Member` speak as, and what is left ends where they stopped. Each record is read by the kernel's own reader
before it is sent: what the group would refuse as malformed is refused here.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from precede.ingest import epochs, sender_state
from precede.ingest.producer import Publisher
from precede.ingest.sender_state import Sender, SenderState
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
    """A record that the log has taken."""

    epoch: int
    """Of the member it is about."""
    place: tuple[int, int] | None
    """Its partition and offset; None where nothing had to be written."""


class Writer:
    """Writes one member's records into one log.

    Without a state file it uses the one that `precede.Member` keeps for this name in each group.
    """

    def __init__(
        self, publisher: Publisher, log: str, state_file: Path | None, name: str, key: "Ed25519PrivateKey | None" = None
    ) -> None:
        self.name = name
        self._key = key
        self._publisher = publisher
        self._log = log
        self._state_file = state_file

    def create(self, group: str, *, members: list[str], options: dict[str, Any]) -> Written:
        """Begin a group; who is named in it may speak with epoch 0, this member too."""
        value = encode("create", group, sender=self.name, options=options, members=members)
        with self._opened(group) as state:
            if self.name in members and state.memory.find(self._log, group, self.name) is None:
                state.memory.add(Sender(self._log, group, self.name))
                state.save()
        return self._publish(group, value, 0)

    def join(self, group: str, standing: Standing | None, new_key: str | None = None) -> Written:
        """Join with an epoch that was never used; who is in already writes nothing, unless it changes its key."""
        with self._opened(group) as state:
            known = state.memory.find(self._log, group, self.name)
            if new_key is not None:
                self._check_may_change(new_key)
                if known is not None and known.pending is not None:
                    publish_pending(self._publisher, state, known)  # under the old key, which its epoch still has
                used = max(-1 if known is None else known.epoch, 0 if standing is None else standing[0])
                standing = used, OUT  # the old epoch ends, and the new key counts from the next one on
            elif known is not None and standing is not None and standing[0] == known.epoch and standing[1] is not OUT:
                return Written(known.epoch, None)
            epoch = self._epoch_to_join(group, known, standing)
            if known is None or epoch != known.epoch:
                known = state.memory.begin(self._log, group, self.name, epoch)
            known.joined = True
            state.save()
            # Where the group has keys, a newcomer brings its own; elsewhere it is carried and not read.
            keys = {} if self._key is None else {"key": new_key or public_text(self._key)}
            return self._publish(group, encode("join", group, sender=self.name, epoch=epoch, **keys), epoch)

    def _check_may_change(self, key: str) -> None:
        if self._key is None:
            raise Refused("A new key counts only if it is signed for with a key the group knows: give that one, too.")
        if read_key(key) is None:
            raise Refused(f"{key[:60]} is no public key; `precede key FILE --show` prints the one of a private key.")

    def admit(self, group: str, member: str, standing: Standing | None, key: str) -> Written:
        """As the group's service: let somebody in with this public key, which takes the place of any it had."""
        self._check_may_change(key)
        above = -1 if standing is None else standing[0]
        where = self._publisher.bootstrap, self._publisher.topic
        epoch = epochs.free_epoch(*where, group, member, None, above=above)
        return self._publish(group, encode("join", group, sender=member, epoch=epoch, key=key), epoch)

    def _epoch_to_join(self, group: str, known: Sender | None, standing: Standing | None) -> int:
        """Above every epoch that joined before; what was only spoken with in an open group may go on."""
        above = -1 if standing is None else standing[0]
        if known is not None and known.epoch <= EPOCH_MAX:
            return epochs.lawful(max(known.epoch, above + 1), group, self.name)
        where = self._publisher.bootstrap, self._publisher.topic
        return epochs.free_epoch(*where, group, self.name, self._key, above=above)

    def leave(self, group: str, standing: Standing | None, last: int | None) -> Written:
        """Leave after the last message that was sent, or after `last`."""
        with self._opened(group) as state:
            known = state.memory.find(self._log, group, self.name)
            epoch = self._epoch_to_leave(group, known, standing)
            if last is None:
                last = self._last(state, known, group, epoch)
            return self._publish(group, encode("leave", group, sender=self.name, epoch=epoch, last=last), epoch)

    def _epoch_to_leave(self, group: str, known: Sender | None, standing: Standing | None) -> int:
        """The epoch that is in; where nobody need join it may be one that only spoke."""
        if standing is not None and standing[1] is not OUT:
            return standing[0]
        if known is None or (standing is not None and known.epoch <= standing[0]):
            raise Refused(f"{self.name} is not in {group}{'' if standing is None else ' any more'}.")
        return known.epoch

    def _last(self, state: SenderState, known: Sender | None, group: str, epoch: int) -> int:
        if known is None or known.epoch != epoch:
            raise Refused(
                f"The state file {state.path} does not know what {self.name} said last in {group} with epoch"
                f" {epoch}: give the seq of its last message with --last, 0 where it said nothing."
            )
        if known.pending is not None:
            publish_pending(self._publisher, state, known)
            state.save()
        return known.seq

    def evict(self, group: str, member: str, epoch: int, cut: int) -> Written:
        """Put a member out: of what it says only seqs up to the cut still count."""
        return self._publish(group, encode("evict", group, sender=self.name, member=[member, epoch], cut=cut), epoch)

    def abandon(self, group: str, first: Id, last: int) -> Written:
        """Give up on a run of one sender's messages."""
        return self._publish(group, encode("abandon", group, sender=self.name, ids=[[*first, last]]), first[1])

    def _opened(self, group: str) -> AbstractContextManager[SenderState]:
        if self._state_file is None:  # an open member holds it for as long as it is
            return sender_state.opened(sender_state.member_file(self._log, group, self.name), wait=False)
        return sender_state.opened(self._state_file)

    def _publish(self, group: str, value: bytes, epoch: int) -> Written:
        self._publisher.publish(group, value if self._key is None else sign(value, self._key))
        self._publisher.flush()
        assert self._publisher.placed is not None
        return Written(epoch, self._publisher.placed)


def encode(kind: str, group: str, **fields: Any) -> bytes:
    """One control record, as the kernel will read it; what it would not read is refused."""
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
