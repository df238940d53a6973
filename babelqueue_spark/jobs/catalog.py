"""Schemas of payloads by URN: propose them from a queue, check a queue, compare versions, AsyncAPI.

    babelqueue-spark catalog infer --url redis://localhost:6379/0 --queue orders --output registry
    babelqueue-spark catalog check --url env:ORDERS_URL --queue orders --registry registry/registry.json
    babelqueue-spark catalog compat registry/registry.json proposed/registry.json
    babelqueue-spark catalog export-asyncapi --registry registry --queue 'orders=urn:babel:orders:*' \\
        --output asyncapi.json
    babelqueue-spark catalog import-asyncapi asyncapi.json --output registry

`infer` proposes a registry: for each URN its queues, and a schema with types, formats, and as required what
each message has. `check` exits with 1 where a message has no schema, violates it, or has a property that it
does not name. `compat` exits with 1 where what was valid under the old schema is not under the new one.

`export-asyncapi` writes an AsyncAPI 3.0 document of the registry, and of `--queue`, with the URNs that it
carries, or all. `import-asyncapi` makes a registry of such a document in JSON.

`infer` and `check` browse at most `--limit` messages of each queue, on all brokers but SQS. `--json` writes
the findings to a file too. All run without Spark.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import repeat
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from babelqueue_spark.envelope.jsontext import without_surrogate_escapes
from babelqueue_spark.errors import OptionError
from babelqueue_spark.jobs.arguments import Arguments, JobError, count
from babelqueue_spark.jobs.command import browsable, browse, job, new_console, show
from babelqueue_spark.schemas.asyncapi import document_of, read_asyncapi
from babelqueue_spark.schemas.compatibility import breaks
from babelqueue_spark.schemas.documents import read_json
from babelqueue_spark.schemas.inferring import Shape
from babelqueue_spark.schemas.registry import Registry

_DRAFT = "http://json-schema.org/draft-07/schema#"
Rows = Iterator[tuple[str, str | None, str | None, str | None]]
"""Queue, URN, payload as JSON text, and why the envelope is refused."""


def _add_options(parser: Arguments) -> None:
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK", parser_class=_Task)
    task = tasks.add_parser("infer", help="propose a registry from what is in a queue")
    _add_queue(task)
    task.add_argument("--output", metavar="FOLDER", help="where to write the proposed registry")
    task = tasks.add_parser("check", help="compare what is in a queue with a registry")
    _add_queue(task)
    task.add_argument("--registry", required=True, metavar="PATH", help="registry.json, its folder or URL")
    task = tasks.add_parser("compat", help="say what a new schema or registry breaks")
    task.add_argument("old", metavar="OLD", help="a schema's file, or a registry")
    task.add_argument("new", metavar="NEW", help="the same, as it is to be")
    for task in tasks.choices.values():
        task.add_argument("--json", metavar="FILE", help="write the findings as JSON too")
    task = tasks.add_parser("export-asyncapi", help="write a registry as an AsyncAPI document")
    task.add_argument("--registry", required=True, metavar="PATH", help="registry.json, its folder or URL")
    task.add_several("queue", "QUEUE=PATTERN", "a queue and its URNs, without =PATTERN all", _carried)
    task.add_argument("--title", default="BabelQueue messages", help="of the document")
    task.add_argument("--version", default="1.0.0", help="of the document (default: 1.0.0)")
    task.add_argument("--output", required=True, metavar="FILE", help="where to write the document")
    task = tasks.add_parser("import-asyncapi", help="make a registry of an AsyncAPI document")
    task.add_argument("document", metavar="FILE", help="AsyncAPI 3 as JSON")
    task.add_argument("--output", required=True, metavar="FOLDER", help="where to write the registry")


@job(_add_options)
def main(given: argparse.Namespace) -> int:
    """Run the job; returns the exit code."""
    console = new_console()
    tasks = {
        "infer": infer,
        "check": check,
        "compat": compat,
        "export-asyncapi": export_asyncapi,
        "import-asyncapi": import_asyncapi,
    }
    return tasks[given.task](given, console)


class _Task(Arguments):
    def __init__(self, *, prog: str, **_: Any) -> None:
        super().__init__(prog.removeprefix("babelqueue-spark "), __doc__)


def _add_queue(task: Arguments) -> None:
    task.add_broker(queue="one queue, or several with commas")
    task.add_argument(
        "--limit", type=count, default=10_000, help="most messages to look at in each queue (default: 10000)"
    )


# -- infer -------------------------------------------------------------------------------------------------


def infer(given: argparse.Namespace, console: Console) -> int:
    """Propose a registry."""
    shapes, queues, refused = shapes_of(_rows(given))
    schemas = {urn: schema_of(shape) for urn, shape in shapes.items()}
    if given.output:
        write_registry(Path(given.output), schemas, queues)
    messages = {urn: shape.values for urn, shape in shapes.items()}
    _write(given.json, {"messages": messages, "refused": dict(refused), "schemas": schemas})
    show(console, ("URN", "property", "type", "format", "required", "in"), _lines(shapes))
    if refused:
        show(console, ("left out", "messages"), sorted(refused.items()))
    return 0


def shapes_of(rows: Rows) -> tuple[dict[str, Shape], dict[str, list[str]], Counter[str]]:
    """Return by URN what payloads look like, and queues; and reason → messages with an invalid envelope."""
    shapes: dict[str, Shape] = {}
    queues: dict[str, dict[str, None]] = {}
    refused: Counter[str] = Counter()
    for queue, urn, data, error in rows:
        if error is not None or urn is None or data is None:
            refused[error or "no job: set option jobFrom"] += 1
        else:
            shapes.setdefault(urn, Shape()).add(msgspec.json.decode(without_surrogate_escapes(data)))
            queues.setdefault(urn, {})[queue] = None
    return dict(sorted(shapes.items())), {urn: list(names) for urn, names in queues.items()}, refused


def schema_of(shape: Shape) -> dict[str, Any]:
    """Return the schema of a URN's payloads."""
    return {"$schema": _DRAFT, "$comment": f"inferred from {shape.values} messages", **shape.schema()}


