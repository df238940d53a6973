"""Redis: queue to DataFrame and back, against the SDK's loop and bare client loops."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import redis as client
from babelqueue.codec import EnvelopeCodec
from babelqueue.redis_transport import RedisTransport

from babelqueue_spark.connector.options import write_options
from bench.table import Row, rate, read_progress, row, steady_rate, write_rate
from tests.servers import RedisServer
from tests.streams import outgoing

MESSAGES = 1_000_000
WRITTEN = 1_000_000
FEW = 10_000
PER_TRIGGER = 100_000
SLOW_MESSAGES = 3_000
CHUNK = 1_000
FOREIGN = 100_000
QUEUES = 200

BARE_CLAIM = """
local values = redis.call('LPOP', KEYS[1], ARGV[1])
if not values then return {} end
redis.call('RPUSH', KEYS[2], unpack(values))
return values
"""


def body(number: int) -> bytes:
    """An envelope of about 400 bytes."""
    data = {"order_id": number, "amount": "99.90", "customer": f"customer-{number}", "note": "x" * 90}
    return str(
        EnvelopeCodec.encode(EnvelopeCodec.make("urn:babel:orders:created", data, queue="bench"))
    ).encode()


def rows() -> list[Row]:
    """The Redis rows of the design."""
    with RedisServer() as server, tempfile.TemporaryDirectory() as folder:
        redis = client.Redis.from_url(server.url)
        bodies = [body(number) for number in range(MESSAGES)]
        spark = session()

        def reading(count: int, repeats: int) -> float:
            place = Path(folder) / f"{count}-{repeats}"
            return read(spark, server.url, place.name, redis, bodies[:count], place, repeats)

        reading(2 * PER_TRIGGER, repeats=1)
        few = reading(FEW, repeats=5)
        spread = read_queues(spark, server.url, redis, bodies[: 2 * PER_TRIGGER], Path(folder) / "spread")
        streamed = reading(MESSAGES, repeats=1)
        some = bodies[:PER_TRIGGER]
        written = write_rate(spark, server.url, bodies[:WRITTEN], partitions=2)
        spark.stop()
        pushed = bare_push(redis, some)
        claimed, acknowledged = claim_and_acknowledge(server.url, redis, some)
        work = "Redis to DataFrame, local[2]"
        return [
            row(work, streamed, "SDK pop and ack", sdk_loop(server.url, some), 30),
            row(work, streamed, "bare Lua claim and msgspec", bare_loop(redis, some), 0.4),
            row("Redis publish", publish(server.url, some), "bare variadic RPUSH", pushed, 0.3),
            row("DataFrame to Redis, local[2]", written, "bare variadic RPUSH", pushed, 0.4),
            row(f"{work}, {MESSAGES:,} queued", streamed, f"the same, {FEW:,} queued", few, 0.8),
            row(f"{work}, {QUEUES} queues", spread, "one queue", streamed, 0.77),
            row("Redis claim", claimed, "bare variadic RPUSH", pushed, None),
            row("Redis acknowledge", acknowledged, "bare variadic RPUSH", pushed, None),
            row(
                f"Redis acknowledge behind {FOREIGN:,} foreign claims",
                acknowledge(server.url, redis, some, foreign=FOREIGN),
                "behind none",
                acknowledge(server.url, redis, some, foreign=0),
                None,
            ),
        ]


def session() -> Any:
    """Spark on two cores."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def read(
    spark: Any, url: str, queue: str, redis: client.Redis, bodies: list[bytes], folder: Path, repeats: int
) -> float:
    """Messages a second of the batches after the first."""
    options = {"maxMessagesPerTrigger": PER_TRIGGER, "maxBytesPerTrigger": "1g"}
    progress = []
    for _ in range(repeats):
        push(redis, queue, bodies)
        progress += read_progress(spark, url, queue, folder, **options)
    return steady_rate(progress)


