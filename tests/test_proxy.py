"""The proxy of the contract suite: what it does to a connection."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from babelqueue_spark.testing import Proxy


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """Before a server that says what it is told."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=echo, args=(listener,), daemon=True).start()
        with Proxy("127.0.0.1", listener.getsockname()[1]) as made:
            yield made


def echo(listener: socket.socket) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=answer, args=(client,), daemon=True).start()


def answer(client: socket.socket) -> None:
    with client:
        while content := client.recv(100):
            client.sendall(content)


def connected(proxy: Proxy) -> socket.socket:
    host, port = proxy.address.split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def said(client: socket.socket, text: bytes) -> bytes:
    client.sendall(text)
    return client.recv(100)


def test_an_answer_is_delayed_on_old_and_new_connections(proxy: Proxy) -> None:
    with connected(proxy) as old:
        assert said(old, b"a") == b"a"
        proxy.delay(0.3)
        with connected(proxy) as new:
            for client in (old, new):
                began = time.monotonic()
                assert said(client, b"b") == b"b"
                assert time.monotonic() - began >= 0.3
        proxy.delay(3600)
        proxy.delay(0)
        assert said(old, b"c") == b"c"


def test_a_cut_ends_all_connections_and_lets_new_ones_through(proxy: Proxy) -> None:
    with connected(proxy) as old:
        assert said(old, b"a") == b"a"
        proxy.freeze()
        proxy.cut()
        assert old.recv(1) == b""
    with connected(proxy) as new:
        assert said(new, b"b") == b"b"
