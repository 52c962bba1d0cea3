"""The kit's server and channels on a real connection, with a servicer whose behaviour each test sets."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from mnemesh.blocks.v1 import blocks_pb2, blocks_service_pb2_grpc
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc
from mnemesh_kit import errors
from mnemesh_kit.auth import mint_token, read_keys
from mnemesh_kit.background import periodic
from mnemesh_kit.backoff import Backoff
from mnemesh_kit.channels import Channels
from mnemesh_kit.config import ServerConfig, StartupError
from mnemesh_kit.correlation import current_correlation_id, set_correlation_id
from mnemesh_kit.deadline import remaining, set_remaining
from mnemesh_kit.ids import new_id
from mnemesh_kit.principal import DEFAULT_PRINCIPAL, Principal, as_principal, current_principal
from mnemesh_kit.server import Assembly, RunningServer

ME = Principal(new_id("org"), new_id("user"))
SERVICE = "mnemesh.blocks.v1.BlockService"


class ShopIsClosed(errors.FailedPrecondition):
    reason = "SHOP_IS_CLOSED"

    def __init__(self, shop: str) -> None:
        super().__init__(f"{shop} is closed.", shop=shop)


class FakeServicer(blocks_service_pb2_grpc.BlockServiceServicer):
    """A servicer that counts its calls, and answers with the result of a test's function."""

    def __init__(self) -> None:
        self.calls = 0
        self.respond: Callable[[Any], Awaitable[str]] = self.echo

    async def echo(self, request: Any) -> str:
        return str(request.block_id)

    async def GetBlock(self, request: Any, context: Any) -> rpc.GetBlockResponse:
        self.calls += 1
        return rpc.GetBlockResponse(block=blocks_pb2.Block(id=await self.respond(request)))

    async def DeleteBlock(self, request: Any, context: Any) -> rpc.DeleteBlockResponse:
        self.calls += 1
        await self.respond(request)
        return rpc.DeleteBlockResponse()


@dataclass
class Service:
    """A running service and its servicer."""

    address: str
    servicer: FakeServicer


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Service]:
    servicer, server = FakeServicer(), RunningServer()
    assembly = Assembly(
        name="blocks",
        servicers=[(blocks_service_pb2_grpc.add_BlockServiceServicer_to_server, servicer)],
        service_names=[SERVICE],
    )
    address = await server.start(assembly, ServerConfig(shutdown_grace_seconds=0, **settings))
    try:
        yield Service(address, servicer)
    finally:
        await server.stop()


@asynccontextmanager
async def calling(address: str, **settings: Any) -> AsyncIterator[Any]:
    channels = Channels(**settings)
    try:
        yield blocks_service_pb2_grpc.BlockServiceStub(channels.channel(address))
    finally:
        await channels.close()


GET = rpc.GetBlockRequest(block_id="x")


def raising(error: BaseException) -> Callable[[Any], Awaitable[str]]:
    async def respond(_: Any) -> str:
        raise error

    return respond


@pytest.mark.parametrize(
    "kind",
    [
        errors.InvalidArgument, errors.NotFound, errors.AlreadyExists, errors.FailedPrecondition, errors.Aborted,
        errors.ResourceExhausted, errors.Unavailable, errors.DeadlineExceeded, errors.Unimplemented,
        errors.PermissionDenied, errors.Unauthenticated, errors.RequestIdReused, errors.PageTokenInvalid,
    ],
)  # fmt: skip
async def test_typed_error_is_raised_by_the_client_unchanged(kind: type[errors.MnemeshError]) -> None:
    async with serving() as service, calling(service.address) as stub:
        service.servicer.respond = raising(kind("Grüße, %41 \n 漢", field="block_id", resource_id="7"))
        with pytest.raises(errors.MnemeshError) as raised:
            await stub.GetBlock(GET)
    assert type(raised.value) is kind
    assert (raised.value.message, raised.value.reason) == ("Grüße, %41 \n 漢", kind.reason)
    assert raised.value.metadata == {"field": "block_id", "resource_id": "7"}


