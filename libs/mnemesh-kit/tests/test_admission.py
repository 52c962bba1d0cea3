"""Roles of callers and sizes of requests, checked over a connection before a request is parsed."""

import asyncio
import base64
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from mnemesh.archival.v1 import passages_service_pb2, passages_service_pb2_grpc
from mnemesh.blocks.v1 import blocks_service_pb2, blocks_service_pb2_grpc
from mnemesh.recall.v1 import traces_service_pb2, traces_service_pb2_grpc
from mnemesh_kit import admission
from mnemesh_kit.access import MAX_REQUEST_BYTES, rules_of
from mnemesh_kit.auth import mint_token
from mnemesh_kit.call_context import Principal, Role, as_principal, current_principal
from mnemesh_kit.channels import Channels
from mnemesh_kit.config import ServerConfig
from mnemesh_kit.errors import InvalidArgument, PermissionDenied, ResourceExhausted, Unauthenticated
from mnemesh_kit.ids import new_id
from mnemesh_kit.server import Assembly, RunningServer
from mnemesh_testkit.mesh.stubs import PROTO_SERVICES

ROOT = Path(__file__).parents[3]
KEY = b"k" * 32
ME = Principal(new_id("org"), new_id("user"))
BLOCKS, PASSAGES = "mnemesh.blocks.v1.BlockService", "mnemesh.archival.v1.PassageService"
GET = blocks_service_pb2.GetBlockRequest(block_id="x")
ERASE = blocks_service_pb2.EraseAgentRequest(agent_id="x")


class Blocks(blocks_service_pb2_grpc.BlockServiceServicer):
    """Counts its calls and notes their callers. A call waits for `proceed`."""

    def __init__(self) -> None:
        self.callers: list[Principal] = []
        self.entered = asyncio.Event()
        self.proceed = asyncio.Event()
        self.proceed.set()

    async def _serve(self) -> None:
        self.callers.append(current_principal())
        self.entered.set()
        await self.proceed.wait()

    async def GetBlock(self, request: Any, context: Any) -> blocks_service_pb2.GetBlockResponse:
        await self._serve()
        return blocks_service_pb2.GetBlockResponse()

    async def ListBlocks(self, request: Any, context: Any) -> blocks_service_pb2.ListBlocksResponse:
        await self._serve()
        return blocks_service_pb2.ListBlocksResponse()

    async def EraseAgent(self, request: Any, context: Any) -> blocks_service_pb2.EraseAgentResponse:
        await self._serve()
        return blocks_service_pb2.EraseAgentResponse()


class Passages(passages_service_pb2_grpc.PassageServiceServicer):
    async def GetPassage(self, request: Any, context: Any) -> passages_service_pb2.GetPassageResponse:
        return passages_service_pb2.GetPassageResponse()

    async def InsertPassages(self, request: Any, context: Any) -> passages_service_pb2.InsertPassagesResponse:
        return passages_service_pb2.InsertPassagesResponse()


class Served:
    """A running server with tokens, and channels to it."""

    def __init__(self, address: str, key_file: str, blocks: Blocks, exits: AsyncExitStack) -> None:
        self.address = address
        self.blocks = blocks
        self._key_file = key_file
        self._exits = exits

    def blocks_as(self, role: Role) -> Any:
        return blocks_service_pb2_grpc.BlockServiceStub(self._channel(auth_key_file=self._key_file, role=role))

    def blocks_with(self, token: str) -> Any:
        return blocks_service_pb2_grpc.BlockServiceStub(self._channel(token=token))

    def passages(self) -> Any:
        return passages_service_pb2_grpc.PassageServiceStub(self._channel(auth_key_file=self._key_file))

    def _channel(self, **settings: Any) -> Any:
        channels = Channels(**settings)
        self._exits.push_async_callback(channels.close)
        return channels.channel(self.address)


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    path.write_bytes(KEY + b"\n")
    return str(path)


@asynccontextmanager
async def serving(key_file: str, **settings: Any) -> AsyncIterator[Served]:
    blocks, server = Blocks(), RunningServer()
    assembly = Assembly(
        name="blocks",
        servicers=[
            (blocks_service_pb2_grpc.add_BlockServiceServicer_to_server, blocks),
            (passages_service_pb2_grpc.add_PassageServiceServicer_to_server, Passages()),
        ],
        service_names=[BLOCKS, PASSAGES],
    )
    config = ServerConfig(auth_key_file=key_file, shutdown_grace_seconds=0, **settings)
    async with AsyncExitStack() as exits:
        exits.push_async_callback(server.stop)
        yield Served(await server.start(assembly, config), key_file, blocks, exits)


