"""Every RPC that clients may call, over plain HTTP: the protocols Connect and gRPC-Web, in JSON and in binary.

One path serves all methods of all contracts. A request is decoded, called on the orchestrator with the identity of its
caller, and the response is encoded. The library speaks the protocols; it is imported with the first such request.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc
import structlog
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2
from mnemesh_kit.access import rule_of, rules_of
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.channels import Channel
from mnemesh_kit.errors import (
    DETAILS_KEY,
    DeadlineExceeded,
    InvalidArgument,
    MnemeshError,
    Unimplemented,
    to_trailers,
    typed_error,
)
from mnemesh_kit.heavy_work import ByteBudget, HeavyWork
from mnemesh_kit.json_bounds import require_bounded_json
from mnemesh_kit.outgoing import STREAM_DEADLINE_SECONDS
from mnemesh_kit.retries import service_descriptor
from mnemesh_kit.transport import MAX_MESSAGE_BYTES
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mnemesh_gateway.errors import BodyTooLarge, MethodNotAllowed, UnsupportedMediaType
from mnemesh_gateway.http.body import BODY_SECONDS, MAX_VALUES
from mnemesh_gateway.http.errors import retry_headers, status_of
from mnemesh_gateway.http.streams import encode

PREFIX: Final = "/mnemesh."
"""The beginning of the paths, which are those of gRPC: `/mnemesh.agents.v1.AgentService/GetAgent`."""
_GRPC: Final = "application/grpc"
_GRPC_WEB: Final = "application/grpc-web"
_ENVELOPE_BYTES: Final = 5
"""The frame of a message in a stream."""
_log = structlog.get_logger("mnemesh.http")


@dataclass(frozen=True, slots=True)
class Payload:
    """A message as it is on the wire."""

    data: bytes
    is_json: bool


class PayloadCodec:
    """A codec of the library that converts nothing: `ConnectApp` converts large messages in threads."""

    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        """Returns the part of the content type that names the format."""
        return self._name

    def encode(self, message: Payload) -> bytes:
        """Returns the bytes of a response."""
        return message.data

    def decode(self, data: bytes | bytearray, _message_class: type[Any]) -> Payload:
        """Returns the bytes of a request."""
        return Payload(bytes(data), is_json=self._name == "json")


@dataclass(frozen=True, slots=True)
class MethodPath:
    """The path of a method, by which its requests are logged and counted."""

    path: str


class ConnectApp:
    """Serves the methods that clients may call.

    Args:
        orchestrator: the channel to the orchestrator, which forwards the calls of other services.
        work: converts messages that are not small.
        budget: of the bytes of requests that are in memory at the same time.
    """

    def __init__(self, orchestrator: Channel, work: HeavyWork, budget: ByteBudget) -> None:
        self._orchestrator = orchestrator
        self._work = work
        self._budget = budget
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request.

        Raises:
            MethodNotAllowed: the HTTP method is not POST. A link calls nothing.
            UnsupportedMediaType: the content type is that of gRPC, which needs HTTP/2.
            Unimplemented: there is no such method for clients.
        """
        path = scope["path"]
        if scope["method"] != "POST":
            raise MethodNotAllowed(f"{path[:200]} does not take {scope['method']}. Send a POST request.")
        kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"").decode("latin-1")
        if kind.startswith(_GRPC) and not kind.startswith(_GRPC_WEB):
            raise UnsupportedMediaType("Send gRPC to the orchestrator. The gateway serves Connect and gRPC-Web.")
        app = self._app = self._app or self._create()
        rule = rule_of(path)
        if not rule.is_for_clients:
            raise Unimplemented(f"There is no method {path[:200]} for clients.")
        scope["route"] = MethodPath(path)
        limit = rule.max_request_bytes if rule.bounds_stream else None
        with self._budget.reservation(current_principal().organization_id) as reserve:
            await app(scope, _Body(receive, limit, reserve), send)

    def error_response(self, scope: Scope, error: MnemeshError) -> Response | None:
        """Returns an error that ends a request before its method is called; None for a path of another API."""
        if not scope["path"].startswith(PREFIX):
            return None
        details = [
            {"type": kind, "value": base64.b64encode(data).decode().rstrip("="), "debug": shown}
            for kind, data, shown in _details(error)
        ]
        body = {"code": _code(error), "message": error.message, "details": details}
        return Response(encode(body), status_of(error), retry_headers(error), media_type="application/json")

    def _create(self) -> ASGIApp:
        from connectrpc.server import ConnectASGIApplication  # noqa: PLC0415

        class Application(ConnectASGIApplication[None]):
            path = ""

        endpoints = {path: self._endpoint(path) for path, rule in rules_of().items() if rule.is_for_clients}
        application: Any = Application(
            service=None,
            endpoints=lambda _: endpoints,
            codecs=[PayloadCodec("json"), PayloadCodec("proto")],
            read_max_bytes=MAX_MESSAGE_BYTES,
            compressions=(),  # a compressed body would be unpacked on the event loop
        )
        return application  # type: ignore[no-any-return]

    def _endpoint(self, path: str) -> Any:
        from connectrpc.method import IdempotencyLevel, MethodInfo, StreamType  # noqa: PLC0415
        from connectrpc.server import Endpoint  # noqa: PLC0415

        _, service, name = path.split("/")
        descriptor = service_descriptor(service)
        assert descriptor is not None, path  # noqa: S101  (its code was imported)
        call = _Call(self._orchestrator, path, descriptor.methods_by_name[name], self._work)
        kind = (call.method.client_streaming, call.method.server_streaming)
        create, function, stream_type = {
            (False, False): (Endpoint.unary, call.answer, StreamType.UNARY),
            (True, False): (Endpoint.client_stream, call.answer_stream, StreamType.CLIENT_STREAM),
            (False, True): (Endpoint.server_stream, call.stream, StreamType.SERVER_STREAM),
            (True, True): (Endpoint.bidi_stream, call.stream_stream, StreamType.BIDI_STREAM),
        }[kind]
        method: MethodInfo[Payload, Payload] = MethodInfo(
            name=name,
            service_name=service,
            input=Payload,
            output=Payload,
            idempotency_level=IdempotencyLevel.UNKNOWN,
            stream_type=stream_type,
        )
        return create(method, function)  # type: ignore[operator]