async def test_error_of_a_service_is_raised_as_its_class_if_the_client_knows_it() -> None:
    async with serving() as service:
        service.servicer.respond = raising(ShopIsClosed("bakery"))
        async with calling(service.address, errors=[ShopIsClosed]) as stub:
            with pytest.raises(ShopIsClosed) as raised:
                await stub.GetBlock(GET)
            assert raised.value.metadata == {"shop": "bakery"}
        async with calling(service.address) as stub:
            with pytest.raises(errors.FailedPrecondition) as other:
                await stub.GetBlock(GET)
            assert type(other.value) is errors.FailedPrecondition
            assert other.value.reason == "SHOP_IS_CLOSED"


async def test_unexpected_error_is_internal_and_its_details_are_only_logged() -> None:
    async with serving() as service, calling(service.address) as stub:
        service.servicer.respond = raising(ValueError("the password is tiger"))
        with structlog.testing.capture_logs() as logs, pytest.raises(errors.Internal) as raised:
            await stub.GetBlock(GET)
    assert "tiger" not in str(raised.value)
    [unexpected] = [entry for entry in logs if entry["log_level"] == "error"]
    assert unexpected["exc_info"]
    assert raised.value.metadata["correlation_id"]


def _changed_later() -> errors.MnemeshError:
    error = errors.InvalidArgument("plain")
    error.message = error.metadata["quote"] = "\ud800"
    return error


def _not_encodable() -> errors.MnemeshError:
    error = errors.InvalidArgument("plain")
    error.metadata["count"] = 7  # type: ignore[assignment]
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidArgument("half: \ud800", field="arguments", quote="\ude00\0"), grpc.StatusCode.INVALID_ARGUMENT),
        (ValueError("\ud800"), grpc.StatusCode.INTERNAL),
        (_changed_later(), grpc.StatusCode.INVALID_ARGUMENT),
        (_not_encodable(), grpc.StatusCode.INTERNAL),
    ],
)
async def test_call_ends_for_any_text_in_its_error(error: Exception, code: grpc.StatusCode) -> None:
    async with serving() as service, calling(service.address) as stub:
        service.servicer.respond = raising(error)
        with pytest.raises(errors.MnemeshError) as raised:
            await stub.GetBlock(GET, timeout=10)
    assert raised.value.code is code


async def test_missing_method_is_unimplemented() -> None:
    async with serving() as service, calling(service.address) as stub:
        with pytest.raises(errors.Unimplemented):
            await stub.ListBlocks(rpc.ListBlocksRequest())


async def test_stopped_server_is_unavailable() -> None:
    async with serving() as service:
        address = service.address
    async with calling(address) as stub:
        with pytest.raises(errors.Unavailable):
            await stub.GetBlock(GET)


async def test_correlation_id_and_the_principal_reach_the_server() -> None:
    seen: list[object] = []

    async def record(_: Any) -> str:
        seen.append((current_correlation_id(), current_principal()))
        return ""

    async with serving() as service, calling(service.address) as stub:
        service.servicer.respond = record
        set_correlation_id("trace-me")
        with as_principal(ME), structlog.testing.capture_logs() as logs:
            await stub.GetBlock(GET)
        await stub.GetBlock(GET)
    assert seen == [("trace-me", ME), ("trace-me", DEFAULT_PRINCIPAL)]
    assert [entry["code"] for entry in logs if entry["event"] == "call"] == ["OK"]


async def test_principal_with_a_malformed_id_is_refused() -> None:
    async with serving() as service, calling(service.address) as stub:
        with as_principal(Principal("org-1", "user-1")), pytest.raises(errors.InvalidArgument):
            await stub.GetBlock(GET)


async def test_channel_adds_a_request_id_without_changing_the_message() -> None:
    seen: list[str] = []

    async def record(request: Any) -> str:
        seen.append(request.request_id)
        return ""

    async with serving() as service, calling(service.address) as stub:
        service.servicer.respond = record
        request = rpc.DeleteBlockRequest(block_id="x")
        await stub.DeleteBlock(request)
        await stub.DeleteBlock(request)
        await stub.DeleteBlock(rpc.DeleteBlockRequest(request_id="mine"))
    assert request.request_id == ""
    assert len(set(seen)) == 3
    assert all(seen)
    assert seen[2] == "mine"


