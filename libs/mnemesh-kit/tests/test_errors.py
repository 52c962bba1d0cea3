"""Errors of failed calls."""

import grpc
import pytest
from mnemesh_kit.errors import Internal, MnemeshError, Unavailable, from_rpc_error, to_trailers

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
