"""OAuth of MCP servers with several replicas and restarts: an authorization that has begun is stored."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import grpc
import pytest_asyncio
from mnemesh.tools.v1 import mcp_servers_pb2 as pb
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL, ORGANIZATION_KEY
from mnemesh_kit.errors import from_rpc_error
from mnemesh_kit.ids import new_id
from mnemesh_kit.sql import Database
from mnemesh_kit.time import FrozenClock
from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.fakes.mcp_server import Protected, protected
from mnemesh_testkit.timeouts import scaled
from mnemesh_tools.config import Config
from mnemesh_tools.maintenance import maintain
from mnemesh_tools.mcp_clients.contracts import McpLimits
from mnemesh_tools.model.mcp_servers import (
    McpAuthorization,
    McpContact,
    McpServer,
    McpTransport,
    TransportType,
    hash_of_state,
)
from mnemesh_tools.model.mcp_settings import McpOAuth
from mnemesh_tools.store.tools import ToolStore

from ..conftest import Stubs, serve

REDIRECT = "http://127.0.0.1:9/callback"
PENDING, COMPLETED, FAILED = (
    rpc.MCP_AUTHORIZATION_STATUS_PENDING,
    rpc.MCP_AUTHORIZATION_STATUS_COMPLETED,
    rpc.MCP_AUTHORIZATION_STATUS_FAILED,
)


@pytest_asyncio.fixture
async def remote() -> AsyncIterator[Protected]:
    async with protected() as remote:
        yield remote


async def _create(stubs: Stubs, remote: Protected) -> str:
    transport = pb.StreamableHttpTransport(url=remote.url, oauth=pb.McpOAuth())
    server = pb.McpServer(name="remote", streamable_http=transport)
    created = await stubs.mcp.CreateMcpServer(rpc.CreateMcpServerRequest(mcp_server=server))
    return str(created.mcp_server.id)


async def _start(stubs: Stubs, server_id: str) -> rpc.StartMcpAuthorizationResponse:
    request = rpc.StartMcpAuthorizationRequest(mcp_server_id=server_id, redirect_uri=REDIRECT)
    return await stubs.mcp.StartMcpAuthorization(request)


async def _receive(stubs: Stubs, **answer: str) -> rpc.ReceiveMcpAuthorizationResponse:
    request, elsewhere = rpc.ReceiveMcpAuthorizationRequest(**answer), ((ORGANIZATION_KEY, new_id("org")),)
    return await stubs.mcp.ReceiveMcpAuthorization(request, metadata=elsewhere)


async def _get(stubs: Stubs, server_id: str, state: str) -> rpc.GetMcpAuthorizationResponse:
    return await stubs.mcp.GetMcpAuthorization(rpc.GetMcpAuthorizationRequest(mcp_server_id=server_id, state=state))


async def _whoami(stubs: Stubs, server_id: str) -> str:
    request = rpc.RunMcpServerToolRequest(mcp_server_id=server_id, tool=rpc.McpToolReference(name="whoami"))
    return str((await stubs.mcp.RunMcpServerTool(request)).content[0].text.text)


def _config(tmp_path: Path, url: str | None = None) -> Config:
    keys = tmp_path / "keys"
    keys.write_text("k" * 32)
    return Config(
        port=0,
        data_dir=str(tmp_path),
        min_sandbox="minimal",
        warm_processes=0,
        mcp_stdio="none",
        secrets_key_file=str(keys),
        **({} if url is None else {"database_url": url}),
    )


async def test_the_answer_may_arrive_at_another_replica(tmp_path: Path, postgres_url: str, remote: Protected) -> None:
    async with AsyncExitStack() as stack:
        config = _config(tmp_path, postgres_url)
        first, second = [await stack.enter_async_context(serve(config)) for _ in range(2)]
        server_id = await _create(first, remote)
        started = await _start(first, server_id)
        waiting = await _get(second, server_id, started.state)
        assert (waiting.status, waiting.expire_time) == (PENDING, started.expire_time)
        answer = await remote.approve(started.authorization_url)
        assert (await _receive(second, **answer)).status == COMPLETED
        assert (await _get(first, server_id, started.state)).status == COMPLETED
        assert [await _whoami(stubs, server_id) for stubs in (first, second)] == ["you", "you"]
        (entry,) = await first.changes("ReceiveMcpAuthorization")
        assert (entry.subject_id, list(entry.resource_ids)) == (DEFAULT_PRINCIPAL.subject_id, [server_id])
        assert (await catch_refusal(_receive(first, **answer))).reason == "FAILED_PRECONDITION", "a state works once"
    assert remote.grants == ["authorization_code"]


async def test_of_two_answers_at_once_one_is_used(tmp_path: Path, postgres_url: str, remote: Protected) -> None:
    async with AsyncExitStack() as stack:
        config = _config(tmp_path, postgres_url)
        replicas = [await stack.enter_async_context(serve(config)) for _ in range(2)]
        server_id = await _create(replicas[0], remote)
        answer = await remote.approve((await _start(replicas[0], server_id)).authorization_url)
        ends = await asyncio.gather(*(_receive(stubs, **answer) for stubs in replicas), return_exceptions=True)
        assert [end.status for end in ends if isinstance(end, rpc.ReceiveMcpAuthorizationResponse)] == [COMPLETED]
        (refused,) = [end for end in ends if isinstance(end, grpc.aio.AioRpcError)]
        assert from_rpc_error(refused).reason == "FAILED_PRECONDITION"
    assert remote.grants == ["authorization_code"]


async def test_a_restart_keeps_what_waits_for_a_person_and_stores_it_encrypted(
    tmp_path: Path, remote: Protected
) -> None:
    async with serve(_config(tmp_path)) as stubs:
        server_id = await _create(stubs, remote)
        started = await _start(stubs, server_id)
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("tools.db*"))
    assert not [secret for secret in (*remote.issued, started.state) if secret.encode() in stored]
    async with serve(_config(tmp_path)) as stubs:
        answer = await remote.approve(started.authorization_url)
        assert (await _receive(stubs, **answer)).status == COMPLETED
        assert await _whoami(stubs, server_id) == "you"


async def test_what_waits_for_a_person_outlives_a_new_key(tmp_path: Path, remote: Protected) -> None:
    config = _config(tmp_path)
    async with serve(config) as stubs:
        server_id = await _create(stubs, remote)
        started = await _start(stubs, server_id)
    keys = tmp_path / "keys"
    keys.write_text(f"{'n' * 32}\n{'k' * 32}")
    assert "records with secrets encrypted again: 1" in [line async for line in maintain(config)]
    keys.write_text("n" * 32)
    async with serve(config) as stubs:
        assert (await _receive(stubs, **await remote.approve(started.authorization_url))).status == COMPLETED
        assert await _whoami(stubs, server_id) == "you"


async def test_refusals_are_stored_for_who_waits(embedded: Stubs, remote: Protected) -> None:
    server_id = await _create(embedded, remote)
    started = await _start(embedded, server_id)
    told = {"error": "access_denied", "error_description": "Not\ntoday."}
    ended = await _receive(embedded, state=started.state, **told)
    assert (ended.status, ended.status_message) == (FAILED, "The access was not authorized: Not today.")
    seen = await _get(embedded, server_id, started.state)
    assert (seen.status, seen.status_message) == (FAILED, ended.status_message)
    assert remote.grants == []

    remote.refuses = True
    answer = await remote.approve((await _start(embedded, server_id)).authorization_url)
    ended = await _receive(embedded, **answer)
    assert (ended.status, "invalid_client" in ended.status_message) == (FAILED, True)
    assert answer["code"] not in ended.status_message
    assert (await _get(embedded, server_id, answer["state"])).status_message == ended.status_message


async def test_a_later_start_replaces_an_earlier_one(embedded: Stubs, remote: Protected) -> None:
    server_id = await _create(embedded, remote)
    first, second = [await _start(embedded, server_id) for _ in range(2)]
    answer = await remote.approve(first.authorization_url)
    for call in (_receive(embedded, **answer), _get(embedded, server_id, first.state)):
        assert (await catch_refusal(call)).reason == "FAILED_PRECONDITION"
    assert (await _receive(embedded, **await remote.approve(second.authorization_url))).status == COMPLETED


async def test_an_answer_needs_a_known_state(embedded: Stubs) -> None:
    assert (await catch_refusal(_receive(embedded, state="unknown", code="a"))).reason == "FAILED_PRECONDITION"
    assert (await catch_refusal(_receive(embedded, code="a"))).field == "state"
    assert (await catch_refusal(_get(embedded, new_id("mcp_server"), "a"))).reason == "NOT_FOUND"


async def test_the_time_of_the_person_ends(tmp_path: Path, remote: Protected) -> None:
    limits = McpLimits(authorization_seconds=0, create_seconds=scaled(60))
    async with serve(_config(tmp_path), limits) as stubs:
        server_id = await _create(stubs, remote)
        started = await _start(stubs, server_id)
        error = await catch_refusal(_get(stubs, server_id, started.state))
        assert (error.reason, "in time" in error.message) == ("FAILED_PRECONDITION", True)
        answer = await remote.approve(started.authorization_url)
        assert (await catch_refusal(_receive(stubs, **answer))).reason == "FAILED_PRECONDITION"
    assert remote.grants == []


async def test_changed_settings_end_an_authorization(embedded: Stubs, remote: Protected) -> None:
    server_id = await _create(embedded, remote)
    started = await _start(embedded, server_id)
    async with protected() as elsewhere:
        moved = pb.McpServer(id=server_id, streamable_http=pb.StreamableHttpTransport(url=elsewhere.url))
        request = rpc.UpdateMcpServerRequest(mcp_server=moved)
        request.update_mask.paths.append("streamable_http.url")
        await embedded.mcp.UpdateMcpServer(request)
        ended = await _receive(embedded, **await remote.approve(started.authorization_url))
    assert (ended.status, "have changed" in ended.status_message) == (FAILED, True)
    assert remote.grants == []


async def test_an_organization_keeps_its_newest_authorizations_until_they_expire(database_url: str) -> None:
    database = Database.open(database_url)
    await database.migrate("mnemesh_tools")
    clock = FrozenClock()
    store = ToolStore(database, clock)
    organization, other = new_id("org"), new_id("org")

    async def begin(organization_id: str, most: int) -> McpAuthorization:
        clock.advance(1)
        now = clock.now()
        transport = McpTransport(TransportType.STREAMABLE_HTTP, url="https://a.example", oauth=McpOAuth())
        server = McpServer(
            id=new_id("mcp_server"), organization_id=organization_id, name=new_id("name"), transport=transport,
            metadata=None, contact=McpContact(), revision=1, created_at=now, updated_at=now,
            created_by_id="user", last_updated_by_id="user",
        )  # fmt: skip
        begun = McpAuthorization(
            server.id, organization_id, "user", hash_of_state(server.id), b"s", now, now + timedelta(seconds=600)
        )
        await store.write(organization_id, lambda tx: tx.mcp.insert_server(server))
        await store.write(organization_id, lambda tx: tx.mcp.put_authorization(begun, most))
        return begun

    async def kept(*begun: McpAuthorization) -> list[bool]:
        return [await store.find_mcp_authorization(each.state_hash) == each for each in begun]

    elsewhere = await begin(other, 2)
    begun = [await begin(organization, 2) for _ in range(3)]
    assert await kept(elsewhere, *begun) == [True, False, True, True]
    assert await store.read(other, lambda tx: tx.mcp.get_authorization(begun[2].server_id)) is None
    late = replace(begun[2], expires_at=clock.now() + timedelta(seconds=900))
    await store.write(organization, lambda tx: tx.mcp.update_authorization(late))
    await store.write(organization, lambda tx: tx.mcp.update_authorization(replace(begun[1], state_hash="another")))
    clock.advance(700)
    await store.purge_ledger()
    assert await kept(elsewhere, begun[1], late) == [False, False, True]
    await store.write(organization, lambda tx: tx.mcp.delete_server(late.server_id))
    assert await kept(late) == [False]
    await database.close()
