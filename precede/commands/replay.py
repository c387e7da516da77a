"""`precede replay`: runs the stream's own kernel over a file, without Spark and Kafka."""

import gc
import os
import signal
import sys
from collections import Counter
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from precede.command_options import (
    Config,
    Order,
    Partitioner,
    WrongUse,
    done_when_the_reader_leaves,
    load_settings,
    open_input,
    open_output,
    say,
    write_all,
)

if TYPE_CHECKING:
    from precede.streaming.settings import Settings
    from precede.udfs.holdback import Holdback
    from precede.udfs.limits import Patience
    from precede.udfs.records.published import JobRecord

REASONS_SHOWN = 3


def replay(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="Raw messages, one per line, in order of arrival; - is standard input."),
    ],
    order: Order = None,
    dead_letters: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what can never be delivered to FILE.")
    ] = None,
    held: Annotated[Path | None, typer.Option(metavar="FILE", help="Write what is held at the end to FILE.")] = None,
    own: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write what a running job would request, add to the log, or tell a person to FILE."
        ),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="How many partitions the log has: a record in another one than its group's is refused. Without it, a "
            "group lives in the partition of its first accepted record.",
        ),
    ] = None,
    partitioner: Partitioner = None,
    config: Config = None,
) -> None:
    """Order the messages of a file with the stream's own kernel, without Spark and Kafka.

    Ordered records go to standard output, one per line, as soon as they are released:

      precede replay messages.jsonl > ordered.jsonl

      some-program | precede replay - --dead-letters bad.jsonl --held waiting.jsonl

    Ctrl-C has the same effect as the end of the input: a summary says what is still held.

    An order of your own (precede.register) is named by its module and class, here of the file my_orders.py:

      precede replay messages.jsonl --order my_orders:Newest

    A line may also be a dumped log record, with `value` as a string:

      {"key": ..., "value": ..., "partition": ..., "offset": ..., "timestamp_ms": ...}

    What a job decided as time passed (an evict, an abandon) is in the log as a record, so replay does not decide it
    again; --own FILE shows what it would have decided.
    """
    settings = load_settings(config, reaches_kafka=False, order=_registered(order), partitioner=partitioner)
    named = [path.absolute() for path in (dead_letters, held, own) if path is not None]
    if len(set(named)) < len(named):
        raise WrongUse(f"Two outputs cannot go into one file, {named[-1].name}; name a file for each.")
    if sys.stdout is None:
        raise WrongUse("Standard output is closed; replay writes there.")
    from precede.udfs.holdback import Holdback

    holdback = Holdback(
        order=settings.order,
        limits=settings.limits,
        patience=_patience(settings),
        partitions=partitions,
        partitioner=settings.partitioner,
    )
    with ExitStack() as files, done_when_the_reader_leaves():
        source = open_input(file, files)
        outputs = [None if path is None else open_output(path, source, files) for path in (dead_letters, held, own)]
        summary = _replay(holdback, source, outputs[0], outputs[2])
        if outputs[1] is not None:
            _write_held(holdback, outputs[1])
    summary.tell(holdback, dead_letters, held)


def _registered(order: str | None) -> str | None:
    """The name of the order; one given as MODULE:CLASS is loaded and registered first."""
    if order is None or ":" not in order:
        return order
    from precede.udfs.orders import register

    module, _, name = order.partition(":")
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does, so that a file beside the log is found
    try:
        return register(getattr(import_module(module), name)).name
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise WrongUse(f"--order {order} is no order: {error}. Name a class as MODULE:CLASS.") from error


def _patience(settings: "Settings") -> "Patience":
    if settings.service_key is None:
        return settings.patience()  # without loading the code for keys
    from precede.ingest.signing import load_key

    return settings.patience(load_key(settings.service_key))


class Summary:
    """What a person should know about messages that were not delivered."""

    def __init__(self) -> None:
        self.codes: Counter[str] = Counter()
        self.first: list[str] = []
        self.stopped_after: int | None = None
        """The number of lines that were read before Ctrl-C."""

    def add(self, letters: list[bytes]) -> None:
        import msgspec

        for letter in map(msgspec.json.decode, letters):
            self.codes[letter["code"]] += 1
            if len(self.first) < REASONS_SHOWN:
                self.first.append(f"  offset {letter['offset']}: {letter['code']}: {letter['reason']}")

    def tell(self, holdback: "Holdback", dead_letters: Path | None, held: Path | None) -> None:
        if self.stopped_after is not None:
            say(f"Stopped after {self.stopped_after} lines.")
        if self.codes and dead_letters is None:
            codes = ", ".join(f"{count} {code}" for code, count in self.codes.most_common())
            say(f"Dead letters: {codes} (--dead-letters FILE writes them all). The first:")
            for reason in self.first:
                say(reason)
        if holdback.duplicates:
            say(f"Exact copies dropped: {holdback.duplicates}.")
        waiting = 0 if held is not None else sum(1 for _ in holdback.held())
        if waiting:
            say(f"Still held: {waiting} (--held FILE says what each waits for).")


def _replay(holdback: "Holdback", source: int, dead_letters: int | None, own: int | None) -> Summary:
    from precede.reading.log_lines import LogLines, PartitionError, blocks, one_line_each

    gc.disable()  # the kernel leaves no garbage in cycles, and looking for it costs a tenth of the time
    lines = LogLines(holdback, holdback.refuse, holdback.partitions)
    summary, output = Summary(), sys.stdout.fileno()
    wrong: PartitionError | None = None
    try:
        for block in blocks(source, _read_or_be_stopped):
            try:
                lines.feed(block)
            except PartitionError as error:
                wrong = error  # what the lines before it released is written first
            # Each block is written before the next is read, so that a reader of the pipe never waits for later input.
            if holdback.ordered:
                write_all(output, one_line_each(holdback.ordered))
            if holdback.dead and dead_letters is not None:
                write_all(dead_letters, one_line_each(holdback.dead))
            elif holdback.dead:
                summary.add(holdback.dead)
            if holdback.own and own is not None:
                write_all(own, b"".join(map(own_line, holdback.own)))
            holdback.clear()
            if wrong is not None:
                raise WrongUse(str(wrong)) from wrong
    except KeyboardInterrupt:
        summary.stopped_after = lines.count
    return summary


def _read_or_be_stopped(file: int, size: int) -> bytes:
    """Ctrl-C only counts while this waits for input, so that no record is left half done."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        return os.read(file, size)
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def own_line(one: "JobRecord") -> bytes:
    """A record that a job would publish, as a line: its topic, and the offset of the raw record that caused it."""
    return b'{"topic":"%b","offset":%d,"value":%b}\n' % (one.topic.encode(), one.offset, one.value)


def _write_held(holdback: "Holdback", target: int) -> None:
    import msgspec

    encode = msgspec.json.Encoder().encode
    write_all(target, b"".join(encode(message) + b"\n" for message in holdback.held()))
