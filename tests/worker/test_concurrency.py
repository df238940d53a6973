"""Calls that are under way together, without Spark and without a broker: bounds, order, ends."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from babelqueue_spark.connector.options import write_options
from babelqueue_spark.errors import OptionError
from babelqueue_spark.worker import (
    Circuit,
    IdempotencyStore,
    Message,
    Outgoing,
    Record,
    Reject,
    Retry,
    Worker,
)
from babelqueue_spark.worker.admission import Admission
from babelqueue_spark.worker.deciding import Decisions, decide
from babelqueue_spark.worker.handlers import calls as calls_module
from babelqueue_spark.worker.handlers.calls import Calls
from babelqueue_spark.worker.handlers.limits import Limits, Pace, RateLimit
from babelqueue_spark.worker.handlers.responder import Responder
from babelqueue_spark.worker.handlers.routes import MessageHandler, Routes, Subscriber
from babelqueue_spark.worker.handlers.running import MessageHandlers
from babelqueue_spark.worker.rows import Rows
from tests.examples import examples
from tests.worker.partitions import OWNER, decided, rows_of, rules

Handler = Callable[..., Any]

MANY = 50


class MemoryStore(IdempotencyStore):
    """A store of one process, which keeps what it was asked."""

    lease = 60

    def __init__(self) -> None:
        self.claims: list[list[str]] = []
        self.results: dict[str, bytes] = {}

    def claim(self, ids: Sequence[str], owner: str) -> list[Record]:
        self.claims.append(list(ids))
        return [Record("handled" if each in self.results else "granted") for each in ids]

    def remember(self, message_id: str, owner: str, result: bytes = b"") -> None:
        self.results[message_id] = result

    def release(self, ids: Sequence[str], owner: str) -> None: ...

    def forget(self, ids: Sequence[str]) -> None: ...

    def close(self) -> None: ...


def messages(
    count: int, *, urns: Sequence[str] = ("urn:a",), keys: Sequence[str | None] = (), ids: Sequence[str] = ()
) -> Rows:
    """Requests whose number is their `order_id`; URNs repeat."""
    further = {"key": keys, "id": ids, "headers": [[("reply-to", "replies")]] * count}
    given = {name: values for name, values in further.items() if values}
    return rows_of(*(urns[number % len(urns)] for number in range(count)), **given)


def handler(run: Handler, concurrency: int = MANY, pattern: str = "urn:a", **more: Any) -> MessageHandler:
    rest = {name: more.pop(name) for name in ("partition_setup", "responder") if name in more}
    return MessageHandler(pattern, run, Limits(concurrency, **more), **rest)


def outcomes(decisions: Decisions) -> list[str]:
    return [verdict.outcome for verdict in decisions.verdicts]


def number_of(message: Message) -> int:
    number: int = message.data["order_id"]
    return number


def returned(decisions: Decisions) -> list[Any]:
    return [json.loads(output.columns["data"])["n"] for output in decisions.outputs]


def answer(message: Message) -> Outgoing:
    return Outgoing(job="urn:done", data={"n": number_of(message)}, queue="done")


class UnderWay:
    """Counts the calls that are under way, and the most there were."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = threading.Lock()

    @contextmanager
    def one(self) -> Iterator[None]:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        yield
        with self._lock:
            self.now -= 1


# -- how many ----------------------------------------------------------------------------------------------


def test_plain_functions_run_in_threads_all_at_once() -> None:
    barrier = threading.Barrier(MANY)  # each call waits until all are under way

    def run(message: Message) -> Outgoing:
        barrier.wait(60)
        return answer(message)

    decisions = decided(messages(2 * MANY), handler(run))
    assert outcomes(decisions) == ["acked"] * 2 * MANY
    assert returned(decisions) == list(range(2 * MANY))


def test_async_functions_run_on_one_loop_all_at_once() -> None:
    loops: set[Any] = set()
    waiting: list[asyncio.Future[None]] = []

    async def run(message: Message) -> Outgoing:
        loops.add(asyncio.get_running_loop())
        waiting.append(asyncio.get_running_loop().create_future())
        if len(waiting) == MANY:
            for future in waiting:
                future.set_result(None)
            waiting.clear()
        else:
            await waiting[-1]
        return answer(message)

    decisions = decided(messages(2 * MANY), handler(run))
    assert returned(decisions) == list(range(2 * MANY))
    assert len(loops) == 1