def token(claims: Mapping[str, Any] = {}, **changes: Any) -> str:
    """Returns a signed token of the caller with other claims; None removes a claim."""
    arguments = {"org": ME.organization_id, "sub": ME.subject_id, "exp": time.time() + 60, **claims, **changes}
    return jwt.encode({name: value for name, value in arguments.items() if value is not None}, KEY, algorithm="HS256")


def signed(payload: bytes) -> str:
    """Returns a token with this payload, whatever it is."""
    return jwt.api_jws.encode(payload, KEY, algorithm="HS256")


def unary(channel: grpc.aio.Channel, method: str, raw: bytes, **options: Any) -> Any:
    return channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)(raw, **options)


def every_rpc() -> Iterator[tuple[str, Any]]:
    for service, (_, module) in PROTO_SERVICES.items():
        file = import_module(module.removesuffix("_grpc")).DESCRIPTOR
        for method in file.services_by_name[service.rpartition(".")[2]].methods:
            yield f"/{service}/{method.name}", method


def test_every_rpc_of_the_contracts_has_an_access_rule() -> None:
    of_every_server = ("AuditService/ListAuditEntries", "ServerService/GetServerStatus")
    own = {f"/mnemesh.server.v1.{name}" for name in of_every_server}
    assert set(rules_of()) == own | {path for path, _ in every_rpc()}


def test_contracts_name_the_rpcs_that_only_services_may_call() -> None:
    named = set()
    for path in ROOT.glob("proto/mnemesh/*/v1/*_service.proto"):
        package = f"mnemesh.{path.parts[-3]}.v1"
        for service, body in re.findall(r"^service (\w+) \{\n(.*?)^\}", path.read_text(), re.MULTILINE | re.DOTALL):
            for comment, name in re.findall(r"((?: *//.*\n)+) *rpc (\w+)", body):
                if "Requires the role service." in " ".join(comment.replace("//", " ").split()):
                    named.add(f"/{package}.{service}/{name}")
    assert named == {path for path, rule in rules_of().items() if rule.role is Role.SERVICE}


async def test_clients_may_not_call_rpcs_for_services(key_file: str) -> None:
    async with serving(key_file) as served:
        for client in (served.blocks_as(Role.ADMIN), served.blocks_with(token())):
            with (
                as_principal(ME),
                structlog.testing.capture_logs() as logs,
                pytest.raises(PermissionDenied) as refused,
            ):
                await client.EraseAgent(ERASE)
            assert refused.value.metadata == {"required_role": "service", "role": "admin"}
            (line,) = [line for line in logs if line["event"] == "call"]
            assert (line["log_level"], line["method"]) == ("warning", f"/{BLOCKS}/EraseAgent")
            assert (line["organization_id"], line["subject_id"]) == (ME.organization_id, ME.subject_id)
        assert served.blocks.callers == []
        with as_principal(ME):
            await served.blocks_as(Role.SERVICE).EraseAgent(ERASE)
            await served.blocks_as(Role.ADMIN).GetBlock(GET)
    assert [(caller, caller.role) for caller in served.blocks.callers] == [(ME, Role.SERVICE), (ME, Role.ADMIN)]


@pytest.mark.parametrize(
    ("changes", "role"),
    [
        ({}, Role.ADMIN),
        ({"aud": "mnemesh"}, Role.ADMIN),
        ({"aud": "mnemesh", "roles": ["writer", "poet"]}, Role.WRITER),
        ({"aud": ["archival", "blocks"], "roles": ["reader"]}, Role.READER),
        ({"aud": "blocks", "roles": ["service"]}, Role.SERVICE),
        ({"aud": "blocks", "roles": ["service", "writer"]}, Role.SERVICE),
        ({"aud": "mnemesh", "roles": ["service", "reader", "writer"]}, Role.WRITER),
        ({"aud": "mnemesh", "roles": ["service"]}, None),
        ({"aud": "archival", "roles": ["service"]}, None),
        ({"roles": ["service"]}, None),
        ({"aud": "another mesh"}, None),
        ({"roles": []}, None),
        ({"roles": ["client"]}, None),
        ({"agents": []}, None),
        ({"agents": "agent"}, None),
        ({"agents": [""]}, None),
        ({"agents": [["agent"]]}, None),
        ({"roles": "service"}, None),
        ({"roles": {"service": True}, "aud": {"blocks": True}}, None),
    ],
)
async def test_audience_and_roles_of_a_token_decide(key_file: str, changes: Any, role: Role | None) -> None:
    async with serving(key_file) as served:
        stub = served.blocks_with(token(changes))
        if role is None:
            with pytest.raises(Unauthenticated):
                await stub.GetBlock(GET)
        else:
            await stub.GetBlock(GET)
    assert [caller.role for caller in served.blocks.callers] == ([] if role is None else [role])


