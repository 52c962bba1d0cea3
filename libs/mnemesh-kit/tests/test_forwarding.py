"""One server forwards the calls of another's services: results, errors, deadlines, identity, health and reflection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc
from mnemesh.blocks.v1.blocks_service_pb2_grpc import BlockServiceStub
from mnemesh.server.v1 import server_service_pb2_grpc
from mnemesh.server.v1.server_service_pb2 import GetServerInfoRequest, GetServerStatusRequest
from mnemesh_kit.call_context import Role, as_principal, current_correlation_id, current_principal, set_correlation_id
from mnemesh_kit.config import ServerConfig
from mnemesh_kit.errors import DeadlineExceeded, ResourceExhausted, Unauthenticated, Unavailable
from mnemesh_kit.forwarding import forwarded_services
from mnemesh_kit.listener import V1, V1_ALPHA
from mnemesh_kit.server import Assembly, RunningServer
from mnemesh_testkit.mesh.faulty_proxy import ReservedPort
from mnemesh_testkit.timeouts import scaled

from . import served_blocks
from .served_blocks import GET, ME, SERVICE, ShopIsClosed, calling, raising, serving

pytestmark = pytest.mark.usefixtures("transport")


@asynccontextmanager
async def forwarding(target: str, **settings: object) -> AsyncIterator[str]:
    """A server without services of its own, which forwards the calls of blocks. Yields its address."""
    server = RunningServer(served_blocks.servers)
    assembly = Assembly(name="orchestrator", forwarded=forwarded_services({"blocks": target}))
    address = await server.start(assembly, ServerConfig(shutdown_grace_seconds=0, **settings))  # type: ignore[arg-type]
    try:
        yield address
    finally:
        await server.stop()


async def test_call_returns_the_response_of_its_service() -> None:
    async with serving() as service, forwarding(service.address) as address, calling(address) as blocks:
        assert (await blocks.GetBlock(GET)).block.id == "x"
        large = "y" * 3_000_000
        assert (await blocks.GetBlock(rpc.GetBlockRequest(block_id=large))).block.id == large


async def test_typed_error_keeps_reason_and_metadata() -> None:
    async with serving() as service, forwarding(service.address) as address:
        service.servicer.respond = raising(ShopIsClosed("bakery"))
        async with calling(address, errors=[ShopIsClosed]) as blocks:
            with pytest.raises(ShopIsClosed, match="bakery is closed") as caught:
                await blocks.GetBlock(GET)
    assert caught.value.metadata["shop"] == "bakery"


async def test_caller_and_correlation_id_reach_the_service(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("0" * 32)
    seen: list[object] = []

    async def respond(_: object) -> str:
        seen.append((current_principal(), current_correlation_id()))
        return "x"

    async with (
        serving(auth_key_file=str(keys)) as service,
        forwarding(service.address, auth_key_file=str(keys)) as address,
        calling(address, auth_key_file=str(keys)) as blocks,
    ):
        service.servicer.respond = respond
        set_correlation_id("trace-1")
        with as_principal(ME):
            await blocks.GetBlock(GET)
    ((principal, correlation_id),) = seen  # type: ignore[misc]
    assert (principal.organization_id, principal.role, correlation_id) == (ME.organization_id, Role.ADMIN, "trace-1")


async def test_call_without_a_correlation_id_has_the_same_one_in_both_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    ids: list[str] = []

    def note(value: str | None) -> str:
        ids.append(set_correlation_id(value))
        return ids[-1]

    monkeypatch.setattr("mnemesh_kit.interceptors.set_correlation_id", note)
    async with serving() as service, forwarding(service.address) as front, grpc.aio.insecure_channel(front) as channel:
        await BlockServiceStub(channel).GetBlock(GET)
    assert len(ids) == 2
    assert len(set(ids)) == 1


async def test_methods_for_services_are_not_forwarded() -> None:
    async with serving() as service, forwarding(service.address) as front, grpc.aio.insecure_channel(front) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"/{SERVICE}/EraseAgent")(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert service.servicer.calls == 0


async def test_deadline_and_cancellation_reach_the_service() -> None:
    entered, ended = asyncio.Event(), asyncio.Event()

    async def wait(_: object) -> str:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    async with serving() as service, forwarding(service.address) as address, calling(address) as blocks:
        service.servicer.respond = wait
        with pytest.raises(DeadlineExceeded):
            await blocks.GetBlock(GET, timeout=0.2)
        await asyncio.wait_for(ended.wait(), scaled(10))
        entered.clear()
        ended.clear()
        call = asyncio.create_task(blocks.GetBlock(GET))
        await asyncio.wait_for(entered.wait(), scaled(10))
        call.cancel()
        await asyncio.wait_for(ended.wait(), scaled(10))


async def test_service_that_is_away_is_unavailable_and_found_again() -> None:
    port = ReservedPort()
    async with serving(port=port.number):
        pass
    async with forwarding(port.address) as address, calling(address) as blocks:
        with pytest.raises(Unavailable, match="cannot be reached"):
            await blocks.GetBlock(GET, timeout=scaled(30))  # client and server repeat it, each for a second or more
        async with serving(port=port.number):
            assert (await blocks.GetBlock(GET)).block.id == "x"
    port.release()


async def test_refusal_before_the_request_is_read_keeps_its_error(tmp_path: Path) -> None:
    keys, others = tmp_path / "keys", tmp_path / "others"
    keys.write_text("0" * 32)
    others.write_text("1" * 32)
    requests = [rpc.GetBlockRequest(block_id="x" * size) for size in (1, 100_000) for _ in range(100)]

    async with (
        serving(auth_key_file=str(keys)) as service,
        forwarding(service.address) as address,
        calling(address, auth_key_file=str(others)) as blocks,
    ):
        answers = [await asyncio.gather(blocks.GetBlock(each), return_exceptions=True) for each in requests]

    assert {type(error) for (error,) in answers} == {Unauthenticated}


async def test_requests_are_bounded_at_the_first_server() -> None:
    async with serving() as service, forwarding(service.address) as address, calling(address) as blocks:
        with pytest.raises(ResourceExhausted):
            await blocks.DeleteBlock(rpc.DeleteBlockRequest(block_id="x" * 5_000_000))
        assert service.servicer.calls == 0


async def test_health_is_that_of_the_service() -> None:
    async with serving() as service, forwarding(service.address) as front, grpc.aio.insecure_channel(front) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        assert (await health.Check(request)).status == health_pb2.HealthCheckResponse.SERVING
    async with forwarding("127.0.0.1:1") as address, grpc.aio.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(request)).status == health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize("version", [V1, V1_ALPHA])
async def test_reflection_describes_forwarded_services_and_their_methods(version: str) -> None:
    async with forwarding("127.0.0.1:1") as address, grpc.aio.insecure_channel(address) as channel:
        ask = channel.stream_stream(
            f"/{version}/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=f"{SERVICE}.GetBlock"),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=f"{SERVICE}.NoSuchMethod"),
        ]
        listed, described, unknown = [answer async for answer in ask(iter(requests))]
    assert {SERVICE, V1, V1_ALPHA} <= {service.name for service in listed.list_services_response.service}
    files = described.file_descriptor_response.file_descriptor_proto
    names = {descriptor_pb2.FileDescriptorProto.FromString(data).name for data in files}
    assert "mnemesh/blocks/v1/blocks_service.proto" in names
    assert unknown.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


async def test_server_information_is_that_of_the_service() -> None:
    async with serving() as service, forwarding(service.address) as front, grpc.aio.insecure_channel(front) as channel:
        stub = server_service_pb2_grpc.ServerServiceStub(channel)
        for asked, answers in (("blocks", "blocks"), ("orchestrator", "orchestrator"), ("", "orchestrator")):
            assert (await stub.GetServerInfo(GetServerInfoRequest(service=asked))).service == answers
            assert (await stub.GetServerStatus(GetServerStatusRequest(service=asked))).service == answers
        for unknown in ("recall", "x" * 10_000):
            with pytest.raises(grpc.aio.AioRpcError, match="is not served here") as caught:
                await stub.GetServerInfo(GetServerInfoRequest(service=unknown))
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.aio.AioRpcError, match="is not served here"):
            await stub.GetServerStatus(GetServerStatusRequest(service="recall"))
