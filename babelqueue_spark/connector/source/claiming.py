"""Read one partition on an executor: claim, journal, acknowledge, yield; or yield what is journalled already.

The order is the guarantee. Until the journal is written, the broker owns the messages and delivers them
again if this process dies. From then on the journal owns them, and their redeliveries are recognised.
The first row comes after the acknowledge: a consumer may stop there (`take`, `isEmpty`), and Spark commits
the batch without waiting for this process.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings import DELIVERIES, Binding
from babelqueue_spark.bindings.batches import total_bytes
from babelqueue_spark.connector.options import Options
from babelqueue_spark.connector.source.plan import Claim, Share
from babelqueue_spark.errors import BabelQueueError, BrokerUnreachableError, JournalError, JournalMissingError
from babelqueue_spark.journal import (
    CLOCK_SKEW,
    FromQueue,
    Identities,
    Journal,
    Segment,
    SegmentContent,
    SegmentState,
    names_of,
)

logger = logging.getLogger(__name__)

_CLAIM_ATTEMPTS = 3
_JOURNALLED_BY = 0.75
"""The part of a lease in which the journal is to be written.

In the rest, the storage may still carry out a write of which no answer came: before anybody else gets the
messages.
"""


def deliveries_of(claim: Claim, options: Options, journal: Journal, binding: Binding) -> list[FromQueue]:
    """Return the deliveries of one partition by queue, from the journal or freshly claimed.

    What is done depends on where an earlier attempt stopped, as in the table of kills of docs/guarantees.md:

    - `ABSENT`, before or after its claim: claim. If another attempt journals first, its segment counts.
    - `JOURNALLED`, before or in its acknowledge: acknowledge what it claimed.
    - `ACKNOWLEDGED`: nothing is left to do.

    Raises:
        JournalError: the journal cannot be used, or this attempt came too late, or has to be repeated.
        JournalMissingError: this host does not see the driver's journal; nothing is claimed.
    """
    journal.check_shared(claim.journal)
    segment = journal.segment(claim.batch, claim.index)
    state, content = segment.load()
    if state is SegmentState.ABSENT:
        claimed = _claim_into(segment, claim, options, journal, binding)
        if claimed is not None:
            content, until = claimed
            _acknowledge_and_record(segment, content, claim, journal, binding, until)
            return _yielded(content, claim, journal, binding)
        state, content = segment.load()
    if content is None:
        raise JournalError(
            f"journal {journal.location}: partition {claim.index} of batch {claim.batch} is being written by "
            "another attempt and cannot be read yet; the task is to be repeated"
        )
    if state is SegmentState.JOURNALLED:
        _acknowledge_and_record(segment, content, claim, journal, binding)
    return _yielded(content, claim, journal, binding)


def _yielded(content: SegmentContent, claim: Claim, journal: Journal, binding: Binding) -> list[FromQueue]:
    """Return the deliveries that become rows; of a message that two tasks of the batch were given, one."""
    fresh = content.fresh
    if claim.tasks == 1 or not binding.capabilities.double_deliveries:
        return fresh
    named = [(queue, batch, _identities(binding)(queue, batch)) for queue, batch in fresh]
    left = journal.left_to_others(claim.batch, claim.index, [name for *_, names in named for name in names])
    if not left:
        return fresh
    logger.info("%s: left %d messages to tasks that were given them too", claim.queues, len(left))
    return [
        (queue, batch.filter(pa.array([name not in left for name in names], pa.bool_())))
        for queue, batch, names in named
    ]


def _claim_into(
    segment: Segment, claim: Claim, options: Options, journal: Journal, binding: Binding
) -> tuple[SegmentContent, float] | None:
    """Claim and journal; what, and until when by the monotonic clock. None if another attempt was first.

    Claims are released only if it is certain that the journal does not hold them. Once the write has begun,
    an error may hide a success, also one that is still to come, so they are left to lapse. The next attempt
    finds the segment, or writes its own in that place: then the storage refuses the late one.
    """
    content, started = _claim(claim, options, journal, binding)
    try:
        written = segment.write(content, DELIVERIES, _journal_by(started, binding))
    except JournalMissingError:  # the folder of the batch is gone, and nothing was written
        _release(content.claimed, binding)
        journal.check_shared(claim.journal)
        raise _too_late(claim, journal) from None
    if not written:
        _release(content.claimed, binding)
        return None
    if journal.is_cleaned(claim.batch):
        segment.discard()
        _release(content.claimed, binding)
        raise _too_late(claim, journal)
    return content, started + binding.lease


def _journal_by(started: float, binding: Binding) -> float:
    """When a claim that `started` then is to be journalled, by the monotonic clock."""
    return started + _JOURNALLED_BY * binding.lease if binding.lease else math.inf


def _claim(
    claim: Claim, options: Options, journal: Journal, binding: Binding
) -> tuple[SegmentContent, float]:
    """Claim what can be journalled in time; release what took longer, and claim again.

    Returns when the claim started, too.
    """
    for _ in range(_CLAIM_ATTEMPTS):
        started = time.monotonic()
        lapses_at = binding.now() + binding.lease if binding.lease else 0.0
        claimed: list[FromQueue] = []
        try:
            claimed.extend(_take(claim, options, binding))
            redelivered = _redeliveries(claimed, claim, journal, binding)
        except BaseException:
            _release(claimed, binding)
            raise
        if time.monotonic() < _journal_by(started, binding):
            return SegmentContent(claimed, redelivered, lapses_at), started
        _release(claimed, binding)
    raise JournalError(
        f"journal {journal.location}: {claim.queues}: claims lapsed {_CLAIM_ATTEMPTS} times before they "
        "could be journalled: raise visibilityTimeout, or lower maxFetchTime; the messages are in the queue"
    )


def _too_late(claim: Claim, journal: Journal) -> JournalError:
    return JournalError(
        f"journal {journal.location}: batch {claim.batch} was finished by another attempt of this task, "
        "and this one came too late; its claims were released"
    )


def _take(claim: Claim, options: Options, binding: Binding) -> Iterator[FromQueue]:
    """Claim up to the bounds of the partition, for at most `maxFetchTime` and half of the lease.

    Each batch begins with another queue, so that the time does not always end before the same one. A queue
    that the query no longer reads is left alone.
    """
    # If a claim lapsed while this task still claims, the task could claim the same message again.
    longest = binding.lease / 2 if binding.lease else options.max_fetch_time
    until = time.monotonic() + min(options.max_fetch_time, longest)
    first = claim.batch % len(claim.shares)
    left, held = claim.max_bytes, False
    for share in claim.shares[first:] + claim.shares[:first]:
        if share.queue not in options.queue:
            continue
        for batch in _take_share(share, left, binding):
            yield share.queue, batch
            left, held = left - total_bytes(batch), True
            if left <= 0 or time.monotonic() > until:
                return
        if held and time.monotonic() > until:
            return


def _take_share(share: Share, max_bytes: int, binding: Binding) -> Iterator[pa.RecordBatch]:
    messages, max_bytes = share.messages, min(share.max_bytes, max_bytes)
    while messages > 0 and max_bytes > 0:
        batch = binding.claim(share.queue, min(messages, binding.capabilities.claim_batch), max_bytes)
        if not batch.num_rows:
            return
        yield batch
        messages -= batch.num_rows
        max_bytes -= total_bytes(batch)


def _redeliveries(
    claimed: list[FromQueue], claim: Claim, journal: Journal, binding: Binding
) -> list[pa.BooleanArray]:
    """Make a mask for each batch, true for messages that are journalled already."""
    known: Counter[str] = Counter()
    if any(_may_repeat(batch) for _, batch in claimed) and _may_have_lapsed(claim, binding):
        known = journal.expected_redeliveries(
            claim.committed, claim.batch, claim.index, _identities(binding), now=binding.now()
        )
    if not known:
        return [pa.repeat(pa.scalar(False), batch.num_rows) for _, batch in claimed]
    masks = [_known_among(batch, _identities(binding)(queue, batch), known) for queue, batch in claimed]
    count = sum(mask.true_count for mask in masks)
    logger.debug("%s: recognised %d redeliveries of journalled messages", claim.queues, count)
    return masks


def _may_have_lapsed(claim: Claim, binding: Binding) -> bool:
    """Return whether the journal may hold a message that the broker has delivered again.

    Where the batches before left nothing, that is a message of this batch. Its claim lapses a lease after the
    batch was planned at the earliest, unless it ends with its connection.
    """
    ends_early = binding.capabilities.connection_claims or not 0 < binding.lease < math.inf
    if claim.settled_at is None or ends_early:
        return True
    return binding.now() >= claim.settled_at + binding.lease - CLOCK_SKEW


def _identities(binding: Binding) -> Identities:
    """Put the queue in front of the binding's identities, which are unique within one queue only."""
    return lambda queue, batch: [f"{queue} {name}" for name in binding.identities(batch)]


