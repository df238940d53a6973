"""SQS: queue to DataFrame and back, against bare boto3 loops with as many processes and threads."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from babelqueue_spark.bindings.base import BindingConfig
from babelqueue_spark.bindings.sqs import SqsBinding
from babelqueue_spark.bindings.sqs.messages import Target, entries
from babelqueue_spark.bindings.sqs.options import LARGEST_MESSAGE
from bench.redis import body, session
from bench.table import Row, read_rate, row, write_rate
from tests.servers.elasticmq import CREDENTIALS, ElasticMqServer
from tests.streams import outgoing

MESSAGES = 30_000
PER_TRIGGER = 10_000
PUBLISHED = 10_000
PROCESSES = 2
THREADS = 4
IN_FLIGHT = (1, 4, 8)
NO_LIMIT = 1 << 40


def rows() -> list[Row]:
    """What the design asks for SQS."""
    bodies = [body(number) for number in range(MESSAGES)]
    with ElasticMqServer() as server, tempfile.TemporaryDirectory() as folder:
        bare_loops(server, filled(server, bodies))  # the server's own warm-up
        spark = session()
        work, peer = "SQS to DataFrame, local[2]", f"bare receive and delete, {PROCESSES} x {THREADS} threads"
        read(spark, server, filled(server, bodies[:PER_TRIGGER]), Path(folder) / "warm")
        streamed = read(spark, server, filled(server, bodies), Path(folder) / "measured")
        written = write_rate(spark, server.url, bodies[:PUBLISHED])
        spark.stop()
        bare = bare_loops(server, filled(server, bodies))
        alone = {count: settle(server, bodies[:PUBLISHED], count) for count in IN_FLIGHT}
        one, *more = IN_FLIGHT
        return [
            row(work, streamed, peer, bare, 0.9),
            row(
                f"DataFrame to SQS, {THREADS} in flight",
                written,
                f"bare send_message_batch, {THREADS} threads",
                bare_publish(server, bodies[:PUBLISHED]),
                0.9,
            ),
            *(
                row(f"SQS claim and acknowledge, {count} in flight", alone[count], f"{one}", alone[one], None)
                for count in more
            ),
        ]


def filled(server: ElasticMqServer, bodies: list[bytes]) -> str:
    """A new queue with these messages."""
    queue = f"bench-{uuid.uuid4().hex}"
    with binding(server) as sqs:
        send(sqs, queue, bodies)
    return queue


def read(spark: Any, server: ElasticMqServer, queue: str, folder: Path) -> float:
    """Messages a second of the batches after the first."""
    options = {"maxMessagesPerTrigger": PER_TRIGGER, "numPartitions": PROCESSES}
    return read_rate(spark, server.url, queue, folder, **options)


def bare_loops(server: ElasticMqServer, queue: str) -> float:
    """Messages a second of processes that only receive and delete, once all of them are connected."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PROCESSES + 1)
    arguments = (server.endpoint, queue, barrier)
    processes = [context.Process(target=bare_loop, args=arguments) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    barrier.wait()
    started = time.perf_counter()
    barrier.wait()
    seconds = time.perf_counter() - started
    for process in processes:
        process.join()
    return MESSAGES / seconds


def bare_loop(endpoint: str, queue: str, barrier: Any) -> None:
    """Receive ten and delete them, in threads, until nothing comes."""
    sqs = bare_client(endpoint)
    url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]

    def run(_: int) -> None:
        wanted = ["ApproximateReceiveCount", "SentTimestamp", "MessageGroupId"]
        while messages := sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], AttributeNames=wanted
        ).get("Messages"):
            entries = [
                {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
                for number, message in enumerate(messages)
            ]
            sqs.delete_message_batch(QueueUrl=url, Entries=entries)

    with ThreadPoolExecutor(THREADS) as threads:
        barrier.wait()
        list(threads.map(run, range(THREADS)))
    barrier.wait()


def settle(server: ElasticMqServer, bodies: list[bytes], in_flight: int) -> float:
    """Messages a second of one binding that claims and acknowledges, without Spark."""
    queue = filled(server, bodies)
    with binding(server, in_flight) as sqs:
        sqs.backlog(queue)

        def run() -> None:
            left = len(bodies)
            while left:
                claimed = sqs.claim(queue, min(left, sqs.capabilities.claim_batch), NO_LIMIT)
                left -= sqs.acknowledge(queue, claimed).true_count

        return once(len(bodies), run)


def bare_publish(server: ElasticMqServer, bodies: list[bytes]) -> float:
    """Messages a second of send_message_batch, with the same attributes, made before."""
    sqs = bare_client(server.endpoint)
    url = sqs.create_queue(QueueName="bare-published")["QueueUrl"]
    target = Target("bare", fifo=False, group="bare", content_dedup=False, max_bytes=LARGEST_MESSAGE)
    requests = [entry.request for entry in entries(outgoing(bodies), target)]

    def send_ten(first: int) -> None:
        sqs.send_message_batch(QueueUrl=url, Entries=requests[first : first + 10])

    with ThreadPoolExecutor(THREADS) as threads:
        return once(len(bodies), lambda: list(threads.map(send_ten, range(0, len(bodies), 10))))


def send(sqs: SqsBinding, queue: str, bodies: list[bytes]) -> None:
    size = sqs.capabilities.publish_batch
    for first in range(0, len(bodies), size):
        sqs.publish(queue, outgoing(bodies[first : first + size]))


def once(count: int, run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return count / (time.perf_counter() - started)


def binding(server: ElasticMqServer, in_flight: int = THREADS) -> SqsBinding:
    return SqsBinding(BindingConfig(url=server.url, client_options={"concurrency": str(in_flight)}))


def bare_client(endpoint: str) -> Any:
    credentials = {f"aws_{name}": value for name, value in CREDENTIALS.items()}
    config = Config(max_pool_connections=THREADS)
    return boto3.client("sqs", endpoint_url=endpoint, region_name="elasticmq", config=config, **credentials)
