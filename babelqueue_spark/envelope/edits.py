"""Edits of bodies as text: attempts, the dead-letter block, its removal. Every other byte stays.

A body that is no envelope is never edited: it is wrapped, whole, as `raw`, and unwrapped again.
"""

import base64
import re
from collections.abc import Callable
from json import dumps
from typing import Any

import pyarrow as pa

from babelqueue_spark.envelope.decoder import validate
from babelqueue_spark.envelope.jsontext import JSON_WHITESPACE, Member, document_members, with_room
from babelqueue_spark.envelope.reasons import Reason
from babelqueue_spark.envelope.texts import dead_letter_block

_LAST_ATTEMPTS = re.compile(r',"attempts":-?\d+\}\Z')
_NO_ENVELOPE = {Reason.POISON, Reason.MISSING_URN}


def set_attempts(bodies: Any, attempts: Any) -> Any:
    """Bodies with another count of attempts: the digits change, or the member is appended.

    `bodies` is a binary array, `attempts` an integer array of the same length. What is no JSON object
    comes back as it is.
    """
    pairs = zip(_bytes(bodies), attempts.to_pylist(), strict=True)
    return _edited(lambda body, count: _with_attempts(body.decode(), count).encode(), pairs)


def dead_letter(bodies: Any, blocks: Any) -> Any:
    """Bodies annotated with a dead-letter block (of DEAD_LETTER_TYPE, none null).

    A block that is there is replaced. An envelope's `attempts` becomes the block's. What is no envelope is
    annotated unchanged where that leaves one JSON object, and else wrapped: `raw` holds its text, or its
    base64 where it is not UTF-8 (`raw_encoding`).
    """
    binary = _bytes(bodies)
    reasons = validate(pa.array(binary, pa.binary())).to_pylist()
    counts = [block["attempts"] for block in blocks.to_pylist()]
    rows = zip(binary, reasons, dead_letter_block(blocks).to_pylist(), counts, strict=True)
    return pa.array([_annotated(*row) for row in rows], pa.binary())


def strip_dead_letter(bodies: Any) -> Any:
    """Bodies ready to be sent again: no dead-letter block, `attempts` 0, what was wrapped unwrapped."""
    return _edited(lambda body: _redriven(body.decode()), ((body,) for body in _bytes(bodies)))


def _bytes(bodies: Any) -> list[bytes]:
    found: list[bytes] = bodies.cast(pa.binary()).to_pylist()
    return found


def _edited(edit: Callable[..., bytes], rows: Any) -> Any:
    edited = []
    for body, *rest in rows:
        try:
            edited.append(with_room(edit, body, *rest))
        except ValueError:
            edited.append(body)
    return pa.array(edited, pa.binary())


def _with_attempts(text: str, count: int) -> str:
    if _LAST_ATTEMPTS.search(text) and text.startswith("{"):
        return _LAST_ATTEMPTS.sub(f',"attempts":{count}}}', text)
    found = document_members(text)
    last = _last(found, "attempts")
    if last is None:
        return _appended(text, found, f'"attempts":{count}')
    return text[: last.start] + str(count) + text[last.end :]


def _last(found: list[Member], key: str) -> Member | None:
    return next((member for member in reversed(found) if member.key == key), None)


def _appended(text: str, found: list[Member], member: str) -> str:
    """`text` with a member added before its last brace."""
    brace = text.rindex("}")
    return f"{text[:brace]}{',' if found else ''}{member}{text[brace:]}"


def _annotated(body: bytes, reason: str | None, block: str, attempts: int) -> bytes:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raw = base64.b64encode(body).decode()
        return f'{{"raw":"{raw}","raw_encoding":"base64","dead_letter":{block}}}'.encode()
    try:
        if reason in _NO_ENVELOPE:
            return with_room(_poison_with_block, text, block).encode()
        return with_room(_envelope_with_block, text, block, attempts).encode()
    except ValueError:
        return f'{{"raw":{dumps(text, ensure_ascii=False)},"dead_letter":{block}}}'.encode()


def _envelope_with_block(text: str, block: str, attempts: int) -> str:
    text = _with_attempts(text, attempts)
    found = document_members(text)
    for member in reversed(found):
        if member.key == "dead_letter":
            text = text[: member.start] + block + text[member.end :]
    if _last(found, "dead_letter") is None:
        text = _appended(text, found, f'"dead_letter":{block}')
    return text


def _poison_with_block(text: str, block: str) -> str:
    stripped = text.strip(JSON_WHITESPACE)
    found = document_members(stripped)
    if _last(found, "dead_letter") is not None:
        raise ValueError("it has a dead_letter of its own")
    _refuse_lone_surrogates(found)
    return _appended(stripped, found, f'"dead_letter":{block}')


def _refuse_lone_surrogates(found: list[Member]) -> None:
    dumps([(member.key, member.value) for member in found], ensure_ascii=False).encode()


def _redriven(text: str) -> bytes:
    found = document_members(text)
    raw = _unwrapped(found)
    if raw is not None:
        return raw
    for member in reversed(found):
        if member.key == "dead_letter":
            text = _without(text, found, member)
            found = document_members(text)
    return _with_attempts(text, 0).encode() if _last(found, "attempts") else text.encode()


def _unwrapped(found: list[Member]) -> bytes | None:
    names = [member.key for member in found]
    if names not in (["raw", "dead_letter"], ["raw", "raw_encoding", "dead_letter"]):
        return None
    raw = found[0].value
    return base64.b64decode(raw) if len(found) == 3 else raw.encode()  # type: ignore[no-any-return]


def _without(text: str, found: list[Member], member: Member) -> str:
    """`text` without a member and one of the commas beside it."""
    number = found.index(member)
    if number > 0:
        return text[: found[number - 1].end] + text[member.end :]
    if len(found) > 1:
        return text[: member.at] + text[found[1].at :]
    return text[: member.at] + text[member.end :]