def _known_among(batch: pa.RecordBatch, names: list[str], known: Counter[str]) -> pa.BooleanArray:
    """Make a mask, true for redeliveries of known messages."""
    repeatable = _repeatable(batch).to_pylist()
    found = [again and _is_known(name, known) for again, name in zip(repeatable, names, strict=True)]
    return pa.array(found, pa.bool_())


def _is_known(name: str, known: Counter[str]) -> bool:
    """Return whether a message is known; each known one stands for one redelivery only."""
    known[name] -= 1
    return known[name] >= 0


def _may_repeat(batch: pa.RecordBatch) -> bool:
    return bool(pc.any(_repeatable(batch)).as_py())


def _repeatable(batch: pa.RecordBatch) -> pa.BooleanArray:
    """Make a mask, false where the broker guarantees a first delivery."""
    return pc.fill_null(batch.column("redelivered"), True)


def _acknowledge_and_record(
    segment: Segment,
    content: SegmentContent,
    claim: Claim,
    journal: Journal,
    binding: Binding,
    until: float | None = None,
) -> None:
    """Acknowledge what the segment holds, and record it there; for `until` see `_acknowledge`."""
    unacknowledged = _acknowledge(content, claim, binding, until)
    if unacknowledged and 0 < binding.lease < math.inf:
        lapsed_at = content.lapses_at + binding.lease - CLOCK_SKEW
        unacknowledged -= journal.claimed_since(
            lapsed_at, claim.committed, claim.batch, claim.index, _identities(binding)
        )
    redelivered = names_of(content.redeliveries, _identities(binding))
    counts = Counter[str]()
    for queue, batch in content.claimed:
        counts[queue] += batch.num_rows
    try:
        segment.mark_acknowledged(
            [counts[share.queue] for share in claim.shares], unacknowledged, redelivered
        )
    except JournalMissingError:  # an attempt of a batch that is finished and cleaned, or the mount is gone
        journal.check_shared(claim.journal)


