"""The error tree of the mesh, and the two conversions between it and a gRPC status.

MnemeshError
├── InvalidArgument ── RequestIdReused, PageTokenInvalid
├── NotFound · AlreadyExists · FailedPrecondition · Aborted · ResourceExhausted
├── Unauthenticated · PermissionDenied · Unimplemented
└── DeadlineExceeded · Unavailable · Internal
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from mnemesh_kit.correlation import current_correlation_id

DOMAIN: Final = "mnemesh"
DETAILS_KEY: Final = "grpc-status-details-bin"
# A server's word on retries in gRPC's own protocol; a negative number means: none.
PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"
# Clients accept 8 KB of trailers by default, and a message travels in them three times.
MAX_ERROR_MESSAGE_BYTES: Final = 1000
MAX_ERROR_METADATA_BYTES: Final = 2048
INTERNAL_TEXT: Final = "Internal error. The server's log has the details under this correlation id."


class MnemeshError(Exception):
    """A failure that the caller is meant to understand.

    `code` is the gRPC status, `reason` the stable name a client branches on, `metadata` its facts as strings.
    A room subclasses one of the classes below in its `errors.py` and gives it a `reason` of its own.
    """

    code: grpc.StatusCode = grpc.StatusCode.INTERNAL
    reason: str = "INTERNAL"
    final: bool = False
    """Channels do not repeat the call by themselves, though its code would have them: the server has tried enough."""

    def __init__(self, message: str, /, *, field: str | None = None, **metadata: str) -> None:
        super().__init__(message)
        self.message = message
        self.metadata: dict[str, str] = metadata if field is None else {"field": field, **metadata}

    @property
    def field(self) -> str | None:
        """The request field that was refused, where there is one."""
        return self.metadata.get("field")


class InvalidArgument(MnemeshError):
    """The request itself is wrong, whatever the state of the system."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_ARGUMENT"


class RequestIdReused(InvalidArgument):
    """The request id was used before, with other content."""

    reason = "REQUEST_ID_REUSED"


class PageTokenInvalid(InvalidArgument):
    """The page token is not one of ours, or belongs to another query."""

    reason = "PAGE_TOKEN_INVALID"


class NotFound(MnemeshError):
    """There is no such thing in the caller's organization."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "NOT_FOUND"


class AlreadyExists(MnemeshError):
    """The name or id is taken."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = "ALREADY_EXISTS"


class FailedPrecondition(MnemeshError):
    """The system is not in a state that allows this; asking again changes nothing."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "FAILED_PRECONDITION"


class Aborted(MnemeshError):
    """Somebody else was faster; look again and ask again."""

    code = grpc.StatusCode.ABORTED
    reason = "ABORTED"


class ResourceExhausted(MnemeshError):
    """A quota or a bound is used up."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "RESOURCE_EXHAUSTED"


class Unavailable(MnemeshError):
    """Nobody answered; asking again may help."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "UNAVAILABLE"


class DeadlineExceeded(MnemeshError):
    """The time that the caller gave is over; whether the effect took place is unknown."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"


class Unimplemented(MnemeshError):
    """The contract has it, this server does not yet."""

    code = grpc.StatusCode.UNIMPLEMENTED
    reason = "UNIMPLEMENTED"


class PermissionDenied(MnemeshError):
    """The caller is known, and may not."""

    code = grpc.StatusCode.PERMISSION_DENIED
    reason = "PERMISSION_DENIED"


class Unauthenticated(MnemeshError):
    """The caller did not prove who it is."""

    code = grpc.StatusCode.UNAUTHENTICATED
    reason = "UNAUTHENTICATED"


class Internal(MnemeshError):
    """A defect of the server."""

    code = grpc.StatusCode.INTERNAL
    reason = "INTERNAL"


