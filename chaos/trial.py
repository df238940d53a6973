"""One setup under its faults, from the start of its servers to the verdict."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from babelqueue_spark.bindings import Binding, binding_class, broker_of
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.testing.proxy import Proxy
from babelqueue_spark.testing.silence import LOCAL_ADDRESS
from chaos import messages
from chaos.checker import Ledger, Left, Verdict, check
from chaos.faults import Place, inject
from chaos.notes import note, notes
from chaos.plan import Fault
from chaos.processes import Program
from chaos.setups import Setup
from tests.s3 import S3Server
from tests.servers.cluster import SparkCluster

ROOT = Path(__file__).parent.parent
RATE = 50
"""Messages a second, for each of the two queues."""
START_SECONDS = 90.0
RECOVERY_SECONDS = 45.0
DRAIN_SECONDS = 120.0


class Trial:
    """A setup and its folder.

    Args:
        setup: what is tried.
        folder: of this trial alone; empty.
    """

    def __init__(self, setup: Setup, folder: Path) -> None:
        self.folder = folder
        self._setup = setup
        self._reads = setup.queue(messages.READ)
        self._works = setup.queue(messages.WORK)
        self._replies = setup.queue(messages.REPLIES)

    def run(self, faults: list[Fault], seconds: float) -> Verdict:
        """Inject faults for so many seconds, then let everything drain, and check."""
        self.folder.mkdir(parents=True)
        with ExitStack() as stack:
            place, producer = self._start(stack)
            self._await(self._has_moved(), START_SECONDS)
            deadline = time.monotonic() + seconds
            for fault in faults:
                if time.monotonic() > deadline:
                    break
                self._suffer(place, fault)
            self._stop(producer, "stop-producer", DRAIN_SECONDS)
            self._await(self._is_complete, DRAIN_SECONDS)
            self._stop(place.driver, "stop-driver", DRAIN_SECONDS)
            left = self._left()
        once = binding_class(self._broker).capabilities.publish_once
        setup = self._setup
        return check(
            self.folder,
            self._ledger(self._reads),
            self._ledger(self._works),
            left,
            doubles=setup.doubles,
            doubled=False,
            once=once,
        )

    def _start(self, stack: ExitStack) -> tuple[Place, Program]:
        setup = self._setup
        server = stack.enter_context(setup.server()) if setup.server else None
        store = stack.enter_context(S3Server()) if setup.bucket else None
        cluster = stack.enter_context(SparkCluster()) if setup.cluster else None
        proxy = None
        self._direct = url = server.url if server else f"sqlite:///{self.folder}/queue.db"
        if server:
            proxy = stack.enter_context(Proxy("127.0.0.1", server.port))
            url = LOCAL_ADDRESS.sub(proxy.address, url)
        self._broker = str(broker_of(url))
        if setup.declare:
            dead = [self._dead_letters(queue) for queue in (self._works,)]
            setup.declare(self._direct, [self._reads, self._works, self._replies, *dead])
        clock = self.folder / "clock"
        clock.write_bytes(bytes(8))
        description = self._describe(url, store, cluster)
        environment = {
            "PYTHONPATH": os.pathsep.join([str(ROOT / "chaos/inject"), str(ROOT)]),
            "CHAOS_CLOCK": str(clock),
            "SPARK_TESTING": "1",  # Spark Connect on a free port
            "JDK_JAVA_OPTIONS": f"-XX:TieredStopAtLevel=1{_archived()}",  # it starts often
        }
        producer = Program(
            ["-m", "chaos.producer", str(description)],
            self.folder / "producer.log",
            {"PYTHONPATH": str(ROOT)},
        )
        driver = Program(["-m", "chaos.driver", str(description)], self.folder / "driver.log", environment)
        stack.enter_context(producer)
        stack.enter_context(driver)
        place = Place(driver, clock, server, proxy, store, cluster, setup.survives)
        return place, producer

    def _describe(self, url: str, store: S3Server | None, cluster: SparkCluster | None) -> Path:
        setup = self._setup
        options = dict(setup.options)
        given = {
            "folder": str(self.folder),
            "direct_url": self._direct,
            "url": url,
            "options": options,
            "journal_options": {"journal.timeout": "3s"} if store else {},
            "worker_options": {name: value for name, value in options.items() if name != "visibilityTimeout"},
            "queues": [self._reads, self._works],
            "reads": {
                "stream": self._reads,
                "worker": ",".join([self._works, *(f"{self._works}{tier}" for tier in setup.tiers)]),
            },
            "replies": self._replies,
            "journals": f"s3://{store.bucket}/trial" if store else f"{self.folder}/journals",
            "master": cluster.url if cluster else "local[2,4]",
            "connect": setup.connect,
            "rate": RATE,
            "groups": setup.groups,
        }
        file = self.folder / "description.json"
        file.write_text(json.dumps(given, indent=1))
        return file

    def _suffer(self, place: Place, fault: Fault) -> None:
        """Inject a fault, and wait until both queries have moved again."""
        time.sleep(fault.pause)
        began = time.time()
        hit = inject(place, fault)
        until = time.time()
        recovered = self._await(self._has_moved(), RECOVERY_SECONDS)
        found = {**asdict(fault), "hit": hit, "at": began, "until": until, "recovered": round(recovered, 1)}
        note(self.folder / "faults", found)

    def _has_moved(self) -> Callable[[], bool]:
        """Whether the stream has written a batch, and a handler has run, since now."""
        files = [self.folder / name for name in ("batches", "effects")]
        before = [file.stat().st_size if file.exists() else 0 for file in files]
        return lambda: all(
            file.exists() and file.stat().st_size > size for file, size in zip(files, before, strict=True)
        )

    def _is_complete(self) -> bool:
        """Whether all that was confirmed has been written or handled, and both queues are empty."""
        verdict = self.so_far()
        if verdict.lost:
            return False
        return not any(self._waiting(queue) for queue in (self._reads, self._works))

    def so_far(self) -> Verdict:
        """The verdict if all dead letters and replies were there that should be."""
        work = self._ledger(self._works)
        dead = [messages.body(number, "") for number in work.confirmed if messages.is_dead(number)]
        replies = [messages.body(number, "") for number in work.confirmed if messages.is_replied(number)]
        read = self._ledger(self._reads)
        return check(self.folder, read, work, Left(dead, replies, {}), doubles=(), doubled=True, once=False)

    def _stop(self, program: Program, name: str, seconds: float) -> None:
        (self.folder / name).touch()
        if not program.await_end(seconds):
            note(self.folder / "failures", [name, time.time(), f"did not end in {seconds:.0f} s"])

    def _ledger(self, queue: str) -> Ledger:
        return Ledger.of(self.folder / f"ledger-{queue}")

    def _dead_letters(self, queue: str) -> str:
        return binding_class(self._broker).dead_letter_name(queue, "babelqueue")

    def _left(self) -> Left:
        dead, replies = self._taken(self._dead_letters(self._works)), self._taken(self._replies)
        waiting = {queue: self._waiting(queue) for queue in (self._reads, self._works)}
        return Left(dead, replies, waiting)

    def _waiting(self, queue: str) -> int:
        with read_options({**self._setup.options, "url": self._direct, "queue": queue}).binding() as binding:
            return binding.backlog(queue) if isinstance(binding, Binding) else 0

    def _taken(self, queue: str) -> list[bytes]:
        """The bodies of a queue, which leave it; of a log, all that it has."""
        options = {**self._setup.options, "url": self._direct, "queue": queue}
        with read_options(options).binding() as binding:
            if not isinstance(binding, Binding):
                return [body for batch in binding.browse(queue) for body in batch.column("body").to_pylist()]
            bodies: list[bytes] = []
            empty = 0
            while empty < 3:
                batch = binding.claim(queue, 1000, 1 << 26)
                bodies += batch.column("body").to_pylist()
                binding.acknowledge(queue, batch)
                empty = 0 if batch.num_rows else empty + 1
                if not batch.num_rows:
                    time.sleep(0.2)
            return bodies

    @staticmethod
    def _await(condition: Callable[[], bool], seconds: float) -> float:
        """Seconds until the condition held, or all of them."""
        began = time.monotonic()
        while not condition() and time.monotonic() < began + seconds:
            time.sleep(0.2)
        return time.monotonic() - began


def _archived() -> str:
    """An option of Java's for Spark's classes, parsed once, where `make setup` has archived them."""
    classes = Path(sys.prefix, "spark.jsa")
    return f" -XX:SharedArchiveFile={classes} -Xlog:disable" if classes.exists() else ""


def failures_of(folder: Path) -> dict[str, int]:
    """How often queries ended with each condition, such as `BABELQUEUE_BROKER_UNREACHABLE`."""
    found: dict[str, int] = {}
    for _, _, text in notes(folder / "failures"):
        name = text.partition("[BABELQUEUE_")[2].partition("]")[0] or text.partition("\n")[0][:120]
        found[name] = found.get(name, 0) + 1
    return found