def _acknowledge(
    content: SegmentContent, claim: Claim, binding: Binding, until: float | None
) -> Counter[str]:
    """Acknowledge what is journalled; count the identities of messages that the broker may deliver again.

    `until` is the end of the lease by this process's monotonic clock, for the attempt that claimed. Any other
    attempt has None: it repeats the acknowledge, because the first one died or is still at it. While the
    lease lasts, a message that is not there was acknowledged by another attempt. Where claims end with the
    connection, the message may be on its way to another reader by then.
    """
    connected = until is not None
    if not (connected or binding.capabilities.durable_receipts):
        return names_of(content.claimed, _identities(binding))
    left: list[FromQueue] = []
    for queue, batch in content.claimed:
        removed = binding.acknowledge(queue, batch)
        # The broker's clock may have been set back since the claim.
        over = until is not None and time.monotonic() >= until
        live = not over and binding.now() < content.lapses_at - CLOCK_SKEW
        if not connected and binding.capabilities.connection_claims:
            left.append((queue, batch))
        elif not live and not pc.all(removed).as_py():
            left.append((queue, batch.filter(pc.invert(removed))))
    unacknowledged = names_of(left, _identities(binding))
    if unacknowledged and connected:
        logger.warning(
            "%s: %d messages were journalled, but not acknowledged before their claims lapsed: if they "
            "are delivered again they are recognised; raise visibilityTimeout if this happens often",
            claim.queues,
            unacknowledged.total(),
        )
    return unacknowledged


def _release(claimed: Sequence[FromQueue], binding: Binding) -> None:
    """Release claims, the last first, as each goes to the head of its queue; or leave them to lapse."""
    for queue, batch in reversed(claimed):
        try:
            binding.release(queue, batch)
        except BabelQueueError as error:
            logger.warning("queue %s: claims could not be released and will lapse: %s", queue, error)
            if isinstance(error, BrokerUnreachableError):
                return
