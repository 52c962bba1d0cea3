"""`ServerService`: what a server says about itself. Every server of the kit serves it."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from typing import Any, Final

import grpc
from mnemesh.server.v1 import server_service_pb2, server_service_pb2_grpc
from mnemesh.types.v1 import access_pb2

from mnemesh_kit.call_context import DEFAULT_PRINCIPAL, Principal, current_principal
from mnemesh_kit.forwarding import Forwarder
from mnemesh_kit.metrics import Metric

SERVICE_NAME: Final = server_service_pb2.DESCRIPTOR.services_by_name["ServerService"].full_name
_CONTRACTS: Final = "mnemesh-proto"
_STATUS: Final = f"/{SERVICE_NAME}/GetServerStatus"
_ANSWER_SECONDS: Final = 5.0


@cache
def version_of(distribution: str) -> str:
    """Returns the version of an installed distribution, such as `mnemesh-blocks`; "" if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


class ServerInfoServicer(server_service_pb2_grpc.ServerServiceServicer):
    """Answers with the facts of one server, which are read once."""

    def __init__(
        self,
        service: str,
        proto_services: Sequence[str],
        properties: Mapping[str, str],
        forwarder: Forwarder,
        metrics: Sequence[Metric],
    ) -> None:
        """Reads the versions of the service's distribution and of the contracts.

        Args:
            service: the short name of the service, such as `blocks`.
            proto_services: full names of the gRPC services that the server serves.
            properties: what an operator wants to know about the server's host. They may change while the server runs.
            forwarder: forwards the calls of other services, which it can ask.
            metrics: what the service counts and measures.
        """
        self._forwarder = forwarder
        self._metrics = metrics
        self._started = datetime.now(UTC)
        self._info = server_service_pb2.GetServerInfoResponse(
            service=service,
            version=version_of(f"mnemesh-{service}"),
            contract_version=version_of(_CONTRACTS),
            proto_services=proto_services,
            properties={"start_time": self._started.isoformat(timespec="seconds")},
        )
        self._properties = properties

    async def GetServerInfo(
        self, request: server_service_pb2.GetServerInfoRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> server_service_pb2.GetServerInfoResponse:
        """Returns the facts."""
        name = request.service
        if name in ("", self._info.service):
            info = server_service_pb2.GetServerInfoResponse(properties=self._properties)
            info.MergeFrom(self._info)
            return info
        channel = self._forwarder.channel_of(name, SERVICE_NAME)
        if channel is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"The service {name[:100]!r} is not served here.")
        stub = server_service_pb2_grpc.ServerServiceStub(channel)
        try:
            return await stub.GetServerInfo(server_service_pb2.GetServerInfoRequest(), timeout=_ANSWER_SECONDS)
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), f"The service {name} cannot be reached.")

    async def GetServerStatus(
        self, request: server_service_pb2.GetServerStatusRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> server_service_pb2.GetServerStatusResponse:
        """Returns the version and the metrics, those to the operator only.

        Raises:
            NotFound: the service is not served here.
            Unavailable: the service cannot be reached.
        """
        name = request.service
        if name not in ("", self._info.service):
            asked, answer = server_service_pb2.GetServerStatusRequest(), server_service_pb2.GetServerStatusResponse
            return await self._forwarder.ask(name, _STATUS, asked, answer, context, seconds=_ANSWER_SECONDS)
        status = server_service_pb2.GetServerStatusResponse(service=self._info.service, version=self._info.version)
        status.start_time.FromDatetime(self._started)
        caller = current_principal()
        status.caller.CopyFrom(_caller_to_proto(caller))
        # A tenant could learn from them what others do, and the names of their models.
        is_operator = caller.organization_id == DEFAULT_PRINCIPAL.organization_id and caller.agents is None
        status.metrics_withheld = not is_operator
        if not status.metrics_withheld:
            status.metrics.extend(await asyncio.to_thread(_samples, self._metrics))
        return status


def _caller_to_proto(caller: Principal) -> server_service_pb2.Caller:
    message = server_service_pb2.Caller(
        organization_id=caller.organization_id,
        subject_id=caller.subject_id,
        role=access_pb2.CallerRole.Value(f"CALLER_ROLE_{caller.role.name}"),
        limited=caller.agents is not None,
        agent_ids=sorted(caller.agents or ()),
        issuer=caller.issuer,
    )
    if caller.expires_at is not None:
        message.expire_time.FromSeconds(int(caller.expires_at))
    return message


def _samples(metrics: Sequence[Metric]) -> list[server_service_pb2.MetricSample]:
    """Returns the numbers as the exposition has them. Runs in a thread, because gauges are read there."""
    return [
        server_service_pb2.MetricSample(name=sample.name, labels=sample.labels, value=sample.value)
        for metric in metrics
        for family in metric.families()
        for sample in family.samples
    ]
