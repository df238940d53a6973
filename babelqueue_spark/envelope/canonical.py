"""The quick way to read: bodies just as the SDKs write them, cut at the seams of the canonical envelope.

All bodies of a slice are cut at once, at places found by counting keys from both ends of a body. Where
the text between the fields is the canonical frame, the strings hold no quote, no escape and no control
character, and `data` by itself is a JSON object, the whole is valid JSON and the pieces are its fields:
nothing is left to parse. A body that differs in one byte is left to the other ways (`decoder.py`).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from babelqueue_spark.envelope.columns import DEAD_LETTER_TYPE, META_TYPE, TIMESTAMP, envelope_schema
from babelqueue_spark.envelope.jsontext import MAX_DEPTH, is_utf8
from babelqueue_spark.envelope.scan import beyond_limits, cut, no_values, octets_of, places, raws_of, slices
from babelqueue_spark.envelope.texts import NEEDS_ESCAPE, must_escape
from babelqueue_spark.envelope.typed import payloads

#: The text around the fields: job, trace_id, data, id, queue, lang, created_at, attempts.
_FRAME = (
    b'{"job":"',
    b'","trace_id":"',
    b'","data":',
    b',"meta":{"id":"',
    b'","queue":"',
    b'","lang":"',
    b'","schema_version":1,"created_at":',
    b'},"attempts":',
    b"}",
)
_FRAME_TEXT = b"".join(_FRAME)
_FRAME_LENGTHS = np.array([len(text) for text in _FRAME])
_HEAD_FRAMES = 3  # in front of `data`, whose own keys lie between these keys and those of the tail


def _begins() -> Iterator[tuple[int, int]]:
    """Find where a body's pieces begin: the end of a key (`":`), and the way from there.

    Keys are counted from the body's first one, and from `data` on back from its last one (-1).
    """
    keys, keys_in_all = 0, _FRAME_TEXT.count(b'":')
    for number, text in enumerate(_FRAME[:-1]):
        first = keys if number < _HEAD_FRAMES else keys - keys_in_all
        if number:
            yield first, -text.index(b'":')
        keys += text.count(b'":')
        yield first + text.count(b'":') - 1, len(text) - text.rindex(b'":')


_BEGINS = tuple(_begins())
_HEAD_REACH, _TAIL_REACH = 192, 320
"""How far the frame's keys reach into a body from its begin and its end."""
_FRAME_REACH = _HEAD_REACH + _TAIL_REACH
_FEWEST_KEYS = _FRAME_TEXT.count(b'":')
#: The pieces, and what lies between this body and the next one.
_PIECES = 2 * len(_FRAME)
_FRAME_PIECES = np.arange(0, _PIECES, 2)
_JOB, _TRACE_ID, _DATA, _ID, _QUEUE, _LANG, _CREATED_AT, _ATTEMPTS = range(1, _PIECES - 2, 2)
_TIME_DIGITS = 13
_PLACE_VALUES = 10 ** np.arange(_TIME_DIGITS - 1, -1, -1, dtype=np.int64)
_BLANK_OR_QUOTE = np.isin(np.arange(256), [ord(" "), ord('"')])
_NO_TEXTS = pa.nulls(0, pa.string())
_TEXT = pa.string()

Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]
Octets = NDArray[np.uint8]
Places = NDArray[np.int32]


class Canonical(NamedTuple):
    """What could be read the quick way."""

    rows: Rows
    """the rows of the canonical and acceptable bodies, ascending"""
    columns: Any
    """their fields, a RecordBatch of `envelope_schema`"""


def read(bodies: Any, data_type: Any = _TEXT) -> Canonical:
    """Decode the canonical and acceptable envelopes among `bodies`, a binary array.

    `data` is parsed once: into its type, or, where that is text, to see that it is JSON.
    """
    parts = [(start, *_read_slice(part, data_type)) for start, part in slices(bodies)]
    found = [(start + rows, leaves) for start, rows, leaves in parts if len(rows)]
    if not found:
        return Canonical(np.empty(0, np.intp), pa.RecordBatch.from_pylist([], envelope_schema(data_type)))
    all_rows, all_leaves = zip(*found, strict=True)
    columns = [pa.concat_arrays(leaf) for leaf in zip(*all_leaves, strict=True)]
    return Canonical(np.concatenate(all_rows), _batch(columns))


