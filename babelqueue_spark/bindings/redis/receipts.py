"""Receipts of the default layout.

Ours: `#`, the 16 bytes of the claim's token, the index of the message from the tail of the claim's list (four
bytes, 1 is the last), and where the stored element was a frame, its digest. An index never changes: messages
leave the list at its head, or are replaced.

Of the SDK: a token of 32 characters, and where the element was a frame, `:` and the element. With the
element such a receipt is a deadline member.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TOKEN_BYTES = 16
_FORM = b"#"
_MEMBER_TOKEN_BYTES = 32
_RECEIPT = np.dtype([("form", "S1"), ("token", "<u8", 2), ("index", ">u4")])


def receipts_of(token: bytes, messages: int) -> pa.BinaryArray:
    """Return the receipts of a new claim, in the order of its list."""
    rows = np.empty(messages, _RECEIPT)
    rows["form"] = _FORM
    rows["token"] = np.frombuffer(token, "<u8")
    rows["index"] = np.arange(messages, 0, -1)
    fixed = pa.binary(_RECEIPT.itemsize)
    return pa.Array.from_buffers(fixed, messages, [None, pa.py_buffer(rows)]).cast(pa.binary())


def are_ours(receipts: pa.BinaryArray) -> pa.BooleanArray:
    """Return whether each receipt names a message of a claim that is a list."""
    return pc.equal(pc.binary_slice(receipts, 0, 1), _FORM)


def runs_of(receipts: pa.BinaryArray) -> Iterator[tuple[str, int, int]]:
    """Yield token, first and last index of each run of receipts that follow on one another."""
    if not len(receipts):
        return
    fixed = pc.binary_slice(receipts, 0, _RECEIPT.itemsize).cast(pa.binary(_RECEIPT.itemsize))
    rows = np.frombuffer(fixed.buffers()[1], _RECEIPT, len(fixed))
    token, index = rows["token"], rows["index"].astype(np.int64)
    broken = (token[1:] != token[:-1]).any(axis=1) | (np.diff(index) != -1)
    edges = [0, *(np.flatnonzero(broken) + 1).tolist(), len(rows)]
    for first, end in pairwise(edges):
        yield token[first].tobytes().hex(), int(index[first]), int(index[end - 1])


def framed(receipt: bytes, element: bytes) -> bytes:
    """Return the receipt of a message whose stored element is a frame."""
    return receipt + bytes.fromhex(digest(element))


def members(claimed: pa.RecordBatch) -> list[bytes]:
    """Return the deadline members of receipts of the SDK."""
    receipts = claimed.column("receipt")
    whole = pc.greater(pc.binary_length(receipts), _MEMBER_TOKEN_BYTES)
    joined = pc.binary_join_element_wise(receipts, claimed.column("body"), b":")
    values: list[bytes] = pc.if_else(whole, receipts, joined).to_pylist()
    return values


def identity(body: bytes, receipt: bytes) -> str:
    """Return the digest of a stored element: of the body, unless it came in a frame."""
    if receipt.startswith(_FORM):
        return receipt[_RECEIPT.itemsize :].hex() or digest(body)
    return digest(receipt[_MEMBER_TOKEN_BYTES + 1 :] or body)


def digest(value: bytes) -> str:
    """Return a name for what lies in Redis."""
    return hashlib.blake2b(value, digest_size=16).hexdigest()