def write_registry(
    folder: Path, schemas: Mapping[str, dict[str, Any]], queues: Mapping[str, list[str]]
) -> None:
    """Write a registry.json and a file for each schema; raises `JobError` where there is one already."""
    manifest = folder / "registry.json"
    if manifest.exists():
        raise JobError(f"{manifest} is there already: name another folder, and compare the two with compat")
    (folder / "schemas").mkdir(parents=True, exist_ok=True)
    entries, names = [], set[str]()
    for urn, schema in schemas.items():
        name = re.sub(r"[^a-z0-9]+", "-", urn.lower().removeprefix("urn:babel:")).strip("-") or "urn"
        while name in names:
            name += "-2"
        names.add(name)
        (folder / "schemas" / f"{name}.json").write_text(_json(schema), encoding="utf-8")
        known = {"queues": queues[urn]} if urn in queues else {}
        entries.append({"urn": urn, "schema": f"schemas/{name}.json", **known})
    manifest.write_text(_json({"schemas": entries}), encoding="utf-8")


def _lines(shapes: dict[str, Shape]) -> Iterator[tuple[Any, ...]]:
    for urn, shape in shapes.items():
        yield urn, "", "object", "", "", shape.values
        schema = shape.schema()
        for name, member in shape.members.items():
            kinds = schema["properties"][name].get("type", "any")
            words = kinds if isinstance(kinds, str) else " or ".join(kinds)
            form = schema["properties"][name].get("format", "")
            yield "", name, words, form, "yes" if name in schema["required"] else "", member.values


# -- check -------------------------------------------------------------------------------------------------


def check(given: argparse.Namespace, console: Console) -> int:
    """Compare a queue with a registry."""
    registry = Registry(given.registry)
    total, found = findings(_rows(given), registry)
    lines = [(*line, messages) for line, messages in sorted(found.items())]
    named = [dict(zip(("finding", "urn", "what", "messages"), line, strict=True)) for line in lines]
    _write(given.json, {"messages": total, "findings": named})
    if not lines:
        console.print(f"{given.queue}: {total:,} messages match {given.registry}")
        return 0
    show(console, ("finding", "URN", "what", "messages"), lines)
    print(f"catalog: messages of {given.queue} do not match {given.registry}", file=sys.stderr)
    return 1


def findings(rows: Rows, registry: Registry) -> tuple[int, Counter[tuple[str, str, str]]]:
    """Return how many messages there are, and (finding, URN, what) → messages."""
    found: Counter[tuple[str, str, str]] = Counter()
    total = 0
    for _, urn, data, error in rows:
        total += 1
        if error is not None or urn is None or data is None:
            found["invalid envelope", urn or "", str(error)] += 1
        else:
            found.update({(kind, urn, what) for kind, what in _of_payload(urn, data, registry)})
    return total, found


def _of_payload(urn: str, data: str, registry: Registry) -> Iterator[tuple[str, str]]:
    schema = registry.schema(urn)
    if schema is None:
        yield "unknown URN", ""
        return
    violation = registry.violation(urn, data)
    if violation is not None:
        yield "violation", anywhere(violation)
        return
    for path in unknown_members(schema, msgspec.json.decode(without_surrogate_escapes(data))):
        yield "unknown property", path