@pytest.mark.parametrize("concurrency", [1, 2, 7])
def test_no_more_calls_are_under_way_than_wanted(concurrency: int) -> None:
    under_way = UnderWay()

    async def run(_: Message) -> None:
        with under_way.one():
            for _ in range(5):
                await asyncio.sleep(0)

    decided(messages(40), handler(run, concurrency))
    assert under_way.most == concurrency


def test_handlers_share_the_bound() -> None:
    under_way = UnderWay()
    seen_by_the_narrow: list[int] = []

    async def wide(_: Message) -> None:
        with under_way.one():
            await asyncio.sleep(0)

    def narrow(_: Message) -> None:
        with under_way.one():
            seen_by_the_narrow.append(under_way.now)

    def alone(_: Message) -> None:
        assert threading.current_thread() is threading.main_thread()
        with under_way.one():
            assert under_way.now == 1

    routes = [handler(wide, 8), handler(narrow, 3, "urn:b"), handler(alone, 1, "urn:c")]
    decisions = decided(messages(60, urns=("urn:a", "urn:b", "urn:c")), *routes)
    assert set(outcomes(decisions)) == {"acked"}
    assert max(seen_by_the_narrow) <= 3


# -- order -------------------------------------------------------------------------------------------------


def test_decisions_are_in_the_order_of_rows_whatever_ends_first() -> None:
    ended = [threading.Event() for _ in range(MANY + 1)]
    ended[MANY].set()
    order: list[int] = []

    def run(message: Message) -> Outgoing:
        number = number_of(message)
        assert ended[number + 1].wait(60)
        order.append(number)
        ended[number].set()
        if number % 3 == 0:
            raise ValueError(number)
        return answer(message)

    decisions = decided(messages(MANY), handler(run))
    assert order == list(reversed(range(MANY)))
    assert outcomes(decisions) == ["acked" if number % 3 else "retried" for number in range(MANY)]
    assert returned(decisions) == [number for number in range(MANY) if number % 3]


@pytest.mark.parametrize("ordered_by", ["key", lambda message: number_of(message) % 5])
def test_messages_of_one_key_run_in_their_order(ordered_by: Any) -> None:
    under_way: dict[int, UnderWay] = {key: UnderWay() for key in range(5)}
    all_keys = UnderWay()
    seen: dict[int, list[int]] = {key: [] for key in range(5)}

    async def run(message: Message) -> None:
        key = number_of(message) % 5
        seen[key].append(number_of(message))
        with under_way[key].one(), all_keys.one():
            for _ in range(number_of(message) % 7):
                await asyncio.sleep(0)

    keys = [str(number % 5) for number in range(100)]
    decided(messages(100, keys=keys), handler(run, ordered_by=ordered_by))
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert {each.most for each in under_way.values()} == {1}
    assert all_keys.most == 5


def test_a_key_is_one_line_for_all_handlers() -> None:
    seen: list[int] = []

    async def slow(message: Message) -> None:
        await asyncio.sleep(0.01)
        seen.append(number_of(message))

    def quick(message: Message) -> None:
        seen.append(number_of(message))

    routes = [handler(slow, ordered_by="key"), handler(quick, 1, "urn:b", ordered_by="key")]
    decided(messages(6, urns=("urn:a", "urn:a", "urn:b"), keys=["k"] * 6), *routes)
    assert seen == list(range(6))


def test_a_message_without_a_key_waits_for_none() -> None:
    barrier = threading.Barrier(3)

    def run(_: Message) -> None:
        barrier.wait(60)

    decisions = decided(messages(3), handler(run, ordered_by="key"))
    assert outcomes(decisions) == ["acked"] * 3


@pytest.mark.parametrize("ordered_by", [lambda message: message.data["none"], lambda _: ["a list"]])
def test_a_function_that_gives_no_key_fails_its_message_alone(ordered_by: Any) -> None:
    def key(message: Message) -> Any:
        return ordered_by(message) if number_of(message) == 1 else "k"

    decisions = decided(messages(3), handler(answer, ordered_by=key))
    assert outcomes(decisions) == ["acked", "retried", "acked"]


