"""The machine: Python, Java, PySpark, and the packages of the connector."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from babelqueue_spark import __version__
from babelqueue_spark.jobs.checks.findings import Finding, explained, failed, ok, warning
from babelqueue_spark.packages import require

OLDEST_PYTHON = (3, 11)
OLDEST_JAVA = 17
_TABLE_FORMATS = {
    "4.1": "Delta Lake 4.4.0 and Apache Iceberg 1.12 go with it",
    "4.2": "Delta Lake 4.4.0 goes with it",
}
_ADVICE = 'tables of Delta Lake 4.4.0 and Apache Iceberg 1.12 need pip install "pyspark==4.1.*"'
_DELTA_WITHOUT_JARS = "4.4.1"
_SECONDS = 60.0
_NO_FEATURES = ("", "all", "dev", "docs", "fuzz", "testing")
_MODULES = ("pyarrow", "numpy", "msgspec", "jiter")
_DISTRIBUTION = "babelqueue-spark"
_LINE = re.compile(r"""([\w.-]+)(?:\[[^]]*\])?([^;]*)(?:;.*?extra\s*==\s*['"]([\w-]+)['"].*)?""")
"""Name, bounds, and the extra that a line belongs to."""


def findings(needed: Iterable[str]) -> Iterator[Finding]:
    """Check the machine that programs start on; `needed` are extras of what they use."""
    yield from explained("Python", python())
    yield from explained("Python of tasks", python_of_tasks())
    yield from explained("Java", java())
    yield from explained("PySpark", pyspark())
    yield from explained("packages", packages(needed))
    yield from explained("extras", installed_extras())


def python() -> Iterator[Finding]:
    """Check the running Python."""
    found = f"{_dotted(sys.version_info[:3])} at {sys.executable}"
    if sys.version_info[:2] < OLDEST_PYTHON:
        yield failed("Python", f"{found}: use {_dotted(OLDEST_PYTHON)} or newer")
    else:
        yield ok("Python", found)


def python_of_tasks() -> Iterator[Finding]:
    """Check the Python with which Spark runs tasks, and in which it looks for data sources."""
    named = os.environ.get("PYSPARK_PYTHON")
    name = f"PYSPARK_PYTHON {named}" if named else "python3 on the PATH"
    report = failed if named else warning
    path = shutil.which(named or "python3")
    if path is None:
        yield report(
            "Python of tasks",
            f"{name} is not on this machine: name one that is, unless --archives bring it to the executors",
        )
        return
    version = "import sys; print('%d.%d' % sys.version_info[:2])"
    program = f"{version}; import pyspark, babelqueue_spark.connector.options"
    done = subprocess.run(  # noqa: S603 (the program that Spark runs)
        [path, "-c", program], capture_output=True, text=True, cwd="/", timeout=_SECONDS, check=False
    )
    found, driver = done.stdout.strip(), _dotted(sys.version_info[:2])
    advice = f'export PYSPARK_PYTHON="{sys.executable}" before a session begins'
    if found != driver:
        yield report(
            "Python of tasks", f"{name} is {found or 'no Python'}, the driver's is {driver}: {advice}"
        )
    elif done.returncode:
        yield report(
            "Python of tasks",
            f"{name} lacks babelqueue-spark, or what it needs: install it there, or {advice}",
        )
    else:
        yield ok("Python of tasks", f"{found} at {path}")


def java() -> Iterator[Finding]:
    """Check the Java that PySpark starts."""
    if "SPARK_REMOTE" in os.environ:
        yield ok("Java", "not needed here: SPARK_REMOTE names a server of Spark Connect")
        return
    home = os.environ.get("JAVA_HOME")
    path = shutil.which(str(Path(home, "bin/java")) if home else "java")
    advice = f"install Java {OLDEST_JAVA} or newer, and let JAVA_HOME name it"
    if path is None:
        yield failed("Java", f"{f'JAVA_HOME {home} has no bin/java' if home else 'it is missing'}: {advice}")
        return
    done = subprocess.run(  # noqa: S603 (the program that Spark runs)
        [path, "-version"], capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    found = re.search(r'version "(?:1\.)?(\d+)([^"]*)"', done.stderr)
    if not found:
        yield failed("Java", f"{path} does not tell its version: {advice}")
    elif int(found[1]) < OLDEST_JAVA:
        yield failed("Java", f"{found[1]}{found[2]} at {path} is too old: {advice}")
    else:
        yield ok("Java", f"{found[1]}{found[2]} at {path}")


def pyspark() -> Iterator[Finding]:
    """Check PySpark, and say which table formats go with it."""
    require("the connector", "pyspark")
    found: str = import_module("pyspark").__version__
    fitting = _TABLE_FORMATS.get(".".join(found.split(".")[:2]))
    yield ok("PySpark", f"{found}; {fitting or _ADVICE}")
    delta = _version("delta-spark")
    if delta == _DELTA_WITHOUT_JARS:
        yield warning("delta-spark", f"{delta} asks for jars that are not published: install 4.4.0")
    elif delta and not fitting:
        yield warning("delta-spark", f"{delta} does not go with PySpark {found}: {_ADVICE}")


def packages(needed: Iterable[str]) -> Iterator[Finding]:
    """Check what the connector always needs, pandas, and the extras that are `needed`."""
    broken = list(_broken())
    if broken:
        yield failed("packages", f'{", ".join(broken)}: pip install "babelqueue-spark"')
        return
    known = extras()
    if not known:
        text = f"babelqueue-spark {__version__} is here without its metadata, so versions cannot be checked"
        yield ok("packages", text)
        return
    lacking = list(problems(known[""]))
    if lacking:
        yield failed("packages", f'{", ".join(lacking)}: pip install "babelqueue-spark"')
    else:
        yield ok("packages", f"babelqueue-spark {__version__}, {_versions(known[''])}")
    pandas = {name: bounds for name, bounds in known["spark"].items() if name == "pandas"}
    for problem in problems(pandas):
        yield warning("pandas", f"a worker needs it: {problem}: pip install 'pandas{pandas['pandas']}'")
    for extra in needed:
        yield _extra(extra, known.get(extra, {}))


def installed_extras() -> Iterator[Finding]:
    """Name the extras whose packages are there."""
    known = extras()
    here = [extra for extra in known if extra not in _NO_FEATURES and not any(problems(known[extra]))]
    yield ok("extras", ", ".join(sorted(here)) or "none")


def _broken() -> Iterator[str]:
    """Yield what cannot be imported, though it may be installed."""
    for module in _MODULES:
        try:
            import_module(module)
        except ImportError as error:
            yield f"{module} cannot be imported ({' '.join(str(error).split())})"


def _extra(extra: str, wanted: dict[str, str]) -> Finding:
    lacking = list(problems(wanted))
    if lacking:
        where = "on driver and executors"
        return failed(
            f"extra {extra}", f'{", ".join(lacking)}: pip install "babelqueue-spark[{extra}]" {where}'
        )
    return ok(f"extra {extra}", _versions(wanted))


def _versions(packages: dict[str, str]) -> str:
    return ", ".join(f"{name} {_version(name)}" for name in packages)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _dotted(numbers: Iterable[object]) -> str:
    return ".".join(map(str, numbers))


def extras() -> dict[str, dict[str, str]]:
    """Extra → package → its bounds, such as `>=2.2,<3`; the empty extra is what is always required.

    Nothing where the package is without its metadata, as a folder on the path is.
    """
    try:
        lines = requires(_DISTRIBUTION) or ()
    except PackageNotFoundError:
        return {}
    found: dict[str, dict[str, str]] = {"": {}}
    for line in lines:
        if match := _LINE.fullmatch(line):
            name, bounds, extra = match.groups()
            found.setdefault(extra or "", {})[name] = bounds.strip()
    return found


def problems(packages: dict[str, str]) -> Iterator[str]:
    """Yield what is missing, too old or too new of packages → bounds."""
    for name, bounds in packages.items():
        installed = _version(name)
        if not installed:
            yield f"{name} is missing"
        elif not all(_meets(installed, bound.strip()) for bound in bounds.split(",") if bound.strip()):
            yield f"{name} is {installed}, not {bounds}"


def _meets(installed: str, bound: str) -> bool:
    """Return whether a version meets a bound of one of the kinds that this project has."""
    numbers, limit = _numbers(installed), _numbers(bound)
    if bound.startswith(">="):
        return numbers >= limit
    if bound.startswith("<"):
        return numbers < limit
    return numbers[: len(limit)] == limit


def _numbers(text: str) -> list[int]:
    """`>=2.0.30` → 2, 0, 30; without what marks a pre-release."""
    release = re.search(r"\d+(\.\d+)*", text)
    return [int(number) for number in release[0].split(".")] if release else []