def _hostile_tokens() -> Iterator[str]:
    mine = f'"org":"{ME.organization_id}","sub":"{ME.subject_id}"'
    for exp in ("1e400", "-1e400", "9" * 400, '"soon"', "null", "[]", "true", "NaN", "1" * 5_000):
        yield signed(f'{{{mine},"exp":{exp}}}'.encode())
    yield signed(b"[" * 3_000)
    yield signed(b"\xff\xfe")
    yield signed(b"[1]")
    yield token(org=["x"])
    yield token(sub={"x": 1})
    yield token(sub="a" * 9_000)
    header = base64.urlsafe_b64encode(b'{"alg":' + b"[" * 4_000).rstrip(b"=").decode()
    yield f"{header}.e30.e30"
    yield base64.urlsafe_b64encode(json.dumps({"alg": "none"}).encode()).rstrip(b"=").decode() + ".e30."
    yield "a.b.c"
    yield "." * 100


async def test_malformed_tokens_are_unauthenticated(key_file: str) -> None:
    async with serving(key_file) as served, grpc.aio.insecure_channel(served.address) as channel:
        for hostile in _hostile_tokens():
            call = unary(channel, f"/{BLOCKS}/GetBlock", b"", metadata=[("authorization", f"Bearer {hostile}")])
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED, hostile[:200]
    assert served.blocks.callers == []


async def test_request_without_a_token_is_refused_before_it_is_read(key_file: str) -> None:
    async with serving(key_file) as served, grpc.aio.insecure_channel(served.address) as channel:
        for raw in (b"\xff\xff", bytes(70 << 20)):  # one is not a message, one would be larger than any message
            call = unary(channel, f"/{BLOCKS}/GetBlock", raw)
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        forged = [("authorization", f"Bearer {mint_token(b'x' * 32, ME, 60)}")]
        call = unary(channel, f"/{BLOCKS}/GetBlock", bytes(70 << 20), metadata=forged)
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        call = unary(channel, f"/{BLOCKS}/NoSuchMethod", b"")
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_large_requests_are_accepted_only_by_methods_that_need_them(key_file: str) -> None:
    large = "x" * (MAX_REQUEST_BYTES + 1)
    async with serving(key_file) as served:
        stub = served.passages()
        await stub.InsertPassages(passages_service_pb2.InsertPassagesRequest(archive_id=large * 5))
        with pytest.raises(ResourceExhausted) as refused:
            await stub.GetPassage(passages_service_pb2.GetPassageRequest(passage_id=large))
    assert refused.value.metadata["limit"] == str(MAX_REQUEST_BYTES)


async def test_compressed_requests_are_refused(key_file: str) -> None:
    async with serving(key_file) as served, grpc.aio.insecure_channel(served.address) as channel:
        raw = blocks_service_pb2.GetBlockRequest(block_id="x" * 100_000).SerializeToString()
        call = unary(
            channel, f"/{BLOCKS}/GetBlock", raw, metadata=[("authorization", f"Bearer {token()}")],
            compression=grpc.Compression.Gzip,
        )  # fmt: skip
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "gzip" in str(await call.details())
    assert served.blocks.callers == []


async def test_clients_have_a_bounded_number_of_open_calls_and_services_do_not(key_file: str) -> None:
    async with serving(key_file, max_concurrent_calls=2) as served:
        served.blocks.proceed.clear()
        client, service = served.blocks_as(Role.ADMIN), served.blocks_as(Role.SERVICE)
        waiting = [asyncio.create_task(client.GetBlock(GET)) for _ in range(2)]
        await _until(lambda: len(served.blocks.callers) == 2, served.blocks.entered)
        with pytest.raises(ResourceExhausted) as refused:
            await client.GetBlock(GET)
        waiting.append(asyncio.create_task(service.GetBlock(GET)))
        await _until(lambda: len(served.blocks.callers) == 3, served.blocks.entered)
        served.blocks.proceed.set()
        await asyncio.gather(*waiting)
        await client.GetBlock(GET)
    assert refused.value.metadata == {"limit": "2"}