def _read_slice(part: Any, data_type: Any) -> tuple[Rows, list[Any]]:
    """Return the rows that can be read, and their columns with the structs taken apart."""
    octets, bounds = octets_of(part)
    rows, cuts = _cut(_key_ends(part), bounds)
    if not len(rows):
        return rows, []
    pieces = cut(part, np.append(cuts.T, bounds[-1]))  # one row's after the other's
    data, *strings = (_column(pieces, piece) for piece in (_DATA, _JOB, _TRACE_ID, _ID, _QUEUE, _LANG))
    times, attempts = _digits(octets, cuts[_CREATED_AT], _TIME_DIGITS), _digits(octets, cuts[_ATTEMPTS], 1)[0]
    fine = (times <= 9).all(axis=0) & (times[0] > 0) & (attempts <= 9)
    fine &= _framed(pieces) & _named(octets, cuts) & _plain(strings)
    fine &= _objects(octets, cuts, data) & _utf8(part, rows)
    leaves = [*strings, pa.array(_PLACE_VALUES @ times), pa.array(attempts.astype(np.int32)), data]
    rows, (*leaves, data) = _only(fine, rows, leaves)
    column, unsound = _payloads(data, data_type)
    return _only(~np.isin(np.arange(len(rows)), unsound), rows, [*leaves, column])


def _payloads(data: Any, data_type: Any) -> tuple[Any, list[int]]:
    """Return the texts `data` as a column of their type, and the rows that are not JSON."""
    if data_type == _TEXT:
        return data.view(_TEXT), no_values(data)
    return payloads(raws_of(data), data_type)


def _only(wanted: Mask, rows: Rows, leaves: list[Any]) -> tuple[Rows, list[Any]]:
    if wanted.all():
        return rows, leaves
    return rows[wanted], [leaf.filter(pa.array(wanted)) for leaf in leaves]


def _key_ends(bodies: Any) -> Rows:
    """Find the ends of keys (`":`) of one body or more; in long ones, of what can be keys of the frame."""
    octets, bounds = octets_of(bodies)
    if np.diff(bounds).min() < _FRAME_REACH:
        return places(octets[bounds[0] : bounds[-1]], _ends_key, reach=1) + int(bounds[0])
    found = [
        _ends_key_at(pc.binary_slice(bodies, 0, _HEAD_REACH), bounds[:-1]),
        _ends_key_at(pc.binary_slice(bodies, -_TAIL_REACH), bounds[1:] - _TAIL_REACH),
    ]
    return np.sort(np.concatenate(found))


