"""Measures turns of a mesh with a fake model: `python -m benchmarks [--quick] [--against REV]`, or `make bench`."""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import uvloop
from mnemesh_kit.config import StartupError
from mnemesh_kit.errors import MnemeshError
from mnemesh_testkit.databases.postgres import running_postgres

from benchmarks import gateway, report
from benchmarks.measurement import Version, measure_at_rest, measure_rows, measure_services
from benchmarks.mesh import fake_model, interpreter_of
from benchmarks.plan import Plan, full, quick

ENGINES: Final = ("SQLite", "PostgreSQL")
_POSTGRES: Final = ("listen_addresses=", "max_connections=200")
"""Default settings of the server: a commit is on the disk."""


async def benchmark(plan: Plan, engines: Sequence[str], pythons: dict[str, str], directory: Path) -> dict[str, Any]:
    """Measures all engines, one after the other, with the versions by name and their interpreters."""
    found: dict[str, Any] = {"machine": report.machine(), "engines": {}}
    async with fake_model() as model:
        for engine in engines:
            with ExitStack() as stack:
                server = stack.enter_context(running_postgres(settings=_POSTGRES)) if engine == "PostgreSQL" else None
                versions = [
                    Version(name, python, directory / engine / str(number), server)
                    for number, (name, python) in enumerate(pythons.items())
                ]
                for version in versions:
                    print(f"{engine}, {version.name}: at rest", file=sys.stderr)
                    await measure_at_rest(version, model, plan)
                print(f"{engine}: rows", file=sys.stderr)
                await measure_rows(versions, model, plan)
                print(f"{engine}: CPU by service", file=sys.stderr)
                services = await measure_services(versions[0], model, plan)
                found["engines"][engine] = report.engine_as_json(versions, services)
    return found


def main() -> int:
    """Parses the arguments, runs the benchmark, prints and writes the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few turns of each kind, as a smoke test")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"), help="the JSON report (%(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only rows whose name contains this text")
    parser.add_argument("--engine", choices=ENGINES, help="SQL engine (default: both)")
    parser.add_argument("--against", metavar="REV", help="a revision that is measured alternately with this one")
    parser.add_argument("--gateway", action="store_true", help="what the gateway adds to a turn, instead")
    arguments, rest = parser.parse_known_args()
    if arguments.gateway:
        return gateway.main(rest)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    plan = (quick() if arguments.quick else full()).only(arguments.only)
    if not plan.rows:
        parser.error(f"no row has {arguments.only!r} in its name")
    try:
        pythons = {"this": sys.executable}
        if arguments.against:
            pythons[arguments.against] = interpreter_of(arguments.against)
        with tempfile.TemporaryDirectory(prefix="mnemesh-bench-") as directory:
            engines = (arguments.engine,) if arguments.engine else ENGINES
            results = uvloop.run(benchmark(plan, engines, pythons, Path(directory)))
    except (StartupError, MnemeshError, RuntimeError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")
    print(report.as_text(results))
    print(f"\nwritten to {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
