"""The docs say what is true: their code runs, their commands parse, their tables match, their site builds."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from unittest import SkipTest

import pyarrow as pa
import pytest
from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, SkipParser
from sybil.region import Lexeme

from babelqueue_spark.bindings import BINDINGS, BindingConfig, binding_class
from babelqueue_spark.connector.rows.reading import SCHEMA
from babelqueue_spark.connector.rows.writing import COLUMNS
from babelqueue_spark.envelope import Reason, validate
from babelqueue_spark.errors import OptionError
from babelqueue_spark.jobs.__main__ import JOBS
from babelqueue_spark.jobs.demo import BAD, ENVELOPES, LATER
from scripts.draw import ASSETS, PICTURES
from scripts.generate_docs import entries, generated
from scripts.record_demo import RECORDED
from scripts.run_notebooks import NOTEBOOKS
from tests.brokers import URLS
from tests.crash.readings import QUEUE_POINTS
from tests.programs import run
from tests.servers.jars import jars
from tests.servers.kafka import SPARK_KAFKA, KafkaServer
from tests.streams import envelope, publish
from tests.tracing.collector import collector

ROOT = Path(__file__).parent.parent
PAGES = sorted(ROOT.glob("docs/**/*.md"))
WITH_CODE = [page for page in [ROOT / "README.md", *PAGES] if "```python" in page.read_text()]
REDIS = "redis://localhost:6379/0"
COLLECTOR = "http://localhost:4318"
NOT_HERE = {
    "needs a Databricks workspace",
    "needs a scheduler",  # `test_orchestrators.py` has it
    "needs a bucket",
    "needs a pipeline",  # `jobs/test_pipeline.py` has it
    "needs a namespace, in the environment variable SERVICE_BUS",
}
CLASSIC = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
"""
ELSEWHERE = {
    "needs Spark's Kafka jar": CLASSIC,
    "needs a Connect server": "from pyspark.sql import SparkSession",
}
ON_ANOTHER_PYSPARK = {"needs Delta Lake and Iceberg"}
"""Their blocks run in tests/lakehouse, on PySpark 4.1."""
PROOF = re.compile(r"`(?:tests|babelqueue_spark/testing)/[\w/]+\.py|\]\(chaos\.md")
"""A test, or the report of the chaos tests."""
SKIPPED = re.compile(r'<!-- skip: next "(.*?)" -->\n```python\n(.*?)```', re.S)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


class InPlaceOf(PythonEvaluator):
    """Runs a block with other texts in place of those that are for readers."""

    def __init__(self, texts: dict[str, str]) -> None:
        super().__init__()
        self.texts = texts

    def __call__(self, example: Example) -> None:
        text = example.parsed
        for shown, real in self.texts.items():
            text = text.replace(shown, real)
        example.parsed = Lexeme(text, example.parsed.offset, example.parsed.line_offset)
        super().__call__(example)


@pytest.fixture
def redis_url(redis_server: Any) -> Iterator[str]:
    """A database of the test server that is empty before and after."""
    import redis

    url = f"{redis_server.url[:-1]}7"
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        yield url
        client.flushdb()


@pytest.fixture(scope="module")
def collector_url() -> Iterator[str]:
    with collector() as server:
        yield server.url


@pytest.mark.spark
@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_code_runs(page: Path, spark: Any, redis_url: str, collector_url: str, tmp_path: Path) -> None:
    """Block after block of a page, in one namespace; what cannot run here is marked with what it needs."""
    evaluator = InPlaceOf(
        {
            REDIS: redis_url,
            COLLECTOR: collector_url,
            "/tmp/": f"{tmp_path}/",
            "/mnt/": f"{tmp_path}/",
            '"9464"': '"0"',
        }
    )
    sybil = Sybil(
        [CodeBlockParser("python", evaluator), CodeBlockParser("invisible-code", evaluator), SkipParser()]
    )
    document = sybil.parse(page)
    document.namespace |= {"spark": spark, "__name__": "__main__"}
    try:
        for example in document.examples():
            try:
                example.evaluate()
            except SkipTest as reason:
                assert str(reason) in {*NOT_HERE, *ELSEWHERE, *ON_ANOTHER_PYSPARK}  # noqa: PT017
    finally:
        for query in spark.streams.active:
            query.stop()


