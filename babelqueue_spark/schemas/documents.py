"""The files of a registry: its manifest, the schemas that it names, and what those refer to."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import dirname, isabs, join, normpath
from typing import Any
from urllib.parse import unquote

from babelqueue_spark.errors import OptionError
from babelqueue_spark.storage import is_object_store, open_store

MANIFEST = "registry.json"
Read = Callable[[str], bytes | None]
Place = tuple[str, tuple[str, ...]]
"""The name of a document, and the steps of a pointer into it."""


@dataclass(frozen=True)
class Documents:
    """JSON documents by name, which refer to each other.

    Attributes:
        names: URN → the name of its schema.
        contents: name → document.
        queues: URN → the queues that the manifest names for it.
    """

    names: dict[str, str]
    contents: dict[str, Any] = field(repr=False)
    queues: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def schema(self, urn: str) -> Mapping[str, Any] | None:
        return self.contents[self.names[urn]] if urn in self.names else None

    def resolve(self, reference: str, base: str) -> tuple[Any, str] | None:
        """Resolve a `$ref` of the document `base`: the schema and its document; None for one elsewhere.

        Raises:
            OptionError: nothing is there.
        """
        place = locate(reference, base)
        if place is None:
            return None
        try:
            return self.at(place), place[0]
        except (KeyError, IndexError, ValueError, TypeError):
            raise OptionError(f"catalog: {base} refers to {reference}, but nothing is there") from None

    def at(self, place: Place) -> Any:
        """Return what is at a place."""
        name, steps = place
        node = self.contents[name]
        for step in steps:
            node = node[int(step) if isinstance(node, list) else step]
        return node


def locate(reference: str, base: str) -> Place | None:
    """Return the place that a `$ref` of the document `base` names; None where that is no file."""
    name, pointer = _target(reference, base)
    if name is None:
        return None
    steps = filter(None, pointer.split("/"))
    return name, tuple(unquote(step).replace("~1", "/").replace("~0", "~") for step in steps)


def of_schemas(schemas: Mapping[str, Mapping[str, Any]]) -> Documents:
    """Documents that are not in files: URN → schema."""
    return Documents({urn: urn for urn in schemas}, dict(schemas))


def read_documents(location: str, config: Mapping[str, str] | None = None) -> Documents:
    """Read a registry with all that its schemas refer to.

    Args:
        location: its `registry.json` or the folder of that; a path, a `file:` URL or the URL of an object
            store.
        config: of the object store, by the names that a journal's takes.

    Raises:
        OptionError: a file is missing or no registry, and says which.
    """
    read, manifest = _opened(location, config)
    names, queues = _entries(_json(read, manifest, location), f"{location}: {manifest}")
    contents = _reached(read, names.values(), location)
    for name in names.values():
        if not isinstance(contents[name], dict):
            raise OptionError(f"catalog {location}: {name} is no JSON Schema: it must be an object")
    return Documents(names, contents, queues)


def read_document(path: str) -> tuple[str, Documents]:
    """Read one JSON file with all that it refers to; returns its name among the documents too.

    Raises:
        OptionError: a file cannot be read, and says which.
    """
    name = Path(path).name
    return name, Documents({}, _reached(_in_folder(Path(path).parent), [name], path))


def read_json(path: str) -> Any:
    """Read one JSON file; raises `OptionError` where it cannot be read."""
    return _json(_in_folder(Path(path).parent), Path(path).name, path)


def _opened(location: str, config: Mapping[str, str] | None) -> tuple[Read, str]:
    """Return what reads a file beside the manifest, by its relative name, and the manifest's name."""
    if is_object_store(location):
        folder, _, last = location.rstrip("/").rpartition("/")
        is_file = last.endswith(".json")
        store = open_store(folder if is_file else location, "catalog", config)
        return store.read, last if is_file else MANIFEST
    if location.startswith("file:"):
        location = "/" + location.removeprefix("file:").lstrip("/")
    elif "://" in location:
        open_store(location, "catalog")  # raises: it knows the schemes
    path = Path(location)
    return (_in_folder(path), MANIFEST) if path.is_dir() else (_in_folder(path.parent), path.name)


def _in_folder(folder: Path) -> Read:
    def read(name: str) -> bytes | None:
        path = folder / name
        return path.read_bytes() if path.is_file() else None

    return read


def _reached(read: Read, names: Iterable[str], location: str) -> dict[str, Any]:
    """Return the documents by name, and those that they refer to."""
    contents: dict[str, Any] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in contents:
            contents[name] = _json(read, name, location)
            targets = (_target(reference, name)[0] for reference in _references(contents[name]))
            waiting += [target for target in targets if target is not None]
    return contents


def _json(read: Read, name: str, location: str) -> Any:
    try:
        content = read(name)
        if content is None:
            raise OptionError(f"catalog {location}: there is no file {name}")
        return json.loads(content)
    except (OSError, ValueError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(f"catalog {location}: {name} cannot be read: {error}") from None


def _entries(manifest: Any, where: str) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Return URN → the name of its schema's file, and URN → its queues."""
    entries = manifest.get("schemas") if isinstance(manifest, dict) else None
    if not isinstance(entries, list):
        raise OptionError(f'catalog {where} is no registry: it must be {{"schemas": [{{"urn", "schema"}}]}}')
    names: dict[str, str] = {}
    queues: dict[str, tuple[str, ...]] = {}
    for number, entry in enumerate(entries):
        urn, file = (entry.get("urn"), entry.get("schema")) if isinstance(entry, dict) else (None, None)
        if not (isinstance(urn, str) and urn and isinstance(file, str) and file):
            raise OptionError(f"catalog {where}: entry {number} needs the texts 'urn' and 'schema'")
        if urn in names:
            raise OptionError(f"catalog {where}: {urn} is declared more than once")
        names[urn] = file if isabs(file) else normpath(file)
        if named := entry.get("queues"):
            if not isinstance(named, list) or not all(isinstance(queue, str) for queue in named):
                raise OptionError(f"catalog {where}: the 'queues' of {urn} are no list of texts")
            queues[urn] = tuple(named)
    return names, queues


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def _target(reference: str, base: str) -> tuple[str | None, str]:
    """Return the document that a `$ref` names, None where it is no file, and the pointer into it."""
    file, _, pointer = reference.partition("#")
    if not file:
        return base, pointer
    if ":" in file:
        return None, pointer
    return normpath(join(dirname(base), unquote(file))), pointer
