"""`precede.register`: a user's order in the kernel and in `precede replay`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import precede
from precede.inspect import holding
from precede.udfs.orders import ORDERS
from tests.door.command import ids, raw
from tests.door.command import precede as run_precede

OWN = """
import precede


class Pairs(precede.Order):
    \"\"\"Each even seq waits for the odd one before it, and nothing else waits.\"\"\"

    name = "pairs"
    paper = "none"

    def wait(self, id_, message):
        sender, epoch, seq = id_
        return None if seq % 2 else self.group.turn(id_)

    def missing(self, held, at_most):
        return [(held.id[0], held.id[1], held.id[2] - 1)]
"""
LOG = b"\n".join([raw("ann", 4), raw("ann", 2), raw("ann", 1), raw("ann", 5), raw("ann", 3)])


@pytest.fixture
def pairs() -> Iterator[type[precede.Order]]:
    names: dict[str, object] = {"__name__": "my_orders"}
    exec(OWN, names)
    yield names["Pairs"]  # type: ignore[misc]
    ORDERS.pop("pairs", None)


def test_a_registered_order_decides_in_the_kernel(pairs: type[precede.Order]) -> None:
    assert precede.register(pairs) is pairs
    assert precede.register(pairs) is pairs, "a second registration changes nothing"
    kernel = precede.Holdback(order="pairs")
    for offset, line in enumerate(LOG.split(b"\n")):
        kernel.receive(line, offset=offset)
    assert ids(b"\n".join(kernel.ordered)) == [("ann", 1), ("ann", 2), ("ann", 5), ("ann", 3), ("ann", 4)]


def test_replay_takes_an_order_by_its_module_and_class(tmp_path: Path) -> None:
    (tmp_path / "my_orders.py").write_text(OWN)
    done = run_precede("replay", "-", "--order", "my_orders:Pairs", given=LOG, cwd=tmp_path)
    assert ids(done.stdout) == [("ann", 1), ("ann", 2), ("ann", 5), ("ann", 3), ("ann", 4)]


@pytest.mark.parametrize("order", ["my_orders:Pairs", "json:loads", "json:nothing"])
def test_what_names_no_order_is_wrong_use_in_a_sentence(order: str) -> None:
    done = run_precede("replay", "-", "--order", order, given=LOG)
    assert done.returncode == 2
    assert done.stderr.decode().startswith(f"--order {order} is no order: ")


def test_what_is_no_order_or_has_a_name_in_use_is_refused_at_once(pairs: type[precede.Order]) -> None:
    with pytest.raises(TypeError, match=r"register takes a subclass of precede\.Order, not 'fifo'"):
        precede.register("fifo")  # type: ignore[arg-type]
    pairs.name = "Not A Name"
    with pytest.raises(ValueError, match="give the order a name of small letters"):
        precede.register(pairs)
    pairs.name = "fifo"
    with pytest.raises(ValueError, match="there is an order 'fifo' already"):
        precede.register(pairs)


def test_a_group_of_an_order_that_is_registered_elsewhere_is_listed(pairs: type[precede.Order]) -> None:
    precede.register(pairs)
    kernel = precede.Holdback(order="pairs")
    for offset, line in enumerate(LOG.split(b"\n")):
        kernel.receive(line, offset=offset)
    ((key, blob),) = kernel.dump().items()
    ORDERS.pop("pairs")
    listing = holding.listing(key, blob)
    known = precede.Holdback()
    known.load({key: blob}, {})
    with pytest.raises(precede.Refused, match="The group 'g' is ordered by pairs, which this program does not know"):
        list(known.held("g"))
    assert (listing.group, listing.order, listing.closed) == ("g", "pairs", False)