@examples(100)
@given(
    st.lists(st.sampled_from(["ack", "raise", "reject", "retry", "twice", "wait"]), max_size=30),
    st.integers(1, 8),
    st.sampled_from([None, "key"]),
    st.booleans(),
)
def test_what_is_decided_does_not_depend_on_how_many_run(
    deeds: list[str], concurrency: int, ordered_by: Any, is_async: bool
) -> None:
    def run(message: Message) -> Any:
        match deeds[number_of(message)]:
            case "raise":
                raise ValueError("no")
            case "reject":
                raise Reject("bad")
            case "retry":
                raise Retry("later", after=3)
            case "twice":
                return [answer(message), answer(message)]
        return answer(message)

    async def run_later(message: Message) -> Any:
        if deeds[number_of(message)] == "wait":
            await asyncio.sleep(0)
        return run(message)

    def rows() -> Rows:
        ids = [f"id-{number // 2}" for number in range(len(deeds))]
        return messages(len(deeds), keys=[str(number // 2 % 3) for number in range(len(deeds))], ids=ids)

    def result(run: Handler, concurrency: int, **more: Any) -> tuple[Any, Any]:
        if not deeds:
            return (), ()
        decisions = decided(rows(), handler(run, concurrency, **more), store=MemoryStore())
        return decisions.verdicts, returned(decisions)

    chosen = run_later if is_async else run
    assert result(chosen, concurrency, ordered_by=ordered_by) == result(run, 1)


# -- what a call may do ------------------------------------------------------------------------------------


def test_what_a_handler_yields_is_published() -> None:
    async def run(message: Message) -> AsyncIterator[Outgoing]:
        yield answer(message)
        await asyncio.sleep(0)
        yield answer(message)

    def run_plainly(message: Message) -> Iterator[Outgoing]:
        yield answer(message)
        raise ValueError("half way")

    assert returned(decided(messages(2), handler(run))) == [0, 0, 1, 1]
    decisions = decided(messages(1), handler(run_plainly))
    assert (outcomes(decisions), returned(decisions)) == (["retried"], [])


def test_an_object_whose_call_is_async() -> None:
    class Charge:
        async def __call__(self, message: Message) -> Outgoing:
            return answer(message)

    assert returned(decided(messages(2), handler(Charge()))) == [0, 1]


def test_async_responders_and_subscribers() -> None:
    async def respond(message: Message) -> dict[str, int]:
        if number_of(message) == 1:
            raise LookupError("nobody knows")
        return {"n": number_of(message)}

    async def hear(message: Message) -> Outgoing:
        if number_of(message) == 2:
            raise ValueError("heard enough")
        return Outgoing(job="urn:heard", data={"n": number_of(message)}, queue="heard")

    responder = Responder(write_options({"url": "redis://localhost"}))
    routes = [handler(respond, responder=responder), Subscriber("urn:*", hear, Limits(MANY))]
    decisions = decided(messages(3), *routes)
    assert outcomes(decisions) == ["acked"] * 3
    assert [output.columns["job"] for output in decisions.outputs] == [
        *("urn:a:reply", "urn:heard"),
        *("urn:babel:worker:request_failed", "urn:heard"),
        *("urn:a:reply", "urn:babel:worker:execution_failed"),
    ]
    failure = json.loads(decisions.outputs[-1].columns["data"])
    assert failure["error"] == "heard enough"
    assert failure["stack_trace"].splitlines()[1].endswith("in hear")


def test_a_plain_subscriber_runs_alone_beside_concurrent_handlers() -> None:
    hearing = UnderWay()

    def hear(_: Message) -> None:
        with hearing.one():
            assert threading.current_thread() is threading.main_thread()

    decided(messages(MANY), handler(lambda _: None), Subscriber("urn:*", hear))
    assert hearing.most == 1


# -- what calls share --------------------------------------------------------------------------------------


def test_an_async_resource_is_opened_once_on_the_loop_and_closed_behind_the_calls() -> None:
    events: list[str] = []
    tasks: list[Any] = []

    @asynccontextmanager
    async def setup() -> AsyncIterator[str]:
        tasks.append(asyncio.current_task())
        events.append("opened")
        async with asyncio.timeout(60):  # is entered and left by one task, or raises
            yield "resource"
        tasks.append(asyncio.current_task())
        events.append("closed")

    async def run(_: Message, resource: str) -> None:
        await asyncio.sleep(0)
        events.append(resource)

    decided(messages(3), handler(run, partition_setup=setup))
    assert events == ["opened", "resource", "resource", "resource", "closed"]
    assert tasks[0] is tasks[1]


@pytest.mark.parametrize("concurrency", [1, MANY])
def test_a_plain_resource_is_shared_too(concurrency: int) -> None:
    events: list[Any] = []

    @contextmanager
    def setup() -> Iterator[str]:
        yield "resource"
        events.append("closed")

    async def run(_: Message, resource: str) -> None:
        events.append(resource)

    def run_plainly(_: Message, resource: str) -> None:
        events.append(resource)

    for each in (run, run_plainly):
        events.clear()
        decided(messages(3), handler(each, concurrency, partition_setup=setup))
        assert events == ["resource"] * 3 + ["closed"]


@pytest.mark.parametrize("place", ["before", "behind"])
def test_a_resource_that_fails_ends_the_task(place: str) -> None:
    @asynccontextmanager
    async def setup() -> AsyncIterator[None]:
        if place == "before":
            raise ConnectionError("no bank")
        yield
        raise ConnectionError("no bank")

    async def run(_: Message, __: None) -> None: ...

    with pytest.raises(ConnectionError, match="no bank"):
        decided(messages(1), handler(run, partition_setup=setup))


# -- ends --------------------------------------------------------------------------------------------------


def test_a_call_that_takes_too_long_fails_alone() -> None:
    cancelled: list[int] = []
    going_on = threading.Event()

    async def run(message: Message) -> Outgoing:
        if number_of(message) == 1:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(1)
        return answer(message)

    def run_plainly(message: Message) -> Outgoing:
        if number_of(message) == 1:
            going_on.wait(60)
        return answer(message)

    for each in (run, run_plainly):
        decisions = decided(messages(MANY), handler(each, 10), timeout=10.0)
        assert [row for row, outcome in enumerate(outcomes(decisions)) if outcome != "acked"] == [1]
        assert decisions.verdicts[1].exception == "HandlerTimeoutError"
        assert decisions.verdicts[1].error == "the handler ran longer than 10 s"
    assert cancelled == [1]
    going_on.set()


def test_an_async_handler_that_blocks_its_loop_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "GRACE_SECONDS", 0.1)
    blocked = threading.Event()

    async def run(_: Message) -> None:
        blocked.wait(60)

    decisions = decided(messages(2), handler(run), timeout=0.1)
    blocked.set()
    assert {verdict.exception for verdict in decisions.verdicts} == {"HandlerTimeoutError"}


def test_an_interrupt_ends_all_calls() -> None:
    cancelled: list[int] = []
    all_wait = asyncio.Event()

    async def run(message: Message) -> None:
        if number_of(message) == MANY - 1:
            all_wait.set()
            raise KeyboardInterrupt
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(number_of(message))

    with pytest.raises(KeyboardInterrupt):
        decided(messages(MANY), handler(run))
    assert sorted(cancelled) == list(range(MANY - 1))


def test_an_interrupt_does_not_wait_for_threads() -> None:
    going_on = threading.Event()

    def run(message: Message) -> None:
        if number_of(message) == 1:
            raise KeyboardInterrupt
        going_on.wait(60)

    with pytest.raises(KeyboardInterrupt):
        decided(messages(2), handler(run))
    going_on.set()


# -- idempotency -------------------------------------------------------------------------------------------


def test_a_repeat_waits_for_the_first_and_is_a_duplicate() -> None:
    ran: list[int] = []

    async def run(message: Message) -> None:
        await asyncio.sleep(0.01)
        ran.append(number_of(message))

    decisions = decided(messages(4, ids=["x", "x", "y", "x"]), handler(run), store=MemoryStore())
    assert outcomes(decisions) == ["acked", "dropped", "acked", "dropped"]
    assert sorted(ran) == [0, 2]


def test_what_is_handled_is_remembered_when_its_call_ends() -> None:
    """So that a kill repeats no more than what was under way."""
    store = MemoryStore()
    first_ended = threading.Event()

    def run(message: Message) -> None:
        if number_of(message) == 0:
            assert first_ended.wait(60)
        elif number_of(message) == 2:
            assert list(store.results) == ["id-1"]
            first_ended.set()

    decided(messages(3), handler(run, 2), store=store)
    assert set(store.results) == {"id-0", "id-1", "id-2"}


def test_claims_are_renewed_while_calls_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    monkeypatch.setattr(MemoryStore, "lease", 0.2)

    def run(message: Message) -> None:
        renewals = sum("id-0" in ids for ids in store.claims)
        while number_of(message) == 0 and renewals < 4:
            renewals = sum("id-0" in ids for ids in list(store.claims))

    decided(messages(2), handler(run), store=store)
    assert sum("id-0" in ids for ids in store.claims) >= 4


# -- rates and circuits ------------------------------------------------------------------------------------


def test_a_rate_spreads_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr("babelqueue_spark.worker.handlers.limits.time.monotonic", lambda: now)
    pace = Pace(RateLimit.parse("10/s"))
    starts = []
    for _ in range(4):
        now += max(0.0, pace.seconds())
        pace.started()
        starts.append(round(now - 1_000, 3))
    assert starts == [0, 0.1, 0.2, 0.3]
    now += 5  # what was not used is lost
    assert pace.seconds() <= 0
    pace.started()
    assert pace.seconds() == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("text", "tasks", "per_second"),
    [("100/s", 4, 100), (" 30 / m ", None, 0.5), ("7200/h", 2, 2), ("100/s total", 4, 25)],
)
def test_rates(text: str, tasks: int | None, per_second: float) -> None:
    assert RateLimit.parse(text).of_a_task(tasks).per_second == per_second


def test_a_handler_is_called_when_its_pace_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Any] = []

    def seconds(_: Pace) -> float:
        events.append("look")
        return 0.001 if events[-2:] != ["look", "look"] else 0

    monkeypatch.setattr(Pace, "seconds", seconds)
    limited = handler(lambda message: events.append(number_of(message)), 1, rate_limit=RateLimit(1))
    decided(messages(3), limited)
    assert events == ["look", "look", 0, "look", "look", 1, "look", "look", 2]


