"""OAuth of MCP servers, against an authorization server that speaks the protocol."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.tools.v1 import mcp_servers_pb2 as pb
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.fakes.mcp_server import Protected, protected
from mnemesh_tools.config import Config

from ..conftest import Stubs, serve

REDIRECT = "http://127.0.0.1:9/callback"


async def _create(stubs: Stubs, remote: Protected, **oauth: Any) -> pb.McpServer:
    transport = pb.StreamableHttpTransport(url=remote.url, oauth=pb.McpOAuth(**oauth))
    server = pb.McpServer(name="remote", streamable_http=transport)
    return (await stubs.mcp.CreateMcpServer(rpc.CreateMcpServerRequest(mcp_server=server))).mcp_server


async def _start(stubs: Stubs, server: pb.McpServer) -> rpc.StartMcpAuthorizationResponse:
    request = rpc.StartMcpAuthorizationRequest(mcp_server_id=server.id, redirect_uri=REDIRECT)
    return await stubs.mcp.StartMcpAuthorization(request)


async def _complete(stubs: Stubs, server: pb.McpServer, **answer: str) -> pb.McpServer:
    request = rpc.CompleteMcpAuthorizationRequest(mcp_server_id=server.id, **answer)
    return (await stubs.mcp.CompleteMcpAuthorization(request)).mcp_server


async def _whoami(stubs: Stubs, server: pb.McpServer) -> str:
    return await _run(stubs, server, "whoami")


async def _run(stubs: Stubs, server: pb.McpServer, tool: str) -> str:
    reference = rpc.McpToolReference(name=tool)
    answer = await stubs.mcp.RunMcpServerTool(rpc.RunMcpServerToolRequest(mcp_server_id=server.id, tool=reference))
    text: str = answer.content[0].text.text
    return text


def _config(tmp_path: Path) -> Config:
    return Config(port=0, data_dir=str(tmp_path), min_sandbox="minimal", warm_processes=0)


async def test_a_person_authorizes_a_server_and_the_session_survives(tmp_path: Path, capfd: Any) -> None:
    async with protected() as remote:
        async with serve(_config(tmp_path)) as stubs:
            server = await _create(stubs, remote)
            assert (server.status, server.streamable_http.oauth.authorized) == (
                pb.MCP_SERVER_STATUS_UNAUTHORIZED,
                False,
            ), server.status_message
            refresh = stubs.mcp.RefreshMcpServer(rpc.RefreshMcpServerRequest(mcp_server_id=server.id))
            assert (await catch_refusal(refresh)).reason == "MCP_SERVER_UNAUTHORIZED"
            assert (await catch_refusal(_complete(stubs, server, code="a", state="b"))).reason == "FAILED_PRECONDITION"
            started = await _start(stubs, server)
            answer = await remote.approve(started.authorization_url)
            assert answer["state"] == started.state
            wrong = _complete(stubs, server, code=answer["code"], state="other")
            assert (await catch_refusal(wrong)).field == "state"
            server = await _complete(stubs, server, **answer)
            assert (server.status, server.tool_count) == (pb.MCP_SERVER_STATUS_REACHABLE, 2), server.status_message
            assert server.streamable_http.oauth.authorized
            assert server.streamable_http.oauth.HasField("expire_time")
            assert (await catch_refusal(_complete(stubs, server, **answer))).reason == "FAILED_PRECONDITION"
            assert await _whoami(stubs, server) == "you"
            (entry,) = await stubs.changes("CompleteMcpAuthorization")
            assert entry.resource_ids == [server.id]
        async with serve(_config(tmp_path)) as stubs:  # after a restart
            assert await _whoami(stubs, server) == "you"
            assert remote.grants == ["authorization_code"]
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("tools.db*"))
    output = "".join(capfd.readouterr())
    assert not [secret for secret in remote.issued if secret.encode() in stored or secret in output]


async def test_tokens_are_refreshed_and_kept(tmp_path: Path) -> None:
    async with protected(first_seconds=-1) as remote:
        async with serve(_config(tmp_path)) as stubs:
            server = await _create(stubs, remote)
            answer = await remote.approve((await _start(stubs, server)).authorization_url)
            server = await _complete(stubs, server, **answer)
            assert await _whoami(stubs, server) == "you"
        async with serve(_config(tmp_path)) as stubs:
            assert await _whoami(stubs, server) == "you", "the newest refresh token is stored"
            assert set(remote.grants[1:]) == {"refresh_token"}
            assert len(remote.clients) == 1, "it is registered once"


@pytest.mark.parametrize("seconds", [3600, -1])
async def test_no_result_shows_a_token_that_was_got_or_renewed_during_a_session(embedded: Stubs, seconds: int) -> None:
    async with protected(shows_tokens=True, seconds=seconds) as remote:
        remote.clients["us"] = {"client_secret": "a-secret-of-ours"}
        grant = pb.MCP_AUTHORIZATION_GRANT_CLIENT_CREDENTIALS
        secret = pb.McpSecret(value="a-secret-of-ours")
        server = await _create(embedded, remote, grant=grant, client_id="us", client_secret=secret, issuer=remote.base)
        for _ in range(2):
            text = await _whoami(embedded, server)
            assert "[secret access_token]" in text
            assert remote.issued[-1] not in text


async def test_client_credentials_need_no_person(embedded: Stubs) -> None:
    async with protected() as remote:
        remote.clients["us"] = {"client_secret": "a-secret-of-ours"}
        grant = pb.MCP_AUTHORIZATION_GRANT_CLIENT_CREDENTIALS
        secret = pb.McpSecret(value="a-secret-of-ours")
        oauth = {"grant": grant, "client_id": "us", "client_secret": secret, "issuer": remote.base}
        server = await _create(embedded, remote, **oauth)
        assert server.status == pb.MCP_SERVER_STATUS_REACHABLE, server.status_message
        assert not server.streamable_http.oauth.client_secret.HasField("value")
        assert await _whoami(embedded, server) == "you"
        assert (await catch_refusal(_start(embedded, server))).reason == "FAILED_PRECONDITION"
        # The secret is sent to no other authorization server.
        other = await embedded.mcp.TestMcpServer(
            rpc.TestMcpServerRequest(
                mcp_server=pb.McpServer(
                    streamable_http=pb.StreamableHttpTransport(
                        url=remote.url, oauth=pb.McpOAuth(**{**oauth, "issuer": "https://other.example"})
                    )
                )
            )
        )
        assert other.status == pb.MCP_SERVER_STATUS_UNREACHABLE
        assert remote.grants == ["client_credentials"]


async def test_a_call_does_not_wait_for_another_one_that_has_no_answer_yet(embedded: Stubs) -> None:
    async with protected() as remote:
        server = await _create(embedded, remote)
        answer = await remote.approve((await _start(embedded, server)).authorization_url)
        server = await _complete(embedded, server, **answer)
        waiting = asyncio.create_task(_run(embedded, server, "wait"))
        await remote.entered.wait()
        assert await _whoami(embedded, server) == "you"
        assert not waiting.done()
        remote.released.set()
        assert await waiting == "you"


async def test_a_refused_authorization_is_an_error_and_can_be_started_again(embedded: Stubs) -> None:
    async with protected(refuses=True) as remote:
        server = await _create(embedded, remote)
        answer = await remote.approve((await _start(embedded, server)).authorization_url)
        error = await catch_refusal(_complete(embedded, server, **answer))
        assert (error.reason, "invalid_client" in error.message) == ("MCP_SERVER_UNREACHABLE", True)
        assert answer["code"] not in error.message
        remote.refuses = False
        answer = await remote.approve((await _start(embedded, server)).authorization_url)
        assert (await _complete(embedded, server, **answer)).status == pb.MCP_SERVER_STATUS_REACHABLE


async def test_a_moved_server_gets_no_secret_and_no_session(embedded: Stubs) -> None:
    async with protected() as remote, protected() as elsewhere:
        server = await _create(embedded, remote)
        answer = await remote.approve((await _start(embedded, server)).authorization_url)
        await _complete(embedded, server, **answer)
        moved = pb.McpServer(id=server.id, streamable_http=pb.StreamableHttpTransport(url=elsewhere.url))
        request = rpc.UpdateMcpServerRequest(mcp_server=moved, update_mask=FieldMask(paths=["streamable_http.url"]))
        after = (await embedded.mcp.UpdateMcpServer(request)).mcp_server
        assert not after.streamable_http.oauth.authorized
        refresh = embedded.mcp.RefreshMcpServer(rpc.RefreshMcpServerRequest(mcp_server_id=server.id))
        assert (await catch_refusal(refresh)).reason == "MCP_SERVER_UNAUTHORIZED"

        token = pb.HttpAuth(token=pb.McpSecret(value="a-token-0123456789"))
        transport = pb.StreamableHttpTransport(url=remote.url, auth=token)
        known = await embedded.mcp.CreateMcpServer(
            rpc.CreateMcpServerRequest(mcp_server=pb.McpServer(name="other", streamable_http=transport))
        )
        kept = pb.McpServer(
            id=known.mcp_server.id,
            streamable_http=pb.StreamableHttpTransport(url=elsewhere.url, auth=pb.HttpAuth(token=pb.McpSecret())),
        )
        for paths in (["streamable_http"], ["streamable_http.url"]):
            update = rpc.UpdateMcpServerRequest(mcp_server=kept, update_mask=FieldMask(paths=paths))
            error = await catch_refusal(embedded.mcp.UpdateMcpServer(update))
            assert error.field == "mcp_server.streamable_http.auth.token.value"
        tested = embedded.mcp.TestMcpServer(rpc.TestMcpServerRequest(mcp_server=kept))
        assert (await catch_refusal(tested)).field == "mcp_server.streamable_http.auth.token.value"
        kept.streamable_http.url = f"{remote.url}/other"  # the same host
        await embedded.mcp.UpdateMcpServer(
            rpc.UpdateMcpServerRequest(mcp_server=kept, update_mask=FieldMask(paths=["streamable_http"]))
        )


@pytest.mark.parametrize(
    ("oauth", "field"),
    [
        ({"grant": pb.MCP_AUTHORIZATION_GRANT_CLIENT_CREDENTIALS}, "oauth.client_id"),
        ({"client_id": "a", "client_secret": pb.McpSecret(value="b")}, "oauth.issuer"),
        ({"issuer": "ftp://a"}, "oauth.issuer"),
    ],
)
async def test_bad_settings_name_the_field(embedded: Stubs, oauth: dict[str, Any], field: str) -> None:
    remote = Protected(base="http://127.0.0.1:9")
    assert (await catch_refusal(_create(embedded, remote, **oauth))).field == f"mcp_server.streamable_http.{field}"


async def test_a_redirect_uri_must_be_safe(embedded: Stubs) -> None:
    async with protected() as remote:
        server = await _create(embedded, remote)
        request = rpc.StartMcpAuthorizationRequest(mcp_server_id=server.id, redirect_uri="http://evil.example/")
        assert (await catch_refusal(embedded.mcp.StartMcpAuthorization(request))).field == "redirect_uri"