def read_queues(spark: Any, url: str, redis: client.Redis, bodies: list[bytes], folder: Path) -> float:
    """Messages a second of the batches after the first, with the bodies in many queues."""
    names = [f"spread-{number}" for number in range(QUEUES)]
    for number, name in enumerate(names):
        push(redis, name, bodies[number::QUEUES])
    options = {"maxMessagesPerTrigger": PER_TRIGGER, "maxBytesPerTrigger": "1g"}
    return steady_rate(read_progress(spark, url, ",".join(names), folder, **options))


def push(redis: client.Redis, queue: str, bodies: list[bytes]) -> None:
    """The bodies onto a list, as fast as the client can."""
    for first in range(0, len(bodies), CHUNK):
        redis.rpush(queue, *bodies[first : first + CHUNK])


def bare_push(redis: client.Redis, bodies: list[bytes]) -> float:
    """Messages a second of variadic RPUSH."""
    return rate(len(bodies), lambda: push(redis, "bare-push", bodies))


def publish(url: str, bodies: list[bytes]) -> float:
    """Messages a second of the binding's confirmed publish."""
    with write_options({"url": url}).binding() as binding:
        size = binding.capabilities.publish_batch
        batches = [outgoing(bodies[first : first + size]) for first in range(0, len(bodies), size)]

        def run() -> None:
            for number, batch in enumerate(batches):
                binding.publish("published", batch, idempotency_key=f"{os.urandom(8).hex()}-{number}")

        return rate(len(bodies), run)


def claim_and_acknowledge(
    url: str, redis: client.Redis, bodies: list[bytes], rounds: int = 3
) -> tuple[float, float]:
    """Messages a second that one reader claims, and acknowledges, as many at a time as a reader task."""
    claims: list[Any] = []
    claimed, acknowledged = [], []
    with write_options({"url": url}).binding() as reader:

        def claim() -> int:
            while (batch := reader.claim("claimed", reader.capabilities.claim_batch, 1 << 30)).num_rows:
                claims.append(batch)
            return sum(batch.num_rows for batch in claims)

        def acknowledge() -> None:
            while claims:
                reader.acknowledge("claimed", claims.pop(0))

        for _ in range(rounds):
            push(redis, "claimed", bodies)
            claimed.append(rate(len(bodies), claim, repeats=1))
            acknowledged.append(rate(len(bodies), acknowledge, repeats=1))
    return median(claimed), median(acknowledged)


def acknowledge(url: str, redis: client.Redis, bodies: list[bytes], *, foreign: int) -> float:
    """Messages a second of two readers whose claims interleave, behind what dead PHP workers left."""
    push(redis, "held", bodies)
    push(redis, "held:processing", [b"x" * 400] * foreign)
    options = write_options({"url": url})
    with options.binding() as one, options.binding() as other:
        claims = [
            (reader, reader.claim("held", CHUNK, 1 << 30))
            for _ in range(len(bodies) // CHUNK // 2)
            for reader in (one, other)
        ]

        def run() -> None:
            for reader, claimed in claims:
                reader.acknowledge("held", claimed)

        speed = rate(len(bodies), run, repeats=1)
    redis.delete("held:processing")
    return speed


def bare_loop(redis: client.Redis, bodies: list[bytes]) -> float:
    """Messages a second of one process that claims by Lua, decodes with msgspec and acknowledges."""
    claim = redis.register_script(BARE_CLAIM)
    push(redis, "bare", bodies)

    def consume() -> int:
        moved = 0
        while claimed := claim(keys=["bare", "bare:processing"], args=[CHUNK]):
            for each in claimed:
                msgspec.json.decode(each)
            redis.ltrim("bare:processing", len(claimed), -1)
            moved += len(claimed)
        return moved

    return rate(len(bodies), consume, repeats=1)


def sdk_loop(url: str, bodies: list[bytes]) -> float:
    """Messages a second of the SDK's transport: pop, decode, ack, one at a time."""
    transport = RedisTransport(url)
    for each in bodies[:SLOW_MESSAGES]:
        transport.publish("sdk", each.decode())

    def run() -> None:
        for _ in range(SLOW_MESSAGES):
            message = transport.pop("sdk", timeout=1.0)
            EnvelopeCodec.decode(message.body)
            transport.ack(message)

    return rate(SLOW_MESSAGES, run, repeats=1)