class Bank:
    """A handler that fails while the bank is closed."""

    def __init__(self, opens_after: float = float("inf")) -> None:
        self.calls: list[int] = []
        self.opens_after = opens_after

    async def __call__(self, message: Message) -> None:
        self.calls.append(number_of(message))
        if len(self.calls) <= self.opens_after:
            raise ConnectionError("closed")


def test_a_circuit_releases_what_it_does_not_call(caplog: pytest.LogCaptureFixture) -> None:
    bank = Bank()
    routes = [handler(bank, 1, "urn:released", circuit=Circuit(failures=3, pause=60))]
    decisions = decided(messages(10, urns=("urn:released",)), *routes)
    assert outcomes(decisions) == ["retried"] * 3 + ["released"] * 7
    assert {verdict.reason for verdict in decisions.verdicts[3:]} == {"circuit_open"}
    assert {verdict.attempts for verdict in decisions.verdicts[3:]} == {0}
    assert all(50 < verdict.delay <= 60 for verdict in decisions.verdicts[3:])
    assert caplog.text.count("circuit.open urn:released is not called for 60 s: 3 calls in a row failed") == 1
    again = decided(messages(2, urns=("urn:released",)), *routes)  # the next batch
    assert outcomes(again) == ["released"] * 2
    assert len(bank.calls) == 3


