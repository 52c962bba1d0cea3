"""Measures the memory tiers: `python -m benchmarks.tiers [--messages 1000000 --agents 200 …] [--keep DIR]`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop
from mnemesh_kit.errors import MnemeshError

from benchmarks.tiers.corpus import Corpus
from benchmarks.tiers.loading import Loaded, load
from benchmarks.tiers.measuring import measure_all
from benchmarks.tiers.probes import Probes
from benchmarks.tiers.report import as_text
from benchmarks.tiers.servers import ENGINES, running
from benchmarks.tiers.stock import Stock

_FULL = Stock(messages=1_000_000, agents=200, passages=100_000, archives=100)
_QUICK = Stock(messages=400, agents=4, passages=80, archives=2)


async def benchmark(directory: Path, engine: str, stock: Stock, times: int) -> dict[str, Any]:
    """Fills one pair of stores where it is not filled yet, starts the services anew, and measures."""
    corpus = Corpus()
    loaded = Loaded.find(directory, stock)
    if loaded is None:
        print(f"loading {engine}: {stock}", file=sys.stderr, flush=True)
        directory.mkdir(parents=True, exist_ok=True)
        async with running(directory, engine) as services:
            loaded = await load(services, stock, corpus)
    print(f"measuring {engine}: {stock}", file=sys.stderr, flush=True)
    async with running(directory, engine) as services:
        # Stores that an earlier commit filled may have an index to make anew.
        await services.processes.until_idle(("recall", "archival"), quiet_seconds=1.0, at_most=36_000.0)
        return await measure_all(services, loaded, list(Probes(services, loaded, corpus).all()), times)


async def _all(root: Path, stocks: Sequence[Stock], engines: Sequence[str], times: int) -> dict[str, Any]:
    load_average = os.getloadavg()[0]
    stores = [
        await benchmark(root / f"{engine}-{stock.messages}", engine, stock, times)
        for engine in engines
        for stock in stocks
    ]
    machine = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)),
        "load_average": load_average,
    }
    return {"machine": machine, "stores": stores}


@contextmanager
def _directory(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        yield kept.resolve()
        return
    with TemporaryDirectory(prefix="mnemesh-tiers-") as made:
        root = Path(made)
        root.chmod(0o711)  # PostgreSQL does not run as root, and has to reach its own directory
        yield root


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiers", description=__doc__)
    parser.add_argument("--messages", type=int, default=_FULL.messages, help="in recall (%(default)s)")
    parser.add_argument("--agents", type=int, default=_FULL.agents, help="that have them (%(default)s)")
    parser.add_argument("--passages", type=int, default=_FULL.passages, help="in archival (%(default)s)")
    parser.add_argument("--archives", type=int, default=_FULL.archives, help="that hold them (%(default)s)")
    parser.add_argument(
        "--beside", type=int, default=10_000, help="also a smaller store of so many messages; 0: none (%(default)s)"
    )
    parser.add_argument("--engine", action="append", choices=ENGINES, help="SQL engine; by default both")
    parser.add_argument("--times", type=int, default=100, help="calls of each kind (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="a few calls over next to nothing: shows that it runs")
    parser.add_argument("--keep", type=Path, help="keeps the filled stores there, and measures those that are there")
    parser.add_argument("--out", type=Path, default=Path("build/bench-tiers.json"), help="the JSON (%(default)s)")
    return parser.parse_args()


def main() -> int:
    """Reads the arguments, runs, prints and writes."""
    given = _arguments()
    stock = _QUICK if given.quick else Stock(given.messages, given.agents, given.passages, given.archives)
    beside = 0 if given.quick else given.beside
    stocks = [stock.scaled(beside), stock] if 0 < beside < stock.messages else [stock]
    with _directory(given.keep) as root:
        try:
            found = uvloop.run(_all(root, stocks, given.engine or ENGINES, 3 if given.quick else given.times))
        except (MnemeshError, RuntimeError, ValueError) as error:
            print(f"bench-tiers: {error}", file=sys.stderr)
            return 1
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=2) + "\n")
    print(as_text(found))
    print(f"\nwritten to {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
