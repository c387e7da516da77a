"""The groups of a log, from its ordered records."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from precede.udfs.orders import ORDERS
from precede.udfs.peers.catalogue import Catalogue
from precede.udfs.peers.views import members
from tests.churn import Churn
from tests.kernel.feeding import Tale, parsed
from tests.signing import public, publics


def told(tale: Tale, catalogue: Catalogue) -> list[str]:
    """The names of the groups that the last record of a tale changes."""
    changed = [catalogue.learn(record) for record in parsed(tale.kernel.ordered)]
    return [listing.group for listing in changed if listing is not None]


def test_a_group_is_listed_with_its_order_options_and_members() -> None:
    catalogue, tale = Catalogue(), Tale()
    tale.take(kind="create", options={"order": "fifo", "closed": True, "window": 9}, members=["A", "B"])
    assert told(tale, catalogue) == ["g"]
    listing = catalogue.groups["g"]
    assert (listing.order, listing.created, listing.closed, listing.position) == ("fifo", True, True, 1)
    assert listing.options == {"order": "fifo", "closed": True, "window": 9}
    assert listing.members == {"A": 0, "B": 0}
    assert listing.info.view == {"A": (0, False), "B": (0, False)}


def test_only_what_changes_who_is_in_is_told_and_the_position_goes_on() -> None:
    catalogue, tale = Catalogue(), Tale()
    assert told(tale.say("A1"), catalogue) == ["g"], "a group without a `create` record counts too"
    assert told(tale.say("A2"), catalogue) == []
    assert told(tale.take(kind="join", sender="B", epoch=3), catalogue) == ["g"]
    assert told(tale.take(kind="leave", sender="B", epoch=3, last=0), catalogue) == ["g"]
    listing = catalogue.groups["g"]
    assert (listing.created, listing.closed, listing.members, listing.position) == (False, False, {}, 4)


def test_a_service_that_changes_its_key_is_not_listed_as_a_member() -> None:
    catalogue, tale = Catalogue(), Tale()
    told(tale.take(kind="create", options={"keys": publics("A", "precede")}, members=["A"]), catalogue)
    rotated = tale.take(kind="join", sender="precede", epoch=1, key=public("new"), by="precede")
    assert (rotated.out, told(rotated, catalogue)) == (["join"], [])
    assert catalogue.groups["g"].members == {"A": 0}


@pytest.mark.parametrize("options", [{}, {"keys": publics("A", "precede")}])
def test_who_has_the_service_s_name_is_listed_where_there_are_no_keys_or_create_made_it_a_member(
    options: dict[str, Any],
) -> None:
    catalogue, tale = Catalogue(), Tale()
    first = ["A", "precede"] if options else ["A"]
    told(tale.take(kind="create", options=options, members=first), catalogue)
    came = tale.take(kind="join", sender="precede", epoch=1, by="precede" if options else None)
    assert (came.out, told(came, catalogue)) == (["join"], ["g"])
    assert catalogue.groups["g"].members == {"A": 0, "precede": 1}


@pytest.mark.parametrize("order", ORDERS)
def test_a_created_group_is_listed_as_closed_where_the_kernel_takes_it_so(order: str) -> None:
    catalogue, tale = Catalogue(), Tale()
    told(tale.take(kind="create", options={"order": order}, members=["A"]), catalogue)
    (group,) = tale.kernel._groups.values()
    assert catalogue.groups["g"].closed == group.closed


def test_to_hear_a_long_history_again_and_out_of_order_gives_the_same_members() -> None:
    churn = Churn(Random("catalogue"), "s_b", closed=True)
    churn.run(150)
    records = parsed(churn.ordered)
    once, again = Catalogue(), Catalogue()
    for record in records:
        once.learn(record)
    for record in Random(1).sample(records, len(records)) + records:
        again.learn(record)
    assert once.groups == again.groups
    assert once.groups["chat"].members == members(churn.view)
