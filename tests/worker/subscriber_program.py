"""A user's program with subscribers and a responder: works off queues as `crash_program.py` does.

Each call of a subscriber leaves a line in `<folder>/<queue>-heard` (its name, and the number of the message), each of the
responder one in `<folder>/<queue>-asked`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from babelqueue_spark.worker import Message, Outgoing, Policy, Publishing, RedisStore, Worker
from tests.worker import crash_points
from tests.worker.crash_program import main, note
from tests.worker.crash_rules import DEADLY, REQUEST, raises, replies


def worker_of(url: str, store: str, folder: Path) -> Worker:
    remembered = None if store == "none" else RedisStore(store, prefix=f"{folder}:", lease=5)
    worker = Worker(
        {"url": url},
        state=str(folder / "worker"),
        policy=Policy(release_delay=1),
        publishing=Publishing(failure_queue="failures"),
        idempotency=remembered,
    )

    @worker.responder(REQUEST)
    def answer(message: Message) -> dict[str, int]:
        crash_points.enter(message.queue)
        number = message.data["n"]
        note(folder / f"{message.queue}-asked", f"{number}")
        return {"to": number}

    @worker.subscriber("urn:*")
    def first(message: Message) -> Outgoing | None:
        crash_points.enter(message.queue)
        number = message.data["n"]
        note(folder / f"{message.queue}-heard", f"first {number}")
        if number == DEADLY:
            crash_points.reached("in a subscriber")
        return (
            Outgoing(job="urn:heard", data={"n": number}, queue=f"{message.queue}-events")
            if replies(number)
            else None
        )

    @worker.subscriber("*")
    def second(message: Message) -> None:
        number = message.data["n"]
        note(folder / f"{message.queue}-heard", f"second {number}")
        if raises(number):
            raise ValueError(f"subscriber fails at {number}")

    return worker


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:], worker_of)
