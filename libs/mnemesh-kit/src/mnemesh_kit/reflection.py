"""Reflection: the contracts of a server's services, for tools such as grpcurl. Versions v1 and v1alpha."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pool
from grpc_reflection.v1alpha import reflection, reflection_pb2

V1: Final = "grpc.reflection.v1.ServerReflection"
V1_ALPHA: Final = reflection.SERVICE_NAME


def add_reflection(services: Iterable[str], registry: Any) -> None:
    """Adds both versions of reflection to a server. Their messages are the same on the wire.

    Methods and fields can be described too, which the library does not find by their names.

    Args:
        services: the full names of the gRPC services to list; those of reflection are added.
        registry: the server.
    """
    library: Any = reflection.aio.ReflectionServicer((*services, V1, V1_ALPHA))

    async def answers(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for answer in library.ServerReflectionInfo(_with_known_symbols(requests), context):
            yield answer

    handler = grpc.stream_stream_rpc_method_handler(
        answers,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    methods = {"ServerReflectionInfo": handler}
    registry.add_generic_rpc_handlers(
        tuple(grpc.method_handlers_generic_handler(name, methods) for name in (V1, V1_ALPHA))
    )


async def _with_known_symbols(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Yields requests that ask for the service or the message in place of a method or a field: its file is the same."""
    async for request in requests:
        if request.HasField("file_containing_symbol"):
            parent = _parent_of_member(request.file_containing_symbol)
            yield reflection_pb2.ServerReflectionRequest(file_containing_symbol=parent) if parent else request
        else:
            yield request


def _parent_of_member(symbol: str) -> str | None:
    """Returns the name of the service or message that has this method or field; None for other symbols."""
    parent, _, member = symbol.rpartition(".")
    pool = descriptor_pool.Default()
    with suppress(KeyError):
        return parent if member in pool.FindServiceByName(parent).methods_by_name else None
    with suppress(KeyError):
        return parent if member in pool.FindMessageTypeByName(parent).fields_by_name else None
    return None
