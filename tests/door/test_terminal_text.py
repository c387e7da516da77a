"""Foreign text is shown as it is: it draws no table, hides nothing and controls no terminal."""

from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from precede.command_options import say
from precede.commands.compare import _table
from precede.commands.dead_letters import _print_table
from precede.commands.held import table_of_gaps, table_of_held
from precede.commands.tail import _letter_line, delivery_line
from precede.comparison import Blocker, Hold, OrderComparison, OrderResult
from precede.demo.view import PlainView
from precede.demo.watch import Arrival, DemoWatch
from precede.groups.tables import table_of_listings
from precede.reading.dead_letter_reader import FoundLetter
from precede.reading.delivery import Delivery
from precede.terminal_text import plain, safe_text
from precede.udfs.engine.held import Held
from precede.udfs.engine.inspection import OpenGap
from precede.udfs.peers.catalogue import Listing
from precede.udfs.peers.views import view_of
from precede.udfs.records.published import LetterFields
from tests.door.command import precede

HOSTILE = {
    "[/x]": "[/x]",
    "[red]a[/red]": "[red]a[/red]",
    "[link=file:///]b": "[link=file:///]b",
    "\x1b[2J": r"\x1b[2J",
    "\x1b]0;mine\x07": r"\x1b]0;mine\x07",
    "one\r\ntwo": r"one\r\ntwo",
    "\x9b2J": r"\x9b2J",
    "\u202eback": r"\u202eback",
    "\ud800": r"\ud800",
}
names = pytest.mark.parametrize(("name", "as_shown"), HOSTILE.items(), ids=[plain(name) for name in HOSTILE])
ORDINARY = "Zoë, 群, 👩‍👩‍👧: [a] \\x1b {b} é"


def printed(table: object) -> str:
    console = Console(width=300, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def delivered(name: str, data: bytes) -> Delivery:
    """A message whose sender and group have this name."""
    return Delivery(
        group=name,
        sender=name,
        seq=1,
        position=1,
        order="s_b",
        status="delivered",
        partition=0,
        offset=0,
        arrived_ms=0,
        released_offset=0,
        released_ms=0,
        raw_data=msgspec.Raw(data),
    )


def obeys(text: str) -> bool:
    """Whether a terminal would do more than show it."""
    return any(plain(character) != character for character in text.replace("\n", ""))


@names
def test_a_control_character_is_shown_as_its_escape_and_brackets_are_brackets(name: str, as_shown: str) -> None:
    assert plain(name) == as_shown
    assert safe_text(name).plain == as_shown
    assert printed(safe_text(name)).rstrip("\n") == as_shown


def test_letters_of_every_script_are_shown_as_they_are() -> None:
    assert plain(ORDINARY) == ORDINARY
    assert safe_text(ORDINARY).plain == ORDINARY


@names
def test_the_table_of_dead_letters_shows_any_name(
    name: str, as_shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    letter = LetterFields(
        code="malformed", reason=f"The field `{name}` does not belong here.", partition=0, offset=1, arrived_ms=0
    )
    letter.group, letter.sender = name, name
    _print_table([FoundLetter(letter)], [FoundLetter(letter)])
    said = capsys.readouterr()
    assert said.out.count(as_shown) == 3
    assert not obeys(said.out)


@names
def test_the_tables_of_what_is_held_and_missing_show_any_name(name: str, as_shown: str) -> None:
    missing = [(name, 0, 2)]
    held = Held(group=name, sender=name, epoch=0, seq=1, partition=0, offset=0, since_ms=0, missing=missing, silent=[])
    gap = OpenGap(
        group=name, sender=name, epoch=0, first=1, last=1, since_ms=0, asked=0, asked_ms=0, waited=[(name, 0, 2)]
    )
    for table in (table_of_held([held], 0.0), table_of_gaps([gap], 0.0)):
        text = printed(table)
        assert as_shown in text
        assert not obeys(text)


@names
def test_the_table_of_groups_shows_any_name(name: str, as_shown: str) -> None:
    listing = Listing(name, "s_b")
    listing.view |= view_of([name])
    text = printed(table_of_listings([listing]))
    assert text.count(as_shown) >= 1
    assert not obeys(text)


@names
def test_the_table_of_orders_shows_any_name(name: str, as_shown: str) -> None:
    hold = Hold(0.0, 0.0, 0.0)
    run = OrderResult(0, 1, None, 1, 1, 0, {}, hold, None, Blocker(name, 1, 1, None), None)
    text = printed(_table(OrderComparison("f", 1, 1, 1, 0, None, 1, {"s_b": run}, {})))
    assert as_shown in text
    assert not obeys(text)


@names
def test_a_line_of_tail_shows_any_name_and_text(name: str, as_shown: str) -> None:
    letter: dict[str, object] = {"group": name, "sender": name, "reason": name}
    for line in (delivery_line(delivered(name, b"1")), _letter_line(letter)):
        assert as_shown in line
        assert not obeys(line)


@pytest.mark.parametrize(
    ("id_", "shown"),
    [
        ({"sender": "ann", "epoch": 0, "seq": 2}, "g ann:2"),
        ({"sender": "ann", "epoch": 1, "seq": 2}, "g ann@1:2"),
        ({"sender": "no-seq", "epoch": 0, "seq": None}, "g no-seq"),
        ({"sender": None}, "g"),
    ],
)
def test_a_dead_letter_in_tail_names_its_message_as_far_as_it_has_an_id(id_: dict[str, object], shown: str) -> None:
    letter = {"code": "malformed", "group": "g", "partition": 0, "offset": 7, "reason": "It has no seq."} | id_
    assert _letter_line(letter) == f"malformed  {shown}  partition 0 offset 7  It has no seq."


def test_a_message_written_over_several_lines_is_one_line_of_tail() -> None:
    delivery = delivered("g", b'{\r\n\t"a": "\x7f"}')
    assert delivery_line(delivery) == r'g 1  g:1  {   "a": "\x7f"}'


@names
def test_the_demo_shows_any_text(name: str, as_shown: str) -> None:
    console = Console(width=300, color_system=None)
    with console.capture() as captured:
        PlainView(console, DemoWatch("g")).arrived(Arrival((name, 0, 1), name, "delivered", 0))
    assert as_shown in captured.get()
    assert not obeys(captured.get())


@names
def test_a_sentence_shows_any_name(name: str, as_shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    say(f"There is no group {name}.")
    assert capsys.readouterr().err == f"There is no group {as_shown}.\n"


def test_what_a_program_reads_is_left_byte_for_byte(tmp_path: Path) -> None:
    record = '{"group":"[/x]","sender":"\x7f\u202e","seq":1,"after":[],"data":"\x9b"}'.encode()
    done = precede("replay", "-", given=record + b"\n" + b'{"group":"g","[\\u001b/x]":1}\n')
    assert done.stdout.startswith(record[:-1])
    assert rb"\x1b" in done.stderr
    assert b"\x1b" not in done.stderr