@pytest.mark.parametrize("method", ["GetBlock", "DeleteBlock"])
async def test_repeatable_calls_are_retried_while_a_server_is_unavailable(method: str) -> None:
    ids: list[str] = []

    async def fail_twice(request: Any) -> str:
        ids.append(getattr(request, "request_id", ""))
        if len(ids) < 3:
            raise errors.Unavailable("not yet")
        return ""

    async with serving() as service, calling(service.address) as stub:
        service.servicer.respond = fail_twice
        await getattr(stub, method)(GET if method == "GetBlock" else rpc.DeleteBlockRequest())
        assert service.servicer.calls == 3
    assert len(set(ids)) == 1


async def test_final_error_is_not_retried() -> None:
    class Final(errors.Unavailable):
        final = True

    async with serving() as service, calling(service.address) as stub:
        service.servicer.respond = raising(Final("All retries failed."))
        with pytest.raises(errors.Unavailable, match="All retries failed"):
            await stub.GetBlock(GET)
        assert service.servicer.calls == 1


@pytest.mark.parametrize("raw", [b"\x0a\x02\xff\xfe", b"\xff\xff\xff", b"\x0a\x7fshort"])
async def test_malformed_bytes_are_an_invalid_argument(raw: bytes) -> None:
    async with serving() as service, grpc.aio.insecure_channel(service.address) as channel:
        call = channel.unary_unary(f"/{SERVICE}/GetBlock", request_serializer=bytes, response_deserializer=bytes)(raw)
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "UTF-8" in (await call.details() or "")
        assert service.servicer.calls == 0


async def test_deadline_ends_the_call_and_its_handler() -> None:
    ended = asyncio.Event()

    async def wait(_: Any) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    async with serving() as service, calling(service.address, deadline=0.05) as stub:
        service.servicer.respond = wait
        with pytest.raises(errors.DeadlineExceeded):
            await stub.GetBlock(GET)
        await asyncio.wait_for(ended.wait(), 5)


async def test_outgoing_call_inherits_the_deadline_of_the_incoming_one() -> None:
    left: list[float | None] = []

    async def record(_: Any) -> str:
        left.append(remaining())
        return ""

    async with serving() as service, calling(service.address) as stub:
        service.servicer.respond = record
        set_remaining(3)
        try:
            await stub.GetBlock(GET, timeout=60)
            set_remaining(-1)
            with pytest.raises(errors.DeadlineExceeded):
                await stub.GetBlock(GET)
        finally:
            set_remaining(None)
    assert left[0] is not None
    assert left[0] < 5
    assert len(left) == 1


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    """A file of two keys, the first of which signs."""
    path = tmp_path / "keys"
    path.write_text("a" * 40 + "\n" + "b" * 40 + "\n")
    return str(path)


async def test_with_keys_only_valid_tokens_are_accepted(key_file: str) -> None:
    async def caller(_: Any) -> str:
        return current_principal().organization_id

    first, second = read_keys(key_file)
    async with serving(auth_key_file=key_file, host="127.0.0.1") as service:
        service.servicer.respond = caller
        async with calling(service.address, auth_key_file=key_file) as mesh:
            with as_principal(ME):
                assert (await mesh.GetBlock(GET)).block.id == ME.organization_id
        async with calling(service.address, token=mint_token(second, ME, 60)) as older:
            assert (await older.GetBlock(GET)).block.id == ME.organization_id
        refused = (
            {},
            {"token": mint_token(first, ME, -5)},
            {"token": mint_token(b"c" * 40, ME, 60)},
            {"token": mint_token(first, Principal("everyone", "root"), 60)},
            {"token": "garbage"},
        )
        for settings in refused:
            async with calling(service.address, **settings) as stub:
                with pytest.raises(errors.Unauthenticated):
                    await stub.GetBlock(GET)


@pytest.mark.parametrize("content", ["", "short", "a" * 40 + "\nshort"])
async def test_invalid_key_file_is_a_startup_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "keys").write_text(content)
    for path in (tmp_path / "keys", tmp_path / "missing"):
        with pytest.raises(StartupError, match="key file"):
            async with serving(auth_key_file=str(path)):
                pass


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
async def test_without_keys_a_server_listens_on_loopback_only(host: str) -> None:
    with pytest.raises(StartupError, match="MNEMESH_AUTH_KEY_FILE"):
        async with serving(host=host):
            pass


