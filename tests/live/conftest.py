"""What the tests of the live page share: Debian's Chromium, and tabs of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.live.pages import Exporter

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WAIT = 60_000
"""Milliseconds for which anything is awaited on a page."""

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Headless; it ends with the module, as its client occupies the event loop of the thread."""
    expect.set_options(timeout=WAIT)
    with sync_playwright() as client:
        # Containers give a browser neither its sandbox nor shared memory.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        executable = next(filter(None, map(shutil.which, BROWSERS)))
        with client.chromium.launch(executable_path=executable, args=arguments) as started:
            yield started


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    """An endpoint of metrics."""
    started = Exporter()
    yield started
    started.close()


@pytest.fixture
def tab(browser: Browser) -> Iterator[Open]:
    """Opens a page in a profile of its own; fails where the page, or the policy of its server, complains."""
    complaints: list[str] = []
    contexts = []

    def opened(url: str, **settings: Any) -> Page:
        context = browser.new_context(**settings)
        contexts.append(context)
        context.set_default_timeout(WAIT)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [line for line in complaints if "Failed to load resource" not in line] == []