async def _until(holds: Callable[[], bool], changed: asyncio.Event) -> None:
    while not holds():
        changed.clear()
        await asyncio.wait_for(changed.wait(), 10)


@pytest.mark.parametrize(
    ("filter_", "field"),
    [
        (blocks_service_pb2.BlockFilter(tags_any=["t"] * 101), "filter.tags_any"),
        (blocks_service_pb2.BlockFilter(tags_any=["t"] * 100), None),
    ],
)
async def test_long_lists_are_refused_by_field(key_file: str, filter_: Any, field: str | None) -> None:
    async with serving(key_file) as served:
        listing = served.blocks_as(Role.ADMIN).ListBlocks(blocks_service_pb2.ListBlocksRequest(filter=filter_))
        if field is None:
            await listing
        else:
            with pytest.raises(InvalidArgument) as refused:
                await listing
            assert refused.value.field == field
    assert len(served.blocks.callers) == (field is None)


async def test_long_lists_within_lists_are_refused_with_their_place(key_file: str) -> None:
    tagged = [{"text": "x", "tags": ["t"] * number} for number in (1, 101)]
    async with serving(key_file) as served:
        with pytest.raises(InvalidArgument) as refused:
            await served.passages().InsertPassages(passages_service_pb2.InsertPassagesRequest(passages=tagged))
    assert refused.value.field == "passages[1].tags"


async def test_numbers_of_vectors_have_a_limit_of_their_own(key_file: str) -> None:
    vectors = [{"text": "x", "embedding": [1.0] * number} for number in (16_384, 16_385)]
    async with serving(key_file) as served:
        await served.passages().InsertPassages(passages_service_pb2.InsertPassagesRequest(passages=vectors[:1] * 10))
        with pytest.raises(InvalidArgument) as refused:
            await served.passages().InsertPassages(passages_service_pb2.InsertPassagesRequest(passages=vectors))
    assert refused.value.field == "passages[1].embedding"


async def test_methods_without_a_token_accept_small_requests_only(key_file: str) -> None:
    async with serving(key_file) as served, grpc.aio.insecure_channel(served.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Check(health_pb2.HealthCheckRequest(service="x" * 100_000))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await stub.Check(health_pb2.HealthCheckRequest(service="x"))
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=BLOCKS))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_without_keys_every_caller_may_call_everything() -> None:
    blocks, server = Blocks(), RunningServer()
    assembly = Assembly(
        name="blocks",
        servicers=[(blocks_service_pb2_grpc.add_BlockServiceServicer_to_server, blocks)],
        service_names=[BLOCKS],
    )
    address = await server.start(assembly, ServerConfig(shutdown_grace_seconds=0))
    channels = Channels()
    try:
        await blocks_service_pb2_grpc.BlockServiceStub(channels.channel(address)).EraseAgent(ERASE)
    finally:
        await channels.close()
        await server.stop()
    assert [caller.role for caller in blocks.callers] == [Role.SERVICE]


class Traces(traces_service_pb2_grpc.TraceServiceServicer):
    async def ImportTraces(self, requests: Any, context: Any) -> traces_service_pb2.ImportTracesResponse:
        async for request in requests:
            if request.request_id == "bad":
                raise InvalidArgument("No.", field="request_id")
        return traces_service_pb2.ImportTracesResponse()


async def test_stream_ends_with_the_reason_of_its_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_STREAM_BYTES", 5_000_000)
    server = RunningServer()
    assembly = Assembly(
        name="recall",
        servicers=[(traces_service_pb2_grpc.add_TraceServiceServicer_to_server, Traces())],
        service_names=["mnemesh.recall.v1.TraceService"],
    )
    address = await server.start(assembly, ServerConfig(shutdown_grace_seconds=0))
    good = traces_service_pb2.ImportTracesRequest(request_id="x" * 10_000).SerializeToString()
    bad = traces_service_pb2.ImportTracesRequest(request_id="bad").SerializeToString()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            method = channel.stream_unary("/mnemesh.recall.v1.TraceService/ImportTraces")
            for first, details in ((b"\x0a\xff", "UTF-8"), (bad, "No."), (good, "")):
                call = method(iter([first, *[good] * 200]))
                expected = grpc.StatusCode.INVALID_ARGUMENT if details else grpc.StatusCode.OK
                assert await call.code() is expected, await call.details()
                assert details in str(await call.details())
            call = method(iter([good] * 600))
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    finally:
        await server.stop()
