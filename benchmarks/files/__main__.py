"""Measures files: `python -m benchmarks.files`, or `make bench-files`.

Files are stored and processed; lines are found in many megabytes; turns of agents with and without files alternate. The
model is a fake one that answers immediately.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop
from mnemesh_client import Mnemesh
from mnemesh_client.addresses import Addresses
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.services import SERVICES

from benchmarks.files.ingestion import ingest
from benchmarks.files.report import TABLES, machine_text
from benchmarks.files.searches import measure_grep, measure_search
from benchmarks.files.views import measure_views
from benchmarks.mesh import fake_model, running_mesh


async def _measure(directory: Path, arguments: argparse.Namespace) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Yields the results of each part with its name."""
    async with fake_model() as model, running_mesh(directory, model) as mesh:
        addresses = Addresses(**{spec.name: mesh.config.address(spec.name) for spec in SERVICES})
        async with Mnemesh(addresses, deadline=120.0) as client:
            yield "views", await measure_views(mesh, client, arguments.turns)
            agent = await client.agents.create("searches", model="openai/one-step")
            yield "grep", await measure_grep(client, agent, arguments.grep_mb, arguments.times)
            yield "ingestion", await ingest(mesh, client, arguments.files, arguments.bytes)
            await agent.files.attach((await client.folders.find("ingestion")).id)
            yield "search", await measure_search(agent, arguments.times)


async def _run(directory: Path, arguments: argparse.Namespace) -> None:
    """Measures, and prints and writes the results of each part when it has ended."""
    results: dict[str, Any] = {
        "machine": {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "cpus": len(os.sched_getaffinity(0)),
            "load_average": os.getloadavg()[0],
        }
    }
    print(machine_text(results["machine"]))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    async with aclosing(_measure(directory, arguments)) as parts:
        async for name, part in parts:
            results[name] = part
            print(f"\n{TABLES[name](part)}", flush=True)
            arguments.out.write_text(json.dumps(results, indent=2) + "\n")
    print(f"\nwritten to {arguments.out}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.files", description=__doc__)
    parser.add_argument("--files", type=int, default=10_000, help="files to process (%(default)s)")
    parser.add_argument("--bytes", type=int, default=20_000, help="size of each (%(default)s)")
    parser.add_argument("--grep-mb", type=int, default=100, help="megabytes in which lines are found (%(default)s)")
    parser.add_argument("--turns", type=int, default=100, help="turns of each agent (%(default)s)")
    parser.add_argument("--times", type=int, default=20, help="calls of each kind (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="a few files and turns, as a smoke test")
    parser.add_argument("--out", type=Path, default=Path("build/bench-files.json"), help="the JSON (%(default)s)")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.files, arguments.grep_mb, arguments.turns, arguments.times = 20, 1, 3, 2
    return arguments


def main() -> int:
    """Runs the benchmark."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="mnemesh-files-") as directory:
        try:
            uvloop.run(_run(Path(directory), arguments))
        except (MnemeshError, RuntimeError) as error:
            print(f"bench-files: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