def test_a_circuit_tries_one_call_after_its_pause(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    bank = Bank(opens_after=4)
    routes = [handler(bank, 5, "urn:tried", circuit=Circuit(failures=2, pause=0.05))]
    decisions = decided(messages(12, urns=("urn:tried",)), *routes, can_wait=lambda _: False)
    assert bank.calls == list(range(12))  # the queue cannot wait, so the task does
    assert outcomes(decisions)[-6:] == ["acked"] * 6
    assert "circuit.closed urn:tried is called again" in caplog.text


def test_a_circuit_stays_closed() -> None:
    deeds: dict[int, BaseException] = {0: ValueError(), 2: ValueError(), 3: Reject(), 4: ValueError()}

    def run(message: Message) -> None:
        if error := deeds.get(number_of(message)):
            raise error

    routes = [handler(run, 1, "urn:closed", circuit=Circuit(failures=2, pause=60))]
    decisions = decided(messages(6, urns=("urn:closed",)), *routes)
    assert "released" not in outcomes(decisions)


def test_claims_of_what_a_circuit_releases_end() -> None:
    store = MemoryStore()
    rows = messages(3, urns=("urn:claimed",))
    routes = Routes([handler(Bank(), 1, "urn:claimed", circuit=Circuit(failures=1, pause=60))])
    with Calls() as calls:
        admission = Admission(store, OWNER, rows.ids, lambda _: True)
        decide(rows, MessageHandlers(routes, calls, "s"), admission, rules(), calls)
    assert admission.to_release() == ["id-0", "id-1", "id-2"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"concurrency": 0}, "from 1 to 10,000"),
        ({"ordered_by": "id"}, "takes 'key', or a function"),
        ({"rate_limit": "fast"}, "'100/s', '30/m' or '5/h'"),
        ({"rate_limit": "0/s"}, "'100/s', '30/m' or '5/h'"),
    ],
)
def test_limits_that_cannot_be(arguments: dict[str, Any], says: str) -> None:
    worker = Worker({"url": "redis://localhost"}, state="/nowhere")
    with pytest.raises(OptionError, match=says):
        worker.handler("urn:a", **arguments)
    with pytest.raises(OptionError, match="at least 1"):
        Circuit(failures=0)
    with pytest.raises(OptionError, match="more than 0"):
        Circuit(pause=0)
