"""`make fuzz`: bodies that nobody thought of, through every way of the codec.

    python -m fuzz.codec BODIES FOLDER

An input is a few bodies, mutated from the fixtures of the conformance suite and our own nasty ones. What
must hold: nothing raises; the quick ways read a body as the strict way does, whatever its neighbours are,
bytes as text; a value that does not fit its type leaves those beside it alone; no byte is lost in a dead
letter queue; a retry changes the count; what was decoded and encoded reads the same; no input costs far more
time than ordinary bodies as long. FOLDER keeps the corpus and the inputs that failed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any

import atheris
import pyarrow as pa
import pyarrow.compute as pc

with atheris.instrument_imports(include=["babelqueue_spark.envelope", "babelqueue_spark.forms"]):
    from babelqueue_spark.envelope import (
        DEAD_LETTER_TYPE,
        EnvelopeError,
        dead_letter,
        decode,
        encode,
        set_attempts,
        strip_dead_letter,
    )
    from babelqueue_spark.envelope.jsontext import is_utf8
    from babelqueue_spark.envelope.rows import batch_of
    from babelqueue_spark.envelope.strict import examine
    from babelqueue_spark.envelope.typed import typed
    from babelqueue_spark.forms import Carrier, Form, form_of

from tests.envelope.bodies import body
from tests.envelope.conformance import suite
from tests.envelope.hostile import TIMES_THE_ORDINARY, hostile, nanoseconds
from tests.envelope.test_decode import NASTY

SEPARATOR = b"\x1e"
LONGEST_INPUT = 20_000
SECONDS_AN_INPUT = 10
BODIES_A_ROUND = 50_000
HOSTILE_MEMBERS = 300
#: Nanoseconds that any input may cost: a short one is measured too roughly to be held to a multiple.
NEGLIGIBLE = 50_000_000
ORDINARY = json.dumps(json.loads(body(data={"order_id": 1042, "note": "x" * 90}))).encode()
BLOCK = {
    "reason": "poison",
    "failed_at": datetime(2026, 1, 1, tzinfo=UTC),
    "original_queue": "orders",
    "attempts": 0,
}
TYPES = pa.struct(
    [
        ("amount", pa.decimal128(38, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("a", pa.map_(pa.string(), pa.float64())),
    ]
)
MISFITS = pa.struct([*TYPES, ("order_id", pa.bool_())])


def check(bodies: list[bytes]) -> None:
    """Raise AssertionError unless the promises hold for these bodies, at least one."""
    array = pa.array(bodies, pa.binary())
    decoded = decode(array)
    assert decoded.equals(batch_of([examine(one) for one in bodies]))
    check_options(bodies, array, decoded)
    check_typed(decoded.column("data"))
    records = dead_letter(array, pa.array([BLOCK] * len(bodies), DEAD_LETTER_TYPE))
    for record, back, one in zip(
        records.to_pylist(), strip_dead_letter(records).to_pylist(), bodies, strict=True
    ):
        assert json.loads(record)["dead_letter"]["reason"] == "poison"
        text = one.strip(b" \t\r\n")
        spliced = text.startswith(b"{") and text.endswith(b"}") and record.startswith(text[:-1])
        assert back == one or spliced
    check_accepted(array.filter(decoded.column("error").is_null()))
    for name in ("none", "cloudevents"):
        check_form(form_of(name), array)


class Budget:
    """What one kind of work on an input may cost, in nanoseconds of this process."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self._work = work
        self._a_batch = nanoseconds(work, [ORDINARY], rounds=50)
        self._a_byte = nanoseconds(work, [ORDINARY] * 100, rounds=10) / (100 * len(ORDINARY))

    def check(self, bodies: list[bytes]) -> None:
        """Raise AssertionError when these bodies cost more, also when they are measured again."""
        ordinary = self._a_byte * sum(len(one) + len(ORDINARY) for one in bodies)
        budget = max(NEGLIGIBLE, 2 * self._a_batch + TIMES_THE_ORDINARY * ordinary)
        if nanoseconds(self._work, bodies, rounds=1) > budget:
            spent = nanoseconds(self._work, bodies, rounds=5)
            assert spent <= budget, f"{spent:.0f} ns, of {budget:.0f}: {bodies[0][:200]!r}"


def budgets() -> list[Budget]:
    """A budget for each way to read or edit bodies."""
    return [
        Budget(decode),
        Budget(strip_dead_letter),
        Budget(lambda array: set_attempts(array, pa.array([7] * len(array), pa.int32()))),
        Budget(lambda array: dead_letter(array, pa.array([BLOCK] * len(array), DEAD_LETTER_TYPE))),
    ]


def check_options(bodies: list[bytes], array: Any, decoded: Any) -> None:
    """Bodies read another way: as text, and with PHP's empty list for `{}`."""
    if lists := [one for one in bodies if b"[" in one]:
        lenient = decode(pa.array(lists, pa.binary()), allow_list_data=True)
        assert lenient.equals(batch_of([examine(one, allow_list_data=True) for one in lists]))
    text = pa.array([is_utf8(one) for one in bodies])
    assert decode(array.filter(text).cast(pa.string())).equals(decoded.filter(text))


