"""The work around every call of a server: identification, deadline, errors, log and metrics.

One gRPC interceptor wraps the handler of each method once. Unary and streaming calls share the code, and a call costs
no extra task. For each call, in this order:

1. The correlation id of the caller, or a new one, becomes current.
2. The authenticated caller becomes the current principal. A call that its role does not allow ends here.
3. gRPC receives the request. It is parsed if it is not too large.
4. The remaining time of the caller becomes the limit of outgoing calls.
5. The handler runs.
6. An error becomes a status with typed details; the trace of an unexpected one is logged.
7. The call is logged in one line, and counted if metrics are configured: before the status of an error is sent, and
   after another answer.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

import grpc
import structlog
from google.protobuf.message import Message

from mnemesh_kit.access import FindOwners, RpcRule, no_owners, rule_of
from mnemesh_kit.admission import Admission, OpenService, Unreadable, bounded_parser, discard, readable
from mnemesh_kit.audit import auditing
from mnemesh_kit.auth import Authenticator
from mnemesh_kit.call_context import METADATA_KEY, current_principal, set_correlation_id, set_remaining
from mnemesh_kit.errors import (
    INTERNAL_TEXT,
    MAX_ERROR_MESSAGE_BYTES,
    Internal,
    MnemeshError,
    to_trailers,
    typed_error,
)
from mnemesh_kit.failpoints import async_failpoint
from mnemesh_kit.heavy_work import Slots
from mnemesh_kit.metrics import Metrics
from mnemesh_kit.unicode import truncated

EXEMPT: Final = ("/grpc.health.v1.", "/grpc.reflection.", "/mnemesh.server.v1.ServerService/GetServerInfo")
"""Methods that need no token, and are neither logged nor measured."""
SEARCHES: Final = 16
SEARCHES_OF_ONE: Final = 4
"""How many searches a server does at the same time: of all organizations, and of one. Each computes for long."""
_log = structlog.get_logger("mnemesh.rpc")
_REFUSED: Final = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}

Context = grpc.aio.ServicerContext[Any, Any]


class Call:
    """One call on its way through the pipeline."""

    __slots__ = ("code", "context", "method", "started")

    def __init__(self, method: str, context: Context) -> None:
        self.method = method
        self.context = context
        self.started = time.perf_counter()
        self.code = grpc.StatusCode.OK

    @property
    def seconds(self) -> float:
        """The time since its start."""
        return time.perf_counter() - self.started


class Pipeline(grpc.aio.ServerInterceptor):
    """The only interceptor of a server."""

    def __init__(
        self,
        authenticator: Authenticator,
        max_calls: int,
        metrics: Metrics | None = None,
        find_owners: FindOwners = no_owners,
    ) -> None:
        self._authenticator = authenticator
        self._admission = Admission(max_calls)
        self._metrics = metrics
        self._find_owners = find_owners
        self._handlers: dict[str, Any] = {}
        self._open_handlers: dict[str, Any] = {}
        self._open_services: dict[str, OpenService] = {}
        self._searches = Slots(SEARCHES, SEARCHES_OF_ONE)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Returns the wrapped handler of a method, the same one for every call, or one that refuses the call."""
        method = handler_call_details.method
        known = self._open_handlers.get(method)
        if known is not None:
            return known
        if method.startswith(EXEMPT):
            return await self._open(method, continuation, handler_call_details)
        metadata = dict(handler_call_details.invocation_metadata or ())
        correlation_id = metadata.get(METADATA_KEY)
        set_correlation_id(correlation_id if isinstance(correlation_id, str) else None)
        try:
            caller = self._authenticator.known(metadata) or await self._authenticator.principal(metadata)
            rule = self._admission.admit(method, caller)
        except MnemeshError as error:
            return self._refusing(method, error)
        known = self._handlers.get(method)
        if known is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            known = self._handlers[method] = self._wrapped(method, handler, rule)
        return known

    async def _open(self, method: str, continuation: Callable[..., Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        service = self._open_services.setdefault(method.split("/")[1], OpenService())
        wrapped = self._open_handlers[method] = service.wrap(handler)
        return wrapped

    def _refusing(self, method: str, error: MnemeshError) -> Any:
        """Returns a handler that ends the call without reading its request."""

        async def serve(_requests: Any, context: Context) -> None:
            call = Call(method, context)
            try:
                await self._refuse(call, error)
            finally:
                self._finish(call)

        return grpc.stream_unary_rpc_method_handler(serve)

    def _wrapped(self, method: str, handler: Any, rule: RpcRule) -> Any:
        kind = "_".join(
            "stream" if side else "unary" for side in (handler.request_streaming, handler.response_streaming)
        )
        inner = getattr(handler, kind)
        if kind == "unary_unary" and is_search(method):
            inner = self._sharing(inner)
        if rule.is_audited and handler.request_deserializer is not None:  # the owner of a forwarded method audits it
            inner = auditing(method, inner, streams_requests=handler.request_streaming)
        if handler.request_streaming:
            inner = _reading(inner, rule, streams_responses=handler.response_streaming)
        behavior = self._streaming(method, inner) if handler.response_streaming else self._single(method, inner)
        make_handler = getattr(grpc, f"{kind}_rpc_method_handler")
        return make_handler(
            behavior,
            request_deserializer=bounded_parser(method, rule, handler.request_deserializer or bytes),
            response_serializer=handler.response_serializer,
        )

    def _sharing(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a handler that waits while its organization, or all together, have enough searches open."""

        async def search(request: Any, context: Context) -> Any:
            async with self._searches.hold(current_principal().organization_id):
                return await handler(request, context)

        return search

    def _single(self, method: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        async def serve(request: Any, context: Context) -> Any:
            call = Call(method, context)
            try:
                await self._begin(call, request)
                await async_failpoint("rpc.received", method)
                response = await handler(request, context)
                await async_failpoint("rpc.before_response", method)
                return response
            except BaseException as error:
                await self._refuse(call, error)
                raise
            finally:
                self._finish(call)

        return serve

    def _streaming(self, method: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        async def serve(request: Any, context: Context) -> None:
            call = Call(method, context)
            try:
                await self._begin(call, request)
                await async_failpoint("rpc.received", method)
                result = handler(request, context)
                if inspect.isawaitable(result):
                    await result
                    return
                # Closed with the call, so that a handler's own cleanup runs when its client disconnects.
                async with aclosing(result) as messages:
                    async for message in messages:
                        await context.write(message)
            except BaseException as error:
                await self._refuse(call, error)
                raise
            finally:
                self._finish(call)

        return serve

    async def _begin(self, call: Call, request: Any) -> None:
        set_remaining(call.context.time_remaining())
        if type(request) is Unreadable:
            raise request.error
        caller = current_principal()
        # What is forwarded is not parsed here. The receiving service checks it.
        if caller.agents is not None and isinstance(request, Message):
            await rule_of(call.method).require_agents(request, caller, self._find_owners)

    async def _refuse(self, call: Call, error: BaseException) -> None:
        """Notes the status of a failed call, and ends the call with it if the handler has not done so.

        Raises:
            AbortError: the call was ended here.
        """
        answer = None
        if isinstance(error, asyncio.CancelledError):
            left = call.context.time_remaining()
            has_expired = left is not None and left <= 0
            call.code = grpc.StatusCode.DEADLINE_EXCEEDED if has_expired else grpc.StatusCode.CANCELLED
        elif isinstance(error, grpc.aio.AbortError):
            code = call.context.code()
            call.code = code if isinstance(code, grpc.StatusCode) else _CODES.get(code, grpc.StatusCode.UNKNOWN)
        elif isinstance(error, Exception):
            refusal = typed_error(error)
            if isinstance(refusal, Internal) and refusal is not error:
                _log.error("unexpected_error", method=call.method, exc_info=error)
            answer = _status(call, refusal)
            call.code = answer[0]
        self._report(call, call.seconds)
        if answer is not None:
            await call.context.abort(*answer)

    def _finish(self, call: Call) -> None:
        """Reports the end of a call that was not refused, after gRPC has its answer: the caller waits for no log."""
        if call.code is grpc.StatusCode.OK:
            asyncio.get_running_loop().call_soon(self._report, call, call.seconds)

    def _report(self, call: Call, seconds: float) -> None:
        code = call.code.name
        rule = rule_of(call.method)
        log = _log.debug if rule.is_polled and call.code is grpc.StatusCode.OK else _log.info
        who = {}
        if call.code in _REFUSED:
            log = _log.warning
            if call.code is grpc.StatusCode.PERMISSION_DENIED:
                caller = current_principal()
                who = {"organization_id": caller.organization_id, "subject_id": caller.subject_id}
        log("call", method=call.method, code=code, ms=round(seconds * 1000, 2), **who)
        if self._metrics is not None:
            self._metrics.record(call.method, code, seconds)


def is_search(method: str) -> bool:
    """Returns whether a call of a method computes for long: it compares texts or vectors, or reads all entries of the
    audit log. Embedders have own limits.
    """
    return method.rpartition("/")[2].startswith(("Search", "Grep", "Audit", "ListAudit")) and "/SearchWeb" not in method


def _reading(handler: Callable[..., Any], rule: RpcRule, *, streams_responses: bool) -> Callable[..., Any]:
    """Returns a handler of a stream of requests that refuses unreadable ones.

    After an error it reads what the client still sends: gRPC would show some clients a broken connection instead.
    """

    async def respond(requests: Any, context: Context) -> Any:
        try:
            return await handler(readable(requests, bounded=rule.bounds_stream), context)
        except Exception:
            await discard(requests)
            raise

    async def stream(requests: Any, context: Context) -> AsyncIterator[Any]:
        try:
            async with aclosing(handler(readable(requests, bounded=rule.bounds_stream), context)) as messages:
                async for message in messages:
                    yield message
        except Exception:
            await discard(requests)
            raise

    return stream if streams_responses else respond


def _status(call: Call, refusal: MnemeshError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str | bytes], ...]]:
    """Returns the status of a refused call; a fixed one if the error cannot be encoded.

    gRPC never ends a call whose `abort` raised another exception, so what it gets must be encodable.
    """
    try:
        return refusal.code, truncated(refusal.message, MAX_ERROR_MESSAGE_BYTES), to_trailers(refusal)
    except Exception:
        _log.exception("error_not_encodable", method=call.method, error_type=type(refusal).__name__)
        return grpc.StatusCode.INTERNAL, INTERNAL_TEXT, ()
