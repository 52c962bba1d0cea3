"""Measures one call of a small tool over gRPC: `python -m benchmarks.tool_calls [--count 300] [--pause-ms 150]`.

The tools service runs as a process with its default settings. Between calls there is a pause, in which the service
replaces the sandbox process that the call has used; without one, each further call needs a new process.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import uvloop
from mnemesh.tools.v1 import execution_service_pb2, tools_pb2, tools_service_pb2
from mnemesh.tools.v1.execution_service_pb2_grpc import ExecutionServiceStub
from mnemesh.tools.v1.tools_service_pb2_grpc import ToolServiceStub
from mnemesh_cli.supervisor.process import ServiceProcess
from mnemesh_kit.channels import Channels
from mnemesh_kit.services import service
from mnemesh_testkit.mesh.faulty_proxy import ReservedPort

from benchmarks.measurement import percentiles
from benchmarks.memory_services import STOP_SECONDS, start

_WARM_UP: Final = 20
_TOOL: Final = '''def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b
'''


async def measure(directory: Path, count: int, pause_ms: float) -> dict[str, Any]:
    """Returns the milliseconds of a call, of its sandbox, and of the processor time of the service and its children."""
    port, channels = ReservedPort(), Channels(deadline=60.0)
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("MNEMESH_", "OTEL_"))}
    settings |= {"MNEMESH_DATA_DIR": str(directory / "data"), "MNEMESH_LOG_LEVEL": "warning"}
    settings[service("tools").port_variable] = str(port.number)
    process = ServiceProcess("tools", ("-m", service("tools").package), settings, directory / "tools.log")
    try:
        await start(process, port.address)
        channel = channels.channel(port.address)
        tool = tools_pb2.Tool(source_code=_TOOL)
        created = await ToolServiceStub(channel).CreateTool(tools_service_pb2.CreateToolRequest(tool=tool))
        request = execution_service_pb2.ExecuteToolRequest(tool_id=created.tool.id, arguments='{"a": 1, "b": 2}')
        execute, whole, inside = ExecutionServiceStub(channel).ExecuteTool, [], []
        for number in range(_WARM_UP + count):
            if number == _WARM_UP:
                assert process.pid is not None
                before = _cpu_ms(process.pid)
            await asyncio.sleep(pause_ms / 1000)
            started = time.perf_counter()
            answer = await execute(request)
            whole.append((time.perf_counter() - started) * 1000)
            inside.append(answer.duration.ToTimedelta().total_seconds() * 1000)
            assert answer.result == "3", answer
        await asyncio.sleep(1)
        own, children = (after - first for after, first in zip(_cpu_ms(process.pid), before, strict=True))
    finally:
        await channels.close()
        await process.stop(STOP_SECONDS)
        port.release()
    return {
        "call": _summary(whole[_WARM_UP:]),
        "sandbox": _summary(inside[_WARM_UP:]),
        "cpu per call": {"service": round(own / count, 2), "sandbox": round(children / count, 2)},
    }


def _summary(values: list[float]) -> dict[str, float]:
    p50, p95 = percentiles(values)
    return {"min": round(min(values), 2), "p50": round(p50, 2), "p95": round(p95, 2)}


def _cpu_ms(pid: int) -> tuple[float, float]:
    """Returns the processor time of a process, and that of its children that have ended, in milliseconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    tick = 1000 / os.sysconf("SC_CLK_TCK")
    user, system, children_user, children_system = (int(field) * tick for field in fields[11:15])
    return user + system, children_user + children_system


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints the result as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tool_calls", description=__doc__.partition(": ")[0])
    parser.add_argument("--count", type=int, default=300, help="measured calls (%(default)s)")
    parser.add_argument("--pause-ms", type=float, default=150, help="the pause before each call (%(default)s)")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="mnemesh-tool-calls-") as directory:
        print(json.dumps(uvloop.run(measure(Path(directory), given.count, given.pause_ms)), indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
