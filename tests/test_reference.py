"""The reference pages say what the code does: commands, flags, limits, variables, codes, fields and columns."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
import typer

import precede
from precede.command_line import COMMANDS, application
from precede.inspect.answer import Cause, PlaceInSequence
from precede.inspect.findings import Copy, FoundRefusal
from precede.member.object_host import Invocation
from precede.streaming.history.tables import COLUMNS
from precede.streaming.settings import OTHER_VARIABLES
from precede.udfs.codes import CODES
from precede.udfs.engine.inspection import AwaitedAt, AwaitedMember
from precede.udfs.limits import Limits
from precede.udfs.records.messages import KINDS, Create, Message, Options
from precede.udfs.records.published import DeadLetter
from tests.test_tidy import ROOT

REFERENCE = ROOT / "docs" / "reference"


def page(name: str) -> str:
    return (REFERENCE / f"{name}.md").read_text()


def section(text: str, title: str) -> str:
    """The text under a heading, up to the next one of its level or above."""
    level = re.match(r"#+", title)
    assert level is not None
    assert f"\n{title}\n" in text, f"there is no section {title!r}"
    return re.split(rf"^#{{1,{len(level[0])}}} ", text.partition(f"\n{title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def first_cells(text: str) -> set[str]:
    """The names in backticks in the first column of the tables."""
    rows = re.findall(r"^\| (`[^|]*`) \|", text.replace(r"\|", "/"), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]*)`", row)}


def commands() -> dict[str, Any]:
    """Every command and subcommand, by its words."""
    found: dict[str, Any] = {}
    for name in COMMANDS:
        command = typer.main.get_command(application([name])).commands[name]  # type: ignore[attr-defined]
        found[name] = command
        found |= {f"{name} {sub}": command for sub, command in getattr(command, "commands", {}).items()}
    return found


def test_the_page_of_commands_has_a_chapter_for_every_command_and_for_no_other() -> None:
    titles = re.findall(r"^##+ `precede ([a-z -]+?)(?: [A-Z].*)?`$", page("commands"), re.MULTILINE)
    assert titles == list(commands())


@pytest.mark.parametrize("name", commands())
def test_a_command_takes_the_arguments_and_flags_that_its_chapter_names(name: str) -> None:
    text = page("commands")
    title = re.search(rf"^##+ `precede {name}(?: [A-Z][A-Z ]*)?`$", text, re.MULTILINE)
    assert title is not None
    chapter = re.split(r"^##", text[title.end() :], maxsplit=1, flags=re.MULTILINE)[0]
    taken = [parameter for parameter in commands()[name].params if "--help" not in parameter.opts]
    flags = {flag for parameter in taken if parameter.param_type_name == "option" for flag in parameter.opts}
    assert {cell.split()[0] for cell in first_cells(chapter)} == flags
    arguments = [parameter.metavar.strip("[]") for parameter in taken if parameter.param_type_name == "argument"]
    assert title[0].strip("#` ").split()[1 + len(name.split()) :] == arguments


def test_the_flags_that_commands_share_are_explained_once() -> None:
    shared = {cell.split()[0] for cell in first_cells(page("commands").partition("\n## ")[0])}
    chapters = page("commands").partition("\n## ")[2]
    pointing = {
        flag
        for row in re.findall(r"^\|(.*)\| see above \|$", chapters, re.MULTILINE)
        for flag in re.findall(r"--[\w-]+", row)
    }
    assert pointing == shared


def test_the_limits_have_the_defaults_that_the_page_names() -> None:
    told = re.findall(r"^\| `(\w+)` \| ([\d,]+) \|", section(page("settings"), "## Limits"), re.MULTILINE)
    assert {name: int(text.replace(",", "")) for name, text in told} == msgspec.structs.asdict(Limits())


def test_the_page_of_settings_names_the_variables_that_are_no_settings() -> None:
    assert first_cells(section(page("settings"), "## Other variables")) == set(OTHER_VARIABLES)


def test_the_page_of_records_names_every_field_of_a_message() -> None:
    raw = section(page("records"), "## Raw records")
    assert first_cells(raw.partition("\n### ")[0]) == set(Message.__struct_fields__)


def test_the_page_of_records_names_every_kind_and_every_option_of_a_group() -> None:
    kinds = first_cells(section(page("records"), "### Heartbeats and control records"))
    assert kinds == set(KINDS) - {"message"}
    assert first_cells(section(page("records"), "### Options of `create`")) == set(Options.__struct_fields__)
    assert {"options", "members"} <= set(Create.__struct_fields__)


def test_the_page_of_records_names_every_field_and_code_of_a_dead_letter() -> None:
    fields, _, codes = section(page("records"), "## Dead letters").partition("| code | meaning |")
    assert first_cells(codes) == set(CODES)
    assert first_cells(fields) == set(DeadLetter.__struct_fields__)


def test_the_page_of_records_names_every_field_of_an_answer() -> None:
    text = section(page("records"), "## Answers of `precede why`")
    assert first_cells(text) == set(precede.Answer.__struct_fields__)
    named = set(re.findall(r"`(\w+)`", text))
    for part in (PlaceInSequence, Cause, FoundRefusal, Copy, AwaitedAt, AwaitedMember):
        assert named >= set(part.__struct_fields__)


def test_the_page_of_records_names_every_column_of_the_tables() -> None:
    rows = section(page("records"), "## Delta tables").splitlines()
    for table, columns in COLUMNS.items():
        (row,) = [row for row in rows if row.startswith(f"| `{table}` |")]
        named = re.findall(r"`(\w+)`", row.split("|")[3])
        flat = re.sub(r"<[^>]*>", "", columns)
        assert named == [column.split()[0].strip("`") for column in flat.split(", ")]


def test_the_page_of_members_has_a_row_for_every_error() -> None:
    errors = section((ROOT / "docs" / "how-to" / "members.md").read_text(), "## Errors")
    exported = {name for name in precede.__all__ if isinstance(getattr(precede, name), type)}
    family = {name for name in exported if issubclass(getattr(precede, name), precede.PrecedeError)}
    assert first_cells(errors) == family - {"PrecedeError"}


CALLS: dict[str, tuple[Any, set[str]]] = {
    "Member": (precede.Member, {"ValueError", "Refused", "Unreachable", "AccessDenied", "Unconfirmed", "Hole"}),
    "Member.send": (precede.Member.send, {"ValueError", "Refused", "AccessDenied", "Unconfirmed"}),
    "Member.leave": (precede.Member.leave, {"ValueError"}),
    "Member.poll": (precede.Member.poll, {"Hole", "Refused", "Unreachable", "AccessDenied"}),
    "Member.find": (precede.Member.find, {"ValueError", "Refused", "Unreachable", "AccessDenied"}),
    "follow": (precede.follow, {"Refused", "Unreachable", "AccessDenied", "Hole"}),
    "Groups": (precede.Groups, {"Refused", "Unreachable", "AccessDenied", "Unconfirmed"}),
    "Invocation.result": (Invocation.result, {"CallFailed"}),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_says_which_errors_it_raises(name: str) -> None:
    call, errors = CALLS[name]
    told = (call.__doc__ or "").partition("aises ")[2]
    assert {error for error in errors if not re.search(rf"\b{error}\b", told)} == set()
