"""`ServerService`: a server's answer to the question for its name and version. Every server of the kit serves it."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from typing import Any, Final

import grpc
from mnemesh.server.v1 import server_service_pb2, server_service_pb2_grpc

from mnemesh_kit.forwarding import Forwarder

SERVICE_NAME: Final = server_service_pb2.DESCRIPTOR.services_by_name["ServerService"].full_name
_CONTRACTS: Final = "mnemesh-proto"
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
        properties: Mapping[str, str] | None = None,
        forwarder: Forwarder | None = None,
    ) -> None:
        """Reads the versions of the service's distribution and of the contracts.

        Args:
            service: the short name of the service, such as `blocks`.
            proto_services: full names of the gRPC services that the server serves.
            properties: what an operator wants to know about the server's host. They may change while the server runs.
            forwarder: forwards the calls of other services, which it can ask.
        """
        self._forwarder = forwarder
        self._info = server_service_pb2.GetServerInfoResponse(
            service=service,
            version=version_of(f"mnemesh-{service}"),
            contract_version=version_of(_CONTRACTS),
            proto_services=proto_services,
            properties={"start_time": datetime.now(UTC).isoformat(timespec="seconds")},
        )
        self._properties = properties if properties is not None else {}

    async def GetServerInfo(
        self, request: server_service_pb2.GetServerInfoRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> server_service_pb2.GetServerInfoResponse:
        """Returns the facts."""
        name = request.service
        if name in ("", self._info.service):
            info = server_service_pb2.GetServerInfoResponse(properties=self._properties)
            info.MergeFrom(self._info)
            return info
        channel = self._forwarder.channel_of(name, SERVICE_NAME) if self._forwarder is not None else None
        if channel is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"The service {name[:100]!r} is not served here.")
        stub = server_service_pb2_grpc.ServerServiceStub(channel)
        try:
            return await stub.GetServerInfo(server_service_pb2.GetServerInfoRequest(), timeout=_ANSWER_SECONDS)
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), f"The service {name} cannot be reached.")
