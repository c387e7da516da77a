"""What gateways tell of the log fits into the payloads of a segment, however much it is."""

from precede.udfs.peers.fragments import PAYLOAD_BYTES_MAX
from precede.udfs.peers.notes import Have, InLog, encode, in_notes


def test_what_the_log_has_of_thousands_of_senders_with_gaps_goes_into_notes_that_a_segment_can_carry() -> None:
    have: list[Have] = [(f"sender-{number}", 2**31 - 1, list(range(1, 4_000, 2))) for number in range(300)]
    have += [("näm" * 80, 0, 2**53 - 1) for _ in range(3_000)]
    notes = list(in_notes(have))
    assert [one for note in notes for one in note] == have
    assert max(len(encode(InLog("G", "gateway", None, note))) for note in notes) <= PAYLOAD_BYTES_MAX
    assert len(notes) < 50


def test_a_log_that_has_nothing_of_a_group_is_told_by_one_note() -> None:
    assert list(in_notes([])) == [[]]
