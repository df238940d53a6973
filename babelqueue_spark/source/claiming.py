"""What an executor does with a partition: claim, journal, acknowledge, yield; or find it done already.

The order is the guarantee. Before the journal is written the broker still owns the messages and
redelivers them; from then on the journal owns them, and redeliveries of them are recognised.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings import DELIVERIES, Binding
from babelqueue_spark.bindings.base import total_bytes
from babelqueue_spark.errors import BabelQueueError, JournalError
from babelqueue_spark.journal import CLOCK_SKEW, Journal, Segment
from babelqueue_spark.options import Options
from babelqueue_spark.source.plan import Claim

logger = logging.getLogger(__name__)


def deliveries_of(claim: Claim, options: Options, journal: Journal, binding: Binding) -> list[pa.RecordBatch]:
    """The deliveries of one partition: those in the journal, or freshly claimed ones put there."""
    segment = journal.segment(claim.batch, claim.index)
    journalled = segment.read()
    if journalled is None:
        written = _claim_into(segment, claim, options, journal, binding)
        if written is not None:
            return written
        journalled = segment.read()
    if journalled is None:
        raise JournalError(
            f"journal {journal.location}: partition {claim.index} of batch {claim.batch} is being written by "
            "another attempt and cannot be read yet; the task is to be repeated"
        )
    if not segment.acknowledged():
        _acknowledge_again(segment, claim.queue, journalled, binding)
    return journalled


def _claim_into(
    segment: Segment, claim: Claim, options: Options, journal: Journal, binding: Binding
) -> list[pa.RecordBatch] | None:
    """Claim, journal and acknowledge; None when another attempt was first, whose segment stands.

    Claims are given back only where it is certain that the journal does not hold them: once the write
    has begun, an error may hide a success, and they are left to lapse.
    """
    lapses_at = time.time() + binding.lease if binding.lease else 0.0
    claimed: list[pa.RecordBatch] = []
    try:
        claimed.extend(_take(claim, options, binding))
        fresh, repeated = _without_redeliveries(claimed, claim, journal, binding)
    except BaseException:
        _release(claim.queue, claimed, binding)
        raise
    if not segment.write(fresh, DELIVERIES, lapses_at):
        _release(claim.queue, claimed, binding)
        return None
    if journal.state().cleaned >= claim.batch:
        segment.discard()
        _release(claim.queue, claimed, binding)
        raise JournalError(
            f"journal {journal.location}: batch {claim.batch} was finished by another attempt of this task, "
            "and this one came too late; its claims were given back"
        )
    lost = _acknowledge(claim.queue, claimed, binding)
    if repeated:
        logger.info("queue %s: dropped %d redeliveries of journalled messages", claim.queue, len(repeated))
        segment.mark_dropped(repeated)
    segment.mark_acknowledged(sum(batch.num_rows for batch in claimed), lost)
    return fresh


def _take(claim: Claim, options: Options, binding: Binding) -> Iterator[pa.RecordBatch]:
    deadline = time.monotonic() + options.max_fetch_time
    messages, max_bytes = claim.messages, claim.max_bytes
    while messages > 0 and max_bytes > 0:
        batch = binding.claim(claim.queue, min(messages, binding.capabilities.claim_batch), max_bytes)
        if not batch.num_rows:
            return
        yield batch
        messages -= batch.num_rows
        max_bytes -= total_bytes(batch)
        if time.monotonic() > deadline:
            return


def _without_redeliveries(
    claimed: list[pa.RecordBatch], claim: Claim, journal: Journal, binding: Binding
) -> tuple[list[pa.RecordBatch], list[str]]:
    if not any(_may_repeat(batch) for batch in claimed):
        return claimed, []
    known = journal.redeliveries(
        claim.committed, claim.batch, claim.index, binding.identities, now=time.time()
    )
    if not known:
        return claimed, []
    fresh, repeated = [], []
    for batch in claimed:
        keep = []
        for name in binding.identities(batch):
            keep.append(known[name] == 0)
            if known[name]:
                known[name] -= 1
                repeated.append(name)
        fresh.append(batch.filter(pa.array(keep)))
    return [batch for batch in fresh if batch.num_rows], repeated


def _may_repeat(batch: pa.RecordBatch) -> bool:
    return bool(pc.any(pc.fill_null(batch.column("redelivered"), True)).as_py())


def _acknowledge(queue: str, claimed: list[pa.RecordBatch], binding: Binding) -> list[str]:
    """Acknowledge; the identities of those whose claims had lapsed, which the broker delivers again."""
    lost: list[str] = []
    for batch in claimed:
        removed = binding.acknowledge(queue, batch)
        if not pc.all(removed).as_py():
            lost += binding.identities(batch.filter(pc.invert(removed)))
    if lost:
        logger.warning(
            "queue %s: %d messages were journalled, but not acknowledged before their claims lapsed: if they "
            "are delivered again they are recognised; raise visibilityTimeout if this happens often",
            queue,
            len(lost),
        )
    return lost


def _acknowledge_again(
    segment: Segment, queue: str, journalled: list[pa.RecordBatch], binding: Binding
) -> None:
    """Another attempt journalled these, and died (or is not yet done) with its acknowledge.

    As long as a claim cannot have lapsed, a message that is not there to acknowledge was acknowledged.
    """
    count = sum(batch.num_rows for batch in journalled)
    if not binding.capabilities.durable_receipts:
        lost = [name for batch in journalled for name in binding.identities(batch)]
    elif time.time() < segment.lapses_at() - CLOCK_SKEW:
        for batch in journalled:
            binding.acknowledge(queue, batch)
        lost = []
    else:
        lost = _acknowledge(queue, journalled, binding)
    segment.mark_acknowledged(count, lost)


def _release(queue: str, claimed: list[pa.RecordBatch], binding: Binding) -> None:
    """Give claims back; where the broker is out of reach, they come back when their lease ends."""
    try:
        for batch in claimed:
            binding.release(queue, batch)
    except BabelQueueError as error:
        logger.warning("queue %s: claims could not be released and will lapse: %s", queue, error)
