"""Bodies that are made to cost time, and how much of it they cost."""

import gc
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tests.envelope.bodies import body, meta_texts, texts

#: What a byte of a hostile body may cost, in times of a byte of ordinary bodies that are read one by one.
#: The worst costs 8 on a quiet machine and 11 on a busy one; a cost that grows with the square, hundreds.
TIMES_THE_ORDINARY = 30


def repeated(member: str, count: int) -> bytes:
    """A canonical body, and this member many times behind its own."""
    return body()[:-1] + f",{member}".encode() * count + b"}"


def different(count: int, value: str = "1") -> dict[str, str]:
    """Many members of different keys."""
    return {f"k{number}": value for number in range(count)}


def hostile(count: int) -> dict[str, bytes]:
    """A body of each kind, with so many members, values or levels."""
    many = "{" + ",".join(f'"k{number}":1' for number in range(count)) + "}"
    return {
        "different keys": texts(**different(count)),
        "one key": repeated('"x":1', count),
        "data": repeated('"data":{"a":1}', count),
        "empty data": repeated('"data":{}', count),
        "meta": repeated('"meta":{"x":1,"y":{}}', count),
        "empty meta": repeated('"meta":{}', count),
        "meta, then a number": repeated('"meta":{"id":"a"}', count)[:-1] + b',"meta":5}',
        "dead_letter": repeated('"dead_letter":{}', count),
        "dead_letter of many keys": texts(dead_letter=many),
        "meta of many keys": texts(meta=meta_texts(**different(count))),
        "meta of many keys, poison": texts(attempts='"x"', meta=meta_texts(**different(count))),
        "meta of escaped keys": texts(meta="{" + ",".join(['"i\\u0064":"a"'] * count) + "}"),
        "escaped keys": repeated('"dat\\u0061":{}', count),
        "empty objects": texts(x="[" + ",".join(["{}"] * count) + "]", y='"\\u0061"'),
        "deep data": texts(data='{"a":[' + ",".join(["[" * 890 + "]" * 890] * (count // 890)) + "]}"),
        "too deep": texts(data='{"a":' + "[" * count + "]" * count + "}"),
        "NaN at the end": repeated('"x":1', count)[:-1] + b',"x":NaN}',
        "not UTF-8 at the end": repeated('"x":1', count)[:-1] + b',"x":"\xff"}',
        "not UTF-8": b'{"job":"' + b"\xff" * count + b'"}',
        "NUL": body() + b"\0" * count,
        "spaces": body()[:-1] + b" " * count + b"}",
        "long escapes": texts(x='"' + "\\ud800" * count + '"'),
        "long integers": texts(data='{"a":[' + ",".join(["9" * 300] * (count // 300)) + "]}"),
        "forbidden keys of meta": texts(meta="{" + ",".join(['"ts":5'] * count) + "}"),
        "urn and job": b'{"urn":"urn:a"' + b',"job":5,"urn":5' * count + b',"urn":"urn:x"}',
    }


def nanoseconds(work: Callable[[Any], Any], bodies: list[bytes], rounds: int = 3) -> int:
    """The least time that `work` took for these bodies, in nanoseconds of this process.

    Garbage is not collected meanwhile: that costs by what else the process holds.
    """
    array = pa.array(bodies, pa.binary())
    spent = []
    gc.disable()
    try:
        for _ in range(rounds):
            started = time.process_time_ns()
            work(array)
            spent.append(time.process_time_ns() - started)
    finally:
        gc.enable()
    return min(spent)