def _ends_key_at(parts: Any, begins: Places) -> Rows:
    """Find the ends of keys in parts of one length, which begin at these places."""
    octets, bounds = octets_of(parts)
    found, length = places(octets[bounds[0] : bounds[-1]], _ends_key, reach=1), int(bounds[1] - bounds[0])
    ends: Rows = found % length + begins[found // length]
    return ends


def _cut(key_ends: Rows, bounds: Places) -> tuple[Rows, Places]:
    """Find the rows whose keys stand where canonical ones do, and where each of their pieces begins."""
    first = np.searchsorted(key_ends, bounds)
    rows = np.flatnonzero(np.diff(first) >= _FEWEST_KEYS)
    begins, ends = first[rows], first[rows + 1]
    cuts = np.empty((_PIECES, len(rows)), np.int32)
    cuts[0] = bounds[rows]
    for piece, (key, way) in enumerate(_BEGINS, start=1):
        cuts[piece] = key_ends[(begins if key >= 0 else ends) + key] + way
    cuts[-1] = bounds[rows + 1]
    cuts[-2] = cuts[-1] - 1
    lengths = np.diff(cuts, axis=0)
    fitting = (lengths[::2] == _FRAME_LENGTHS[:, None]).all(axis=0) & (lengths[1::2] >= 0).all(axis=0)
    fitting &= (lengths[_CREATED_AT] == _TIME_DIGITS) & (lengths[_ATTEMPTS] == 1) & (lengths[_DATA] > 0)
    return (rows, cuts) if fitting.all() else (rows[fitting], cuts[:, fitting])


def _ends_key(octets: Octets) -> Mask:
    mask: Mask = (octets[:-1] == ord('"')) & (octets[1:] == ord(":"))
    return mask


def _column(pieces: Any, piece: int) -> Any:
    return pieces.take(pa.array(np.arange(piece, len(pieces), _PIECES)))


def _digits(octets: Octets, begins: Places, count: int) -> Octets:
    """Return the digits of a number of `count` digits that begins there, place by place; above 9 is none."""
    digits: Octets = octets[begins + np.arange(count)[:, None]] - np.uint8(ord("0"))
    return digits


def _framed(pieces: Any) -> Mask:
    """Return which rows have the text of the frame, whose lengths they have."""
    count = len(pieces) // _PIECES
    wanted = np.arange(0, len(pieces), _PIECES)[:, None] + _FRAME_PIECES
    text = pieces.take(pa.array(wanted.ravel())).buffers()[2].slice(0, count * len(_FRAME_TEXT))
    if text.equals(pa.py_buffer(_FRAME_TEXT * count)):
        return np.ones(count, np.bool_)
    octets = np.frombuffer(text, np.uint8).reshape(count, -1)
    framed: Mask = (octets == np.frombuffer(_FRAME_TEXT, np.uint8)).all(axis=1)
    return framed


def _named(octets: Octets, cuts: Places) -> Mask:
    """Return which rows have a job and a trace_id that begin with neither a blank nor the closing quote."""
    named: Mask = ~(_BLANK_OR_QUOTE[octets[cuts[_JOB]]] | _BLANK_OR_QUOTE[octets[cuts[_TRACE_ID]]])
    return named


def _plain(strings: list[Any]) -> Mask:
    """Find the rows whose strings have no quotes, escapes and control characters."""
    odd = [pc.match_substring_regex(column, NEEDS_ESCAPE) for column in strings if must_escape(column)]
    fine: Mask = ~np.logical_or.reduce([mask.to_numpy(zero_copy_only=False) for mask in odd] or [False])
    return fine


def _objects(octets: Octets, cuts: Places, data: Any) -> Mask:
    """Return which of the texts `data` are objects within the limits, if they are JSON."""
    fine: Mask = (octets[cuts[_DATA]] == ord("{")) & (octets[cuts[_DATA + 1] - 1] == ord("}"))
    fine[beyond_limits(data, MAX_DEPTH - 1)] = False
    return fine


def _utf8(bodies: Any, rows: Rows) -> Mask:
    try:
        bodies.cast(pa.string())
    except pa.ArrowInvalid:
        return np.array([is_utf8(body) for body in bodies.take(pa.array(rows)).to_pylist()])
    return np.ones(len(rows), np.bool_)


def _batch(leaves: list[Any]) -> Any:
    *texts, created_at, attempts, data = leaves
    job, trace_id, message_id, queue, lang = (text.view(_TEXT) for text in texts)
    count = len(job)
    version = pa.repeat(pa.scalar(1, pa.int32()), count)
    extra = pa.MapArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count + 1), _NO_TEXTS, _NO_TEXTS)
    meta = [message_id, queue, lang, version, pc.multiply(created_at, 1000).cast(TIMESTAMP), extra]
    columns = [
        job,
        trace_id,
        data,
        pa.StructArray.from_arrays(meta, fields=list(META_TYPE)),
        attempts,
        pa.nulls(count, DEAD_LETTER_TYPE),
        pa.nulls(count, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=envelope_schema(data.type))
