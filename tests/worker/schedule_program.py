"""A user's program that schedules, moves and cancels messages: works off queues as `crash_program.py` does.

Each run of the handler leaves a line in `<folder>/<queue>-runs`: the number of the message.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from babelqueue_spark.exchange import Schedule
from babelqueue_spark.worker import Cancel, Message, Outgoing, Publishing, Worker
from tests.worker import schedule_points
from tests.worker.crash_program import main, note
from tests.worker.crash_rules import NOON, cancels, replies


def worker_of(url: str, schedule: str, folder: Path) -> Worker:
    worker = Worker(
        {"url": url},
        state=str(folder / "worker"),
        publishing=Publishing(schedule=Schedule(schedule), routes={"urn:published": "events"}),
    )

    @worker.handler("urn:*")
    def handle(message: Message) -> list[Any]:
        schedule_points.enter(message.queue)
        number = message.data["n"]
        note(folder / f"{message.queue}-runs", f"{number}")
        article = f"{message.queue}-{number // 2}"
        if cancels(number):
            return [Cancel(article)]
        moved = Outgoing(
            job="urn:publish",
            data={"n": number},
            queue="articles",
            send_at=NOON + timedelta(seconds=number),
            job_id=article,
        )
        event = Outgoing(job="urn:published", data={"n": number, "of": message.queue})
        return [moved, event] if replies(number) else [moved]

    return worker


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:], worker_of)
