"""Dramatiq: processes with greenlets."""

from __future__ import annotations

from dramatiq import actor, set_broker
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker

from bench.peers.work import REDELIVERED_AFTER, told

URL, QUEUE, WORK = told()

if URL.startswith("redis"):
    set_broker(RedisBroker(url=URL, heartbeat_timeout=REDELIVERED_AFTER * 1000, maintenance_chance=1_000_000))
else:
    set_broker(RabbitmqBroker(url=URL))


@actor(queue_name=QUEUE)
def work(number: int) -> None:
    WORK(number)


def fill(count: int) -> None:
    """Queue so many messages."""
    for number in range(count):
        work.send(number)
