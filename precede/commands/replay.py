"""`precede replay`: the stream's own kernel over a file, without Spark and Kafka."""

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
    say,
)

if TYPE_CHECKING:
    from precede.streaming.job.settings import Settings
    from precede.udfs.holdback import Holdback
    from precede.udfs.records.job_records import JobRecord
    from precede.udfs.ticks.patience import Patience

REASONS_SHOWN = 3


def replay(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Raw messages, one a line, in arrival order; - is standard input.")
    ],
    order: Order = None,
    dead_letters: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what can never be delivered here.")
    ] = None,
    held: Annotated[Path | None, typer.Option(metavar="FILE", help="Write what is held at the end here.")] = None,
    own: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write here what a running job would ask for, add to the log, or say to a person."
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
    """Order messages from a file: the stream's own kernel, with no Spark and no Kafka.

    Ordered records go to standard output, one a line, as soon as they are free:

      precede replay messages.jsonl > ordered.jsonl

      some-program | precede replay - --dead-letters bad.jsonl --held waiting.jsonl

    Ctrl-C ends it as the end of the input would, and what is held by then is told.

    An order of your own (precede.register) is named by its module and class, here of the file my_orders.py:

      precede replay messages.jsonl --order my_orders:Newest

    A line may also be a dumped log record, with `value` as a string:

      {"key": ..., "value": ..., "partition": ..., "offset": ..., "timestamp_ms": ...}

    What a job decided as time passed (an evict, an abandon) is in the log as records of its own, so replay decides
    nothing anew; --own FILE shows what it would have.
    """
    settings = load_settings(config, reaches_kafka=False, order=_registered(order), partitioner=partitioner)
    named = [path.absolute() for path in (dead_letters, held, own) if path is not None]
    if len(set(named)) < len(named):
        raise WrongUse(f"Two outputs cannot go into one file, {named[-1].name}; name one for each.")
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
        source = open_source(file, files)
        outputs = [None if path is None else _target(path, source, files) for path in (dead_letters, held, own)]
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
        return settings.patience()  # without loading what reads keys
    from precede.ingest.signing import load_key

    return settings.patience(load_key(settings.service_key))


class Summary:
    """What a person should know of what did not come out."""

    def __init__(self) -> None:
        self.codes: Counter[str] = Counter()
        self.first: list[str] = []
        self.stopped_after: int | None = None
        """How many lines were read when Ctrl-C came."""

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
            say(f"Dead letters: {codes} (--dead-letters FILE keeps them). The first:")
            for reason in self.first:
                say(reason)
        if holdback.duplicates:
            say(f"Exact copies dropped: {holdback.duplicates}.")
        waiting = 0 if held is not None else sum(1 for _ in holdback.held())
        if waiting:
            say(f"Still held: {waiting} (--held FILE tells what each waits for).")


def _replay(holdback: "Holdback", source: int, dead_letters: int | None, own: int | None) -> Summary:
    from precede.reading.log_lines import LogLines, PartitionError, blocks, one_line_each

    gc.disable()  # the kernel makes no cycles that end before it does, and looking for them costs a tenth of the time
    lines = LogLines(holdback, holdback.refuse, holdback.partitions)
    summary, output = Summary(), sys.stdout.fileno()
    wrong: PartitionError | None = None
    try:
        for block in blocks(source, _read_or_be_stopped):
            try:
                lines.feed(block)
            except PartitionError as error:
                wrong = error  # what the lines before it let go is written first
            # Each block is written before the next is asked for: whoever reads a pipe waits for nothing but its input.
            if holdback.ordered:
                write(output, one_line_each(holdback.ordered))
            if holdback.dead and dead_letters is not None:
                write(dead_letters, one_line_each(holdback.dead))
            elif holdback.dead:
                summary.add(holdback.dead)
            if holdback.own and own is not None:
                write(own, b"".join(map(own_line, holdback.own)))
            holdback.clear()
            if wrong is not None:
                raise WrongUse(str(wrong)) from wrong
    except KeyboardInterrupt:
        summary.stopped_after = lines.count
    return summary


def _read_or_be_stopped(file: int, size: int) -> bytes:
    """Ctrl-C counts while we wait for input and at no other time, so that no record is left half done."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        return os.read(file, size)
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def own_line(one: "JobRecord") -> bytes:
    """A record of the job's own as a line: where it would go, and which raw record made it."""
    return b'{"topic":"%b","offset":%d,"value":%b}\n' % (one.topic.encode(), one.offset, one.value)


def _write_held(holdback: "Holdback", target: int) -> None:
    import msgspec

    encode = msgspec.json.Encoder().encode
    write(target, b"".join(encode(message) + b"\n" for message in holdback.held()))


def write(file: int, text: bytes) -> None:
    """All of it: the system may take less than it is offered."""
    view = memoryview(text)
    while view:
        view = view[os.write(file, view) :]


def open_source(file: str, files: ExitStack) -> int:
    """The file of that name, or standard input for -, ready to be read."""
    if file == "-" and sys.stdin is None:
        raise WrongUse("Standard input is closed, and - is to be read from there.")
    if file == "-":
        return sys.stdin.fileno()
    try:
        return files.enter_context(Path(file).open("rb", buffering=0)).fileno()
    except OSError as error:
        raise WrongUse(f"The file {file} cannot be read: {error.strerror}.") from error


def _target(path: Path, source: int, files: ExitStack) -> int:
    """Open for writing, but never what is being read: opening would empty it."""
    try:
        if path.is_file() and os.path.samestat(path.stat(), os.fstat(source)):
            raise WrongUse(f"{path} is the file that is read; write to another.")
        return files.enter_context(path.open("wb", buffering=0)).fileno()
    except OSError as error:
        raise WrongUse(f"The file {path} cannot be written: {error.strerror}.") from error
