"""The pictures of docs/live.md; `make screenshots` keeps them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from babelqueue_spark.connector.options import read_options
from babelqueue_spark.schemas.sensitive import MARK
from tests.catalog.registries import registry
from tests.live.conftest import Open
from tests.live.pages import Exporter, running
from tests.servers import RedisServer
from tests.streams import envelope, publish
from tests.worker.queues import order
from tests.worker.test_redrive import dead

FIRST = 400
CHANGES = [180, 240, 90, 160, -210, -320, -150, 60, 130, 210, 280, 120, -180, -260, -90, 40]
"""Messages that come between two polls, or leave."""
SECONDS = [1.9, 2.1, 2.0, 2.6, 3.1, 2.4, 2.2, 2.0, 1.8, 2.1, 2.0, 2.3, 2.9, 2.2, 2.0, 2.1]
REASONS = ["failed", "failed", "bad_amount", "failed", "unknown_urn", "bad_amount", "failed"]
SCREENS = {
    "live-light": {"viewport": {"width": 1080, "height": 900}, "color_scheme": "light"},
    "live-dark": {"viewport": {"width": 1080, "height": 900}, "color_scheme": "dark"},
    "live-phone": {
        "viewport": {"width": 375, "height": 780},
        "color_scheme": "light",
        "device_scale_factor": 2,
    },
}
MINUTE = 60_000
KEPT_IN = os.environ.get("SCREENSHOTS")


def fill(url: str, exporter: Exporter, page: Page) -> None:
    """Give the page something to draw, poll by poll."""
    number = page.locator("#queues .number").first
    waiting = 0
    for change, seconds in zip([FIRST, *CHANGES], [2.0, *SECONDS], strict=True):
        if change > 0:
            publish(url, "orders", [envelope(n) for n in range(change)])
        else:
            take(url, "orders", -change)
        waiting += change
        exporter.batch(seconds, abs(change), addBatch=seconds * 0.8, queryPlanning=seconds * 0.1)
        expect(number).to_have_text(f"{waiting:,}")


def take(url: str, queue: str, messages: int) -> None:
    with read_options({"url": url, "queue": queue}).queue_binding() as binding:
        binding.acknowledge(queue, binding.claim(queue, messages, 1 << 30))


@pytest.fixture
def catalog(tmp_path: Path) -> str:
    sensitive = {"properties": {"card": {MARK: True}}}
    return str(registry(tmp_path, {"urn:babel:orders:created": sensitive}))


@pytest.mark.slow
def test_pictures(exporter: Exporter, catalog: str, tab: Open, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"options": {"catalog": catalog}, "metrics": [exporter.url]}
    with RedisServer() as server, running(server.url, "orders", "mails", **settings) as live:
        now = time.time_ns() // 1_000_000
        letters = [
            dead(order("orders", card="4111", n=n), "orders", why, now - MINUTE * (len(REASONS) - n))
            for n, why in enumerate(REASONS)
        ]
        publish(server.url, "orders.dlq", letters)
        publish(server.url, "mails", [envelope(n, "mails") for n in range(12)])
        fill(server.url, exporter, tab(live.url))
        for name, screen in SCREENS.items():
            page = tab(live.url, **screen)
            page.get_by_role("button", name="Browse orders.dlq").click()
            expect(page.locator("#rows > li")).to_have_count(len(REASONS))
            page.locator("#rows").get_by_role("checkbox").nth(1).check()
            page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
            picture = Path(KEPT_IN or tmp_path, f"{name}.png")
            page.screenshot(path=picture, full_page=not name.endswith("phone"))
            assert picture.stat().st_size > 10_000
