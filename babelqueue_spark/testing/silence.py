"""What holds when a broker falls silent, or ends a connection before anything was asked of it."""

from __future__ import annotations

import re
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from babelqueue_spark.bindings import BaseBinding, BindingConfig
from babelqueue_spark.errors import BrokerError, BrokerUnreachableError
from babelqueue_spark.testing.proxy import Proxy, SilentServer, with_tls
from babelqueue_spark.testing.steps import assert_safe, eventually, outgoing, unless_busy

LONGEST_SILENCE = 60.0
"""Seconds after which a verb has given up on a silent broker, unless its options say otherwise."""

LOCAL_ADDRESS = re.compile(r"(?:127\.0\.0\.1|localhost)(?::|%3A)(\d+)")
"""`host:port` in a URL, where it stands for itself or in a query."""
_SLACK = 30.0
_MANY = 1_000_000

Verb = Callable[[Any], Any]


@dataclass
class _Ending:
    """How a verb ended, and after how many seconds, with the end of the binding."""

    answer: Any = None
    error: BaseException | None = None
    seconds: float = 0.0


class SilenceContract:
    """Tests behind a proxy: of bindings that reach a server over TCP, at a loopback address in their URL."""

    binding_class: ClassVar[type[BaseBinding]]
    impatient: ClassVar[Mapping[str, str]] = {}
    """Client options with which a silent broker is given up after a second or two."""

    def at(self, config: BindingConfig, address: str) -> BindingConfig:
        """Return the same server at another `host:port`, which is given up soon."""
        return replace(
            config,
            url=LOCAL_ADDRESS.sub(address, config.url),
            client_options={**config.client_options, **self.impatient},
        )

    def greeting(self, context: ssl.SSLContext) -> Callable[[Any], Any]:
        """Return how a server answers before its silence, up to the end of the TLS handshake."""
        return with_tls(context)

    @staticmethod
    def reading(binding: Any, queue: str) -> Any:
        """Return the verb that reads messages of a queue."""
        raise NotImplementedError

    @pytest.fixture
    def secure(self) -> tuple[ssl.SSLContext, BindingConfig] | None:
        """Return a server's TLS context and a configuration that trusts it; None where it is not tested."""
        return None

    @pytest.fixture
    def proxy(self, config: BindingConfig) -> Iterator[Proxy | None]:
        """Start a proxy before the server; None where there is no network in between."""
        found = LOCAL_ADDRESS.search(config.url)
        if found is None:
            yield None
            return
        with Proxy("127.0.0.1", int(found[1])) as proxy:
            yield proxy

    def test_a_silent_broker_is_given_up_within_a_minute(self, config: BindingConfig) -> None:
        with self.binding_class(config) as binding:
            assert binding.silence_limit <= LONGEST_SILENCE

    @pytest.mark.parametrize("moment", ["accept", "handshake"])
    def test_a_broker_that_is_silent_from_the_start_is_one_line(
        self, config: BindingConfig, proxy: Proxy | None, queue: str, moment: str
    ) -> None:
        if proxy is None:
            return
        proxy.freeze(after={"accept": 0, "handshake": 1}[moment])
        changed = self.at(config, proxy.address)
        bindings = [self.binding_class(changed) for _ in self._verbs(queue)]
        self._assert_given_up(bindings, self._verbs(queue), proxy.address)

    @pytest.mark.parametrize("moment", ["login", "answer"])
    def test_a_broker_that_falls_silent_is_one_line(
        self, config: BindingConfig, proxy: Proxy | None, queue: str, moment: str
    ) -> None:
        if proxy is None:
            return
        changed = self.at(config, proxy.address)
        verbs = self._verbs(queue)
        bindings = [self.binding_class(changed) for _ in verbs]
        for binding, verb in zip(bindings, verbs, strict=True):
            unless_busy(partial(verb, binding))
        later = self.binding_class(changed)
        if more := unless_busy(lambda: self._later_verb(later, f"later-{queue}")):
            bindings.append(later)
            verbs.append(more)
        proxy.freeze(after={"login": 0, "answer": 3}[moment])
        self._assert_given_up(bindings, verbs, proxy.address)

    def test_a_broker_that_is_silent_after_tls_is_one_line(
        self, secure: tuple[ssl.SSLContext, BindingConfig] | None, queue: str
    ) -> None:
        if secure is None:
            return
        context, config = secure

        def all_are_greeted() -> bool:
            """Return whether all met the silence: on a busy machine a client may give up earlier."""
            with SilentServer(self.greeting(context)) as server:
                changed = self.at(config, server.address)
                verbs = self._verbs(queue)
                self._assert_given_up([self.binding_class(changed) for _ in verbs], verbs, server.address)
                return server.greeted >= len(verbs)

        eventually(all_are_greeted, patience=2 * LONGEST_SILENCE)

    def test_a_connection_that_ends_in_its_handshake_is_opened_again(
        self, config: BindingConfig, proxy: Proxy | None, queue: str
    ) -> None:
        if proxy is None:
            return

        def hang_up_and_do(verb: Verb) -> None:
            proxy.hang_up(1)
            with self.binding_class(self.at(config, proxy.address)) as binding:
                verb(binding)

        for verb in self._verbs(queue):
            unless_busy(partial(hang_up_and_do, verb))

    def test_connections_that_all_end_in_their_handshake_are_one_line(
        self, config: BindingConfig, proxy: Proxy | None, queue: str
    ) -> None:
        if proxy is None:
            return
        proxy.hang_up(_MANY)
        changed = self.at(config, proxy.address)
        bindings = [self.binding_class(changed) for _ in self._verbs(queue)]
        self._assert_given_up(bindings, self._verbs(queue), proxy.address)

    def _verbs(self, queue: str) -> list[Verb]:
        def publish_once(binding: Any) -> int:
            published: int = binding.publish(queue, outgoing([b"x"]), idempotency_key=uuid.uuid4().hex)
            return published

        return [
            lambda binding: binding.backlog(queue),
            lambda binding: binding.publish(queue, outgoing([b"x"])),
            lambda binding: self.reading(binding, queue),
            *([publish_once] if self.binding_class.capabilities.publish_once else ()),
        ]

    def _later_verb(self, binding: Any, queue: str) -> Verb | None:
        """Return a verb that this binding can do once it has read something, which it does here."""
        del binding, queue
        return None

    def _assert_given_up(self, bindings: Sequence[Any], verbs: Sequence[Verb], address: str) -> None:
        """Run all verbs at once, in threads: what hangs must not hang the tests."""
        limit = max(binding.silence_limit for binding in bindings) + _SLACK
        endings = _ended(list(zip(bindings, verbs, strict=True)), limit)
        for ending in endings:
            assert ending.seconds < limit
            if ending.error is None:  # an acknowledge may say that it is not known
                assert isinstance(ending.answer, pa.BooleanArray), endings
                assert ending.answer.true_count == 0
                continue
            assert isinstance(ending.error, BrokerError), repr(ending.error)
            assert isinstance(ending.error, BrokerUnreachableError), ending.error
            assert address in str(ending.error)
            assert_safe(ending.error)


def _ended(work: Sequence[tuple[Any, Verb]], seconds: float) -> list[_Ending]:
    """Return how each verb ended; fails for those that have not ended after so many seconds."""
    endings = [_Ending() for _ in work]

    def run(binding: Any, verb: Verb, ending: _Ending) -> None:
        started = time.monotonic()
        try:
            ending.answer = verb(binding)
        except BaseException as error:  # noqa: BLE001 (looked at by the test)
            ending.error = error
        binding.close()
        ending.seconds = time.monotonic() - started

    threads = [
        threading.Thread(target=run, args=(*each, ending), daemon=True)
        for each, ending in zip(work, endings, strict=True)
    ]
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    hanging = [number for number, thread in enumerate(threads) if thread.is_alive()]
    assert not hanging, f"verbs {hanging} have not ended after {seconds:.0f} s: {endings}"
    return endings
