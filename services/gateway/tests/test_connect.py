"""Every RPC of clients over HTTP: Connect and gRPC-Web, in JSON and in binary, with the errors of the mesh."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import structlog
from connectrpc._client_async import ConnectClient
from connectrpc.code import Code
from connectrpc.compat import google_protobuf_binary_codec, google_protobuf_json_codec
from connectrpc.errors import ConnectError
from connectrpc.method import IdempotencyLevel, MethodInfo, StreamType
from connectrpc.protocol import ProtocolType
from google.rpc import error_details_pb2
from mnemesh.agents.v1 import agents_service_pb2, runs_pb2, runs_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent
from mnemesh_kit.access import rules_of
from mnemesh_kit.auth import mint_token
from mnemesh_kit.call_context import Principal, Role
from mnemesh_kit.ids import new_id
from mnemesh_kit.services import STORE_NAMES
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.timeouts import scaled

GET_AGENT = "/mnemesh.agents.v1.AgentService/GetAgent"
SEND_MESSAGE = "/mnemesh.agents.v1.RunService/SendMessage"
KEY = "k" * 32
BLOCK = {"label": "notes", "value": "The launch is on Friday."}
FORMS = [
    pytest.param(protocol, codec, id=f"{protocol.name}-{codec.name()}")
    for protocol in (ProtocolType.CONNECT, ProtocolType.GRPC_WEB)
    for codec in (google_protobuf_binary_codec(), google_protobuf_json_codec())
]


@pytest_asyncio.fixture
async def raw(base_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A plain HTTP client, as `curl` is one."""
    async with httpx.AsyncClient(base_url=base_url, timeout=scaled(60)) as client:
        yield client


def method(name: str, request: Any, response: Any, stream: StreamType = StreamType.UNARY) -> MethodInfo[Any, Any]:
    _, service, short = name.split("/")
    level = IdempotencyLevel.UNKNOWN
    return MethodInfo(
        name=short, service_name=service, input=request, output=response, idempotency_level=level, stream_type=stream
    )


GET_AGENT_METHOD = method(GET_AGENT, agents_service_pb2.GetAgentRequest, agents_service_pb2.GetAgentResponse)
SEND_METHOD = method(
    SEND_MESSAGE,
    runs_service_pb2.SendMessageRequest,
    runs_service_pb2.SendMessageResponse,
    StreamType.SERVER_STREAM,
)


def said(agent: Agent, text: str) -> runs_service_pb2.SendMessageRequest:
    content = [message_pb2.ContentPart(text=message_pb2.TextPart(text=text))]
    return runs_service_pb2.SendMessageRequest(agent_id=agent.id, messages=[runs_pb2.InputMessage(content=content)])


async def test_a_plain_post_of_json_calls_a_method(raw: httpx.AsyncClient, agent: Agent) -> None:
    answer = await raw.post(GET_AGENT, json={"agent_id": agent.id}, headers={"X-Request-Id": "seen"})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"] == "seen"
    assert (answer.json()["agent"]["id"], answer.json()["agent"]["name"]) == (agent.id, "ada")
    assert (await raw.post(GET_AGENT, json={"agentId": agent.id})).json() == answer.json(), "both spellings of a field"
    blocks = await raw.post("/mnemesh.blocks.v1.BlockService/ListBlocks", json={})
    assert [block["label"] for block in blocks.json()["blocks"]] == ["human"], (
        "a service that the orchestrator forwards"
    )


async def test_the_status_of_each_service_is_answered_and_logged_as_a_detail(raw: httpx.AsyncClient) -> None:
    path = "/mnemesh.server.v1.ServerService/GetServerStatus"
    with structlog.testing.capture_logs() as logs:
        answers = [(await raw.post(path, json={"service": name})) for name in (*STORE_NAMES, "nothing")]
    assert [answer.json().get("service") for answer in answers] == [*STORE_NAMES, None]
    assert answers[-1].json()["code"] == "not_found"
    samples = {sample["name"] for answer in answers[:-1] for sample in answer.json()["metrics"]}
    assert {"mnemesh_runs_waiting", "mnemesh_index_outbox_lag_seconds", "mnemesh_files_waiting"} <= samples
    levels = [entry["log_level"] for entry in logs if entry["event"] == "request"]
    assert levels == ["debug"] * len(STORE_NAMES) + ["info"]


@pytest.mark.parametrize(("protocol", "codec"), FORMS)
async def test_clients_of_both_protocols_run_a_turn(
    base_url: str, agent: Agent, fake_openai: FakeOpenAI, protocol: ProtocolType, codec: Any
) -> None:
    fake_openai.script = lambda _: Reply(text="Hello, Ada.")
    async with ConnectClient(base_url, protocol=protocol, codec=codec, send_compression=None) as client:
        found = await client.execute_unary(
            request=agents_service_pb2.GetAgentRequest(agent_id=agent.id), method=GET_AGENT_METHOD
        )
        assert found.agent.id == agent.id
        events = [
            response.event
            async for response in client.execute_server_stream(request=said(agent, "Hello."), method=SEND_METHOD)
        ]
        kinds = [event.WhichOneof("event") for event in events]
        assert (kinds[0], kinds[-1]) == ("accepted", "usage")
        texts = [
            event.message.assistant.content[0].text.text for event in events if event.message.HasField("assistant")
        ]
        assert texts == ["Hello, Ada."]
        with pytest.raises(ConnectError) as missing:
            await client.execute_unary(
                request=agents_service_pb2.GetAgentRequest(agent_id=new_id("agent")), method=GET_AGENT_METHOD
            )
        assert missing.value.code is Code.NOT_FOUND
        info = error_details_pb2.ErrorInfo.FromString(missing.value.details[0].message_bytes)
        assert (info.reason, info.domain) == ("NOT_FOUND", "mnemesh")