@pytest.mark.spark
@pytest.mark.parametrize("reason", ELSEWHERE)
def test_code_runs_in_another_spark(reason: str, kafka_server: KafkaServer, tmp_path: Path) -> None:
    """Blocks that need a Spark with a jar, or none of the classic kind."""
    url = f"sqlite:///{tmp_path}/queue.db"
    publish(url, "orders", [envelope(1)])
    blocks = [
        block for page in WITH_CODE for found, block in SKIPPED.findall(page.read_text()) if found == reason
    ]
    assert blocks
    program = "\n".join([ELSEWHERE[reason], *blocks, "spark.stop()"])
    for shown in ("kafka.example:9092", "localhost:9092"):
        program = program.replace(shown, kafka_server.address)
    own = ",".join(map(str, jars(SPARK_KAFKA).glob("*.jar")))
    program = program.replace("sc://spark.example:15002", "local[2]")
    run(program, ORDERS_URL=url, PYSPARK_SUBMIT_ARGS=f"--jars {own} pyspark-shell")


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=name_of)
def test_json_is_an_envelope(page: Path) -> None:
    bodies = re.findall(r"```json\n(.*?)```", page.read_text(), re.S)
    assert validate(pa.array([body.encode() for body in bodies], pa.binary())).null_count == len(bodies)


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=name_of)
def test_commands_are_right(page: Path) -> None:
    """Commands of ours in a shell block: known jobs with options that they take, targets, extras."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.S):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["make"]:
                assert words[1] in targets
            elif words[:1] == ["spark-submit"] and words[1].startswith("jobs/"):
                parses(words[1].removeprefix("jobs/").removesuffix(".py"), words[2:])
            elif words[:1] == ["babelqueue-spark"] and words[1] not in ("JOB", "--help"):
                parses(words[1], words[2:])


def parses(job: str, words: list[str]) -> None:
    assert job.replace("_", "-") in (*JOBS, "completion")
    for sign in ("|", ">"):
        words = words[: words.index(sign)] if sign in words else words
    if "--help" in words or job == "demo" or any(word.startswith("@") for word in words):
        return
    module = import_module(f"babelqueue_spark.jobs.{job.replace('-', '_')}")
    module.main.command_line().parse_args(words)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=name_of)
def test_generated_parts_are_as_generated(page: Path) -> None:
    assert page.read_text() == generated(page.read_text()), "run scripts/generate_docs.py"


@pytest.mark.parametrize("broker", BINDINGS)
def test_options_of_a_broker_are_on_its_page_and_in_its_docstring(broker: str) -> None:
    with pytest.raises(OptionError) as error:
        binding_class(broker)(BindingConfig(url=URLS[broker], client_options={"zzz": "1"}))
    taken = {
        name.removeprefix(f"{broker}.") for name in re.findall(r"[\w.]+", str(error.value).rpartition(":")[2])
    }
    taken -= {"use", "one", "of", "known", "are"}
    said = {name for names, _, _ in entries(broker, "Options") for name in names.split(", ")}
    assert taken - said == set()
    assert all(is_taken(broker, name) for name in said - taken)
    page = (ROOT / f"docs/brokers/{broker}.md").read_text()
    assert f"<!-- generated: features {broker} -->" in page
    assert f"<!-- generated: options {broker} -->" in page


def is_taken(broker: str, name: str) -> bool:
    """Whether it is the name of an option, though the value may be no good."""
    try:
        binding_class(broker)(BindingConfig(url=URLS[broker], client_options={name: "1"}))
    except OptionError as error:
        return "is unknown" not in str(error)
    return True


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=name_of)
def test_what_a_page_names_is_there(page: Path) -> None:
    """Files and tests that it names as proofs, and the targets of its relative links."""
    text = page.read_text()
    for file, test in re.findall(
        r"`((?:babelqueue_spark|docker|notebooks|scripts|tests)/[\w/.-]+)(?:::(\w+))?`", text
    ):
        assert (ROOT / file).exists(), file
        assert not test or f"def {test}(" in (ROOT / file).read_text(), f"{file}::{test}"
    links = [*re.findall(r"\]\(([^)\s]+)\)", text), *re.findall(r"^\[[\w-]+\]: (\S+)", text, re.M)]
    for link in links:
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text()), link


def test_the_api_page_names_what_is_there() -> None:
    for name in re.findall(r"^::: (\S+)$", (ROOT / "docs/api.md").read_text(), re.M):
        resolve_name(name)


def test_pictures_of_notebooks_are_there() -> None:
    for notebook in NOTEBOOKS.glob("*.ipynb"):
        for picture in re.findall(r"!\[.*?\]\((.*?)\)", notebook.read_text()):
            assert (NOTEBOOKS / picture).exists(), picture


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as code hosts and MkDocs make them."""
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def rows(page: str, heading: str) -> dict[str, str]:
    """The table under a heading: what its first column names, and the cell beside it."""
    section = (ROOT / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \| (.*?) \|", section, re.M)
    return {name: second for names, second in cells for name in re.findall(r"`(\w+)`", names)}


def test_columns_are_those_of_the_code() -> None:
    read = rows("docs/columns.md", "Columns of a read")
    assert read == {field.name: field.dataType.typeName().replace("integer", "int") for field in SCHEMA}
    written = {
        "job",
        "urn",
        "data",
        *rows("docs/columns.md", "Columns of a write"),
        "error",
        "violation",
        "delivery",
    }
    assert written == set(COLUMNS)
    assert list(rows("docs/columns.md", "Invalid messages"))[1:] == [str(reason) for reason in Reason]


@pytest.mark.parametrize("heading", ["What a crash leaves", "What other failures leave", "Publishing"])
def test_each_row_of_a_guarantee_names_its_proof(heading: str) -> None:
    section = guarantees(heading)
    found = [line for line in re.findall(r"^\|.*\|$", section, re.M) if not line.startswith("|---")]
    headers = [line for line in found if f"{line}\n|---" in section]
    assert headers
    assert all(line.endswith("| test |") for line in headers)
    assert [line for line in found if line not in headers and not PROOF.search(line.split(" | ")[-1])] == []


def test_each_limit_of_reading_names_its_proof() -> None:
    limits = guarantees("Limits of reading").split("\n\n")[0].split("\n- ")[1:]
    assert len(limits) > 5
    assert [limit for limit in limits if not PROOF.search(limit)] == []


def guarantees(heading: str) -> str:
    """A section of the page of guarantees."""
    return (ROOT / "docs/guarantees.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]


def test_the_table_of_kills_has_the_points_of_the_crash_tests() -> None:
    kills = (ROOT / "docs/guarantees.md").read_text().split("| a kill -9 of")[1].split("\n\n")[0]
    points = re.findall(r"^\| ((?:before|after) the \w+) \|", kills, re.M)
    assert points == [
        point for point in QUEUE_POINTS if not point.startswith("in ") and point != "after the mark"
    ]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_as_drawn(name: str) -> None:
    assert (ASSETS / f"{name}.svg").read_text() == PICTURES[name](), "run scripts/draw.py"


def test_the_recorded_demo_has_the_numbers_of_the_demo() -> None:
    picture = RECORDED.read_text()
    shown = re.sub(r"<style>.*?</style>|<.*?>", "", picture, flags=re.S).replace("&#160;", " ")
    published = f"published {ENVELOPES + LATER + len(BAD):,} = {ENVELOPES + LATER:,} in Parquet"
    for words in (published, f"+ {len(BAD)} dead letters", "the sum is right"):
        assert words in shown, "run scripts/record_demo.py"
    assert "http" not in picture.replace("http://www.w3.org", "").replace("https://www.textualize.io", "")


@pytest.mark.parametrize("broker", BINDINGS)
def test_a_broker_is_in_the_readme(broker: str) -> None:
    [row] = re.findall(
        rf"^\| \[.*\]\(docs/brokers/{broker}\.md\) \|.*$", (ROOT / "README.md").read_text(), re.M
    )
    assert f"`{BINDINGS[broker].extra}`" in row


def test_every_error_of_the_troubleshooting_page_is_one_of_ours() -> None:
    ours = {
        text
        for path in ROOT.glob("babelqueue_spark/**/*.py")
        for text in messages(ast.parse(path.read_text()))
    }
    page = (ROOT / "docs/troubleshooting.md").read_text()
    others = (
        "[DATA_SOURCE_NOT_FOUND]",
        "[PACKAGE_NOT_INSTALLED]",
        "Current batch is falling behind",
        "Illegal size 5 of collection",
        "STREAMING_CHECKPOINT_MISSING_METADATA_FILE",
    )
    headings = [text for text in re.findall(r"^### `(.*)`$", page, re.M) if not text.startswith(others)]
    assert headings
    for heading in headings:
        pattern = re.compile(".*".join(map(re.escape, heading.split("…"))))
        assert any(pattern.search(text) for text in ours), heading


def messages(tree: ast.AST) -> Iterator[str]:
    """The texts of a module, with … for what an f-string fills in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