def unknown_members(schema: Mapping[str, Any], value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of members that the schema neither names nor describes by `additionalProperties`.

    Schemas behind `$ref`, `oneOf` and the like are not looked into.
    """
    properties = schema.get("properties")
    if isinstance(value, dict) and isinstance(properties, Mapping):
        described = isinstance(schema.get("additionalProperties"), Mapping)
        for name, item in value.items():
            described_by = properties.get(name)
            member = f"{path}.{name}" if path else name
            if isinstance(described_by, Mapping):
                yield from unknown_members(described_by, item, member)
            elif name not in properties and not described:
                yield member
    items = schema.get("items")
    if isinstance(value, list) and isinstance(items, Mapping):
        for item in value:
            yield from unknown_members(items, item, f"{path}[]")


def anywhere(violation: str) -> str:
    """Return a violation without the positions in arrays: `items[].sku: not_a_string`."""
    return re.sub(r"\[\d+\]", "[]", violation)


# -- compat ------------------------------------------------------------------------------------------------


def compat(given: argparse.Namespace, console: Console) -> int:
    """Say what a new schema or registry breaks."""
    found = {urn: changes for urn, changes in _changes(given.old, given.new).items() if changes}
    _write(given.json, {"breaking": found})
    if not found:
        console.print("backward-compatible: no breaking changes.")
        return 0
    lines = [(urn, change) for urn, changes in found.items() for change in changes]
    show(console, ("schema", "breaking change"), lines)
    print(f"catalog: {len(lines)} breaking change(s): mint a new URN instead", file=sys.stderr)
    return 1


def _changes(old: str, new: str) -> dict[str, list[str]]:
    """Return breaking changes by URN, or by the new file's name where schemas are given."""
    before, now = _registry_or_schema(old), _registry_or_schema(new)
    if isinstance(before, Registry) and isinstance(now, Registry):
        found = {}
        for urn in before.urns:
            after = now.schema(urn)
            found[urn] = ["schema removed"] if after is None else breaks(before.schema(urn) or {}, after)
        return found
    if isinstance(before, Registry) or isinstance(now, Registry):
        raise JobError("one is a registry and one a schema: give two of a kind")
    return {Path(new).name: breaks(before, now)}


def _registry_or_schema(location: str) -> Registry | dict[str, Any]:
    if not Path(location).is_file():
        return Registry(location)
    content = read_json(location)
    if not isinstance(content, dict):
        raise OptionError(f"{location} is neither a schema nor a registry")
    return Registry(location) if isinstance(content.get("schemas"), list) else content


# -- AsyncAPI ----------------------------------------------------------------------------------------------


def export_asyncapi(given: argparse.Namespace, console: Console) -> int:
    """Write a registry as an AsyncAPI document."""
    queues: dict[str, list[str]] = {}
    for queue, pattern in given.queue:
        queues.setdefault(queue, []).append(pattern)
    found = document_of(Registry(given.registry), queues, title=given.title, version=given.version)
    _write(given.output, found)
    urns = {
        f"#/components/messages/{key}": each["name"] for key, each in found["components"]["messages"].items()
    }
    lines = [
        (channel["address"], urns[message["$ref"]])
        for channel in found["channels"].values()
        for message in channel["messages"].values()
    ]
    show(console, ("queue", "URN"), lines)
    return 0


def import_asyncapi(given: argparse.Namespace, console: Console) -> int:
    """Make a registry of an AsyncAPI document."""
    found = read_asyncapi(given.document)
    write_registry(Path(given.output), found.schemas, found.queues)
    show(console, ("URN", "queues"), [(urn, ", ".join(found.queues.get(urn, ()))) for urn in found.schemas])
    return 0


def _carried(text: str) -> tuple[str, str]:
    queue, _, pattern = text.partition("=")
    return queue, pattern or "*"


# -- both --------------------------------------------------------------------------------------------------


def _rows(given: argparse.Namespace) -> Rows:
    options = browsable(given)
    with options.binding() as binding:
        for queue in options.queue:
            for batch in browse(binding, queue, given.limit):
                read = options.form.decode(batch, allow_list_data=options.allow_empty_list_data)
                columns = (read.column(name).to_pylist() for name in ("job", "data", "error"))
                yield from zip(repeat(queue), *columns, strict=False)


def _write(path: str | None, content: dict[str, Any]) -> None:
    if path:
        Path(path).write_text(_json(content), encoding="utf-8")


def _json(content: Any) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
