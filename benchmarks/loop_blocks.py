"""Finds what keeps the event loop of a mesh in one process busy: `python -m benchmarks.loop_blocks`.

Agents take turns at once and without a pause. A thread of the mesh measures how long the loop takes to run the next
callback, and notes the stack of the loop's thread meanwhile.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import uvloop
from mnemesh_cli.supervisor.config import MeshConfig, service_environment
from mnemesh_cli.supervisor.one_process import load_service
from mnemesh_cli.supervisor.process import ServiceProcess
from mnemesh_kit import run
from mnemesh_kit.local_calls import LocalServers
from mnemesh_kit.server import Assembly
from mnemesh_kit.services import SERVICE_NAMES, SERVICES

from benchmarks.agents import Connection, create_agent
from benchmarks.mesh import STOP_SECONDS, fake_model, free_ports
from benchmarks.turns import turn

LIMIT_SECONDS: Final = 0.02
"""A shorter block is not noted."""
_PAUSE_SECONDS: Final = 0.002
_START_SECONDS: Final = 1.0
"""The start of the last service is not measured: it may block the loop, because no call waits for it."""
_FRAMES: Final = 12
_SHOWN: Final = 15


class Watchdog(threading.Thread):
    """Measures the blocks of the loop that runs in the main thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._loop = loop
        self._main = threading.main_thread().ident or 0
        self._clock = time.pthread_getcpuclockid(self._main)
        self.blocks: list[dict[str, Any]] = []

    def run(self) -> None:
        """Measures for ever."""
        while True:
            has_run = threading.Event()
            started, cpu = time.perf_counter(), time.clock_gettime(self._clock)
            self._loop.call_soon_threadsafe(has_run.set)
            stacks: Counter[str] = Counter()
            while not has_run.wait(LIMIT_SECONDS / 4):
                stacks[self._stack()] += 1
            wall = time.perf_counter() - started
            if wall > LIMIT_SECONDS and stacks:
                spent = time.clock_gettime(self._clock) - cpu
                (stack, _), *_ = stacks.most_common(1)
                self.blocks.append({"wall_ms": wall * 1e3, "cpu_ms": spent * 1e3, "stack": stack})
            time.sleep(_PAUSE_SECONDS)

    def _stack(self) -> str:
        frames = traceback.extract_stack(sys._current_frames()[self._main])[-_FRAMES:]
        return "\n".join(f"  {'/'.join(Path(each.filename).parts[-3:])}:{each.lineno} {each.name}" for each in frames)


def serve(report: Path, names: Sequence[str]) -> int:
    """Runs all services with a watchdog, as `one_process` does, and writes its blocks to a file at the end."""
    config, local = MeshConfig.from_env(), LocalServers()
    *others, (build, settings) = [load_service(name, config, local) for name in names]
    watchdogs: list[Watchdog] = []

    async def build_last() -> Assembly:
        assembly = await build()
        loop = asyncio.get_running_loop()
        watchdogs.append(Watchdog(loop))
        loop.call_later(_START_SECONDS, watchdogs[0].start)
        return assembly

    code = run.run(*others, (build_last, settings), local=local)
    report.write_text(json.dumps(watchdogs[0].blocks))
    return code


async def measure(data_dir: Path, agents: int, seconds: float, script: str) -> tuple[int, list[dict[str, Any]]]:
    """Returns how many turns ended, and the blocks of the loop meanwhile."""
    report, names = data_dir / "blocks.json", sorted(SERVICE_NAMES, key=SERVICE_NAMES.index, reverse=True)
    async with fake_model() as (base_url, _):
        ports = {spec.port_variable: str(port) for spec, port in zip(SERVICES, free_ports(len(SERVICES)), strict=True)}
        settings = {**ports, "MNEMESH_DATA_DIR": str(data_dir), "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "none"}
        config, environment = MeshConfig.from_env(settings), {}
        for name in names:
            environment |= service_environment(name, config, settings)
        arguments = ("-m", "benchmarks.loop_blocks", "--serve", str(report), *names)
        mesh = ServiceProcess("mesh", arguments, environment, data_dir / "mesh.log", names)
        await mesh.start()
        try:
            await mesh.wait_until_ready()
            turns = await _take_turns(config, agents, seconds, script)
        finally:
            await mesh.stop(STOP_SECONDS)
    return turns, json.loads(report.read_text())


async def _take_turns(config: MeshConfig, agents: int, seconds: float, script: str) -> int:
    turns = 0
    async with Connection(config) as connection:
        created = [await create_agent(connection, model=script, stored=60, window=40) for _ in range(agents)]
        ends_at = time.monotonic() + seconds

        async def work(number: int) -> None:
            nonlocal turns
            while time.monotonic() < ends_at:
                await turn(connection, created[number], streamed=number % 2 == 0)
                turns += 1

        await asyncio.gather(*map(work, range(agents)))
    return turns


def main() -> int:
    """Measures and prints; with --serve, runs the measured mesh."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop_blocks", description=__doc__.partition("\n")[0])
    parser.add_argument("--agents", type=int, default=16, help="agents that take turns at once (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="for how long (%(default)s)")
    parser.add_argument("--script", default="five-tools", help="one-step or five-tools (%(default)s)")
    parser.add_argument("--serve", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        return serve(Path(given.serve[0]), given.serve[1:])
    with tempfile.TemporaryDirectory(prefix="mnemesh-loop-") as data_dir:
        turns, blocks = uvloop.run(measure(Path(data_dir), given.agents, given.seconds, given.script))
    print(f"{turns} turns; {len(blocks)} blocks of the loop above {LIMIT_SECONDS * 1e3:.0f} ms")
    if blocks:
        print(f"longest: {max(each['wall_ms'] for each in blocks):.0f} ms", end="; ")
        print(f"most processor time of the loop in one: {max(each['cpu_ms'] for each in blocks):.0f} ms")
    for each in sorted(blocks, key=lambda each: -each["cpu_ms"])[:_SHOWN]:
        print(f"{each['wall_ms']:.0f} ms, {each['cpu_ms']:.0f} ms of processor time\n{each['stack']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
