"""Finds what keeps the event loop of a mesh in one process busy: `python -m benchmarks.loop_blocks`.

Agents take turns at once and without a pause. A thread of the mesh measures how long the loop takes to run the next
callback, and notes the stack of the loop's thread meanwhile.
"""

import argparse
import asyncio
import gc
import json
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

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


class _Step(NamedTuple):
    """A callback, or a task between two of its waits, as samples of the stack saw it."""

    frame: FrameType | None
    since: float
    until: float
    """The processor time of the thread at the first and the last of the samples."""
    stack: str


class Watchdog(threading.Thread):
    """Measures the blocks of the loop that runs in the main thread.

    A block is the time until the loop runs the next callback. It has many short steps if many agents wait, or one that
    is too long.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._loop = loop
        self._main = threading.main_thread().ident or 0
        self._clock = time.pthread_getcpuclockid(self._main)
        self._collected = 0.0
        self._began = 0.0
        self.blocks: list[dict[str, Any]] = []
        gc.callbacks.append(self._measure_collection)

    def run(self) -> None:
        """Measures for ever."""
        while True:
            has_run = threading.Event()
            started, cpu, collected = time.perf_counter(), time.clock_gettime(self._clock), self._collected
            self._loop.call_soon_threadsafe(has_run.set)
            longest = _Step(None, 0.0, 0.0, "")
            step = longest
            while not has_run.wait(LIMIT_SECONDS / 4):
                now, frames = time.clock_gettime(self._clock), self._frames()
                outermost = frames[0] if frames else None
                if outermost is None or outermost is not step.frame:
                    step = _Step(outermost, now, now, "")
                step = step._replace(until=now, stack=_described(frames))
                longest = max(longest, step, key=lambda each: each.until - each.since)
            wall = time.perf_counter() - started
            if wall > LIMIT_SECONDS:
                block = {
                    "wall_ms": wall,
                    "cpu_ms": time.clock_gettime(self._clock) - cpu,
                    "step_ms": longest.until - longest.since,
                    "collection_ms": self._collected - collected,
                }
                self.blocks.append({name: value * 1e3 for name, value in block.items()} | {"stack": longest.stack})
            time.sleep(_PAUSE_SECONDS)

    def _measure_collection(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.clock_gettime(self._clock)
        else:
            self._collected += time.clock_gettime(self._clock) - self._began

    def _frames(self) -> list[FrameType]:
        """Returns the frames of what the loop runs, the outermost first; none if it waits."""
        frame: FrameType | None = sys._current_frames()[self._main]
        frames: list[FrameType] = []
        while frame is not None and not frame.f_code.co_filename.endswith("asyncio/runners.py"):
            frames.append(frame)
            frame = frame.f_back
        return frames[::-1]


def _described(frames: Sequence[FrameType]) -> str:
    lines = (f"{'/'.join(Path(each.f_code.co_filename).parts[-3:])}:{each.f_lineno}" for each in frames[-_FRAMES:])
    return "\n".join(f"  {line}" for line in lines)


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
        print(f"longest step: {max(each['step_ms'] for each in blocks):.0f} ms of processor time")
    for each in sorted(blocks, key=lambda each: -each["step_ms"])[:_SHOWN]:
        print(f"{each['wall_ms']:.0f} ms; processor time: {each['cpu_ms']:.0f} ms", end=", ")
        print(f"{each['step_ms']:.0f} ms in one step, {each['collection_ms']:.0f} ms of garbage collection")
        print(each["stack"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
