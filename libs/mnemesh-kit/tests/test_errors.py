"""Errors of failed calls."""

import grpc
import pytest
from mnemesh_kit.errors import (
    Internal,
    MnemeshError,
    ResourceExhausted,
    ServerBusy,
    StorageFull,
    Unavailable,
    Unreachable,
    from_rpc_error,
    to_trailers,
)

BROKEN = "Internal error from Core"


def failed(code: grpc.StatusCode, details: str, trailers: tuple[tuple[str, str | bytes], ...] = ()) -> MnemeshError:
    return from_rpc_error(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), details))


def test_broken_connection_is_unavailable_under_every_status_of_grpc() -> None:
    for code, details in ((grpc.StatusCode.UNAVAILABLE, "Socket closed"), (grpc.StatusCode.INTERNAL, BROKEN)):
        error = failed(code, details)
        assert isinstance(error, Unavailable)
        assert error.code is grpc.StatusCode.UNAVAILABLE
        assert error.reason == Unavailable.reason


@pytest.mark.parametrize("message", ["The index is damaged.", BROKEN])
def test_internal_error_of_a_server_stays_internal(message: str) -> None:
    error = failed(grpc.StatusCode.INTERNAL, message, to_trailers(Internal(message)))
    assert isinstance(error, Internal)
    assert error.reason == Internal.reason
    assert str(error) == message


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!", ServerBusy),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Bandwidth exhausted or memory limit exceeded", ServerBusy),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "", ServerBusy),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "SERVER: Received message larger than max (9 vs. 4)", ResourceExhausted),
        (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses; last error: refused", Unreachable),
        (grpc.StatusCode.UNAVAILABLE, "connections to all backends failing; last error: refused", Unreachable),
        (grpc.StatusCode.UNAVAILABLE, "errors resolving recall:50052: name not found", Unreachable),
        (grpc.StatusCode.UNAVAILABLE, "recvmsg:Connection reset by peer", Unavailable),
    ],
)
def test_error_of_the_transport_tells_whether_the_call_began(
    code: grpc.StatusCode, details: str, kind: type[MnemeshError]
) -> None:
    assert type(failed(code, details)) is kind


@pytest.mark.parametrize("error", [ServerBusy("Too many."), StorageFull("Full."), ResourceExhausted("Too large.")])
def test_exhausted_resource_keeps_its_kind_over_the_wire(error: MnemeshError) -> None:
    assert type(failed(error.code, error.message, to_trailers(error))) is type(error)
