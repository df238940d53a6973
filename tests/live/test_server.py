"""The web server of the live page: who gets what."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from babelqueue_spark.jobs.page.live import Live
from babelqueue_spark.jobs.page.server import _Handler
from babelqueue_spark.schemas.sensitive import MARK
from babelqueue_spark.testing import eventually
from tests.catalog.registries import FORMS, SECRET, STRAYED, registry, strayed
from tests.live.pages import put_dead_letters, running
from tests.streams import backlog, publish
from tests.worker.queues import order, taken
from tests.worker.test_redrive import dead

SITE = "http://evil.example"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queue.db"


@pytest.fixture
def live(url: str) -> Iterator[Live]:
    with running(url, "orders", "mails") as started:
        yield started


class Answer:
    """What the server says to a request, the first bytes of it where it goes on for ever."""

    def __init__(self, live: Live, path: str, what: Any = None, **headers: str) -> None:
        address, _, self.token = live.url.partition("/#token=")
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
        sent = {
            "Authorization": f"Bearer {self.token}",
            **{k.replace("_", "-"): v for k, v in headers.items()},
        }
        method, body = ("GET", None) if what is None else ("POST", json.dumps(what).encode())
        connection.request(method, path, body, sent)
        with connection.getresponse() as response:
            self.status, self.headers = response.status, response.headers
            self.text = (response.readline() if path == "/api/state" else response.read()).decode()
        connection.close()

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@contextmanager
def events(live: Live) -> Iterator[Iterator[dict[str, Any]]]:
    """What a tab of the page receives, event after event."""
    address, _, token = live.url.partition("/#token=")
    request = Request(f"{address}/api/state", headers={"Authorization": f"Bearer {token}"})
    with urlopen(request, timeout=60) as response:
        yield (json.loads(line[6:]) for line in response if line.startswith(b"data: "))


CALLS = {
    "/api/state": None,
    "/api/messages": {"queue": "orders.dlq"},
    "/api/body": {"queue": "orders.dlq", "name": "any"},
    "/api/redrive": {"queue": "orders.dlq", "chosen": ["any"]},
    "/api/drop": {"queue": "orders.dlq", "chosen": ["any"]},
}


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": ""},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer \u00fc"},
        {"Authorization": "Basic {token}"},
        {"Host": "evil.example:80"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "[::"},
        {"Origin": SITE},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
    ids=lambda headers: " ".join(*headers.items()),
)
def test_refused(live: Live, headers: dict[str, str]) -> None:
    token = live.url.partition("token=")[2]
    headers = {name: value.format(token=token) for name, value in headers.items()}
    for path, what in CALLS.items():
        answer = Answer(live, path, what, **headers)
        assert answer.status == 403
        assert set(answer.json) == {"error"}
        assert token not in answer.text


def test_what_is_refused_moves_nothing(live: Live, url: str) -> None:
    letters = put_dead_letters(url, "orders", "failed")
    [message] = Answer(live, "/api/messages", {"queue": "orders.dlq"}).json["messages"]
    chosen = {"queue": "orders.dlq", "chosen": [message["name"]]}
    for path in ("/api/redrive", "/api/drop"):
        assert Answer(live, path, chosen, Authorization="").status == 403
        assert Answer(live, path, chosen, Origin=SITE).status == 403
    assert taken(url, "orders.dlq", 1) == letters
    assert backlog(url, "orders") == 0


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_the_page_itself_may_ask(live: Live, name: str) -> None:
    host = f"{name}:{live.url.rpartition(':')[2].partition('/')[0]}"
    asked = {"Host": host, "Origin": f"http://{host}", "Sec_Fetch_Site": "same-origin"}
    answer = Answer(live, "/api/messages", {"queue": "orders.dlq"}, **asked)
    assert (answer.status, answer.json["messages"]) == (200, [])


def test_the_page_holds_nothing_and_lets_nothing_in(live: Live, url: str) -> None:
    put_dead_letters(url, "orders", "failed")
    answer = Answer(live, "/", Authorization="")
    assert answer.status == 200
    assert "orders" not in answer.text
    assert answer.token not in answer.text
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert Answer(live, "/", Host="evil.example").status == 403


def test_it_listens_on_the_loopback_interface_only(live: Live) -> None:
    port = live.url.rpartition(":")[2].partition("/")[0]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", int(port)))


def test_no_body_without_being_asked_for(live: Live, url: str) -> None:
    letter = dead(order("orders", card=7000123456), "orders").replace(
        b'"error":null', b'"error":"card 7000123456"'
    )
    publish(url, "orders.dlq", [letter, b"card 7000123456"])
    [message, bad] = Answer(live, "/api/messages", {"queue": "orders.dlq"}).json["messages"]
    assert (message["reason"], message["data"], bad["data"]) == ("failed", None, None)
    assert "7000123456" not in json.dumps([message, bad]) + Answer(live, "/api/state").text
    body = Answer(live, "/api/body", {"queue": "orders.dlq", "name": message["name"]}).json
    assert (body["body"], body["error"]) == (letter.decode(), "card 7000123456")


def test_a_catalog_tells_what_may_be_seen(url: str, tmp_path: Path) -> None:
    catalog = registry(tmp_path, {"urn:known": {"properties": {"card": {MARK: True}}}})
    letters = [dead(order("orders", urn=urn, card=7000, n=1), "orders") for urn in ("urn:known", "urn:other")]
    publish(url, "orders.dlq", letters)
    with running(url, "orders", options={"catalog": str(catalog)}) as live:
        messages = Answer(live, "/api/messages", {"queue": "orders.dlq"}).json["messages"]
    assert [message["data"] for message in messages] == ['{"card":"***","n":1}', "***"]


def test_what_stays_says_why(live: Live, url: str) -> None:
    publish(url, "orders.dlq", [b'{"raw":"hello","dead_letter":{}}', dead(order("orders"), "orders")])
    names = [each["name"] for each in Answer(live, "/api/messages", {"queue": "orders.dlq"}).json["messages"]]
    done = Answer(live, "/api/redrive", {"queue": "orders.dlq", "chosen": [*names, "of one that went"]})
    assert done.json == {"went": {"orders": 1}, "stay": {"not acceptable": 1}, "gone": 1}


@pytest.mark.parametrize(
    ("path", "what", "status", "says"),
    [
        ("/api/messages", {"queue": "payroll"}, 400, "not watched"),
        ("/api/drop", {"queue": "orders", "chosen": ["a"]}, 400, "not watched"),
        ("/api/redrive", {"queue": "orders", "chosen": ["a"]}, 400, "not watched"),
        ("/api/drop", {"queue": "orders.dlq"}, 400, "chosen"),
        ("/api/drop", ["orders.dlq"], 400, "Expected"),
        ("/api/body", {"queue": "orders.dlq", "name": "gone"}, 400, "not there any more"),
        ("/api/purge", {"queue": "orders.dlq"}, 404, "no such page"),
    ],
)
def test_wrong_requests(live: Live, path: str, what: Any, status: int, says: str) -> None:
    answer = Answer(live, path, what)
    assert answer.status == status
    assert says in answer.json["error"]


def test_a_request_that_is_too_long_is_not_read(live: Live) -> None:
    answer = Answer(live, "/api/drop", CALLS["/api/drop"], Content_Length="2000000")
    assert (answer.status, answer.json) == (413, {"error": "choose fewer messages at once"})


def test_a_dead_letter_queue_of_another_name(url: str) -> None:
    publish(url, "graveyard", [dead(order("mails"), "mails")])
    with running(url, "orders", "mails", options={"deadLetterQueue": "graveyard"}) as live:
        [message] = Answer(live, "/api/messages", {"queue": "graveyard"}).json["messages"]
        assert (
            Answer(live, "/api/drop", {"queue": "graveyard", "chosen": [message["name"]]}).json["dropped"]
            == 1
        )
    assert backlog(url, "graveyard") == 0


def test_only_the_first_messages_of_a_long_queue(live: Live, url: str) -> None:
    publish(url, "orders.dlq", [dead(order("orders", n=n), "orders") for n in range(501)])
    found = Answer(live, "/api/messages", {"queue": "orders.dlq"}).json
    assert len(found["messages"]) == found["most"] == sum(found["reasons"].values()) == 500


def test_values_where_a_container_of_sensitive_fields_belongs_are_masked(url: str, tmp_path: Path) -> None:
    publish(url, "orders", strayed())
    with running(url, "orders", options={"catalog": str(registry(tmp_path, FORMS))}) as live:
        answer = Answer(live, "/api/messages", {"queue": "orders"})
    assert len(answer.json["messages"]) == len(STRAYED)
    assert SECRET not in answer.text


def test_long_texts_of_dead_letters_are_cut(live: Live, url: str) -> None:
    reasons = [f"{n:02} {'x' * 100_000}" for n in range(50)]
    put_dead_letters(url, "orders", *reasons)
    with events(live) as received:
        found = next(each["reasons"]["orders.dlq"] for each in received if _has_reasons(each))
    assert (len(found), sum(found.values()), found["(others)"]) == (21, 50, 30)
    assert max(map(len, found)) == 200
    answer = Answer(live, "/api/messages", {"queue": "orders.dlq"})
    assert len(answer.json["messages"]) == len(answer.json["reasons"]) == 50
    assert len(answer.text) < 100_000


def _has_reasons(event: dict[str, Any]) -> bool:
    return bool(event.get("reasons", {}).get("orders.dlq"))


def test_only_what_changed_is_sent(live: Live, url: str) -> None:
    put_dead_letters(url, "orders", "failed")
    with events(live) as received:
        assert "address" in next(received)
        known = {"orders.dlq": {"failed": 1}, "mails.dlq": {}}
        next(each for each in received if each.get("reasons") == known)
        publish(url, "orders", [order("orders")])
        for event in received:
            assert "reasons" not in event
            assert "address" not in event
            if event["broker"]["queues"][0]["backlog"]:
                break


def test_who_has_no_token_keeps_few_threads(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Handler, "timeout", None)
    port, before = int(live.url.rpartition(":")[2].partition("/")[0]), threading.active_count()
    with events(live) as received, ExitStack() as strangers:
        for _ in range(60):
            strangers.enter_context(socket.create_connection(("127.0.0.1", port)))
        eventually(lambda: threading.active_count() < before + 45)
        assert Answer(live, "/api/messages", {"queue": "orders"}).status == 200
        assert next(each for each in received if "broker" in each)
