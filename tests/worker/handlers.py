"""Handlers that do what their message says, importable on executors."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from babelqueue_spark.worker import Message, Outgoing, Reject, Retry


class CardDeclinedError(Exception):
    """An error of a user's."""


def act(message: Message) -> Any:
    """Do what the message's data says."""
    match message.data["do"]:
        case "raise":
            raise CardDeclinedError("no money")
        case "retry":
            raise Retry("later", after=message.data["after"])
        case "reject":
            raise Reject("bad_order", "no such product")
        case "exit":
            sys.exit("out")
        case "hang":
            hang()
        case "reply":
            return Outgoing(
                job="urn:replies:one", data={"to": message.data["n"]}, queue=message.data["queue"]
            )
        case "reply twice":
            return [
                Outgoing(job="urn:replies:two", data={"part": part}, queue=message.data["queue"])
                for part in range(2)
            ]
        case "reply nonsense":
            return Outgoing(job=" ", data={}, queue=message.data["queue"])
        case "reply with a number as key":
            return Outgoing(job="urn:x", data={}, queue=message.data["queue"], key=message.data["n"])
        case "echo":
            return Outgoing(job="urn:x", data=message.data, queue=message.data["queue"])
        case "reject with an error":
            raise Reject(CardDeclinedError("no money"))  # type: ignore[arg-type]
        case "reply a number":
            return 7
    return None


async def act_later(message: Message) -> Any:
    """Do the same, on an event loop."""
    await asyncio.sleep(0)
    while message.data["do"] == "hang":
        await asyncio.sleep(60)
    return act(message)


def hang() -> None:
    """Never return, and catch whatever an `except Exception` catches."""
    while True:
        try:
            time.sleep(60)
        except Exception:  # noqa: BLE001 (as careless handlers do)
            continue
