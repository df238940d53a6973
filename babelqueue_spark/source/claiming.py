"""What an executor does with a partition: claim, journal, acknowledge, yield; or find it done already.

The order is the guarantee. Before the journal is written the broker still owns the messages and
redelivers them; from then on the journal owns them, and redeliveries of them are recognised.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings import DELIVERIES, Binding
from babelqueue_spark.bindings.batches import total_bytes
from babelqueue_spark.errors import BabelQueueError, JournalError
from babelqueue_spark.journal import CLOCK_SKEW, Holding, Identities, Journal, Segment
from babelqueue_spark.options import Options
from babelqueue_spark.source.plan import Claim

logger = logging.getLogger(__name__)


def deliveries_of(claim: Claim, options: Options, journal: Journal, binding: Binding) -> list[pa.RecordBatch]:
    """The deliveries of one partition: those in the journal, or freshly claimed ones put there."""
    segment = journal.segment(claim.batch, claim.index)
    holding = segment.read()
    if holding is None:
        holding = _claim_into(segment, claim, options, journal, binding)
        if holding is not None:
            _settle(segment, holding, binding, connected=True)
            return holding.fresh
        holding = segment.read()
    if holding is None:
        raise JournalError(
            f"journal {journal.location}: partition {claim.index} of batch {claim.batch} is being written by "
            "another attempt and cannot be read yet; the task is to be repeated"
        )
    if not segment.acknowledged():
        _settle(segment, holding, binding, connected=False)
    return holding.fresh


def _claim_into(
    segment: Segment, claim: Claim, options: Options, journal: Journal, binding: Binding
) -> Holding | None:
    """Claim and journal; None when another attempt was first, whose segment stands.

    Claims are given back only where it is certain that the journal does not hold them: once the write
    has begun, an error may hide a success, and they are left to lapse.
    """
    lapses_at = time.time() + binding.lease if binding.lease else 0.0
    claimed: list[pa.RecordBatch] = []
    try:
        claimed.extend(_take(claim, options, binding))
        holding = Holding(claim.queue, claimed, _redeliveries(claimed, claim, journal, binding), lapses_at)
    except BaseException:
        _release(claim.queue, claimed, binding)
        raise
    if not segment.write(holding, DELIVERIES):
        _release(claim.queue, claimed, binding)
        return None
    if journal.state().cleaned >= claim.batch:
        segment.discard()
        _release(claim.queue, claimed, binding)
        raise JournalError(
            f"journal {journal.location}: batch {claim.batch} was finished by another attempt of this task, "
            "and this one came too late; its claims were given back"
        )
    return holding


def _take(claim: Claim, options: Options, binding: Binding) -> Iterator[pa.RecordBatch]:
    started = time.monotonic()
    messages, max_bytes = claim.messages, claim.max_bytes
    while messages > 0 and max_bytes > 0:
        batch = binding.claim(claim.queue, min(messages, binding.capabilities.claim_batch), max_bytes)
        if not batch.num_rows:
            return
        yield batch
        messages -= batch.num_rows
        max_bytes -= total_bytes(batch)
        # A claim that lapsed while this task goes on could be claimed by it again.
        longest = binding.lease / 2 if binding.lease else options.max_fetch_time
        if time.monotonic() - started > min(options.max_fetch_time, longest):
            return


def _redeliveries(
    claimed: list[pa.RecordBatch], claim: Claim, journal: Journal, binding: Binding
) -> list[pa.BooleanArray]:
    """For each batch a mask of the messages that are in the journal already."""
    known: Counter[str] = Counter()
    if any(_may_repeat(batch) for batch in claimed):
        known = journal.redeliveries(
            claim.committed, claim.batch, claim.index, _identities(binding), now=time.time()
        )
    if not known:
        return [pa.repeat(pa.scalar(False), batch.num_rows) for batch in claimed]
    masks = [_known_among(batch, _identities(binding)(claim.queue, batch), known) for batch in claimed]
    count = sum(mask.true_count for mask in masks)
    logger.info("queue %s: recognised %d redeliveries of journalled messages", claim.queue, count)
    return masks


def _identities(binding: Binding) -> Identities:
    """Those of the binding, and the queue, within which alone they are unique."""
    return lambda queue, batch: [f"{queue} {name}" for name in binding.identities(batch)]


def _known_among(batch: pa.RecordBatch, names: list[str], known: Counter[str]) -> pa.BooleanArray:
    """Which messages are redeliveries of known ones."""
    repeatable = _repeatable(batch).to_pylist()
    found = [again and _is_known(name, known) for again, name in zip(repeatable, names, strict=True)]
    return pa.array(found, pa.bool_())


def _is_known(name: str, known: Counter[str]) -> bool:
    """Whether a message is among the known ones; each of those is used up by one redelivery."""
    known[name] -= 1
    return known[name] >= 0


def _may_repeat(batch: pa.RecordBatch) -> bool:
    return bool(pc.any(_repeatable(batch)).as_py())


def _repeatable(batch: pa.RecordBatch) -> pa.BooleanArray:
    """False where the broker knows that it delivers a message for the first time."""
    return pc.fill_null(batch.column("redelivered"), True)


def _settle(segment: Segment, holding: Holding, binding: Binding, *, connected: bool) -> None:
    lost = _acknowledge(holding, binding, connected=connected)
    repeated = holding.names(holding.redelivered, _identities(binding))
    segment.mark_acknowledged(sum(batch.num_rows for batch in holding.claimed), lost, repeated)


def _acknowledge(holding: Holding, binding: Binding, *, connected: bool) -> Counter[str]:
    """Acknowledge what is journalled; the identities of those which the broker delivers again.

    The attempt that claimed is `connected`; another one repeats the acknowledge when that died, or is not
    done yet. While claims cannot have lapsed, what is not there any more was acknowledged by the other.
    Where they end with the connection, they may have been on their way to somebody else by then.
    """
    if not (connected or binding.capabilities.durable_receipts):
        return holding.names(holding.claimed, _identities(binding))
    left: list[pa.RecordBatch] = []
    for batch in holding.claimed:
        removed = binding.acknowledge(holding.queue, batch)
        live = time.time() < holding.lapses_at - CLOCK_SKEW
        if not connected and binding.capabilities.connection_claims:
            left.append(batch)
        elif not live and not pc.all(removed).as_py():
            left.append(batch.filter(pc.invert(removed)))
    lost = holding.names(left, _identities(binding))
    if lost:
        logger.warning(
            "queue %s: %d messages were journalled, but not acknowledged before their claims lapsed: if they "
            "are delivered again they are recognised; raise visibilityTimeout if this happens often",
            holding.queue,
            lost.total(),
        )
    return lost


def _release(queue: str, claimed: list[pa.RecordBatch], binding: Binding) -> None:
    """Give claims back; where the broker is out of reach, they come back when their lease ends."""
    try:
        for batch in claimed:
            binding.release(queue, batch)
    except BabelQueueError as error:
        logger.warning("queue %s: claims could not be released and will lapse: %s", queue, error)
