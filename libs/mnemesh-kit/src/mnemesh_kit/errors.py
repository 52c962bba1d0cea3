"""The errors that cross the mesh, and their conversion to and from gRPC statuses.

Each class has one gRPC code. A service adds subclasses with reasons of its own in its `errors.py`:

    MnemeshError
     ├─ InvalidArgument            the request is wrong in itself
     │   ├─ RequestIdReused        its request_id was used for other content
     │   └─ PageTokenInvalid       its page_token belongs to another list
     ├─ Unauthenticated            the caller has not proved who it is
     ├─ PermissionDenied           the caller may not do this
     ├─ NotFound                   the organization has no such resource
     ├─ AlreadyExists              the id or the name is taken
     ├─ FailedPrecondition         the state of the resource does not allow this
     ├─ Aborted                    a concurrent change came first
     ├─ ResourceExhausted          a quota or a limit is reached
     │   ├─ StorageFull            a disk of the service is full or read-only
     │   └─ ServerBusy             the server has too much to do
     ├─ Unimplemented              the contract has the method, the server does not
     ├─ DeadlineExceeded           the caller's time is over; the effect is unknown
     ├─ Unavailable                the server or one of its dependencies does not answer
     │   └─ Unreachable            no connection to the server could be made
     └─ Internal                   a defect of the server

A client retries Unavailable and DeadlineExceeded with the same `request_id`, StorageFull and ServerBusy later, and
Aborted after it has read the current state. It corrects the request after InvalidArgument and its subclasses. No other
error goes away by itself.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from mnemesh_kit.call_context import current_correlation_id
from mnemesh_kit.unicode import truncated, well_formed

DOMAIN: Final = "mnemesh"
DETAILS_KEY: Final = "grpc-status-details-bin"
# gRPC's own protocol: a negative number forbids the channel to retry the call.
PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"
# Clients accept 8 KB of trailers by default, and the trailers contain the message three times.
MAX_ERROR_MESSAGE_BYTES: Final = 1000
MAX_ERROR_METADATA_BYTES: Final = 2048
MAX_RETRY_SECONDS: Final = 366 * 86_400.0
INTERNAL_TEXT: Final = "Internal error. The server's log has the details under this correlation id."


class MnemeshError(Exception):
    """The base of all errors that a caller may see.

    Example:
        >>> class BlockNotFound(NotFound):
        ...     reason = "BLOCK_NOT_FOUND"
        ...     def __init__(self, block_id: str) -> None:
        ...         super().__init__(f"There is no block {block_id}.", resource_id=block_id)
    """

    code: grpc.StatusCode = grpc.StatusCode.INTERNAL
    """The gRPC status code."""
    reason: str = "INTERNAL"
    """The stable name of the problem, by which clients tell errors apart."""
    final: bool = False
    """True forbids channels to retry the call, although its code allows it: the server has already retried enough."""
    retry_seconds: float | None = None
    """The seconds after which a retry may succeed, unless the metadata has others as `retry_after_seconds`."""

    def __init__(self, message: str, /, *, field: str | None = None, **metadata: str) -> None:
        """Creates an error.

        Args:
            message: one or two sentences for people: the problem, and what to do about it.
            field: the path of the request field that is refused, such as `filter.start_date`.
            metadata: the facts of the error for programs, such as ids and limits.

        Message and metadata are made well-formed, because they often quote what a caller or a provider sent.
        """
        message = well_formed(message)
        super().__init__(message)
        self.message = message
        given = metadata if field is None else {"field": field, **metadata}
        self.metadata: dict[str, str] = {key: well_formed(value) for key, value in given.items()}

    @property
    def field(self) -> str | None:
        """The path of the refused request field, if there is one."""
        return self.metadata.get("field")

    @property
    def retry_after_seconds(self) -> float | None:
        """The seconds after which a retry may succeed; None if nothing says so."""
        try:
            seconds = float(self.metadata["retry_after_seconds"])
        except (KeyError, ValueError):
            return self.retry_seconds
        return seconds if 0 <= seconds <= MAX_RETRY_SECONDS else None


class InvalidArgument(MnemeshError):
    """The request is wrong in itself, whatever the state of the system."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_ARGUMENT"


class RequestIdReused(InvalidArgument):
    """The request id was used before with other content."""

    reason = "REQUEST_ID_REUSED"


class PageTokenInvalid(InvalidArgument):
    """The page token was not issued by this server, or belongs to another query."""

    reason = "PAGE_TOKEN_INVALID"


class NotFound(MnemeshError):
    """The caller's organization has no such resource."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "NOT_FOUND"


class AlreadyExists(MnemeshError):
    """The id or the name is taken."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = "ALREADY_EXISTS"


class FailedPrecondition(MnemeshError):
    """The state of the system does not allow this. A retry fails in the same way."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "FAILED_PRECONDITION"


class Aborted(MnemeshError):
    """A concurrent change came first. Read the current state, then retry."""

    code = grpc.StatusCode.ABORTED
    reason = "ABORTED"


class ResourceExhausted(MnemeshError):
    """A quota or a limit is reached."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "RESOURCE_EXHAUSTED"


class StorageFull(ResourceExhausted):
    """A disk of the service is full or read-only. A retry succeeds once it can be written again."""

    reason = "STORAGE_FULL"


class ServerBusy(ResourceExhausted):
    """The server has too many calls open. The call did not begin. A retry succeeds once the load is lower."""

    reason = "SERVER_BUSY"
    retry_seconds = 1.0


