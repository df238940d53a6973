"""SQS: queue to DataFrame and back, against bare boto3 loops with as many processes and threads."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.sqs import SqsBinding
from babelqueue_spark.bindings.sqs.messages import Target, entries
from babelqueue_spark.bindings.sqs.options import LARGEST_MESSAGE
from bench.redis import body, session
from bench.table import Row, check_moved, in_turns, new_queue, read_rate, row, write_rate
from tests.servers.elasticmq import CREDENTIALS, ElasticMqServer
from tests.streams import outgoing

MESSAGES = 30_000
PER_TRIGGER = 15_000
PUBLISHED = 10_000
PROCESSES = 2
THREADS = 4
IN_FLIGHT = (1, 4, 8)
NO_LIMIT = 1 << 40


def rows() -> list[Row]:
    """What the design asks for SQS."""
    bodies = [body(number) for number in range(MESSAGES)]
    few = bodies[:PUBLISHED]
    with ElasticMqServer() as server:
        spark = session()
        read(spark, server, few, PROCESSES)
        found = in_turns(
            {
                "loops": lambda: bare_loops(server, filled(server, bodies)),
                "read": lambda: read(spark, server, bodies, PROCESSES),
                "one": lambda: read(spark, server, bodies, 1),
                "publish": lambda: bare_publish(server, few),
                "write": lambda: write_rate(spark, server.url, few),
            },
            rounds=1,  # the server keeps what it has seen in its heap
        )
        spark.stop()
        alone = in_turns({str(count): partial(settle, server, few, count) for count in IN_FLIGHT}, rounds=1)
    one, *more = alone
    loops = f"bare receive and delete, {PROCESSES} x {THREADS} threads"
    return [
        row("SQS to DataFrame, local[2]", found["read"], loops, found["loops"], 0.9),
        row(
            f"DataFrame to SQS, {THREADS} in flight",
            found["write"],
            f"bare send_message_batch, {THREADS} threads",
            found["publish"],
            0.9,
        ),
        row(
            f"SQS to DataFrame, {PROCESSES} partitions",
            found["read"],
            "one partition",
            found["one"],
            None,
        ),
        *(
            row(f"SQS claim and acknowledge, {count} in flight", alone[count], one, alone[one], None)
            for count in more
        ),
    ]


def filled(server: ElasticMqServer, bodies: list[bytes]) -> str:
    """A new queue with these messages."""
    queue = new_queue()
    with binding(server) as sqs:
        send(sqs, queue, bodies)
    return queue


def read(spark: Any, server: ElasticMqServer, bodies: list[bytes], partitions: int) -> float:
    """Messages a second of the batches after the first."""
    queue = filled(server, bodies)
    options = {"maxMessagesPerTrigger": PER_TRIGGER, "numPartitions": partitions}
    with tempfile.TemporaryDirectory() as folder:
        return read_rate(spark, server.url, queue, len(bodies), Path(folder), **options)


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
    with binding(server) as sqs:
        check_moved(MESSAGES - sqs.backlog(queue), MESSAGES)
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
