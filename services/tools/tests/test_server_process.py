"""The process: start, health, secrets that tools cannot read, and shutdown."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from mnemesh.tools.v1 import execution_service_pb2 as pb
from mnemesh.tools.v1.execution_service_pb2_grpc import ExecutionServiceStub
from mnemesh_testkit.timeouts import scaled

SECRET = "sk-of-the-server"
SEARCH = f"""def search(pid, directory):
    import glob, os
    read = [dict(os.environ)]
    database = directory + "/tools.db"
    for path in [f"/proc/{{pid}}/environ", *glob.glob("/proc/*/environ"), *glob.glob(directory + "/*"), database]:
        try:
            read.append(open(path, "rb").read().decode(errors="replace"))
        except OSError:
            pass
    return {SECRET!r} in str(read) or "CREATE TABLE" in str(read)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process with a secret in its environment, and its address."""
    env = {
        **os.environ,
        "MNEMESH_TOOLS_PORT": "0",
        "MNEMESH_DATA_DIR": str(tmp_path / "data"),
        "MNEMESH_TOOLS_MIN_SANDBOX": "minimal",
        "OPENAI_API_KEY": SECRET,
    }
    command = [sys.executable, "-m", "mnemesh_tools"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if '"listening"' in line:
                break
        try:
            yield process, json.loads(lines[-1])["address"]
        finally:
            process.kill()


def test_server_is_healthy_keeps_its_secrets_and_stops_on_sigterm(
    server: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    process, address = server
    with grpc.insecure_channel(address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for name in ("", "mnemesh.tools.v1.ToolService", "mnemesh.tools.v1.ExecutionService"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        schema = '{"type": "object", "properties": {"pid": {}, "directory": {}}}'
        request = pb.ExecuteToolRequest(
            ad_hoc=pb.AdHocTool(source_code=SEARCH, args_json_schema=schema),
            arguments=json.dumps({"pid": process.pid, "directory": str(tmp_path / "data")}),
        )
        answer = ExecutionServiceStub(channel).ExecuteTool(request)
    assert (answer.result, answer.stderr) == ("False", "")
    assert (tmp_path / "data" / "tools.db").exists()
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


@pytest.mark.full
def test_tools_are_killed_with_a_killed_server(server: tuple[subprocess.Popen[str], str]) -> None:

    mark = f"orphaned_tool_of_{os.getpid()}"  # other processes may run this test at the same time

    def alive() -> bool:
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if mark.encode() in file.read_bytes():
                    return True
            except OSError:
                continue
        return False

    process, address = server
    source = f"""def f():
    import os
    os.execv('/bin/sh', ['/bin/sh', '-c', ': {mark}; while :; do sleep 1; done'])
"""
    with grpc.insecure_channel(address) as channel:
        tool = pb.AdHocTool(source_code=source, args_json_schema='{"type": "object"}')
        call = ExecutionServiceStub(channel).ExecuteTool.future(pb.ExecuteToolRequest(ad_hoc=tool))
        while not alive():
            assert not call.done()
        process.kill()
        deadline = time.monotonic() + scaled(60)
        while alive():
            assert time.monotonic() < deadline
        call.cancel()


@pytest.mark.full
def test_invalid_setting_is_reported_in_one_line(tmp_path: Path) -> None:
    env = {**os.environ, "MNEMESH_DATA_DIR": str(tmp_path), "MNEMESH_TOOLS_MIN_SANDBOX": "none"}
    done = subprocess.run(
        [sys.executable, "-m", "mnemesh_tools"],
        env=env,
        capture_output=True,
        text=True,
        timeout=scaled(30),
        check=False,
    )
    assert done.returncode == 2
    assert "MNEMESH_TOOLS_MIN_SANDBOX" in done.stderr
    assert len(done.stderr.splitlines()) == 1
