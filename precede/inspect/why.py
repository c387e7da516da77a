"""`precede.why`: what became of one message, by its id."""

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from precede.inspect.answer import Answer, Cause, End, PlaceInSequence
from precede.inspect.findings import (
    Findings,
    TracedKernel,
    from_dead_letters,
    from_delta,
    from_ordered,
    head_of,
    raw_record,
)
from precede.inspect.knowledge import StreamKnowledge, Tell, look, tell_nothing
from precede.udfs.engine.inspection import KnownMessage, known_message
from precede.udfs.records.identifiers import as_name, parse_id
from precede.udfs.records.messages import Id, LogRecord

if TYPE_CHECKING:
    from precede.ingest.kafka.access import Address
    from precede.streaming.settings import Settings

RawRecord = Callable[[int, int], LogRecord | None]
"""The raw record at a partition and offset; None where it is not there any more."""


def why(
    group: str,
    id_: Id | str,
    *,
    bootstrap: "Address | str | None" = None,
    config: Path | str | None = None,
    delta: Path | str | None = None,
    tell: Tell = tell_nothing,
) -> Answer:
    """What became of one message: delivered, held, refused, abandoned, missing or never seen; `str()` says it in words.

    `id_` is (sender, epoch, seq), or text as in `ann:3` or `ann@2:3`. What is not given comes from `config`, a TOML
    file of settings, from PRECEDE_* variables or from the defaults, as the commands take it. `delta` is the root
    folder of the Delta tables. `tell` is told what is being read where that takes long, and how much of it was.

    Raises ValueError for what is no id, Refused where the job keeps no state topic, and Unreachable or AccessDenied
    where Kafka cannot be read.
    """
    from precede.streaming import settings

    as_name("the group", group)
    whole = parse_id(id_) if isinstance(id_, str) else id_
    flags = {"bootstrap": bootstrap, "delta": None if delta is None else str(delta)}
    file = config or os.environ.get("PRECEDE_CONFIG")
    return find_out(settings.load(flags, os.environ, file), group, whole, tell=tell, warn=_warn)


def find_out(
    settings: "Settings", group: str, id_: Id, *, tell: Tell = tell_nothing, warn: Callable[[str], None]
) -> Answer:
    """The same with settings that are loaded already; `warn` gets a sentence where the answer may be wrong."""
    knowledge = look(settings, group)
    if knowledge.warning is not None:
        warn(knowledge.warning)
    findings = Findings(group, id_)
    trace = TracedKernel(knowledge.holdback, findings)
    for record in knowledge.tail(tell):
        trace.receive(record)
    known = _known(knowledge, group, id_)
    _look_back(knowledge, findings, known, tell)

    def raw(partition: int, offset: int) -> LogRecord | None:
        return raw_record(settings, knowledge.owner.raw_topic, partition, offset)

    (partition,) = knowledge.partitions
    answer = put_together(findings, known, raw, published=knowledge.progress.token.get(partition, 0))
    answer.partition = partition
    answer.next_offset = knowledge.next_offset[partition]
    answer.behind_job = knowledge.lag(partition)
    answer.looked_ms = round(time.time() * 1000)
    return answer


def _warn(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=3)


def _known(knowledge: StreamKnowledge, group: str, id_: Id) -> KnownMessage | None:
    found = knowledge.holdback.group(group)
    return None if found is None else known_message(found, id_, knowledge.patience)


def _look_back(knowledge: StreamKnowledge, findings: Findings, known: KnownMessage | None, tell: Tell) -> None:
    """Look up what the state does not tell: where the message was delivered, and what was refused under its id.

    What came in the tail is complete: nothing of it is older.
    """
    standing = "unseen" if known is None else known.standing
    arrived = [(one.offset, one.arrived_ms) for one in findings.deliveries]
    if known is not None and known.offset is not None and known.arrived_ms is not None:
        arrived.append((known.offset, known.arrived_ms))
    covered = knowledge.covered(findings.key)
    if arrived and min(arrived)[0] >= covered:
        return
    if findings.refusals and standing in ("refused", "missing", "unseen"):
        return
    letters = from_delta(knowledge.settings, findings)
    every = known is not None and known.by_destination and standing in ("held", "settled", "abandoned")
    if every or (standing in ("settled", "abandoned") and not findings.deliveries):
        from_ordered(knowledge.settings, findings, every=every, tell=tell)
    arrived += [(one.offset, one.arrived_ms) for one in findings.deliveries]
    since_ms = min(arrived)[1] if arrived else None
    from_dead_letters(knowledge.settings, findings, table=letters, since_ms=since_ms, tell=tell)


def put_together(findings: Findings, known: KnownMessage | None, raw: RawRecord, *, published: int) -> Answer:
    """The answer, from what the kernel knows and what was found in records; `published` is the job's token."""
    sender, epoch, seq = findings.id
    answer = Answer(
        group=findings.group,
        sender=sender,
        epoch=epoch,
        seq=seq,
        end=_end(findings, known),
        order=None if known is None else known.order,
        refusals=sorted(findings.refusals, key=lambda refusal: refusal.offset),
        copies=findings.copies,
        partition=0,
        next_offset=0,
        looked_ms=0,
    )
    for record in sorted(findings.deliveries, key=lambda record: (record.destination or "", record.position)):
        fields = {name: getattr(record, name) for name in PlaceInSequence.__struct_fields__ if hasattr(record, name)}
        cause = _cause(raw(record.partition, record.released_offset))
        answer.deliveries.append(
            PlaceInSequence(**fields, cause=cause, is_published=record.released_offset < published)
        )
    if known is not None:
        for name in ("arrived_ms", "offset", "waits", "behind", "gaps", "gives_up_ms", "highest", "fence"):
            setattr(answer, name, getattr(known, name))
    return answer


def _end(findings: Findings, known: KnownMessage | None) -> End:
    standing = "unseen" if known is None else known.standing
    if standing == "settled":
        return "delivered"
    if standing in ("held", "abandoned"):
        return standing
    return "refused" if findings.refusals or standing == "refused" else "missing" if standing == "missing" else "unseen"


def _cause(record: LogRecord | None) -> Cause:
    head = None if record is None else head_of(record.value)
    if head is None:
        return Cause(kind=None)
    is_message = head.kind == "message" and head.sender is not None and head.seq is not None
    id_ = (head.sender, head.epoch, head.seq) if is_message else None
    return Cause(kind=head.kind, sender=head.sender, id=id_, given_up=head.ids)  # type: ignore[arg-type]  # checked
