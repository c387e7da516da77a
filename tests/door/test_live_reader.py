"""A live reader where no client can be made."""

from pathlib import Path

import pytest

from precede.ingest.kafka.access import Access, Address
from precede.ingest.live.reader import LiveReader
from precede.udfs.errors import Unreachable

TOKENS: list[str] = []


def token() -> str:
    """A token provider, as a user names it, that fails while it has nothing."""
    return TOKENS[0]


def test_a_reader_whose_client_cannot_be_made_leaves_its_state_file_to_the_next_one(tmp_path: Path) -> None:
    access = Access(protocol="SASL_PLAINTEXT", mechanism="OAUTHBEARER", token_provider=f"{__name__}:token")
    where = Address("localhost:1", access)
    kept = []  # what an error's traceback keeps is not closed by being forgotten
    for _ in range(2):
        with pytest.raises(Unreachable, match="gives none") as error:
            LiveReader(where, ordered_topic="o", progress_topic="p", state_file=tmp_path / "state")
        kept.append(error)