class _Call:
    """The calls of one method, in each of the four forms that it can have."""

    def __init__(self, channel: Channel, path: str, method: MethodDescriptor, work: HeavyWork) -> None:
        self.method = method
        self._request = GetMessageClass(method.input_type)
        self._work = work
        kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
        response = GetMessageClass(method.output_type)
        self._rpc = getattr(channel, kind)(path, self._request.SerializeToString, response.FromString)

    async def answer(self, request: Payload, context: Any) -> Payload:
        with _connect_errors(context):
            message = await self._decode(request)
            return await self._encode(await self._rpc(message, timeout=_seconds(context)), is_json=request.is_json)

    async def answer_stream(self, requests: AsyncIterator[Payload], context: Any) -> Payload:
        sent = _Sent(requests, self._decode)
        with _connect_errors(context):
            response = await self._rpc(sent.messages(), timeout=_seconds(context))
            return await self._encode(response, is_json=sent.is_json)

    async def stream(self, request: Payload, context: Any) -> AsyncIterator[Payload]:
        with _connect_errors():
            async for response in self._rpc(await self._decode(request), timeout=_seconds(context)):
                yield await self._encode(response, is_json=request.is_json)

    async def stream_stream(self, requests: AsyncIterator[Payload], context: Any) -> AsyncIterator[Payload]:
        sent = _Sent(requests, self._decode)
        with _connect_errors():
            async for response in self._rpc(sent.messages(), timeout=_seconds(context)):
                yield await self._encode(response, is_json=sent.is_json)

    async def _decode(self, payload: Payload) -> ProtoMessage:
        caller = current_principal().organization_id
        return await self._work.run(caller, len(payload.data), _decoded, payload, self._request)

    async def _encode(self, message: ProtoMessage, *, is_json: bool) -> Payload:
        caller = current_principal().organization_id
        return await self._work.run(caller, message.ByteSize(), _encoded, message, is_json)


class _Sent:
    """The requests of a stream. Its first one tells the format of the responses."""

    def __init__(self, payloads: AsyncIterator[Payload], decode: Callable[[Payload], Awaitable[ProtoMessage]]) -> None:
        self._payloads = payloads
        self._decode = decode
        self.is_json = False

    async def messages(self) -> AsyncIterator[ProtoMessage]:
        """Yields the decoded requests."""
        async for payload in self._payloads:
            self.is_json = payload.is_json
            yield await self._decode(payload)


