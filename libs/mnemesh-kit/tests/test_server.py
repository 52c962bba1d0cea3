"""The life of a server: keys, ports, health, shutdown, metrics and background tasks."""

import asyncio
import errno
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from mnemesh.blocks.v1 import blocks_service_pb2_grpc
from mnemesh_kit import errors, interceptors
from mnemesh_kit.auth import mint_token, read_keys
from mnemesh_kit.call_context import (
    DEFAULT_PRINCIPAL,
    Principal,
    as_principal,
    current_correlation_id,
    current_principal,
    remaining,
    set_correlation_id,
    set_remaining,
)
from mnemesh_kit.config import ServerConfig, StartupError
from mnemesh_kit.ids import new_id
from mnemesh_kit.retries import Backoff
from mnemesh_kit.run import CANNOT_START, run
from mnemesh_kit.server import Assembly, RunningServer, periodic
from mnemesh_testkit.mesh.in_process import certificates, client_tls, tls_fields
from mnemesh_testkit.timeouts import scaled

from .served_blocks import GET, ME, SERVICE, FakeServicer, calling, serving


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    """A file of two keys, the first of which signs."""
    path = tmp_path / "keys"
    path.write_text("a" * 40 + "\n" + "b" * 40 + "\n")
    return str(path)


async def test_waiting_for_calls_costs_the_same_for_any_number_of_methods() -> None:
    before = asyncio.all_tasks()
    async with serving() as service, calling(service.address) as stub:
        assert (await stub.GetBlock(GET)).block.id == GET.block_id
        waiting = [task for task in asyncio.all_tasks() - before if "_request" in str(task)]
        assert len(waiting) <= 1


async def test_with_keys_only_valid_tokens_are_accepted(key_file: str) -> None:
    def named(principal: Principal) -> str:
        return f"{principal.organization_id} {principal.subject_id}"

    async def caller(_: Any) -> str:
        return named(current_principal())

    first, second = read_keys(key_file)
    colleague = Principal(ME.organization_id, new_id("user"))
    async with serving(auth_key_file=key_file, host="127.0.0.1") as service:
        service.servicer.respond = caller
        async with calling(service.address, auth_key_file=key_file) as mesh:
            for principal in (ME, colleague, Principal(new_id("org"), ME.subject_id), ME):
                with as_principal(principal):
                    assert (await mesh.GetBlock(GET)).block.id == named(principal)
        async with calling(service.address, token=mint_token(second, ME, 60)) as older:
            assert (await older.GetBlock(GET)).block.id == named(ME)
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


async def test_metrics_are_served_on_the_configured_port(unused_tcp_port: int, tmp_path: Path) -> None:
    tls = tls_fields(certificates(tmp_path), "blocks")
    async with (
        serving(metrics_port=unused_tcp_port, **tls) as service,
        calling(service.address, tls=client_tls(tmp_path)) as stub,
    ):
        await stub.GetBlock(GET)
        url = f"http://127.0.0.1:{unused_tcp_port}/metrics"
        response = await asyncio.to_thread(urllib.request.urlopen, url)
        with response:
            text = response.read().decode()
    assert f'mnemesh_rpcs_total{{code="OK",method="/{SERVICE}/GetBlock"}} 1.0' in text
    assert "mnemesh_certificate_remaining_seconds 8" in text, "a day of 86,400 seconds"


async def test_liveness_and_readiness_are_served_beside_the_metrics(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def status(path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{unused_tcp_port}{path}") as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    async def both() -> tuple[int, int]:
        return await asyncio.to_thread(status, "/livez"), await asyncio.to_thread(status, "/readyz")

    seen: list[tuple[int, int]] = []

    async def look() -> None:
        seen.append(await both())

    server = RunningServer()
    assembly = Assembly(name="any", start=[look])
    await server.start(assembly, ServerConfig(metrics_port=unused_tcp_port, shutdown_grace_seconds=0))
    await look()
    monkeypatch.setattr("mnemesh_kit.server.READY_SECONDS", 0.01)
    busy = threading.Thread(target=lambda: seen.append((status("/livez"), status("/readyz"))))
    busy.start()
    busy.join()  # the event loop does not answer meanwhile
    monkeypatch.undo()
    assert seen == [(200, 503), (200, 200), (200, 503)], "starting, ready, too busy"
    await server.stop()


async def test_failed_background_task_is_reported() -> None:
    server = RunningServer()

    async def fail() -> None:
        raise LookupError

    await server.start(Assembly(name="x", servicers=[], service_names=[], background=[fail]), ServerConfig())
    await asyncio.wait_for(server.failed.wait(), scaled(60))
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
    await asyncio.wait_for(done.wait(), scaled(60))
    await server.stop()
    assert (attempts, server.failed.is_set()) == (3, False)


async def test_background_task_belongs_to_no_call() -> None:
    """Also if a call starts the server, as tests of other services do."""
    seen: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        seen.set_result((current_correlation_id(), remaining(), current_principal()))
        await asyncio.Event().wait()

    async def call() -> None:
        set_correlation_id("a-call")
        set_remaining(5.0)
        with as_principal(ME):
            await server.start(Assembly(name="x", servicers=[], service_names=[], background=[work]), ServerConfig())

    server = RunningServer()
    await asyncio.create_task(call())
    assert await seen == ("", None, DEFAULT_PRINCIPAL)
    await server.stop()


async def test_periodic_task_runs_again_after_a_failure() -> None:
    done, runs = asyncio.Event(), []

    async def work() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise LookupError
        done.set()

    task = asyncio.create_task(periodic(0, work)())
    await asyncio.wait_for(done.wait(), scaled(60))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_searches_of_one_organization_leave_room_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interceptors, "is_search", lambda _: True)
    release, open_, most = asyncio.Event(), 0, 0

    async def search(request: Any) -> str:
        nonlocal open_, most
        if current_principal() == ME:
            open_ += 1
            most = max(most, open_)
            await release.wait()
            open_ -= 1
        return str(request.block_id)

    async with serving() as service, calling(service.address) as stub:
        service.servicer.respond = search
        with as_principal(ME):
            searches = [asyncio.ensure_future(stub.GetBlock(GET)) for _ in range(40)]
        async with asyncio.timeout(scaled(30)):
            while open_ < interceptors.SEARCHES_OF_ONE:
                await asyncio.sleep(0)
            for _ in range(20):
                with as_principal(Principal(new_id("org"), new_id("user"))):
                    assert (await stub.GetBlock(GET)).block.id == GET.block_id
            waiting = searches.pop()
            waiting.cancel()
            release.set()
            assert len(await asyncio.gather(*searches)) == 39
    assert most == interceptors.SEARCHES_OF_ONE


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (errors.StorageFull("The disk is full."), "mnemesh: The disk is full.\n"),
        (errors.Unavailable("The index does not answer."), "mnemesh: The index does not answer.\n"),
        (OSError(errno.ENOSPC, "No space left on device", "/data/x"), "mnemesh: /data/x: No space left on device.\n"),
        (OSError(errno.EROFS, "Read-only file system", "/data/x"), "mnemesh: /data/x: Read-only file system.\n"),
    ],
)
def test_start_that_the_environment_prevents_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: Exception, line: str
) -> None:
    async def build() -> Assembly:
        raise error

    assert run((build, ServerConfig(data_dir=str(tmp_path)))) == CANNOT_START
    assert capsys.readouterr().err == line
