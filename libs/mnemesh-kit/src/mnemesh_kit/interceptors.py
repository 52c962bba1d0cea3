"""What happens around every call of a server, in one list: `Pipeline.around`.

The list is six context managers around the handler rather than six gRPC interceptors: the handler of a method is
wrapped once, unary and streaming calls share the code, and a call costs no extra task.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Final

import grpc
import structlog
from google.protobuf.message import DecodeError

from mnemesh_kit.auth import Authenticator
from mnemesh_kit.correlation import METADATA_KEY, set_correlation_id
from mnemesh_kit.deadline import set_remaining
from mnemesh_kit.errors import MAX_MESSAGE_BYTES, Internal, InvalidArgument, MnemeshError, clipped, to_trailers, typed
from mnemesh_kit.metrics import Metrics
from mnemesh_kit.principal import set_principal

EXEMPT: Final = ("/grpc.health.v1.", "/grpc.reflection.", "/mnemesh.server.v1.")
"""Methods that need no token, and are neither logged nor measured."""
_log = structlog.get_logger("mnemesh.rpc")
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class Unreadable:
    """Stands for a request whose bytes are no message of its method."""


_UNREADABLE: Final = Unreadable()


def _reading(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """gRPC answers INTERNAL where a deserializer raises; a caller's bytes are the caller's mistake."""
    if deserialize is None:
        return None

    def read(raw: bytes) -> Any:
        try:
            return deserialize(raw)
        except DecodeError:
            return _UNREADABLE

    return read


class Call:
    """One call on its way through the pipeline."""

    __slots__ = ("code", "context", "metadata", "method", "started")

    def __init__(self, method: str, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self.method = method
        self.context = context
        self.metadata: dict[str, str | bytes] = dict(context.invocation_metadata() or ())
        self.started = time.perf_counter()
        self.code = grpc.StatusCode.OK


@contextmanager
def correlated(call: Call) -> Iterator[None]:
    """Sets the correlation id: the one that the caller sent, or a new one."""
    offered = call.metadata.get(METADATA_KEY)
    set_correlation_id(offered if isinstance(offered, str) else None)
    yield


@contextmanager
def access_log(call: Call) -> Iterator[None]:
    """Writes one line when the call is over."""
    try:
        yield
    finally:
        milliseconds = round((time.perf_counter() - call.started) * 1000, 2)
        _log.info("call", method=call.method, code=call.code.name, ms=milliseconds)


@contextmanager
def measured(call: Call, metrics: Metrics | None) -> Iterator[None]:
    """Counts the call, where metrics are configured."""
    try:
        yield
    finally:
        if metrics is not None:
            metrics.record(call.method, call.code.name, time.perf_counter() - call.started)


@contextmanager
def errors(call: Call) -> Iterator[None]:
    """Turns whatever the handler raised into a typed error; the trace of what nobody foresaw goes to the log."""
    try:
        yield
    except asyncio.CancelledError:
        left = call.context.time_remaining()
        over = left is not None and left <= 0
        call.code = grpc.StatusCode.DEADLINE_EXCEEDED if over else grpc.StatusCode.CANCELLED
        raise
    except grpc.aio.AbortError:
        code = call.context.code()
        call.code = code if isinstance(code, grpc.StatusCode) else _CODES.get(code, grpc.StatusCode.UNKNOWN)
        raise
    except Exception as error:
        refusal = typed(error)
        if isinstance(refusal, Internal) and refusal is not error:
            _log.exception("unforeseen error", method=call.method)
        call.code = refusal.code
        if refusal is error:
            raise
        raise refusal from error


@contextmanager
def deadline(call: Call) -> Iterator[None]:
    """Makes the caller's deadline known to the calls that this one makes."""
    set_remaining(call.context.time_remaining())
    yield


@contextmanager
def authenticated(call: Call, authenticator: Authenticator) -> Iterator[None]:
    """Makes the caller the current principal."""
    set_principal(authenticator.principal(call.metadata))
    yield


class Pipeline(grpc.aio.ServerInterceptor):
    """The one interceptor of a server."""

    def __init__(self, authenticator: Authenticator, metrics: Metrics | None = None) -> None:
        self._authenticator = authenticator
        self._metrics = metrics
        self._handlers: dict[str, Any] = {}

    @contextmanager
    def around(self, call: Call) -> Iterator[None]:
        """Everything that happens around a call, outermost first."""
        with (
            correlated(call),
            access_log(call),
            measured(call, self._metrics),
            errors(call),
            deadline(call),
            authenticated(call, self._authenticator),
        ):
            yield

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Gives gRPC the wrapped handler of a method, the same at every call."""
        method = handler_call_details.method
        known = self._handlers.get(method)
        if known is not None:
            return known
        handler = await continuation(handler_call_details)
        if handler is None or method.startswith(EXEMPT):
            return handler
        wrapped = self._wrapped(method, handler)
        self._handlers[method] = wrapped
        return wrapped

    def _wrapped(self, method: str, handler: Any) -> Any:
        kind = "_".join(
            "stream" if side else "unary" for side in (handler.request_streaming, handler.response_streaming)
        )
        inner = getattr(handler, kind)
        behavior = self._streaming(method, inner) if handler.response_streaming else self._single(method, inner)
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        read = handler.request_deserializer
        return make(
            behavior,
            request_deserializer=read if handler.request_streaming else _reading(read),
            response_serializer=handler.response_serializer,
        )

    def _single(self, method: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        async def answer(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            try:
                with self.around(Call(method, context)):
                    _require_readable(request)
                    return await handler(request, context)
            except MnemeshError as error:
                await context.abort(error.code, clipped(error.message, MAX_MESSAGE_BYTES), to_trailers(error))

        return answer

    def _streaming(self, method: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        async def answer(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            try:
                with self.around(Call(method, context)):
                    _require_readable(request)
                    result = handler(request, context)
                    if inspect.isawaitable(result):
                        await result
                        return
                    # Closed with the call, so that a handler's own cleanup runs when its client goes away.
                    async with aclosing(result) as messages:
                        async for message in messages:
                            await context.write(message)
            except MnemeshError as error:
                await context.abort(error.code, clipped(error.message, MAX_MESSAGE_BYTES), to_trailers(error))

        return answer


def _require_readable(request: Any) -> None:
    if request is _UNREADABLE:
        raise InvalidArgument("The request's bytes are no message of this method; strings must be valid UTF-8.")