_BY_CODE: Final[Mapping[grpc.StatusCode, type[MnemeshError]]] = {
    error.code: error
    for error in (
        InvalidArgument,
        NotFound,
        AlreadyExists,
        FailedPrecondition,
        Aborted,
        ResourceExhausted,
        Unavailable,
        DeadlineExceeded,
        Unimplemented,
        PermissionDenied,
        Unauthenticated,
        Internal,
    )
} | {grpc.StatusCode.OUT_OF_RANGE: InvalidArgument}

_KIT_REASONS: Final[Mapping[str, type[MnemeshError]]] = {
    error.reason: error for error in (RequestIdReused, PageTokenInvalid)
}

# What a handler may raise without being ours; looked up along the exception's MRO.
_FOREIGN: Final[Mapping[type[BaseException], type[MnemeshError]]] = {
    NotImplementedError: Unimplemented,
    TimeoutError: DeadlineExceeded,
}
_FOREIGN_TEXT: Final[Mapping[type[MnemeshError], str]] = {
    Unimplemented: "This server does not answer this method yet.",
    DeadlineExceeded: "The deadline passed before the work was done.",
}


def typed_error(error: BaseException) -> MnemeshError:
    """The error a caller may see for anything a handler raised. What nobody foresaw is `Internal` with a fixed text."""
    if isinstance(error, MnemeshError):
        return error
    for ancestor in type(error).__mro__:
        if (known := _FOREIGN.get(ancestor)) is not None:
            return known(_FOREIGN_TEXT[known])
    return Internal(INTERNAL_TEXT, correlation_id=current_correlation_id())


def to_trailers(error: MnemeshError) -> tuple[tuple[str, str | bytes], ...]:
    """The trailing metadata that carries `error` as google.rpc details: ErrorInfo, and BadRequest for a field.

    Message and metadata values are cut to what every client accepts.
    """
    message = truncated(error.message, MAX_ERROR_MESSAGE_BYTES)
    metadata = {key: truncated(value, MAX_ERROR_METADATA_BYTES) for key, value in error.metadata.items()}
    details = [_packed(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata))]
    if error.field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=message)
        details.append(_packed(error_details_pb2.BadRequest(field_violations=[violation])))
    status = status_pb2.Status(code=error.code.value[0], message=message, details=details)
    trailers: tuple[tuple[str, str | bytes], ...] = ((DETAILS_KEY, status.SerializeToString()),)
    return (*trailers, (PUSHBACK_KEY, "-1")) if error.final else trailers


def from_rpc_error(error: grpc.aio.AioRpcError, known: Mapping[str, type[MnemeshError]] = _KIT_REASONS) -> MnemeshError:
    """The typed error behind a failed call.

    Args:
        error: what the channel raised.
        known: error classes by reason; such an error comes back as an instance of its class, any other as the
            generic class of its status code, with `reason`, `message` and `metadata` preserved either way.
    """
    code = error.code()
    kind = _BY_CODE.get(code, Internal)
    info = _error_info(error)
    reason = info.reason if info is not None else kind.reason
    kind = known.get(reason, kind)
    result = kind.__new__(kind)
    MnemeshError.__init__(result, error.details() or code.name)
    result.code, result.reason = code, reason
    if info is not None:
        result.metadata = dict(info.metadata)
    return result


def truncated(text: str, size: int) -> str:
    """`text`, cut to `size` bytes of UTF-8 with an ellipsis at its end."""
    encoded = text.encode(errors="replace")
    return text if len(encoded) <= size else encoded[: size - 3].decode(errors="ignore") + "…"


def by_reason(errors: Iterable[type[MnemeshError]]) -> Mapping[str, type[MnemeshError]]:
    """The given classes and the kit's own, by reason."""
    return {**_KIT_REASONS, **{error.reason: error for error in errors}}


def _error_info(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo | None:
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info) and info.domain == DOMAIN:
                    return info
    return None


def _packed(message: error_details_pb2.ErrorInfo | error_details_pb2.BadRequest) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
