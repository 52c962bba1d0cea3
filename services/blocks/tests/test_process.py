"""The process: start, health, durability after kill -9, and shutdown."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from mnemesh.blocks.v1 import blocks_pb2 as pb
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc
from mnemesh.blocks.v1.blocks_service_pb2_grpc import BlockServiceStub
from mnemesh_blocks.main import main
from mnemesh_kit.channels import Channels
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.ids import new_id
from mnemesh_testkit.mesh.command_line import run_service
from mnemesh_testkit.timeouts import scaled


@asynccontextmanager
async def process(data_dir: Path, **env: str) -> AsyncIterator[asyncio.subprocess.Process]:
    settings = {"MNEMESH_BLOCKS_PORT": "0", "MNEMESH_DATA_DIR": str(data_dir), **env}
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mnemesh_blocks", env={**os.environ, **settings}, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


async def address_of(running: asyncio.subprocess.Process) -> str:
    assert running.stderr is not None
    async for line in running.stderr:
        event = json.loads(line)
        if event["event"] == "listening":
            return str(event["address"])
    raise AssertionError("the process ended before it listened")


@pytest.mark.full
async def test_process_serves_and_stops_on_sigterm(tmp_path: Path) -> None:
    async with process(tmp_path) as running:
        address = await address_of(running)
        async with grpc.aio.insecure_channel(address) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            for service in ("", "mnemesh.blocks.v1.BlockService"):
                response = await check(health_pb2.HealthCheckRequest(service=service), timeout=scaled(5))
                assert response.status == health_pb2.HealthCheckResponse.SERVING
        running.send_signal(signal.SIGTERM)
        assert await running.wait() == 0


async def test_acknowledged_writes_survive_kill_9(tmp_path: Path) -> None:
    channels = Channels(deadline=scaled(60))
    async with process(tmp_path) as running:
        stub = BlockServiceStub(channels.channel(await address_of(running)))
        created = (await stub.CreateBlock(rpc.CreateBlockRequest(block=pb.Block(label="human", value="kept")))).block
        running.kill()
        await running.wait()
    async with process(tmp_path) as running:
        stub = BlockServiceStub(channels.channel(await address_of(running)))
        assert (await stub.GetBlock(rpc.GetBlockRequest(block_id=created.id))).block == created
    await channels.close()


class Writer:
    """An agent that appends numbered lines to a shared block, each with its own request id, until a call fails."""

    def __init__(self) -> None:
        self.agent = new_id("agent")
        self.edits: list[rpc.EditBlockRequest] = []
        self.revisions: dict[str, int] = {}

    async def write_until_failure(self, stub: Any, written: asyncio.Event, enough: int) -> None:
        done = 0
        try:
            for edit in self.edits:
                await self._write(stub, edit)
            while True:
                self.edits.append(self._next())
                await self._write(stub, self.edits[-1])
                done += 1
                if done == enough:
                    written.set()
        except (grpc.aio.AioRpcError, MnemeshError):
            return

    async def _write(self, stub: Any, edit: rpc.EditBlockRequest) -> None:
        response = await stub.EditBlock(edit)
        self.revisions.setdefault(edit.request_id, response.block.revision)

    def _next(self) -> rpc.EditBlockRequest:
        author = pb.Author(agent=pb.AgentAuthor(agent_id=self.agent))
        text = f"{self.agent} {len(self.edits)}"
        return rpc.EditBlockRequest(
            request_id=f"r-{text}", agent_id=self.agent, label="plan", author=author, append=rpc.AppendEdit(text=text)
        )


@pytest.mark.full
async def test_kill_9_with_16_writers_loses_and_duplicates_no_edit(tmp_path: Path) -> None:
    writers = [Writer() for _ in range(16)]
    block = ""
    for attempt in range(3):
        channels = Channels(deadline=scaled(20))
        async with process(tmp_path) as running:
            stub: Any = BlockServiceStub(channels.channel(await address_of(running)))
            if attempt == 0:
                draft = pb.Block(label="plan", limit=1_000_000)
                holders = [writer.agent for writer in writers]
                created = await stub.CreateBlock(rpc.CreateBlockRequest(block=draft, agent_ids=holders))
                block = created.block.id
            written = asyncio.Event()
            tasks = [asyncio.create_task(writer.write_until_failure(stub, written, 6)) for writer in writers]
            await written.wait()
            running.kill()
            await running.wait()
            await asyncio.gather(*tasks)
        await channels.close()
    channels = Channels(deadline=scaled(60))
    async with process(tmp_path) as running:
        stub = BlockServiceStub(channels.channel(await address_of(running)))
        for writer in writers:
            await asyncio.gather(*(writer._write(stub, edit) for edit in writer.edits))
        now = (await stub.GetBlock(rpc.GetBlockRequest(block_id=block))).block
        lines = now.value.split("\n")
        assert sorted(lines) == sorted(edit.append.text for writer in writers for edit in writer.edits)
        assert now.revision == 1 + len(lines)
        for writer in writers:
            own = [line for line in lines if line.startswith(writer.agent)]
            assert own == sorted(own, key=lambda line: int(line.rpartition(" ")[2])), (
                "the lines of an agent must be in order"
            )
        memory = await stub.GetCoreMemory(rpc.GetCoreMemoryRequest(agent_id=writers[3].agent))
        assert memory.core_memory.blocks[0].value == now.value
    await channels.close()


def start_error(capfd: pytest.CaptureFixture[str], data_dir: Path, **env: str) -> str:
    """Returns the only line that the program prints. It runs in this process: its start takes a second."""
    settings = {"MNEMESH_BLOCKS_PORT": "0", "MNEMESH_DATA_DIR": str(data_dir), **env}
    assert run_service(main, environment={**os.environ, **settings}) == 2
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_start_errors_are_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    error = partial(start_error, capfd)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = error(tmp_path, MNEMESH_BLOCKS_PORT=port)
        assert port in line
        assert "MNEMESH_BLOCKS_PORT" in line
    (tmp_path / "file").touch()
    assert "cannot be written" in error(tmp_path / "file" / "below")
    assert "MNEMESH_BLOCKS_PORT" in error(tmp_path, MNEMESH_BLOCKS_PORT="many")
    assert "MNEMESH_AUTH_KEY_FILE" in error(tmp_path, MNEMESH_HOST="0.0.0.0")
    assert "database" in error(tmp_path, MNEMESH_BLOCKS_DATABASE_URL="mysql://x/y")


@pytest.mark.full
async def test_process_that_cannot_start_exits_with_one_line(tmp_path: Path) -> None:
    async with process(tmp_path, MNEMESH_BLOCKS_PORT="many") as running:
        _, errors = await running.communicate()
    assert (running.returncode, len(errors.splitlines())) == (2, 1), errors
