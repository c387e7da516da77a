"""The examples on the pages of the orders run exactly as written there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from precede.udfs.orders import ORDERS
from tests.scenarios.test_scenarios import told

FOLDER = Path(__file__).parents[2] / "docs" / "orders"
STORY = re.compile(r"(?<=^```story\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("order", ORDERS)
def test_every_story_on_the_page_of_an_order_goes_as_it_is_written(order: str, request: pytest.FixtureRequest) -> None:
    page = FOLDER / f"{order}.md"
    text = page.read_text()
    rewritten = STORY.sub(lambda story: told(story[0]), text)
    if request.config.getoption("rewrite_scenarios"):
        page.write_text(rewritten)
    else:
        assert text == rewritten


@pytest.mark.parametrize("order", ORDERS)
def test_the_page_of_an_order_tells_its_own_order_with_and_without_loss(order: str) -> None:
    text = (FOLDER / f"{order}.md").read_text()
    for title in ("Example", "With loss"):
        section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        stories = STORY.findall(section)
        assert stories, f"{title} has no story"
        assert all(re.match(rf"order {order}$|create order={order}\b", story, re.MULTILINE) for story in stories)
