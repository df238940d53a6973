"""A registry as an AsyncAPI 3.0 document: channels are queues, messages URNs, payloads schemas; and back."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from babelqueue_spark.envelope.urns import matches
from babelqueue_spark.errors import OptionError
from babelqueue_spark.schemas.documents import Documents, Place, read_document
from babelqueue_spark.schemas.embedding import embedded, follow, free
from babelqueue_spark.schemas.registry import Registry

_ABOUT = "Each payload is the `data` of a BabelQueue envelope; its `job` is the name of the message."
_FORMATS = ("application/schema+", "application/vnd.aai.asyncapi")


class Imported(NamedTuple):
    """What a registry takes from a document."""

    schemas: dict[str, dict[str, Any]]
    """by URN"""
    queues: dict[str, list[str]]
    """URN → the addresses of its channels"""


def document_of(
    registry: Registry,
    queues: Mapping[str, Iterable[str]],
    *,
    title: str = "BabelQueue messages",
    version: str = "1.0.0",
) -> dict[str, Any]:
    """Return an AsyncAPI 3.0 document.

    Args:
        registry: its entries may name queues.
        queues: further ones → patterns of the URNs that they carry.
        title: of the document.
        version: of the document.

    Raises:
        OptionError: a queue carries no URN of the registry, there is none, or a `$ref` leads nowhere.
    """
    ids: dict[str, str] = {}
    for urn in registry.urns:
        ids[urn] = free(_id(urn), set(ids.values()))
    messages = {
        name: {"name": urn, "payload": registry.whole_schema(urn, f"#/components/messages/{name}/payload")}
        for urn, name in ids.items()
    }
    channels: dict[str, Any] = {}
    for queue, urns in _carried(registry, queues).items():
        references = {ids[urn]: {"$ref": f"#/components/messages/{ids[urn]}"} for urn in urns}
        channels[free(_id(queue), set(channels))] = {"address": queue, "messages": references}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": title, "version": version, "description": _ABOUT},
        "defaultContentType": "application/json",
        "channels": channels,
        "components": {"messages": messages},
    }


def _carried(registry: Registry, queues: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Return queue → its URNs, in the order of the registry."""
    patterns: dict[str, list[str]] = {}
    for urn, names in registry.queues.items():
        for name in names:
            patterns.setdefault(name, []).append(urn)
    for queue, given in queues.items():
        patterns.setdefault(queue, []).extend(given)
    if not patterns:
        raise OptionError("catalog: no queue is named, by the option or in the registry: there is no channel")
    found = {
        queue: [urn for urn in registry.urns if any(matches(pattern, urn) for pattern in wanted)]
        for queue, wanted in patterns.items()
    }
    if idle := [queue for queue, urns in found.items() if not urns]:
        raise OptionError(f"catalog: no URN of the registry matches {', '.join(patterns[idle[0]])}")
    return found


def _id(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def read_asyncapi(path: str) -> Imported:
    """Read schemas and queues from an AsyncAPI 3 document in a JSON file.

    A message without a name has that of its key. One without a payload takes any.

    Raises:
        OptionError: it is no such document, or has something that no registry can keep.
    """
    name, documents = read_document(path)
    document = documents.contents[name]
    if not isinstance(document, dict) or not str(document.get("asyncapi")).startswith("3."):
        raise OptionError(f"catalog: {path} is no AsyncAPI 3 document: convert older ones")
    found = Imported({}, {})
    for place, address in _messages(documents, name):
        given = documents.at(place).get("name")
        urn = given if given and isinstance(given, str) else place[1][-1]
        schema = _payload(documents, place)
        if found.schemas.setdefault(urn, schema) != schema:
            raise OptionError(f"catalog: {path} has two payloads for {urn}: give one another name")
        if isinstance(address, str) and address not in found.queues.setdefault(urn, []):
            found.queues[urn].append(address)
    if not found.schemas:
        raise OptionError(f"catalog: {path} has no messages")
    return found


def _messages(documents: Documents, name: str) -> Iterator[tuple[Place, Any]]:
    """Yield the place of each message, and the address of its channel."""
    for channel in _members(documents, (name, ("channels",))):
        address = documents.at(channel).get("address")
        for message in _members(documents, (channel[0], (*channel[1], "messages"))):
            yield message, address
    for message in _members(documents, (name, ("components", "messages"))):
        yield message, None


def _members(documents: Documents, place: Place) -> Iterator[Place]:
    """Yield the places of the objects in an object, which may be missing."""
    name, steps = place
    try:
        members = documents.at(place)
    except (LookupError, TypeError, ValueError):
        return
    for key in _object(members, place):
        member = follow(documents, (name, (*steps, key)))
        _object(documents.at(member), member)
        yield member


def _object(node: Any, place: Place) -> Mapping[str, Any]:
    if not isinstance(node, dict):
        raise OptionError(f"catalog: {place[0]}: {'/'.join(place[1])} is no object")
    return node


def _payload(documents: Documents, message: Place) -> dict[str, Any]:
    name, steps = message
    if documents.at(message).get("payload", True) is True:
        return {}
    place = follow(documents, (name, (*steps, "payload")))
    payload = documents.at(place)
    if isinstance(payload, dict) and "schema" in payload:
        if not str(payload.get("schemaFormat", _FORMATS[0])).startswith(_FORMATS):
            raise OptionError(
                f"catalog: {name}: {'/'.join(steps)} is {payload['schemaFormat']}, no JSON Schema"
            )
        place = (place[0], (*place[1], "schema"))
    return embedded(documents, place, "#")
