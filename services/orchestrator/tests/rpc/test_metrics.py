"""The metrics of the orchestrator."""

import asyncio
from pathlib import Path
from urllib.request import urlopen

from mnemesh_kit.server import RunningServer
from mnemesh_orchestrator.config import Config
from mnemesh_orchestrator.wiring import assemble


async def test_metrics_of_runs_are_served(tmp_path: Path, unused_tcp_port: int) -> None:
    config = Config(port=0, data_dir=str(tmp_path), shutdown_grace_seconds=0, metrics_port=unused_tcp_port)
    server = RunningServer()
    await server.start(await assemble(config), config)
    try:
        response = await asyncio.to_thread(urlopen, f"http://127.0.0.1:{unused_tcp_port}/metrics")
        lines = response.read().decode().splitlines()
        response.close()
    finally:
        await server.stop()
    gauges = ("prompt_estimate_error", "runs_active", "runs_waiting", "approvals_waiting")
    assert not {f"mnemesh_{name} 0.0" for name in gauges} - set(lines)
    assert "mnemesh_lease_takeovers_total 0.0" in lines
