"""Without a package that an extra brings, or with one too old, an error names the extra."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from babelqueue_spark.bindings import BINDINGS
from babelqueue_spark.errors import MissingPackageError
from babelqueue_spark.packages import MINIMUM, require
from tests.programs import without

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
NEEDS_SPARK = ["", ".datasource", ".functions", ".metrics", ".spark_kafka", ".worker"]

EACH_BROKER = """
import json
from babelqueue_spark.bindings import BINDINGS, binding_class
said = {}
for broker in BINDINGS:
    try:
        binding_class(broker)
    except Exception as error:
        said[broker] = f"{type(error).__name__}: {error}"
print(json.dumps(said))
"""


def modules_of(extra: str) -> set[str]:
    """The top-level modules that the packages of an extra install."""
    names = {re.split(r"[\[<>=~]", line)[0] for line in EXTRAS[extra]}
    installed = packages_distributions().items()
    return {module for module, packages in installed if names & {each.lower() for each in packages}}


def test_without_its_client_each_broker_names_its_extra(tmp_path: Path) -> None:
    """Each package of an extra is gone, and what those packages stand on as well."""
    clients = {module for broker in BINDINGS for module in modules_of(broker)} | {"botocore", "hiredis"}
    done = without(clients, EACH_BROKER, tmp_path)
    said = json.loads(done.stdout)
    assert list(said) == list(BINDINGS)
    for broker, text in said.items():
        start = (
            f"MissingPackageError: [BABELQUEUE_PACKAGE_MISSING] broker '{broker}' needs the Python package '"
        )
        assert text.startswith(start), text
        assert text.endswith(f'\': pip install "babelqueue-spark[{broker}]" on driver and executors')


@pytest.mark.parametrize("module", NEEDS_SPARK)
def test_without_pyspark_what_needs_it_says_so(module: str, tmp_path: Path) -> None:
    program = f"import babelqueue_spark{module} as m\nm.BabelQueueDataSource"
    done = without(["pyspark"], program, tmp_path)
    assert done.stderr.splitlines()[-1] == (
        "babelqueue_spark.errors.MissingPackageError: [BABELQUEUE_PACKAGE_MISSING] the connector needs the "
        "Python package 'pyspark': pip install \"babelqueue-spark[spark]\", or take a cluster or runtime that "
        "has it"
    )


def test_without_pyspark_the_codec_and_the_bindings_work(tmp_path: Path) -> None:
    program = """
import babelqueue_spark.envelope, babelqueue_spark.journal
from babelqueue_spark.bindings import BINDINGS, binding_class
print([binding_class(broker).__name__ for broker in BINDINGS])
"""
    done = without(["pyspark", "pandas"], program, tmp_path)
    assert "SqsBinding" in done.stdout, done.stderr


@pytest.mark.parametrize("job", ["tail", "demo"])
def test_a_job_without_pyspark_is_one_line(job: str, tmp_path: Path) -> None:
    program = "from babelqueue_spark.jobs.__main__ import main\nsys.exit(main())"
    done = without(["pyspark"], program, tmp_path, job)
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"{job}: [BABELQUEUE_PACKAGE_MISSING] the connector needs the Python package"
    )
    assert len(done.stderr.splitlines()) == 1


def test_a_worker_without_pandas(tmp_path: Path) -> None:
    program = (
        "from babelqueue_spark.worker import Worker\nWorker({'url': 'sqlite:////q.db'}, state='/mnt/journal')"
    )
    done = without(["pandas"], program, tmp_path)
    assert "[BABELQUEUE_PACKAGE_MISSING] a worker needs the Python package 'pandas'" in done.stderr


def test_nothing_needs_py4j_which_pyspark_client_has_not() -> None:
    sources = [path.read_text() for path in ROOT.glob("babelqueue_spark/**/*.py")]
    assert not any(re.search(r"^\s*(import|from) py4j", text, re.M) for text in sources)


@pytest.mark.parametrize("module", [".metrics", ".jobs.command"])
def test_a_client_of_spark_connect_has_no_core(module: str, tmp_path: Path) -> None:
    done = without(["pyspark.core"], f"import babelqueue_spark{module}\nprint('imported')", tmp_path)
    assert done.stdout == "imported\n", done.stderr


def test_metrics_without_their_package(tmp_path: Path) -> None:
    program = """
from babelqueue_spark.metrics import log_batches
try:
    from babelqueue_spark.metrics import observe
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""
    said = without(["prometheus_client"], program, tmp_path).stdout
    assert said.startswith(
        "MissingPackageError: [BABELQUEUE_PACKAGE_MISSING] observe needs the Python package"
    )
    assert 'pip install "babelqueue-spark[metrics]"' in said


@pytest.mark.parametrize("found", ["3.5.1", "4.0.0", "4.0.0.dev2"])
def test_a_package_that_is_too_old(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", found)
    with pytest.raises(MissingPackageError) as caught:
        require("the connector", "pyarrow", "pyspark")
    assert caught.value.text.startswith(
        f"the connector needs pyspark 4.1 or newer, but this Python has {found}: pip install"
    )


@pytest.mark.parametrize("found", ["4.1", "4.1.0", "4.10.0", "5.0.0.dev1"])
def test_a_package_that_is_new_enough(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", found)
    require("the connector", "pyspark")


def test_minimum_versions_are_those_of_the_project() -> None:
    lines = [*PROJECT["dependencies"], *EXTRAS["spark"]]
    wanted = {name: re.findall(rf"{name}>=([\d.]+)", " ".join(lines)) for name in MINIMUM}
    assert wanted == {name: [version] for name, version in MINIMUM.items()}


def test_all_holds_every_broker_and_the_jobs_but_not_spark() -> None:
    [line] = EXTRAS["all"]
    extras = set(re.findall(r"\w+", line.partition("[")[2]))
    assert {"jobs", "postgresql", "mysql", *BINDINGS} - extras == {"sql"}
    assert not extras & {"spark", "connect"}


def test_every_extra_that_a_text_names_is_one_of_the_project() -> None:
    texts = [
        "*.md",
        "Makefile",
        "docs/**/*.md",
        "docker/Dockerfile",
        "docker/**/*.*",
        "notebooks/*.ipynb",
        "babelqueue_spark/**/*.py",
    ]
    found = {
        extra
        for pattern in texts
        for path in ROOT.glob(pattern)
        for extras in re.findall(r"(?:babelqueue-spark|/source|'\.)\[([a-z0-9,]+)\]", path.read_text())
        for extra in extras.split(",")
    }
    assert {"spark", "redis", "jobs", "connect", "all", "dev"} <= found <= EXTRAS.keys()
