"""The libraries that a mesh at rest, and the command that supervises it, do not load: each costs memory and time."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mnemesh_kit.services import SERVICE_NAMES, service

# The pipe tells that all services serve. The process then prints its modules, and stops as with SIGTERM.
MESH = """
import os, signal, sys, threading
reader, writer = os.pipe()
os.environ["MNEMESH_READY_FD"] = str(writer)
def report():
    os.read(reader, 1)
    print(*sys.modules, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=report).start()
from mnemesh_cli.supervisor.one_process import main
sys.exit(main(sys.argv[1:]))
"""
SUPERVISOR = """
import sys
from mnemesh_cli.__main__ import main
from mnemesh_cli.supervisor import supervisor
async def report(self):
    print(*sys.modules)
    raise KeyboardInterrupt
supervisor.Supervisor.describe_models = report
sys.argv = ["mnemesh", "up"]
main()
"""
OF_NEITHER = (
    *("openai", "anthropic", "aiohttp", "httpx", "httpx2", "qdrant_client", "boto3", "botocore", "aiobotocore"),
    *("opentelemetry", "prometheus_client", "wsgiref", "psycopg", "mcp", "PIL"),
    *("pypdf", "lxml", "docx", "prompt_toolkit", "markdown_it", "tokenizers", "safetensors", "wordllama"),
    *("packaging", "docstring_parser", "json_repair", "cryptography", "pytest"),
)
OF_SUPERVISOR = (
    *("grpc", "google.protobuf", "sqlalchemy", "numpy", "structlog", "uvloop", "mnemesh", "mnemesh_client"),
    *("typer", "pydantic", "pydantic_core"),
)


@pytest.mark.parametrize(
    ("code", "arguments", "unwanted"),
    [
        pytest.param(MESH, sorted(SERVICE_NAMES, key=SERVICE_NAMES.index, reverse=True), OF_NEITHER, id="mesh"),
        pytest.param(SUPERVISOR, (), (*OF_NEITHER, *OF_SUPERVISOR), id="supervisor"),
    ],
)
async def test_libraries_that_nothing_uses_yet_are_not_loaded(
    code: str, arguments: list[str], unwanted: tuple[str, ...], tmp_path: Path, reserve_port: Callable[[], int]
) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "MNEMESH_"))}
    ports = {service(name).port_variable: str(reserve_port()) for name in SERVICE_NAMES}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**inherited, **ports, "MNEMESH_DATA_DIR": str(tmp_path / "data")},
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    loaded = next(line for line in out.decode().splitlines() if not line.startswith("{")).split()
    assert "asyncio" in loaded
    assert [name for name in unwanted if name in loaded] == []
