"""Measures the memory services: `python -m benchmarks.memory_load [--messages 1000000 --agents 200 …] [--keep DIR]`."""

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

from benchmarks.memory_load.load import Corpus, Dataset, Loaded, load
from benchmarks.memory_load.measurement import as_text, measure_all
from benchmarks.memory_load.probes import Probes
from benchmarks.memory_services import ENGINES, running

_FULL = Dataset(messages=1_000_000, agents=200, passages=100_000, archives=100)
_QUICK = Dataset(messages=400, agents=4, passages=80, archives=2)


async def benchmark(directory: Path, engine: str, dataset: Dataset, times: int) -> dict[str, Any]:
    """Fills a pair of stores unless it is already filled, restarts the services, and measures."""
    corpus = Corpus()
    loaded = Loaded.find(directory, dataset)
    if loaded is None:
        print(f"loading {engine}: {dataset}", file=sys.stderr, flush=True)
        directory.mkdir(parents=True, exist_ok=True)
        async with running(directory, engine) as services:
            loaded = await load(services, dataset, corpus)
    print(f"measuring {engine}: {dataset}", file=sys.stderr, flush=True)
    async with running(directory, engine) as services:
        # Indexes that are behind are brought up to date first.
        await services.processes.until_idle(("recall", "archival"), quiet_seconds=1.0, at_most=36_000.0)
        return await measure_all(services, loaded, list(Probes(services, loaded, corpus).all()), times)


async def _all(root: Path, stocks: Sequence[Dataset], engines: Sequence[str], times: int) -> dict[str, Any]:
    load_average = os.getloadavg()[0]
    stores = [
        await benchmark(root / f"{engine}-{dataset.messages}", engine, dataset, times)
        for engine in engines
        for dataset in stocks
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
    with TemporaryDirectory(prefix="mnemesh-memory-") as made:
        root = Path(made)
        root.chmod(0o711)  # PostgreSQL does not run as root and needs access to its own directory
        yield root


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_load", description=__doc__)
    parser.add_argument("--messages", type=int, default=_FULL.messages, help="messages in recall (%(default)s)")
    parser.add_argument("--agents", type=int, default=_FULL.agents, help="agents with these messages (%(default)s)")
    parser.add_argument("--passages", type=int, default=_FULL.passages, help="passages in archival (%(default)s)")
    parser.add_argument("--archives", type=int, default=_FULL.archives, help="archives with passages (%(default)s)")
    parser.add_argument(
        "--small", type=int, default=10_000, help="also measure a store of this many messages; 0: none (%(default)s)"
    )
    parser.add_argument("--engine", action="append", choices=ENGINES, help="SQL engine (default: both)")
    parser.add_argument("--times", type=int, default=100, help="calls of each kind (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="a few calls with little data, as a smoke test")
    parser.add_argument("--keep", type=Path, help="directory in which filled stores are kept and reused")
    parser.add_argument("--out", type=Path, default=Path("build/bench-memory-load.json"), help="the JSON (%(default)s)")
    return parser.parse_args()


def main() -> int:
    """Parses the arguments, runs the benchmark, prints and writes the report."""
    arguments = _arguments()
    dataset = (
        _QUICK
        if arguments.quick
        else Dataset(arguments.messages, arguments.agents, arguments.passages, arguments.archives)
    )
    small = 0 if arguments.quick else arguments.small
    stocks = [dataset.scaled(small), dataset] if 0 < small < dataset.messages else [dataset]
    with _directory(arguments.keep) as root:
        try:
            results = uvloop.run(
                _all(root, stocks, arguments.engine or ENGINES, 3 if arguments.quick else arguments.times)
            )
        except (MnemeshError, RuntimeError, ValueError) as error:
            print(f"bench-memory-load: {error}", file=sys.stderr)
            return 1
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")
    print(as_text(results))
    print(f"\nwritten to {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
