"""The Redis sections of the BabelQueue conformance suite, against our binding on a live server."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from redis import Redis

from babelqueue_spark.bindings.batches import deliveries
from babelqueue_spark.bindings.redis import RedisBinding
from babelqueue_spark.bindings.redis.layouts import Layout
from tests.bindings.redis_peers import NO_LIMIT, Clock, binding, bodies, claims_of, outgoing
from tests.servers import RedisServer

pytestmark = pytest.mark.server

BLOCKS = {
    "delayed_score": 4,
    "migrate": 10,
    "reserve": 5,
    "pcall_poison": 14,
    "processing_sweep": 4,
    "processing_token": 1,
    "late_ack": 1,
    "identical_copies": 1,
    "retry_after_null": 2,
    "lrem_count": 2,
    "malformed_member": 2,
    "orphan": 1,
    "legacy_release_gate": 2,
}

# What the binding contract has no verb for, and where we do it instead.
NOT_OURS = {
    "release": (5, "a retry is a delayed publish by the worker after the journal's acknowledge"),
    "legacy_dlq_gate": (2, "a dead letter is a publish by the worker after the journal's acknowledge"),
}


class Case:
    """One case of `redis_layout`: keys brought into a state, steps, and what the keys hold then."""

    def __init__(
        self, server: RedisServer, client: Redis, clock: Clock, case: Mapping[str, Any], queue: str
    ) -> None:
        self.client = client
        self.queue = queue
        self.clock = clock
        self.laravel = case["layout"] == "zset"
        retry_after = case.get("retry_after", 90)
        self.binding: RedisBinding = binding(
            server,
            laravel=str(int(self.laravel)),
            retry_after="null" if retry_after is None else str(retry_after),
        )
        self.layout: Layout = self.binding.layout
        if "migration_batch_size" in case:
            self.layout.migration_limit = case["migration_batch_size"]
        self.saved: dict[str, pa.RecordBatch] = {}
        ready = self.layout.ready(queue)
        self.keys = {
            "ready": ready,
            "notify": f"{ready}:notify",
            "delayed": self.layout.delayed(queue),
            "processing": f"{ready}:processing",
            "reserved": f"{ready}:reserved",
            "deadlines": f"{ready}:processing:deadlines",
        }
        self._bring_about(case.get("state", {}))

    def _bring_about(self, state: Mapping[str, Any]) -> None:
        for name in ("ready", "processing"):
            if state.get(name):
                self.client.rpush(self.keys[name], *state[name])
        for name in ("delayed", "reserved", "deadlines"):
            for entry in state.get(name, []):
                self.client.zadd(self.keys[name], {_member(entry): float(entry["score"])})
        if "delayed_generate" in state:
            made = state["delayed_generate"]
            self.client.zadd(self.keys["delayed"], dict.fromkeys(_generated(made), made["score"]))
        for _ in range(state.get("notify", 0)):
            self.client.rpush(self.keys["notify"], 1)

    def step(self, step: Mapping[str, Any]) -> None:
        self.clock.now = step["now"]
        claimed = getattr(self, "_" + step["op"])(step)
        self._check(step.get("expect", {}), claimed)

    def _push_delayed(self, step: Mapping[str, Any]) -> None:
        delay = round(step["delay"] * 1000)
        self.binding.publish(self.queue, outgoing([step["body"].encode()], delay=[delay]))

    def _migrate(self, step: Mapping[str, Any]) -> None:
        self.layout.claim(self.queue, 0, NO_LIMIT, 0)

    _sweep = _migrate

    def _reserve(self, step: Mapping[str, Any]) -> pa.RecordBatch:
        claimed = self.binding.claim(self.queue, 1, NO_LIMIT)
        self.saved[step.get("as", "")] = claimed
        return claimed

    def _ack(self, step: Mapping[str, Any]) -> None:
        self.binding.acknowledge(self.queue, self._claimed(step["reservation"]))

    def _release(self, step: Mapping[str, Any]) -> None:
        self.binding.release(self.queue, self._claimed(step["reservation"]))

    def _claimed(self, reservation: str | Mapping[str, str]) -> pa.RecordBatch:
        if isinstance(reservation, str):
            return self.saved[reservation]
        return deliveries(1, body=[reservation["raw"].encode()], receipt=[reservation["token"].encode()])

    def _check(self, expect: Mapping[str, Any], claimed: pa.RecordBatch | None) -> None:
        for name, wanted in expect.items():
            getattr(self, f"_check_{name}", self._check_key(name))(wanted, claimed)

    def _check_key(self, name: str) -> Any:
        def check(wanted: Any, claimed: pa.RecordBatch | None) -> None:
            if name in ("ready", "processing"):
                found = self.client.lrange(self.keys[name], 0, -1)
                assert found + self._ours(name) == [value.encode() for value in wanted]
            elif name == "notify":
                assert self.client.llen(self.keys["notify"]) == wanted
            else:
                found = self.client.zrange(self.keys[name], 0, -1, withscores=True)
                assert _same(found + self._ours(name), wanted)

        return check

    def _ours(self, name: str) -> list[Any]:
        """Our claims, in keys of their own, as the suite looks for them in the keys of the SDKs."""
        if self.laravel or name not in ("processing", "deadlines"):
            return []
        claims = [
            (token, lapses, value)
            for token, lapses, stored in claims_of(self.client, self.queue)
            for value in stored
        ]
        if name == "processing":
            return [value for _, _, value in claims]
        return [(b"%b:%b" % (token, value), lapses) for token, lapses, value in claims]

    def _check_outcome(self, wanted: str, claimed: pa.RecordBatch) -> None:
        assert claimed.num_rows == (wanted in ("delivered", "poison"))

    def _check_handler_body(self, wanted: str, claimed: pa.RecordBatch) -> None:
        assert bodies(claimed) == [wanted.encode()]

    def _check_reported_attempts(self, wanted: int, claimed: pa.RecordBatch) -> None:
        assert json.loads(claimed.column("receipt")[0].as_py())["attempts"] == wanted

    def _check_tokens_distinct(self, wanted: bool, claimed: pa.RecordBatch) -> None:
        tokens = [token for token, _, _ in claims_of(self.client, self.queue)]
        assert (len(set(tokens)) == len(tokens)) == wanted

    def _check_ready_count(self, wanted: int, claimed: pa.RecordBatch | None) -> None:
        assert self.client.llen(self.keys["ready"]) == wanted

    def _check_ready_generate(self, wanted: Mapping[str, Any], claimed: pa.RecordBatch | None) -> None:
        self._check_key("ready")(_generated(wanted), claimed)


def _member(entry: Mapping[str, Any]) -> str:
    return entry["member"] if "member" in entry else f"{entry['token']}:{entry['raw']}"


def _generated(made: Mapping[str, Any]) -> list[str]:
    return [made["member"] % i for i in range(made["count"])]


def _same(found: Sequence[tuple[bytes, float]], wanted: Sequence[Mapping[str, Any]]) -> bool:
    """Whether each wanted entry is there once, and nothing else."""
    left = list(found)
    for entry in wanted:
        hit = next((item for item in left if _matches(item, entry)), None)
        if hit is None:
            return False
        left.remove(hit)
    return not left


def _matches(found: tuple[bytes, float], entry: Mapping[str, Any]) -> bool:
    member, score = found
    if score != float(entry["score"]):
        return False
    if "member_json" in entry:
        return bool(json.loads(member) == entry["member_json"])
    if entry.get("token") == "<any>":
        return (
            bool(re.fullmatch(rb"[0-9a-f]{32}", member[:32])) and member[32:] == b":" + entry["raw"].encode()
        )
    return member == _member(entry).encode()


@pytest.mark.parametrize("block", BLOCKS)
def test_redis_layout(
    redis_server: RedisServer, redis: Redis, clock: Clock, conformance: Any, queue: str, block: str
) -> None:
    cases = conformance.section("redis_layout")[block]["cases"]
    assert len(cases) == BLOCKS[block]
    for number, case in enumerate(cases):
        run = Case(redis_server, redis, clock, case, f"{queue}-{number}")
        for step in case["steps"]:
            try:
                run.step(step)
            except AssertionError as error:
                raise AssertionError(f"{case['name']}, {step['op']}: {error}") from error
        run.binding.close()


def test_every_case_is_run_or_listed(conformance: Any) -> None:
    section = conformance.section("redis_layout")
    blocks = {name: len(block["cases"]) for name, block in section.items() if isinstance(block, dict)}
    assert blocks == {**BLOCKS, **{name: count for name, (count, _) in NOT_OURS.items()}}
    assert sum(blocks.values()) + len(section["cases"]) == 59


def test_key_names(redis_server: RedisServer, conformance: Any) -> None:
    for case in conformance.section("redis_layout")["cases"]:
        layout = binding(redis_server, laravel="1", prefix=case["key_prefix"]).layout
        ready = layout.ready(case["queue"])
        assert case["expect"] == {
            "ready": ready,
            "delayed": layout.delayed(case["queue"]),
            "reserved": layout.claims(case["queue"]),
            "notify": f"{ready}:notify",
        }


def test_redis_delay(
    redis_server: RedisServer, redis: Redis, clock: Clock, conformance: Any, queue: str
) -> None:
    cases = conformance.section("redis_delay")["cases"]
    assert len(cases) == 8
    with binding(redis_server) as writer:
        for number, case in enumerate(cases):
            clock.now = case["now"]
            body = b"%d" % number
            writer.publish(queue, outgoing([body], delay=[round(case["delay"] * 1000)]))
            score = redis.zscore(f"{queue}:delayed", body)
            assert (int(clock.now) if score is None else score) == case["expect_score"], case["name"]


@pytest.mark.parametrize("laravel", ["0", "1"])
def test_payload_identity(
    redis_server: RedisServer, redis: Redis, conformance: Any, queue: str, laravel: str
) -> None:
    body = conformance.file(conformance.section("redis")["payload_identity"]["envelope_file"])
    with binding(redis_server, laravel=laravel) as both:
        both.publish(queue, outgoing([body]))
        assert redis.lrange(both.layout.ready(queue), 0, -1) == [body]
        assert bodies(both.claim(queue, 1, NO_LIMIT)) == [body]
