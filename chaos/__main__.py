"""`make chaos`: streams and a worker under faults, and the ledger that checks them.

    python -m chaos [--minutes 10] [--seed N] [--brokers redis,rabbitmq] [--record]
    python -m chaos --resume FOLDER [--record]
    python -m chaos soak [--minutes 10] [--brokers redis,rabbitmq] [--record]

The minutes are those of faults, over all brokers; starting and draining each takes a minute more. A run
keeps its plan and all that it finds in a folder below `build/chaos`. `--resume` continues with the broker
at which a run was ended, from that broker's start. `--record` makes the result the one that the
documentation shows (`docs/chaos.json`), beside the earlier ones of brokers that were not tried.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

from chaos import report
from chaos.plan import Plan, keep, kept, plan
from chaos.setups import SETUPS
from chaos.trial import ROOT, Trial

RUNS = ROOT / "build" / "chaos"


def main(arguments: list[str]) -> int:
    """Run what the arguments say; 1 when something did not hold."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if arguments[:1] == ["soak"]:
        from chaos import soak

        return soak.main(arguments[1:])
    parser = argparse.ArgumentParser(prog="chaos")
    parser.add_argument("--minutes", type=float, default=10.0, help="of faults, over all brokers")
    parser.add_argument("--seed", type=int, help="of another run, to repeat it")
    parser.add_argument("--brokers", default=",".join(SETUPS), help=f"of {', '.join(SETUPS)}")
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="of a run that was ended")
    parser.add_argument("--record", action="store_true", help="keep the result in docs/chaos.json")
    given = parser.parse_args(arguments)
    names = given.brokers.split(",")
    if unknown := sorted({*names} - {*SETUPS}):
        parser.error(f"no such broker: {', '.join(unknown)}")
    if given.resume:
        folder, planned = given.resume, kept(given.resume / "plan.json")
    else:
        seed = random.randrange(1 << 32) if given.seed is None else given.seed
        folder, planned = RUNS / f"{time.strftime('%Y%m%dT%H%M%S')}-{seed}", plan(seed, given.minutes, names)
        folder.mkdir(parents=True)
        keep(planned, folder / "plan.json")
    print(f"seed {planned.seed}, {planned.seconds:.0f} s of faults for each broker, in {folder}", flush=True)
    return run(folder, planned, record=given.record)


def run(folder: Path, planned: Plan, *, record: bool = False) -> int:
    """Try each setup of a plan that has no result yet; 1 when something did not hold."""
    for name, faults in planned.faults.items():
        if not report.result_file(folder, name).exists():
            shutil.rmtree(folder / name, ignore_errors=True)
            started = time.monotonic()
            verdict = Trial(SETUPS[name], folder / name).run(faults, planned.seconds)
            report.keep(folder, name, verdict, time.monotonic() - started)
        print(report.line(folder, name), flush=True)
    return report.finish(folder, planned, record=record)


if __name__ == "__main__":
    # A run that is told to end stops its servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
