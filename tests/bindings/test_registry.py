"""Bindings of others: registered by a program, or offered by an installed package."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from babelqueue_spark.bindings import (
    BINDINGS,
    Binding,
    BindingConfig,
    Capabilities,
    binding_class,
    broker_of,
    brokers,
    create_binding,
    register,
)
from babelqueue_spark.bindings.batches import deliveries
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.errors import BrokerError, OptionError
from babelqueue_spark.testing import outgoing

PACKAGE = """
from tests.bindings.test_registry import MemoryBinding

class ShelfBinding(MemoryBinding):
    name = "shelf"
    title = "Shelf"

NOT_A_BINDING = 1
"""


class MemoryBinding(Binding):
    """Queues as lists of a process."""

    name = "memory"
    title = "Memory"
    capabilities = Capabilities(
        publish_batch=10, claim_batch=10, publish_once=False, max_delay=0, browse="exact", ordered=True
    )

    def __init__(self, config: BindingConfig) -> None:
        super().__init__(config)
        self.queues: dict[str, list[bytes]] = {}

    def backlog(self, queue: str) -> int:
        return len(self.queues.get(queue, []))

    def claim(self, queue: str, messages: int, max_bytes: int) -> pa.RecordBatch:
        del max_bytes
        bodies, self.queues[queue] = self.queues[queue][:messages], self.queues[queue][messages:]
        return deliveries(len(bodies), body=bodies, receipt=bodies)

    def acknowledge(self, queue: str, deliveries: pa.RecordBatch) -> pa.BooleanArray:
        del queue
        return pa.array([True] * len(deliveries))

    def release(self, queue: str, deliveries: pa.RecordBatch) -> None:
        self.queues[queue] = deliveries.column("body").to_pylist() + self.queues[queue]

    def _publish(self, queue: str, messages: pa.RecordBatch, *, idempotency_key: str | None) -> int:
        del idempotency_key
        self.queues.setdefault(queue, []).extend(messages.column("body").to_pylist())
        return int(messages.num_rows)

    def browse(self, queue: str) -> Iterator[pa.RecordBatch]:
        yield deliveries(self.backlog(queue), body=self.queues[queue])

    def close(self) -> None:
        self.queues.clear()


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr("babelqueue_spark.bindings.registry.BINDINGS", dict(BINDINGS))


def install(folder: Path, name: str, *points: str) -> None:
    """A package with entry points, as pip leaves it in a folder of `sys.path`."""
    (folder / f"{name}.py").write_text(PACKAGE)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "\n".join(points)
    (info / "entry_points.txt").write_text(f"[babelqueue_spark.bindings]\n{lines}\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_binding_is_registered_at_run_time() -> None:
    register("memory", MemoryBinding, schemes=("memory", "mem"))
    assert broker_of("mem://here") == "memory"
    assert "memory" in brokers()
    options = read_options({"url": "mem://here", "queue": "orders"})
    binding = options.queue_binding()
    assert isinstance(binding, MemoryBinding)
    assert binding.publish("orders", outgoing([b"a", b"b"])) == 2
    assert binding.claim("orders", 1, 1).column("body").to_pylist() == [b"a"]


def test_a_module_is_imported_when_it_is_used() -> None:
    register("memory", f"{__name__}:MemoryBinding")
    assert broker_of("memory://x") == "memory"
    assert binding_class("memory") is MemoryBinding
    register("nowhere", "no_such_module:Binding")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        binding_class("nowhere")


@pytest.mark.parametrize(("name", "schemes"), [("redis", ("mem",)), ("memory", ("mem", "rediss"))])
def test_a_name_that_is_taken(name: str, schemes: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="another broker's"):
        register(name, MemoryBinding, schemes=schemes)


def test_the_base_checks_what_is_published() -> None:
    binding = MemoryBinding(BindingConfig(url="memory://"))
    with pytest.raises(BrokerError, match="Memory: queue 'q': it keeps no idempotency keys"):
        binding.publish("q", outgoing([b"x"]), idempotency_key="k")
    with pytest.raises(BrokerError, match=r"Memory: queue 'q': .* a delay of 1\.5 s, but it can delay none"):
        binding.publish("q", outgoing([b"x"], delays=[1_500]))
    with pytest.raises(OptionError, match="no meaning for Memory, where the queue itself"):
        MemoryBinding(BindingConfig(url="memory://", visibility_timeout=5))


def test_a_package_offers_a_binding(folder: Path) -> None:
    install(folder, "shelf_of_queues", "shelf = shelf_of_queues:ShelfBinding")
    assert broker_of("shelf://x") == "shelf"
    assert "shelf" in brokers()
    assert read_options({"url": "shelf://x", "queue": "q"}).broker == "shelf"
    binding = create_binding("shelf", BindingConfig(url="shelf://x"))
    assert (type(binding).__name__, binding.title) == ("ShelfBinding", "Shelf")


def test_a_package_is_imported_only_when_its_broker_is_used(folder: Path) -> None:
    install(
        folder, "broken_queues", "broken = no_such_module:Binding", "number = broken_queues:NOT_A_BINDING"
    )
    assert broker_of("redis://h") == "redis"
    assert {"broken", "number"} < set(brokers())
    with pytest.raises(OptionError, match=r"'no_such_module:Binding' of the package broken_queues .*no_such"):
        binding_class("broken")
    with pytest.raises(OptionError, match=r"broken_queues is not a subclass of Binding"):
        binding_class("number")


def test_two_packages_with_one_broker(folder: Path) -> None:
    for name in ("one_shelf", "other_shelf"):
        install(folder, name, f"shelf = {name}:ShelfBinding")
    with pytest.raises(OptionError, match=r"several packages \(one_shelf, other_shelf\)"):
        binding_class("shelf")


def test_a_broker_of_ours_stays_ours(folder: Path) -> None:
    install(folder, "shelf_of_queues", "redis = shelf_of_queues:ShelfBinding")
    assert binding_class("redis").__name__ == "RedisBinding"


def test_an_unknown_broker() -> None:
    with pytest.raises(
        OptionError, match="broker 'pigeon' is unknown: use one of artemis, firehose, kafka, kinesis"
    ):
        binding_class("pigeon")
    assert broker_of("pigeon://x") is None


def test_another_process_finds_the_package_too(folder: Path) -> None:
    """As Spark's workers do, which know nothing that the driver registered."""
    install(folder, "shelf_of_queues", "shelf = shelf_of_queues:ShelfBinding")
    program = "from babelqueue_spark.bindings import binding_class; print(binding_class('shelf').title)"
    path = f"{folder}:{Path(__file__).parents[2]}"
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "Shelf"
