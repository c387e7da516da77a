"""`precede check`: judges what was published, by code of its own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from precede.command_options import (
    Bootstrap,
    Config,
    WrongUse,
    check_name,
    done_when_the_reader_leaves,
    load_settings,
    say,
    shown_progress,
)
from precede.terminal_text import safe_text

if TYPE_CHECKING:
    from precede.check.judge import Check, Report
    from precede.ingest.follower_token import FollowerToken
    from precede.streaming.settings import Settings

HOLDS, BROKEN, CANNOT = 0, 1, 2


def check(
    groups: Annotated[list[str] | None, typer.Argument(metavar="GROUP", help="These groups; without it, all.")] = None,
    delta: Annotated[
        str | None, typer.Option(metavar="ROOT", help="Judge the Delta tables under ROOT, a folder or a URI.")
    ] = None,
    raw: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Judge files: the raw log, as `precede replay` reads it ...")
    ] = None,
    ordered: Annotated[
        Path | None, typer.Option(metavar="FILE", help="... and the ordered records, as it writes them.")
    ] = None,
    dead_letters: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --raw: the dead letters. Without them it is not known what was refused."
        ),
    ] = None,
    order: Annotated[
        str, typer.Option(metavar="ORDER", help="With --raw: the order of groups without a create record.")
    ] = "s_b",
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TOKEN",
            help="Begin at this token of `precede.follow`, and no other: what lies before counts as delivered.",
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Watch the running stream until Ctrl-C, and serve metrics (setting metrics)."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of sentences.")] = False,
    bootstrap: Bootstrap = None,
    config: Config = None,
) -> None:
    """Judge what was published: the sequences, the guarantee of each order, and the first law.

    The check reads what every consumer reads, and the raw log where it is still there. It shares no code with the
    kernel but the reading of a record, so it does not repeat a mistake of the kernel.

      precede check                                          the stream on localhost:9092

      precede check travel --json                            one group, for a program

      precede check --delta delta/                           what the tables have

      precede replay log.jsonl --dead-letters bad.jsonl > ordered.jsonl

      precede check --raw log.jsonl --ordered ordered.jsonl --dead-letters bad.jsonl

    [bold]What is judged[/bold]

    sequence: positions 1, 2, 3, each message once, the raw record's own bytes.

    guarantee: what the group's order promises, from the stamps alone, with members, ends of epochs and abandoned ids.

    first law: each raw record is delivered once, one dead letter, an exact copy, or held, and no longer than it must.

    [bold]Exit status[/bold]

    0 it holds, 1 something is broken (the promise, the records that show it, and why), 2 it cannot be judged, and
    what is missing for that.
    """
    for group in groups or []:
        check_name("GROUP", group)
    _check_use(delta, raw, ordered, dead_letters, from_, bootstrap, follow=follow)
    from precede.check.sources import CannotJudgeError

    chosen = frozenset(groups or [])
    try:
        if raw is not None and ordered is not None:
            report = _files(raw, ordered, dead_letters, chosen, order, config)
        elif delta is not None:
            report = _tables(load_settings(config, reaches_kafka=False, delta=delta), chosen)
        else:
            settings = load_settings(config, bootstrap=bootstrap)
            report = _topics(settings, chosen, _token(from_), follow=follow)
    except CannotJudgeError as error:
        say(str(error))
        raise typer.Exit(CANNOT) from error
    with done_when_the_reader_leaves():
        _show(report, as_json=as_json)
    raise typer.Exit(report.status)


def _check_use(
    delta: str | None,
    raw: Path | None,
    ordered: Path | None,
    dead_letters: Path | None,
    from_: str | None,
    bootstrap: str | None,
    *,
    follow: bool,
) -> None:
    """Raise WrongUse for flags that do not go together."""
    if (raw is None) != (ordered is None):
        given, other = ("--raw", "--ordered") if ordered is None else ("--ordered", "--raw")
        raise WrongUse(f"{given} needs {other}, too: the raw log, and what was made from it.")
    sources = [name for name, value in (("--raw", raw), ("--delta", delta), ("--bootstrap", bootstrap)) if value]
    if len(sources) > 1:
        raise WrongUse(f"{' and '.join(sources)} are two sources; judge one after the other.")
    if dead_letters is not None and raw is None:
        raise WrongUse("--dead-letters goes with --raw and --ordered; topics and tables have their own.")
    if (from_ is not None or follow) and sources and sources != ["--bootstrap"]:
        raise WrongUse(f"{'--from' if from_ else '--follow'} reads the topics; leave out {sources[0]}.")
    for path in (raw, ordered, dead_letters):
        if path is not None and not path.is_file():
            raise WrongUse(f"There is no file {path}.")


def _token(text: str | None) -> "FollowerToken | None":
    from precede.ingest.follower_token import read_token
    from precede.udfs.errors import Refused

    if text is None:
        return None
    try:
        return read_token(text)
    except Refused as error:
        raise WrongUse(f"--from: {error}") from error


def _files(
    raw: Path, ordered: Path, dead_letters: Path | None, groups: frozenset[str], order: str, config: Path | None
) -> "Report":
    from precede.check.judge import Check
    from precede.check.sources import judge_files

    limits = load_settings(config, reaches_kafka=False).limits
    one = Check(groups=groups, order=order, limits=limits, has_letters=dead_letters is not None)
    with shown_progress() as tell:
        try:
            judge_files(raw, ordered, dead_letters, one, limits, tell)
        except KeyboardInterrupt:
            _say_stopped(one)
    return one.report()


def _tables(settings: "Settings", groups: frozenset[str]) -> "Report":
    from precede.check.judge import Check
    from precede.check.sources import judge_tables

    one = Check(groups=groups, limits=settings.limits, has_raw=False)
    with shown_progress() as tell:
        try:
            judge_tables(settings, groups, one, tell)
        except KeyboardInterrupt:
            _say_stopped(one)
    return one.report()


def _topics(settings: "Settings", groups: frozenset[str], token: "FollowerToken | None", *, follow: bool) -> "Report":
    from precede.check.sources import TopicsCheck

    with shown_progress() as tell:
        topics = TopicsCheck(settings, groups, token, tell)
        try:
            topics.run()
        except KeyboardInterrupt:
            _say_stopped(topics.check)
            return topics.check.report()
    if follow:
        from precede.check.watching import watch

        watch(settings, topics, say)
    return topics.check.report()


def _say_stopped(one: "Check") -> None:
    say(f"Stopped after {one.ordered:,} ordered records: this is what was judged by then.")
    one.findings.cannot("what comes after", "it was stopped before the end")


# ── the verdict ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _show(report: "Report", *, as_json: bool) -> None:
    if as_json:
        import msgspec

        typer.echo(msgspec.json.encode(report))
        return
    for line in lines_of(report):
        typer.echo(safe_text(line))


def lines_of(report: "Report") -> list[str]:
    """The verdict for a person."""
    from precede.check.witness import PROMISES

    lines: list[str] = []
    for violation in report.violations:
        where = "" if violation.group is None else f" in group {violation.group}"
        lines += [f"Broken{where}: {PROMISES[violation.guarantee]}.", f"  {violation.sentence}"]
        if violation.more:
            lines.append(f"  Broken in {violation.more:,} more places of this group, perhaps by the same mistake.")
    unnamed = report.groups_broken - len(report.violations)
    if unnamed > 0:
        lines.append(f"{unnamed:,} more groups are broken.")
    for what, missing, count in report.unjudged:
        lines.append(f"Cannot be judged ({count:,}): {what}: {missing}.")
    verdict = {True: "Holds", False: "Broken", None: "Nothing broken was found, and not all can be judged"}[
        report.holds
    ]
    counts = f"{report.ordered:,} ordered records of {report.groups:,} groups"
    if report.raw:
        counts += (
            f", made from {report.raw:,} raw ones: {report.dead_letters:,} dead letters, "
            f"{report.copies:,} exact copies, {report.held:,} held"
        )
    lines.append(f"{verdict}: {counts}.")
    if report.erased:
        lines.append(f"{report.erased:,} records have a place and no data (erased): only their place was judged.")
    if report.before:
        lines.append(
            f"{report.before:,} messages follow something that lies before the beginning; it counts as delivered."
        )
    return lines