async def test_errors_have_status_code_reason_and_field(raw: httpx.AsyncClient, agent: Agent) -> None:
    missing = await raw.post(GET_AGENT, json={"agent_id": new_id("agent")})
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    detail = missing.json()["details"][0]
    assert (detail["type"], detail["debug"]["reason"]) == ("google.rpc.ErrorInfo", "NOT_FOUND")
    assert error_details_pb2.ErrorInfo.FromString(base64.b64decode(detail["value"] + "==")).reason == "NOT_FOUND"
    wrong = await raw.post(GET_AGENT, json={"agent_id": "ada"})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_argument")
    fields = [each["debug"]["fieldViolations"][0]["field"] for each in wrong.json()["details"][1:]]
    assert fields == ["agent_id"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"agnt_id": "x"}', "agnt_id"),
        (b'{"agent_id": 7}', "agent_id"),
        (b"{", "GetAgentRequest"),
        (b"\xff", "GetAgentRequest"),
        (b"[" * 100_000, "nested"),
    ],
)
async def test_wrong_json_is_refused_by_name(raw: httpx.AsyncClient, body: bytes, named: str) -> None:
    answer = await raw.post(GET_AGENT, content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
    assert named in answer.json()["message"]


async def test_what_is_no_method_of_clients_is_refused(raw: httpx.AsyncClient) -> None:
    internal = next(path for path, rule in rules_of().items() if rule.role is Role.SERVICE)
    for path in (internal, "/mnemesh.agents.v1.AgentService/Nothing", "/mnemesh.nothing.v1.Service/Get"):
        answer = await raw.post(path, json={})
        assert (answer.status_code, answer.json()["code"]) == (501, "unimplemented"), path
    read = await raw.get(GET_AGENT, params={"message": "{}", "encoding": "json"})
    assert (read.status_code, read.json()["code"]) == (405, "invalid_argument")
    grpc = await raw.post(GET_AGENT, content=b"", headers={"Content-Type": "application/grpc+proto"})
    assert grpc.status_code == 415
    assert "orchestrator" in grpc.json()["message"]
    assert (await raw.post(GET_AGENT, content=b"x", headers={"Content-Type": "text/plain"})).status_code == 415


async def test_large_requests_are_refused(raw: httpx.AsyncClient) -> None:
    content = b'{"agent_id": "' + b"a" * (4 << 20) + b'"}'
    answer = await raw.post(GET_AGENT, content=content, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (429, "resource_exhausted")
    assert "4,194,304 bytes" in answer.json()["message"]


async def test_the_deadline_of_the_client_ends_a_call(
    raw: httpx.AsyncClient, agent: Agent, fake_openai: FakeOpenAI
) -> None:
    never = asyncio.Event()
    fake_openai.script = lambda _: Reply(text="Late.", gates=[never])
    path = "/mnemesh.agents.v1.RunService/SendMessageAndWait"
    body = {"agent_id": agent.id, "messages": [{"content": [{"text": {"text": "Hello."}}]}]}
    answer = await raw.post(path, json=body, headers={"Connect-Timeout-Ms": "300"})
    assert (answer.status_code, answer.json()["code"]) == (504, "deadline_exceeded")
    never.set()


async def test_tokens_are_required_and_organizations_are_apart(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    services = ("gateway", "orchestrator", "blocks", "recall", "archival", "tools", "files")
    settings = {name: {"auth_key_file": str(keys)} for name in services}
    principals = [Principal(new_id("org"), new_id("user")) for _ in range(2)]
    mine, theirs = ({"Authorization": f"Bearer {mint_token(KEY.encode(), each, 60)}"} for each in principals)
    async with (
        Mesh(tmp_path, gateway=True, settings=settings) as mesh,
        httpx.AsyncClient(base_url=f"http://{mesh.addresses['gateway']}", timeout=scaled(60)) as raw,
    ):
        created = await raw.post("/mnemesh.blocks.v1.BlockService/CreateBlock", json={"block": BLOCK}, headers=mine)
        request = {"block_id": created.json()["block"]["id"]}
        path = "/mnemesh.blocks.v1.BlockService/GetBlock"
        answers = [await raw.post(path, json=request, headers=headers) for headers in (mine, theirs, {})]
        assert [answer.status_code for answer in answers] == [200, 404, 401]
        assert answers[2].json()["code"] == "unauthenticated"
        foreign = await raw.post(path, json=request, headers={**mine, "Origin": "https://evil.example"})
        assert (foreign.status_code, foreign.json()["code"]) == (403, "permission_denied")


async def test_every_method_of_clients_has_a_path(raw: httpx.AsyncClient) -> None:
    """An empty request reaches each method that has one: it succeeds, or its service refuses it by reason."""
    paths = [path for path, rule in rules_of().items() if rule.is_for_clients]
    assert len(paths) > 150
    for path in paths:
        answer = await raw.post(path, content=b"", headers={"Content-Type": "application/proto"})
        assert answer.status_code in {200, 400, 404, 415, 501}, (path, answer.text)
        if answer.status_code == 501:
            assert "for clients" not in answer.json()["message"]
