"""The live page in a browser, with live brokers behind it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from redis import Redis

from babelqueue_spark.testing import eventually
from tests.brokers import url_of
from tests.live.conftest import Open
from tests.live.pages import put_dead_letters, running
from tests.servers import RedisServer
from tests.streams import backlog, envelope, publish
from tests.worker.queues import taken


@pytest.fixture(params=["redis", "rabbitmq"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.fixture
def redis_url(redis_server: Any) -> Iterator[str]:
    return redis_server.url


def card(page: Page, queue: str) -> Locator:
    return page.locator(".card", has=page.get_by_role("heading", name=queue, exact=True))


def count(page: Page, queue: str) -> Locator:
    return card(page, queue).locator(".number")


def browse(page: Page, queue: str, messages: int) -> None:
    page.get_by_role("button", name=f"Browse {queue}.dlq").click()
    expect(page.locator("#rows > li")).to_have_count(messages)


def choose(page: Page, *places: int) -> None:
    for place in places:
        page.locator("#rows").get_by_role("checkbox").nth(place).check()


def test_live_numbers(url: str, queue: str, tab: Open) -> None:
    publish(url, queue, [envelope(n, queue) for n in range(3)])
    with running(url, queue) as live:
        page = tab(live.url)
        expect(count(page, queue)).to_have_text("3")
        expect(page.locator("#link")).to_have_text("live")
        publish(url, queue, [envelope(n, queue) for n in range(1200)])
        expect(count(page, queue)).to_have_text("1,203")
        expect(card(page, queue)).to_contain_text(re.compile("▲ .* more a second"))
        expect(card(page, queue).get_by_role("img")).to_have_attribute(
            "aria-label", "messages over the last minutes: 3 to 1,203, now 1,203"
        )
        taken(url, queue, 1203)
        expect(count(page, queue)).to_have_text("0")


def test_the_oldest_message(redis_url: str, queue: str, tab: Open) -> None:
    publish(redis_url, queue, [envelope(1, queue, meta={"id": "1", "queue": queue, "created_at": 0})])
    with running(redis_url, queue) as live:
        expect(card(tab(live.url), queue)).to_contain_text(re.compile(r"oldest2\d{4} days"))


def test_dead_letters_by_reason(url: str, queue: str, tab: Open) -> None:
    put_dead_letters(url, queue, "failed", "bad_amount", "failed")
    with running(url, queue) as live:
        page = tab(live.url)
        expect(count(page, f"{queue}.dlq")).to_have_text("3")
        browse(page, queue, 3)
        expect(card(page, f"{queue}.dlq").locator(".bars")).to_have_text("failed2bad_amount1")
        page.get_by_role("button", name="bad_amount 1").click()
        expect(page.locator("#rows > li")).to_have_count(1)
        expect(page.locator("#rows")).to_contain_text(f"from {queue}")
    assert backlog(url, f"{queue}.dlq") == 3


def test_reasons_are_read_by_themselves_where_that_is_free(redis_url: str, queue: str, tab: Open) -> None:
    put_dead_letters(redis_url, queue, "failed")
    with running(redis_url, queue) as live:
        bars = card(tab(live.url), f"{queue}.dlq").locator(".bars")
        expect(bars).to_have_text("failed1")
        put_dead_letters(redis_url, queue, "failed")
        expect(bars).to_have_text("failed2")


def test_a_body_is_hidden_until_it_is_asked_for(url: str, queue: str, tab: Open) -> None:
    [letter] = put_dead_letters(url, queue, "failed")
    with running(url, queue) as live:
        page = tab(live.url)
        browse(page, queue, 1)
        page.locator("#rows .open").click()
        message = page.get_by_role("dialog")
        expect(message).to_contain_text("Hidden")
        assert "7000" not in page.content()
        message.get_by_role("button", name="Show body").click()
        expect(message.locator("pre")).to_have_text(letter.decode())
        message.get_by_role("button", name="Close").click()
        expect(message).to_be_hidden()
    assert taken(url, f"{queue}.dlq", 1) == [letter]


def test_redrive_after_a_confirmation(url: str, queue: str, tab: Open) -> None:
    letters = put_dead_letters(url, queue, "failed", "bad_amount", "failed")
    with running(url, queue) as live:
        page = tab(live.url)
        browse(page, queue, 3)
        choose(page, 0, 2)
        page.get_by_role("button", name="Redrive…").click()
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("alertdialog")).to_be_hidden()
        assert backlog(url, f"{queue}.dlq") == 3
        page.get_by_role("button", name="Redrive…").click()
        page.get_by_role("button", name="Redrive 2").click()
        expect(page.locator("#done-text")).to_have_text(f"2 went to {queue}.")
        expect(page.locator("#rows > li")).to_have_count(1)
        expect(count(page, queue)).to_have_text("2")
    assert b"7001" not in b"".join(taken(url, queue, 2))
    assert taken(url, f"{queue}.dlq", 1) == [letters[1]]


def test_drop_after_a_confirmation(url: str, queue: str, tab: Open) -> None:
    letters = put_dead_letters(url, queue, "failed", "bad_amount", "failed")
    with running(url, queue) as live:
        page = tab(live.url)
        browse(page, queue, 3)
        choose(page, 1)
        page.get_by_role("button", name="Drop…").click()
        expect(page.get_by_role("button", name="Cancel")).to_be_focused()
        page.get_by_role("button", name="Drop 1").click()
        expect(page.locator("#done-text")).to_have_text("1 dropped.")
        expect(page.locator("#rows > li")).to_have_count(2)
    assert taken(url, f"{queue}.dlq", 2) == [letters[0], letters[2]]


def test_one_message_is_dropped_from_its_dialog(redis_url: str, queue: str, tab: Open) -> None:
    letters = put_dead_letters(redis_url, queue, "failed", "bad_amount")
    with running(redis_url, queue) as live:
        page = tab(live.url)
        browse(page, queue, 2)
        page.locator("#rows .open").nth(1).click()
        page.locator("#drop-one").click()
        page.get_by_role("button", name="Drop 1").click()
        expect(page.locator("#rows > li")).to_have_count(1)
        expect(page.get_by_role("dialog")).to_be_hidden()
    assert taken(redis_url, f"{queue}.dlq", 1) == letters[:1]


def test_messages_of_a_queue_are_shown_but_not_moved(url: str, queue: str, tab: Open) -> None:
    publish(url, queue, [envelope(n, queue) for n in range(2)])
    with running(url, queue) as live:
        page = tab(live.url)
        page.get_by_role("button", name=f"Browse {queue}", exact=True).click()
        expect(page.locator("#rows > li")).to_have_count(2)
        expect(page.locator("#messages").get_by_role("checkbox")).to_have_count(0)
        expect(page.locator("#redrive")).to_be_hidden()
        page.get_by_role("button", name="Close").click()
        expect(page.locator("#messages")).to_be_hidden()
    assert backlog(url, queue) == 2


def tab_to(page: Page, wanted: Locator) -> None:
    """Press Tab until the element has the focus."""
    for _ in range(60):
        if wanted.evaluate("each => each === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError("the keyboard does not reach it")


def test_by_keyboard_alone(redis_url: str, queue: str, tab: Open) -> None:
    put_dead_letters(redis_url, queue, "failed", "failed")
    with running(redis_url, queue) as live:
        page = tab(live.url)
        button = page.get_by_role("button", name=f"Browse {queue}.dlq")
        expect(button).to_be_visible()
        tab_to(page, button)
        assert button.evaluate("each => getComputedStyle(each).outlineStyle") == "solid"
        page.keyboard.press("Enter")
        expect(page.locator("#messages-title")).to_be_focused()
        tab_to(page, page.locator("#rows .open").first)
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#rows .open").first).to_be_focused()
        tab_to(page, page.locator("#rows").get_by_role("checkbox").nth(1))
        page.keyboard.press("Space")
        tab_to(page, page.locator("#redrive"))
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Cancel")).to_be_focused()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#done-text")).to_have_text(f"1 went to {queue}.")


def test_a_state_that_is_new_takes_the_focus_from_nothing(redis_url: str, queue: str, tab: Open) -> None:
    publish(redis_url, queue, [envelope(1, queue)])
    with running(redis_url, queue) as live:
        page = tab(live.url)
        button = page.get_by_role("button", name=f"Browse {queue}", exact=True)
        button.focus()
        publish(redis_url, queue, [envelope(2, queue)])
        expect(count(page, queue)).to_have_text("2")
        expect(button).to_be_focused()


WIDE = "() => document.documentElement.scrollWidth > document.documentElement.clientWidth"


def test_a_phone_scrolls_down_only(redis_url: str, queue: str, tab: Open) -> None:
    long = f"{queue}-{'x' * 60}"
    put_dead_letters(redis_url, long, "a_reason_" + "y" * 80, "failed")
    with running(redis_url, long) as live:
        page = tab(live.url, viewport={"width": 375, "height": 700}, has_touch=True)
        browse(page, long, 2)
        assert not page.evaluate(WIDE)
        page.locator("#rows .open").first.tap()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Show body").tap()
        expect(dialog.locator("pre")).to_contain_text("7000")
        assert not page.evaluate(WIDE)
        assert not dialog.evaluate("each => each.scrollWidth > each.clientWidth")


CONTRAST = """selector => {
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(each => each / 255)
    .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
    .reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);
  const each = document.querySelector(selector);
  let behind = each;
  while (parts(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
  const pair = [getComputedStyle(each).color, getComputedStyle(behind).backgroundColor].map(parts).map(light);
  return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_can_be_read(redis_url: str, queue: str, tab: Open, scheme: Any) -> None:
    put_dead_letters(redis_url, queue, "failed")
    with running(redis_url, queue) as live:
        page = tab(live.url, color_scheme=scheme)
        browse(page, queue, 1)
        channels = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        assert (max(channels) < 64) == (scheme == "dark")
        for selector in ("h1", "#broker", "#link", ".unit", ".number", ".reason", ".rest", ".when"):
            assert page.evaluate(CONTRAST, selector) >= 4.5, selector


def test_texts_of_messages_are_texts(redis_url: str, queue: str, tab: Open) -> None:
    hostile = "<img src=x onerror=document.title='owned'>"
    put_dead_letters(redis_url, queue, hostile)
    with running(redis_url, queue) as live:
        page = tab(live.url)
        browse(page, queue, 1)
        expect(page.locator("#rows .reason")).to_have_text(hostile)
        expect(page.locator("img")).to_have_count(0)
        expect(page).to_have_title("BabelQueue")


def test_nothing_is_loaded_from_elsewhere(redis_url: str, queue: str, tab: Open) -> None:
    asked: list[str] = []
    with running(redis_url, queue) as live:
        page = tab("about:blank")
        page.on("request", lambda request: asked.append(request.url))
        page.goto(live.url)
        expect(page.locator("#link")).to_have_text("live")
        here, _, token = live.url.partition("#token=")
        assert all(url.startswith(here) or url == "data:," for url in asked)
        assert not any(token in url.partition("#")[0] for url in asked)
        assert page.url == here


def test_without_the_token_it_asks_for_it(redis_url: str, queue: str, tab: Open) -> None:
    publish(redis_url, queue, [envelope(1, queue)])
    with running(redis_url, queue) as live:
        page = tab(live.url.partition("#")[0])
        token = page.get_by_role("textbox")
        for given in ("wrong", live.url):
            expect(token).to_be_focused()
            expect(count(page, queue)).to_have_count(0)
            token.fill(given)
            page.keyboard.press("Enter")
        expect(count(page, queue)).to_have_text("1")
        page.reload()
        expect(count(page, queue)).to_have_text("1")


def test_a_broker_that_goes_away_and_comes_back(queue: str, tab: Open) -> None:
    with RedisServer() as server, running(server.url, queue) as live:
        page = tab(live.url)
        expect(count(page, queue)).to_have_text("0")
        server.stop()
        problem = page.get_by_role("alert")
        expect(problem).to_contain_text("[BABELQUEUE_BROKER_UNREACHABLE]")
        expect(problem).to_contain_text(server.address)
        expect(page.locator("#link")).to_have_text("live")
        server.start()
        publish(server.url, queue, [envelope(1, queue)])
        expect(count(page, queue)).to_have_text("1")
        expect(problem).to_be_hidden()


def test_a_queue_that_cannot_be_polled_hides_no_other(redis_url: str, queue: str, tab: Open) -> None:
    publish(redis_url, f"{queue}-b", [envelope(1, queue)])
    with Redis.from_url(redis_url) as client:
        client.set(queue, "no list")
    with running(redis_url, queue, f"{queue}-b") as live:
        page = tab(live.url)
        expect(card(page, queue).locator(".error")).to_contain_text("another kind of value")
        expect(count(page, f"{queue}-b")).to_have_text("1")
        expect(page.get_by_role("alert")).to_be_hidden()


def test_a_queue_that_is_closed_to_the_user_hides_no_other(
    redis_server: RedisServer, queue: str, tab: Open
) -> None:
    publish(redis_server.url, f"{queue}-b", [envelope(1, queue)])
    url = redis_server.url.replace("://", "://reader:s3cret@")
    with (
        redis_server.client() as client,
        only(client, f"{queue}-b*"),
        running(url, queue, f"{queue}-b") as live,
    ):
        page = tab(live.url)
        for closed in (queue, f"{queue}.dlq"):
            expect(card(page, closed).locator(".error")).to_contain_text("[BABELQUEUE_")
        expect(count(page, f"{queue}-b")).to_have_text("1")
        expect(page.get_by_role("alert")).to_be_hidden()


@contextmanager
def only(client: Redis, keys: str) -> Iterator[None]:
    """A user `reader` that has these keys alone."""
    client.acl_setuser("reader", enabled=True, passwords=["+s3cret"], keys=[keys], categories=["+@all"])
    try:
        yield
    finally:
        client.acl_deluser("reader")


def test_a_job_that_ends_is_seen(redis_url: str, queue: str, tab: Open) -> None:
    with running(redis_url, queue) as live:
        page = tab(live.url)
        expect(page.locator("#link")).to_have_text("live")
    expect(page.locator("#link")).not_to_have_text("live")


def test_others_fill_a_queue_that_is_browsed(redis_url: str, queue: str, tab: Open) -> None:
    """Its messages are read again, but not under the hands of somebody who has chosen some."""
    put_dead_letters(redis_url, queue, "failed")
    with running(redis_url, queue) as live:
        page = tab(live.url)
        browse(page, queue, 1)
        put_dead_letters(redis_url, queue, "failed")
        expect(page.locator("#rows > li")).to_have_count(2)
        choose(page, 0)
        put_dead_letters(redis_url, queue, "failed")
        expect(page.locator("#messages-note")).to_have_text("The queue has 3 messages now: read it again.")
        eventually(lambda: page.locator("#rows > li").count() == 2)
        page.get_by_role("button", name="Read again").click()
        expect(page.locator("#rows > li")).to_have_count(3)
