"""Write the generated parts of the docs: from `<!-- generated: NAME -->` to `<!-- end -->`."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path

from babelqueue_spark.bindings import BINDINGS, binding_class
from babelqueue_spark.jobs.__main__ import JOBS

DOCS = Path(__file__).parent.parent / "docs"
PART = re.compile(r"(<!-- generated: ([\w ]+) -->\n).*?(<!-- end -->)", re.S)
NAMES = {
    "sql": "SQL",
    "redis": "Redis",
    "rabbitmq": "RabbitMQ",
    "sqs": "SQS",
    "servicebus": "Service Bus",
    "pulsar": "Pulsar",
    "kafka": "Kafka",
    "artemis": "Artemis",
}


def capabilities() -> str:
    """A row a broker, a column a capability."""
    heads = ("broker", "extra", "delay", "browse", "order", "key", "headers")
    heads += ("durable receipts", "publish once", "native dead letters")
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for broker, entry in BINDINGS.items():
        can = binding_class(broker).capabilities
        delay = longest(can.max_delay)
        flags = (can.ordered, can.keys, can.headers)
        flags_at_the_end = (can.durable_receipts, can.publish_once, can.native_dead_letters)
        cells = [f"[{NAMES[broker]}]({broker}.md)", f"`{entry.extra}`", delay, can.browse]
        cells += ["yes" if flag else "no" for flag in (*flags, *flags_at_the_end)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def longest(delay: int | None) -> str:
    """A longest delay of so many milliseconds."""
    if not delay:
        return "any" if delay is None else "none"
    seconds = delay // 1000
    return f"up to {seconds // 86_400} days" if seconds >= 86_400 else f"up to {seconds} s"


def job(name: str) -> str:
    """What `--help` of a job says of it."""
    text = inspect.cleandoc(import_module(f"babelqueue_spark.jobs.{name}").__doc__ or "")
    return re.sub(
        r"(?:^    .*\n?)+", lambda match: f"```sh\n{inspect.cleandoc(match[0])}\n```\n", text, flags=re.M
    )


def generated(page: str) -> str:
    """A page with its generated parts made anew."""
    parts = {"capabilities": capabilities, **{f"job {name}": (lambda name=name: job(name)) for name in JOBS}}
    return PART.sub(lambda match: f"{match[1]}\n{parts[match[2]]().strip()}\n\n{match[3]}", page)


def main() -> None:
    """Write all pages."""
    for path in DOCS.rglob("*.md"):
        path.write_text(generated(path.read_text()))


if __name__ == "__main__":
    main()
