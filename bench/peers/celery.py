"""Celery: workers with a pool of greenlets."""

from __future__ import annotations

from celery import Celery

from bench.peers.work import IN_FLIGHT, REDELIVERED_AFTER, told

URL, QUEUE, WORK = told()

app = Celery("peers", broker=URL)
app.conf.update(
    task_default_queue=QUEUE,
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
)
if URL.startswith("redis"):
    app.conf.broker_transport_options = {
        "visibility_timeout": REDELIVERED_AFTER,
        "unacked_restore_throttle": 1,
        "max_connections": IN_FLIGHT,  # greenlets acknowledge at the same time
    }


@app.task(name="work")
def work(number: int) -> None:
    WORK(number)


def fill(count: int) -> None:
    """Queue so many tasks."""
    for number in range(count):
        work.delay(number)