class Unavailable(MnemeshError):
    """The server or one of its dependencies does not answer. A retry may succeed."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "UNAVAILABLE"


class Unreachable(Unavailable):
    """No connection to the server could be made, so the call did not begin. Only a channel raises it."""


class DeadlineExceeded(MnemeshError):
    """The caller's deadline has passed. The effect may or may not have taken place."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"


TEMPORARY: Final = (Unavailable, DeadlineExceeded, StorageFull, ServerBusy)
"""The errors of the infrastructure: the request is right, and the same request succeeds once the mesh is well again."""
NOT_BEGUN: Final = (Unreachable, ServerBusy)
"""Those after which it is certain that the call had no effect, so that any call may be repeated."""


class Unimplemented(MnemeshError):
    """The contract has the method, but this server does not."""

    code = grpc.StatusCode.UNIMPLEMENTED
    reason = "UNIMPLEMENTED"


class PermissionDenied(MnemeshError):
    """The caller is known, but may not do this."""

    code = grpc.StatusCode.PERMISSION_DENIED
    reason = "PERMISSION_DENIED"


class Unauthenticated(MnemeshError):
    """The caller has not proved who it is."""

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
    error.reason: error for error in (RequestIdReused, PageTokenInvalid, StorageFull, ServerBusy)
}

# Other exceptions that a handler may raise, looked up along the exception's MRO.
_FOREIGN: Final[Mapping[type[BaseException], type[MnemeshError]]] = {
    NotImplementedError: Unimplemented,
    TimeoutError: DeadlineExceeded,
}
_FOREIGN_TEXT: Final[Mapping[type[MnemeshError], str]] = {
    Unimplemented: "This server does not implement this method.",
    DeadlineExceeded: "The deadline passed before the work was done.",
}


def typed_error(error: BaseException) -> MnemeshError:
    """Returns the error that a caller may see for any exception of a handler.

    An unexpected exception becomes `Internal` with a fixed text and the correlation id, so that no detail leaks.
    """
    if isinstance(error, MnemeshError):
        return error
    for ancestor in type(error).__mro__:
        if (known := _FOREIGN.get(ancestor)) is not None:
            return known(_FOREIGN_TEXT[known])
    return Internal(INTERNAL_TEXT, correlation_id=current_correlation_id())


def to_trailers(error: MnemeshError) -> tuple[tuple[str, str | bytes], ...]:
    """Returns trailing metadata with `error` as google.rpc details: ErrorInfo, BadRequest if it names a field, and
    RetryInfo if it says when a retry may succeed.

    The message and the values of the metadata are truncated to sizes that every client accepts.
    """
    message = truncated(error.message, MAX_ERROR_MESSAGE_BYTES)
    metadata = {key: truncated(value, MAX_ERROR_METADATA_BYTES) for key, value in error.metadata.items()}
    details = [_packed(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata))]
    if error.field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=message)
        details.append(_packed(error_details_pb2.BadRequest(field_violations=[violation])))
    if (seconds := error.retry_after_seconds) is not None:
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=timedelta(seconds=seconds))))
    status = status_pb2.Status(code=error.code.value[0], message=message, details=details)
    trailers: tuple[tuple[str, str | bytes], ...] = ((DETAILS_KEY, status.SerializeToString()),)
    return (*trailers, (PUSHBACK_KEY, "-1")) if error.final else trailers


_BROKEN_CONNECTION: Final = "Internal error from Core"
"""The details with which gRPC's client ends a call as INTERNAL if the connection breaks during an operation."""
_NO_CONNECTION: Final = (
    "failed to connect to all addresses",
    "connections to all backends failing",
    "errors resolving ",
    "DNS resolution failed",
)
"""How the details begin if a call found no connection."""
_TOO_LARGE: Final = "larger than max"
"""Part of the details with which gRPC refuses a message for its size. The same message is refused again."""


def from_rpc_error(
    error: grpc.aio.AioRpcError | grpc.RpcError, known: Mapping[str, type[MnemeshError]] = _KIT_REASONS
) -> MnemeshError:
    """Returns the typed error of a failed call, with the server's `reason`, `message` and `metadata`.

    Args:
        error: the error that the channel raised.
        known: error classes by reason. An error with another reason is an instance of the class of its status code.
    """
    call: Any = error  # of both kinds of channels; the stubs of grpc do not say so
    info = _error_info(call)
    code, details = call.code(), call.details()
    if info is None and code is grpc.StatusCode.INTERNAL and details == _BROKEN_CONNECTION:
        code = grpc.StatusCode.UNAVAILABLE
    kind = _BY_CODE.get(code, Internal)
    if info is None:
        kind = _kind_of_transport(kind, details or "")
    reason = info.reason if info is not None else kind.reason
    kind = known.get(reason, kind)
    result = kind.__new__(kind)
    MnemeshError.__init__(result, details or code.name)
    result.code, result.reason = code, reason
    if info is not None:
        result.metadata = dict(info.metadata)
    return result


def _kind_of_transport(kind: type[MnemeshError], details: str) -> type[MnemeshError]:
    """Returns the kind of an error that no service raised, but gRPC itself or a proxy."""
    if kind is ResourceExhausted and _TOO_LARGE not in details:
        return ServerBusy
    return Unreachable if kind is Unavailable and details.startswith(_NO_CONNECTION) else kind


def by_reason(errors: Iterable[type[MnemeshError]]) -> Mapping[str, type[MnemeshError]]:
    """Returns the given classes and those of the kit by their reasons."""
    return {**_KIT_REASONS, **{error.reason: error for error in errors}}


def _error_info(call: Any) -> error_details_pb2.ErrorInfo | None:
    for key, value in call.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info) and info.domain == DOMAIN:
                    return info
    return None


def _packed(message: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
