"""Write the generated parts of README and docs: from `<!-- generated: NAME -->` to `<!-- end -->`."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from babelqueue_spark.bindings import BINDINGS, binding_class
from babelqueue_spark.connector.option_table import OPTIONS, Option
from babelqueue_spark.metrics.families import FAMILIES
from chaos import tables

ROOT = Path(__file__).parent.parent
PART = re.compile(r"(<!-- generated: ([\w ]+) -->\n).*?(<!-- end -->)", re.S)
FIGURES = ROOT / "docs" / "bench.json"
CHAOS = ROOT / "docs" / "chaos.json"
SOAK = ROOT / "docs" / "soak.json"
ENTRY = re.compile(r"(.+?)(?: \((.+?)\))?: (.+)")


def capabilities() -> str:
    """Make a table of capabilities: a row for each broker."""
    heads = ("broker", "extra", "delay", "browse", "order", "key", "headers")
    heads += ("durable receipts", "publish once", "native dead letters")
    rows = []
    for broker, entry in BINDINGS.items():
        can = binding_class(broker).capabilities
        delay = longest(can.max_delay)
        flags = (can.ordered, can.keys, can.headers)
        flags_at_the_end = (can.durable_receipts, can.publish_once, can.native_dead_letters)
        cells = [f"[{binding_class(broker).title}]({broker}.md)", f"`{entry.extra}`", delay, can.browse]
        cells += ["yes" if flag else "no" for flag in (*flags, *flags_at_the_end)]
        rows.append(cells)
    return table(heads, rows)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Make a table in Markdown."""
    lines = [[cell.replace("|", r"\|") for cell in row] for row in (heads, *rows)]
    first, *others = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([first, "|---" * len(heads) + "|", *others])


def longest(delay: int | None) -> str:
    """Say a longest delay, given in milliseconds, in words."""
    if not delay:
        return "any" if delay is None else "none"
    seconds = delay // 1000
    return f"up to {seconds // 86_400} days" if seconds >= 86_400 else f"up to {seconds} s"


def features(broker: str) -> str:
    """Make a table of a broker's features."""
    rows = [(name, meaning) for name, _, meaning in entries(broker, "Features")]
    return table(("feature", binding_class(broker).title), rows)


def options(broker: str) -> str:
    """Make a table of a broker's options; those that belong together share a row."""
    rows = [
        (", ".join(f"`{broker}.{name}`" for name in names.split(", ")), default, meaning)
        for names, default, meaning in entries(broker, "Options")
    ]
    return table(("option", "default", "meaning"), rows)


def connector() -> str:
    """Make a table of the connector's options, with a row for all of the brokers' clients."""
    rows = [(f"`{each.name}`", each.on, each.doc, default_of(each)) for each in OPTIONS]
    meaning = "passed to the broker's client, see its page; may be `env:NAME` or `file:/path` too"
    return table(("option", "for", "meaning", "default"), [*rows, ("`<broker>.<name>`", "both", meaning, "")])


def default_of(option: Option) -> str:
    """Say the default of an option."""
    return f"`{option.default}`" if option.default_doc is None else option.default_doc


def entries(broker: str, section: str) -> list[tuple[str, str, str]]:
    """Find names, default and meaning of each entry in a section of a binding's docstring."""
    docstring = import_module(f"babelqueue_spark.bindings.{broker}").__doc__ or ""
    text = re.findall(rf"^{section}.*:\n((?:    .*\n)+)", docstring, re.M)[0]
    lines = re.sub(r"\n {8}", " ", text).splitlines()
    return [ENTRY.findall(line.strip())[0] for line in lines]


def job(name: str) -> str:
    """Return what `--help` of a job says."""
    text = inspect.cleandoc(import_module(f"babelqueue_spark.jobs.{name}").__doc__ or "")
    return re.sub(
        r"(?:^    .*\n?)+", lambda match: f"```sh\n{inspect.cleandoc(match[0])}\n```\n", text, flags=re.M
    )


def metrics() -> str:
    """Make a table of all metrics."""
    rows = [
        (f"`{each.name}`", each.kind, ", ".join(f"`{label}`" for label in each.labels), each.doc)
        for each in FAMILIES
    ]
    return table(("metric", "type", "labels", "meaning"), rows)


