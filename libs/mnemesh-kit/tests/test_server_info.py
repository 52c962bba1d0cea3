"""A client asks a server for its version; an operator asks on the command line."""

import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from mnemesh.server.v1 import server_service_pb2 as pb
from mnemesh.server.v1 import server_service_pb2_grpc
from mnemesh.types.v1 import access_pb2
from mnemesh_kit import run
from mnemesh_kit.auth import mint_token
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL, Principal
from mnemesh_kit.channels import Channels
from mnemesh_kit.config import ServerConfig
from mnemesh_kit.ids import new_id
from mnemesh_kit.metrics import Counter
from mnemesh_kit.server import Assembly, RunningServer
from mnemesh_kit.server_info import SERVICE_NAME, version_of


async def test_server_reports_its_version_without_a_token(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("0" * 32)
    server, channels = RunningServer(), Channels()
    assembly = Assembly(name="blocks", servicers=[], service_names=["mnemesh.blocks.v1.BlockService"])
    address = await server.start(assembly, ServerConfig(auth_key_file=str(keys), shutdown_grace_seconds=0))
    try:
        stub = server_service_pb2_grpc.ServerServiceStub(channels.channel(address))
        info = await stub.GetServerInfo(pb.GetServerInfoRequest())
        async with grpc.aio.insecure_channel(address) as channel:
            reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            answers = [answer async for answer in reflection.ServerReflectionInfo(iter([request]))]
    finally:
        await channels.close()
        await server.stop()
    assert info == pb.GetServerInfoResponse(
        service="blocks",
        version=metadata.version("mnemesh-blocks"),
        contract_version=metadata.version("mnemesh-proto"),
        proto_services=["mnemesh.blocks.v1.BlockService"],
        properties={"start_time": info.properties["start_time"]},
    )
    assert datetime.fromisoformat(info.properties["start_time"]).tzinfo is not None
    assert SERVICE_NAME in [service.name for service in answers[0].list_services_response.service]


async def test_server_reports_its_metrics_to_the_default_organization_alone(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("0" * 32)
    runs = Counter("mnemesh_runs", "Ended runs.", ["status"])
    runs.inc("completed", by=3)
    server = RunningServer()
    assembly = Assembly(name="blocks", servicers=[], service_names=[], metrics=[runs])
    address = await server.start(assembly, ServerConfig(auth_key_file=str(keys), shutdown_grace_seconds=0))
    tenant = Principal(new_id("org"), new_id("user"))
    limited = replace(DEFAULT_PRINCIPAL, agents=frozenset({new_id("agent")}))
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = server_service_pb2_grpc.ServerServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.GetServerStatus(pb.GetServerStatusRequest())
            owned, seen, shown = [
                await stub.GetServerStatus(
                    pb.GetServerStatusRequest(),
                    metadata=(("authorization", f"Bearer {mint_token(b'0' * 32, principal, seconds)}"),),
                )
                for principal, seconds in ((DEFAULT_PRINCIPAL, 60), (tenant, 60), (limited, 3600))
            ]
    finally:
        await server.stop()
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    sample = pb.MetricSample(name="mnemesh_runs_total", labels={"status": "completed"}, value=3)
    assert sample in owned.metrics
    assert not owned.metrics_withheld
    assert seen == pb.GetServerStatusResponse(
        service="blocks",
        version=owned.version,
        start_time=owned.start_time,
        metrics_withheld=True,
        caller=pb.Caller(
            organization_id=tenant.organization_id,
            subject_id=tenant.subject_id,
            role=access_pb2.CALLER_ROLE_ADMIN,
        ),
    )
    assert (shown.caller.limited, shown.caller.agent_ids) == (True, list(limited.agents or ()))
    assert shown.metrics_withheld
    assert 3000 < shown.caller.expire_time.ToDatetime(UTC).timestamp() - time.time() < 3700


def test_version_of_a_distribution_that_is_not_installed_is_empty() -> None:
    assert version_of("mnemesh-of-tomorrow") == ""


def test_command_line_prints_the_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def build(_: ServerConfig) -> Assembly:
        raise AssertionError("The service must not start.")

    build.__module__ = "mnemesh_blocks.wiring"
    monkeypatch.setattr(sys, "argv", ["mnemesh_blocks", "--version"])
    assert run.main(ServerConfig, build) == run.OK
    assert capsys.readouterr().out == f"mnemesh-blocks {metadata.version('mnemesh-blocks')}\n"


def test_unknown_argument_is_answered_with_the_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def build(_: ServerConfig) -> Assembly:
        raise AssertionError("The service must not start.")

    build.__module__ = "mnemesh_blocks.wiring"
    monkeypatch.setattr(sys, "argv", ["mnemesh_blocks", "serve"])
    assert run.main(ServerConfig, build, {"maintain": "mnemesh_blocks.maintenance"}) == run.CANNOT_START
    assert capsys.readouterr().err == "mnemesh: usage: python -m mnemesh_blocks [maintain | --version]\n"
