"""The mesh with the settings of docker-compose.yml: on PostgreSQL, with keys, listening on all addresses.

The services are processes here and no containers; everything else is what the files say.
"""

import asyncio
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from mnemesh.recall.v1 import messages_service_pb2, messages_service_pb2_grpc
from mnemesh.tools.v1 import execution_service_pb2
from mnemesh_client import Mnemesh, MnemeshError
from mnemesh_kit.auth import mint_token, read_keys
from mnemesh_kit.call_context import Principal
from mnemesh_kit.channels import Channels
from mnemesh_kit.errors import PermissionDenied
from mnemesh_kit.ids import new_id
from mnemesh_kit.services import STORE_NAMES
from mnemesh_testkit.databases.postgres import PostgresServer, running_postgres
from mnemesh_testkit.mesh.processes import ProcessMesh

ROOT = Path(__file__).parents[2]
ADD = '''
def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: One.
        b: The other.
    """
    return a + b
'''
KEYS = ("auth_key", "secrets_key")


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A copy of the deployment in which deploy/prepare.sh has run."""
    place = tmp_path / "place"
    shutil.copytree(ROOT / "deploy", place / "deploy", ignore=shutil.ignore_patterns("auth_key", "secrets_key"))
    subprocess.run(["sh", "deploy/prepare.sh"], cwd=place, check=True)
    return place


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A PostgreSQL server for this test alone."""
    with running_postgres() as running:
        yield running


def variables(place: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in (place / ".env").read_text().splitlines())


def test_prepare_creates_secrets_once(prepared: Path) -> None:
    key_files = [prepared / "deploy/secrets" / name for name in KEYS]
    before = [file.read_bytes() for file in (*key_files, prepared / ".env")]
    keys = {read_keys(str(key_file))[0] for key_file in key_files}
    assert [len(key) for key in keys] == [64, 64]
    assert len(variables(prepared)["MNEMESH_POSTGRES_PASSWORD"]) == 64
    assert stat.S_IMODE(key_files[0].parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((prepared / ".env").stat().st_mode) == 0o600
    subprocess.run(["sh", "deploy/prepare.sh"], cwd=prepared, check=True)
    assert [file.read_bytes() for file in (*key_files, prepared / ".env")] == before


@pytest.mark.full
async def test_turn_on_postgresql_with_authentication(
    deployment: Any, prepared: Path, server: PostgresServer, tmp_path: Path
) -> None:
    await _make_databases(server)
    key_file = str(prepared / "deploy/secrets/auth_key")
    async with ProcessMesh(tmp_path / "mesh", environment=_environment(deployment, prepared, server)) as mesh:
        services = {service: address for service, address in mesh.addresses.items() if service != "orchestrator"}
        target = mesh.addresses["orchestrator"]
        with pytest.raises(MnemeshError) as refused:
            await mesh.client.agents.create("unsigned")
        assert refused.value.reason == "UNAUTHENTICATED"

        async with Mnemesh(target, **services, auth_key_file=key_file) as mnemesh:
            agent = await mnemesh.agents.create("ada", blocks={"human": "", "persona": ""})
            said = await agent.ask("My name is Ada. Remember that the launch is on Friday.")
            assert "core memory" in said
            assert [hit.passage.text for hit in await agent.search_passages("launch")] == ["the launch is on Friday."]
            ran = await mnemesh.tools.run(ADD, {"a": 1, "b": 2})
            assert (ran.status, ran.result) == (execution_service_pb2.EXECUTION_STATUS_SUCCESS, "3")

        for service in STORE_NAMES:
            await mesh.kill(service)
        await asyncio.gather(*(mesh.start(service) for service in STORE_NAMES))
        async with Mnemesh(target, **services, auth_key_file=key_file) as mnemesh:
            assert "Your name is Ada" in await (await mnemesh.agents.find("ada")).ask("What is my name?")

        stranger = mint_token(read_keys(key_file)[0], Principal(new_id("org"), new_id("user")), 60)
        async with Mnemesh(target, **services, token=stranger) as mnemesh:
            assert [found async for found in mnemesh.agents.list()] == []
        channels = Channels(auth_key_file=key_file)
        stub = messages_service_pb2_grpc.MessageServiceStub(channels.channel(mesh.addresses["recall"]))
        with pytest.raises(PermissionDenied):
            await stub.EraseAgent(messages_service_pb2.EraseAgentRequest(agent_id=agent.id))
        await channels.close()
    assert not list((tmp_path / "mesh" / "data").glob("*.db")), "SQL is in PostgreSQL alone"


async def _make_databases(server: PostgresServer) -> None:
    """Runs the script that the PostgreSQL image runs."""
    script = (ROOT / "deploy/postgres/databases.sql").read_text()
    statements = [line for line in script.splitlines() if line and not line.startswith("--")]
    async with await psycopg.AsyncConnection.connect(server.url(), autocommit=True) as connection:
        for statement in statements:
            await connection.execute(statement.encode())


def _environment(deployment: Any, place: Path, server: PostgresServer) -> dict[str, str]:
    """Of all services together, with the places of this machine for those of the containers."""
    merged: dict[str, str] = {}
    for service in STORE_NAMES:
        merged |= deployment.environment(service, variables(place))
    for name in [name for name in merged if name.endswith(("_TARGET", "_PORT", "_DATA_DIR", "_SERVICE"))]:
        del merged[name]
    for service in STORE_NAMES:
        name = f"MNEMESH_{service.upper()}_DATABASE_URL"
        assert "@postgres:5432/" in merged[name]
        merged[name] = server.url(merged[name].rpartition("/")[2])
    assert merged["MNEMESH_AUTH_KEY_FILE"] == "/run/secrets/mnemesh_auth_key"
    assert merged["MNEMESH_SECRETS_KEY_FILE"] == "/run/secrets/mnemesh_secrets_key"
    keys = {f"MNEMESH_{name.upper()}_FILE": os.fspath(place / "deploy/secrets" / name) for name in KEYS}
    return {**merged, **keys, "MNEMESH_EMBEDDER": ""}