async def test_server_gets_a_port_that_becomes_free() -> None:
    held = socket.create_server(("127.0.0.1", 0))
    port, server = held.getsockname()[1], RunningServer()
    starting = asyncio.create_task(
        server.start(Assembly(name="blocks", servicers=[], service_names=[]), ServerConfig(port=port))
    )
    await asyncio.sleep(0)
    assert not starting.done()
    held.close()
    assert await starting == f"127.0.0.1:{port}"
    await server.stop()


async def test_port_in_use_is_a_startup_error_and_the_stores_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnemesh_kit.server.PORT_SECONDS", 0.0)
    closed: list[str] = []

    async def close() -> None:
        closed.append("store")

    async with serving() as service:
        port = int(service.address.rpartition(":")[2])
        again = Assembly(name="blocks", servicers=[], service_names=[], close=[close])
        with pytest.raises(StartupError, match=f"Port {port} .* MNEMESH_BLOCKS_PORT"):
            await RunningServer().start(again, ServerConfig(port=port))
    assert closed == ["store"]


async def test_health_and_reflection_need_no_token(key_file: str) -> None:
    async with serving(auth_key_file=key_file) as service, grpc.aio.insecure_channel(service.address) as channel:
        check = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert check.status == health_pb2.HealthCheckResponse.SERVING
        requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        responses = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(requests)
        names = [s.name async for response in responses for s in response.list_services_response.service]
        assert SERVICE in names


async def test_stopping_server_drains_then_closes_in_reverse_order() -> None:
    events: list[str] = []
    entered, release = asyncio.Event(), asyncio.Event()
    servicer, server = FakeServicer(), RunningServer()

    async def slow(_: Any) -> str:
        entered.set()
        await release.wait()
        events.append("call")
        return ""

    def closing(name: str) -> Callable[[], Awaitable[None]]:
        async def close() -> None:
            events.append(name)

        return close

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            events.append("background")

    servicer.respond = slow
    assembly = Assembly(
        name="blocks",
        servicers=[(blocks_service_pb2_grpc.add_BlockServiceServicer_to_server, servicer)],
        service_names=[SERVICE],
        background=[forever],
        close=[closing("first"), closing("second")],
    )
    address = await server.start(assembly, ServerConfig(shutdown_grace_seconds=5))
    async with calling(address) as stub, grpc.aio.insecure_channel(address) as channel:
        watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
        call = asyncio.create_task(stub.GetBlock(GET))
        await entered.wait()
        stopping = asyncio.create_task(server.stop())
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watching.cancel()
        release.set()
        await call
        await stopping
    assert events == ["call", "background", "second", "first"]


async def test_metrics_are_served_on_the_configured_port(unused_tcp_port: int) -> None:
    async with serving(metrics_port=unused_tcp_port) as service, calling(service.address) as stub:
        await stub.GetBlock(GET)
        url = f"http://127.0.0.1:{unused_tcp_port}/metrics"
        response = await asyncio.to_thread(urllib.request.urlopen, url)
        with response:
            text = response.read().decode()
    assert f'mnemesh_rpcs_total{{code="OK",method="/{SERVICE}/GetBlock"}} 1.0' in text


async def test_failed_background_task_is_reported() -> None:
    server = RunningServer()

    async def fail() -> None:
        raise LookupError

    await server.start(Assembly(name="x", servicers=[], service_names=[], background=[fail]), ServerConfig())
    await asyncio.wait_for(server.failed.wait(), 5)
    await server.stop()


@pytest.mark.parametrize("error", [errors.Unavailable("away"), errors.StorageFull("full")])
async def test_background_task_waits_for_its_database(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr("mnemesh_kit.server.BACKGROUND_BACKOFF", Backoff(first=0.001, maximum=0.001))
    attempts, done = 0, asyncio.Event()

    async def work() -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise error
        done.set()

    server = RunningServer()
    await server.start(Assembly(name="blocks", servicers=[], service_names=[], background=[work]), ServerConfig())
    await asyncio.wait_for(done.wait(), 10)
    await server.stop()
    assert (attempts, server.failed.is_set()) == (3, False)


async def test_periodic_task_runs_again_after_a_failure() -> None:
    done, runs = asyncio.Event(), []

    async def work() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise LookupError
        done.set()

    task = asyncio.create_task(periodic(0, work)())
    await asyncio.wait_for(done.wait(), 5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