def check_form(form: Form, bodies: Any) -> None:
    """Bodies of another form: their data is JSON, and no byte is lost in a dead letter."""
    messages = pa.RecordBatch.from_arrays([bodies], ["body"])
    own = form.redriven(messages).bodies
    for text in form.decode(messages).column("data").drop_null().to_pylist():
        json.loads(text)
    for headers in (True, False):
        carrier = Carrier(headers, headers)
        counts = pa.array([1] * len(bodies), pa.int32())
        again = pa.RecordBatch.from_arrays([*form.retried(messages, counts, carrier)], ["body", "headers"])
        blocks = pa.array([BLOCK] * len(bodies), DEAD_LETTER_TYPE)
        dead = form.dead_lettered(again, blocks, carrier)
        back = form.redriven(pa.RecordBatch.from_arrays([*dead], ["body", "headers"]))
        assert back.bodies.equals(own)


def check_typed(data: Any) -> None:
    """Payloads in typed columns, which are the same when a value beside them does not fit."""
    columns, beside = typed(data, TYPES), typed(data, MISFITS)
    columns.validate(full=True)
    for field in TYPES:
        assert pc.struct_field(columns, field.name) == pc.struct_field(beside, field.name), field.name


def check_accepted(array: Any) -> None:
    """The promises for bodies that are acceptable."""
    counts = pa.array([7] * len(array), pa.int32())
    assert decode(set_attempts(array, counts)).column("attempts") == counts
    decoded = decode(array)
    whole = decoded.filter(has_all_of_meta(decoded))
    try:
        check_encoded(whole)
    except EnvelopeError:  # of one of them at least: data of repeated keys, half of a surrogate pair
        for number in range(whole.num_rows):
            with contextlib.suppress(EnvelopeError):
                check_encoded(whole.slice(number, 1))


def check_encoded(decoded: Any) -> None:
    """Written again, the rows of a decoded batch read the same, but for blanks around the identities."""
    again = decode(encode(decoded.drop_columns(["error"])))
    for name in ("data", "meta", "attempts", "dead_letter", "error"):
        assert again.column(name) == decoded.column(name), name


def has_all_of_meta(decoded: Any) -> Any:
    """Which rows have what a writer asks for in `meta`; readers do not."""
    fields = decoded.column("meta").flatten()
    return reduce(pc.and_, [field.is_valid() for field in fields])


def sow(corpus: Path) -> None:
    """Write the first inputs."""
    corpus.mkdir(parents=True, exist_ok=True)
    seeds = [path.read_bytes() for path in sorted((suite() / "fixtures").rglob("*.json"))]
    seeds += [one for one, _ in NASTY.values() if one is not None and len(one) < LONGEST_INPUT // 4]
    for name, one in hostile(HOSTILE_MEMBERS).items():
        (corpus / f"hostile-{name}").write_bytes(one)
    for number in range(0, len(seeds), 3):
        (corpus / f"seed-{number}").write_bytes(SEPARATOR.join([body(), *seeds[number : number + 3]]))


def fuzz(bodies: int, folder: Path) -> None:
    """Fuzz until so many bodies were checked; ends the process."""
    logging.disable(logging.WARNING)
    checked = 0
    limits_of_time = budgets()

    def one_input(content: bytes) -> None:
        nonlocal checked
        found = content.split(SEPARATOR)
        check(found)
        for budget in limits_of_time:
            budget.check(found)
        checked += len(found)
        if checked >= bodies:
            os._exit(0)

    limits = [f"-max_len={LONGEST_INPUT}", f"-timeout={SECONDS_AN_INPUT}", f"-artifact_prefix={folder}/"]
    words = f"-dict={Path(__file__).with_name('envelope.dict')}"
    atheris.Setup([sys.argv[0], *limits, words, "-verbosity=0", str(folder / "corpus")], one_input)
    atheris.Fuzz()


def main(bodies: int, folder: Path) -> int:
    """Fuzz in rounds, each a process of its own, since what watches the coverage grows; the exit code."""
    sow(folder / "corpus")
    for done in range(0, bodies, BODIES_A_ROUND):
        count = min(BODIES_A_ROUND, bodies - done)
        code = subprocess.run(
            [sys.executable, "-m", "fuzz.codec", str(count), str(folder), "round"]
        ).returncode
        if code:
            sys.stderr.write(f"fuzz: failed, the input is in {folder}\n")
            return code
        sys.stdout.write(f"fuzz: {done + count:,} bodies, nothing found\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    count, where = int(sys.argv[1]), Path(sys.argv[2])
    sys.exit(fuzz(count, where) if sys.argv[3:] == ["round"] else main(count, where))