def bench(*modules: str) -> str:
    """Make a table of what `make bench` measured of modules; `circumstances` says where it mostly ran."""
    measured = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    usual = Counter(host(each) for each in measured.values()).most_common(1)
    if modules == ("circumstances",) and usual:
        return f"{usual[0][0]}."
    found = [measured[module] for module in modules if module in measured]
    if not found:
        return "No figures of record yet: `make bench` measures them."
    days = sorted({each["measured"] for each in found})
    elsewhere = sorted({host(each) for each in found} - {usual[0][0]})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    rows = [row for each in found for row in each["rows"]]
    return f"{comparisons(rows)}\n\n{'; in part on '.join([when, *elsewhere])}."


def comparisons(rows: Iterable[dict[str, Any]]) -> str:
    """Make a table of rows of `bench/table.py`: medians, and the ratio with its floor."""
    cells = [
        (
            each["work"],
            figure(each["ours"], each["ours_spread"], each["unit"]),
            each["peer"],
            figure(each["theirs"], each["theirs_spread"], each["unit"]),
            f"{each['ratio']:.2f}" + ("" if each["floor"] is None else f" ({each['floor']:g})"),
        )
        for each in rows
    ]
    return table(("work", "connector", "peer", "peer's", "ratio (floor)"), cells)


def figure(median: float, spread: Sequence[float], unit: str) -> str:
    """Say a median, and a spread of more than a tenth; a rate goes without its unit."""
    least, most = spread
    text = f"{median:,.0f}{'' if unit == 'a second' else f' {unit}'}"
    near = median - least <= median / 10 >= most - median
    return text if near else f"{text} ({least:,.0f}-{most:,.0f})"


def chaos(name: str) -> str:
    """Make a table of what `make chaos` found: `setups`, `faults`, `failures`; or say the `circumstances`."""
    if not CHAOS.exists():
        return "There is no run of record yet: `python -m chaos --record` makes one."
    found = json.loads(CHAOS.read_text())
    if name == "circumstances":
        return chaos_circumstances(found)
    return table(getattr(tables, name.upper()), getattr(tables, name)(found))


def soak(name: str) -> str:
    """Make a table of what `make soak` measured: `streams`, `trials`; or show its `chart`."""
    if not SOAK.exists():
        return "There are no figures of record yet: `make soak` measures them."
    found = json.loads(SOAK.read_text())
    if name == "circumstances":
        return soak_circumstances(found)
    if name == "chart":
        return "![Memory, descriptors and files of each process over time](soak.svg)"
    return table(getattr(tables, f"SOAK_{name.upper()}"), getattr(tables, f"soak_{name}")(found))


def soak_circumstances(found: dict[str, Any]) -> str:
    """Say how long, on what and with what `docs/soak.json` was measured."""
    rate = f"{found['minutes']:g} minutes at {found['rate']} messages a second"
    return f"{rate}, on {found['measured']}: {host(found)}."


def chaos_circumstances(found: dict[str, Any]) -> str:
    """Say when, on what and with what `docs/chaos.json` was found."""
    setups = found["setups"].values()
    count = sum(len(each["faults"]) for each in setups)
    seconds = [each["faulted"] for each in setups]
    seeds = " and ".join(sorted({str(each["seed"]) for each in setups}))
    days = sorted({each["measured"] for each in setups})
    return (
        f"{count} faults, in {min(seconds)} to {max(seconds)} s for each line, with seed {seeds}, on "
        f"{' and '.join(days)}: {host(found)}."
    )


def host(found: dict[str, Any]) -> str:
    """Say on what machine and with what versions a run was made."""
    machine = "{cores} cores, {cpu}, {gib:g} GiB".format(**found["machine"])
    return "{machine}; Python {python}, PySpark {pyspark}".format(machine=machine, **found["versions"])


PARTS: dict[str, Callable[..., str]] = {
    "capabilities": capabilities,
    "features": features,
    "options": options,
    "connector": connector,
    "job": job,
    "metrics": metrics,
    "bench": bench,
    "chaos": chaos,
    "soak": soak,
}


def part(name: str) -> str:
    """Generate the part that a marker names."""
    kind, *of = name.split()
    return PARTS[kind](*of)


def generated(page: str) -> str:
    """Return a page with its generated parts as they are now."""
    return PART.sub(lambda match: f"{match[1]}\n{part(match[2]).strip()}\n\n{match[3]}", page)


def main() -> None:
    """Write README and docs."""
    for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        path.write_text(generated(path.read_text()))


if __name__ == "__main__":
    main()
