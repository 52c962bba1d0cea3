"""A fake orchestrator and a real blocks service, both as gRPC servers that a client or the command line calls."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnemesh.agents.v1 import (
    agents_service_pb2_grpc,
    conversations_service_pb2_grpc,
    groups_service_pb2_grpc,
    models_service_pb2_grpc,
    runs_service_pb2_grpc,
)
from mnemesh.recall.v1 import messages_service_pb2_grpc
from mnemesh_blocks.config import Config as BlocksConfig
from mnemesh_blocks.wiring import assemble as assemble_blocks
from mnemesh_client import Mnemesh
from mnemesh_kit.config import ServerConfig
from mnemesh_kit.server import Assembly, RunningServer

from mnemesh_testkit.fakes.orchestrator import FakeOrchestrator, FakeRecall
from mnemesh_testkit.mesh.command_line import run_command
from mnemesh_testkit.mesh.faulty_proxy import ReservedPort


@dataclass
class FakeMesh:
    """The servers, their addresses, and ways to stop and start them."""

    orchestrator: FakeOrchestrator
    server: RunningServer
    address: str
    blocks: str
    directory: Path

    def client(self, **options: Any) -> Mnemesh:
        return Mnemesh(self.address, blocks=self.blocks, **options)

    async def stop(self) -> None:
        """Stops the orchestrator. Its connections break."""
        await self.server.stop()

    async def start(self) -> None:
        """Starts the orchestrator again on the same port."""
        port = int(self.address.rpartition(":")[2])
        config = ServerConfig(port=port, data_dir=str(self.directory), shutdown_grace_seconds=0)
        self.server = RunningServer()
        await self.server.start(
            Assembly(
                name="orchestrator",
                servicers=[
                    (agents_service_pb2_grpc.add_AgentServiceServicer_to_server, self.orchestrator),
                    (groups_service_pb2_grpc.add_GroupServiceServicer_to_server, self.orchestrator),
                    (runs_service_pb2_grpc.add_RunServiceServicer_to_server, self.orchestrator),
                    (models_service_pb2_grpc.add_ModelServiceServicer_to_server, self.orchestrator),
                    (
                        conversations_service_pb2_grpc.add_ConversationServiceServicer_to_server,
                        self.orchestrator,
                    ),
                    (
                        messages_service_pb2_grpc.add_MessageServiceServicer_to_server,
                        FakeRecall(self.orchestrator),
                    ),
                ],
                service_names=["mnemesh.agents.v1.AgentService", "mnemesh.agents.v1.RunService"],
            ),
            config,
        )

    async def run(self, *arguments: str, stdin: str = "", **environment: str) -> tuple[int, str, str]:
        """Runs the `mnemesh` command against this mesh, in a thread. Returns its exit code, stdout and stderr."""
        variables = {"PATH": "", **self.environment(), **environment}
        return await asyncio.to_thread(run_command, *arguments, environment=variables, stdin=stdin)

    async def run_process(self, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
        """Like `run`, in a process of its own: for commands that handle signals."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mnemesh_cli"),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": "", **self.environment()},
        )
        out, err = await process.communicate(stdin.encode())
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    def environment(self) -> dict[str, str]:
        """Returns the variables with which the command finds this mesh, and no profiles or data of the user."""
        return {
            "HOME": str(self.directory),
            "XDG_CONFIG_HOME": str(self.directory),
            "MNEMESH_TARGET": self.address,
            "MNEMESH_BLOCKS_TARGET": self.blocks,
            "MNEMESH_RECALL_TARGET": self.address,
        }


@asynccontextmanager
async def fake_mesh(directory: Path) -> AsyncIterator[FakeMesh]:
    """Starts the servers, whose data is in `directory`."""
    config = BlocksConfig(port=0, data_dir=str(directory), shutdown_grace_seconds=0)
    blocks = RunningServer()
    address = await blocks.start(await assemble_blocks(config), config)
    orchestrator, port = FakeOrchestrator(address), ReservedPort()
    mesh = FakeMesh(orchestrator, RunningServer(), port.address, address, directory)
    await mesh.start()
    try:
        yield mesh
    finally:
        await mesh.stop()
        await orchestrator.memory.close()
        await blocks.stop()
        port.release()
