"""Runs the benchmark: `python -m benchmarks [--quick] [--out build/bench.json]`."""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import uvloop
from mnemesh_kit.config import StartupError
from mnemesh_kit.errors import MnemeshError

from benchmarks import gateway, report
from benchmarks.agents import Connection
from benchmarks.measurement import count_calls, run_plan
from benchmarks.mesh import fake_model, running_mesh
from benchmarks.plan import Plan, Script, full, quick

_SCRIPTS: tuple[Script, ...] = ("one-step", "five-tools")


async def benchmark(plan: Plan, data_dir: Path) -> dict[str, Any]:
    """Counts calls on a new mesh, then measures on the restarted mesh, with warm stores and without metrics."""
    async with fake_model() as model:
        async with running_mesh(data_dir, model, metrics=True) as mesh, Connection(mesh.config) as connection:
            calls = {script: await count_calls(mesh, connection, script, plan.counted_turns) for script in _SCRIPTS}
        async with running_mesh(data_dir, model) as mesh:
            at_start = mesh.processes.resident_mb()
            measured = await run_plan(mesh, plan)
            memory = {
                "resident_at_start": at_start,
                "resident_at_end": mesh.processes.resident_mb(),
                "proportional_at_end": mesh.processes.proportional_mb(),
            }
            return report.as_json(measured, start_seconds=mesh.start_seconds, memory_mb=memory, calls=calls)


def main() -> int:
    """Parses the arguments, runs the benchmark, prints and writes the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few turns of each kind, as a smoke test")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"), help="the JSON report (%(default)s)")
    parser.add_argument("--only", default="", help="only scenarios of this script: one-step or five-tools")
    parser.add_argument("--gateway", action="store_true", help="what the gateway adds to a turn, instead")
    arguments, rest = parser.parse_known_args()
    if arguments.gateway:
        return gateway.main(rest)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    plan = quick() if arguments.quick else full()
    if arguments.only:
        plan = plan.only(arguments.only)
    with tempfile.TemporaryDirectory(prefix="mnemesh-bench-") as data_dir:
        try:
            results = uvloop.run(benchmark(plan, Path(data_dir)))
        except (StartupError, MnemeshError) as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")
    print(report.as_text(results))
    print(f"\nwritten to {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