class _Body:
    """The body of a request as an ASGI application receives it, with bounds of its size and its time.

    The library refuses a body by an error of its own, which it answers in the form of the protocol.
    """

    def __init__(self, receive: Receive, limit: int | None, reserve: Callable[[int], None]) -> None:
        self._receive = receive
        self._limit = limit
        self._reserve = reserve
        self._size = 0
        self._is_complete = False

    async def __call__(self) -> Message:
        if self._is_complete:
            return await self._receive()
        with _connect_errors():
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    message = await self._receive()
            except TimeoutError as error:
                raise DeadlineExceeded(f"No part of the body arrived for {BODY_SECONDS:.0f} s.") from error
            size = len(message.get("body", b""))
            self._size += size
            if self._limit is not None:
                if self._size > self._limit + _ENVELOPE_BYTES:
                    raise BodyTooLarge(f"The request is larger than {self._limit:,} bytes.")
                self._reserve(size)
            self._is_complete = not message.get("more_body", False)
            return message


def _decoded(payload: Payload, kind: type[ProtoMessage]) -> ProtoMessage:
    message = kind()
    try:
        if not payload.is_json:
            message.ParseFromString(payload.data)
        elif payload.data:
            require_bounded_json(payload.data, MAX_VALUES)
            json_format.Parse(payload.data, message)
    except (json_format.ParseError, DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"The request is not a {kind.DESCRIPTOR.full_name}: {str(error)[:500]}") from error
    return message


def _encoded(message: ProtoMessage, is_json: bool) -> Payload:
    if is_json:
        return Payload(json_format.MessageToJson(message, indent=None, ensure_ascii=False).encode(), is_json=True)
    return Payload(message.SerializeToString(), is_json=False)


def _seconds(context: Any) -> float:
    """Returns the time that the caller gives the call, in seconds."""
    milliseconds = context.timeout_ms
    return STREAM_DEADLINE_SECONDS if milliseconds is None else max(milliseconds, 1) / 1000


@contextmanager
def _connect_errors(context: Any = None) -> Iterator[None]:
    """Raises the errors of a call as those of the library, with their reason, metadata and field.

    The `context` of a call that has one response receives the headers of the error.
    """
    try:
        yield
    except Exception as error:
        if context is not None and isinstance(error, MnemeshError):
            context.response_headers.update(retry_headers(error))
        failure = _connect_error(error)
        if failure is error:
            raise
        raise failure from error


def _connect_error(error: Exception) -> Exception:
    from connectrpc.code import Code  # noqa: PLC0415
    from connectrpc.errors import ConnectError  # noqa: PLC0415

    if isinstance(error, ConnectError):
        return error
    failure = typed_error(error)
    if failure is not error:
        _log.error("unexpected_error", exc_info=error)
    return ConnectError(Code(_code(failure)), failure.message, [_detail(*detail) for detail in _details(failure)])


def _detail(kind: str, data: bytes, shown: dict[str, Any]) -> Any:
    """Returns a detail of the library, which shows it in JSON without the contract of its type."""
    from connectrpc.errors import ErrorDetail  # noqa: PLC0415
    from protobuf import message_from_json_value  # noqa: PLC0415
    from protobuf.wkt import Any as AnyMessage  # noqa: PLC0415
    from protobuf.wkt import Struct  # noqa: PLC0415

    detail = ErrorDetail(AnyMessage(type_url=f"type.googleapis.com/{kind}", value=data))
    detail._message = message_from_json_value(Struct, shown)
    return detail


def _code(error: MnemeshError) -> str:
    """Returns the name of a code in Connect."""
    return "canceled" if error.code is grpc.StatusCode.CANCELLED else error.code.name.lower()


def _details(error: MnemeshError) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """Yields the google.rpc details of an error: the type, the bytes, and the contents for people."""
    trailers = dict(to_trailers(error))
    status = status_pb2.Status.FromString(trailers[DETAILS_KEY])
    for packed in status.details:
        kind = packed.type_url.rpartition("/")[2]
        message = {
            "google.rpc.ErrorInfo": error_details_pb2.ErrorInfo,
            "google.rpc.BadRequest": error_details_pb2.BadRequest,
            "google.rpc.RetryInfo": error_details_pb2.RetryInfo,
        }[kind].FromString(packed.value)
        yield kind, packed.value, json_format.MessageToDict(message)
