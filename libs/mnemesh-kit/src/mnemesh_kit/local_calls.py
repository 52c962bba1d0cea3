"""Calls between services of one process, without sockets.

A call goes through the same pipeline as one that arrives over gRPC: it has metadata, a deadline, a task of its own, and
ends with a status. Requests and responses are encoded and decoded, so that neither side sees what the other changes,
and the bounds of their sizes hold.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import grpc

from mnemesh_kit.call_context import service_context
from mnemesh_kit.errors import PUSHBACK_KEY
from mnemesh_kit.network import is_loopback
from mnemesh_kit.retries import ATTEMPTS, RETRIES, is_repeatable, service_descriptor
from mnemesh_kit.tls.credentials import host_of
from mnemesh_kit.transport import MAX_MESSAGE_BYTES

UNREAD: Final = 16
"""How many requests or responses of a stream its sender may be ahead of its receiver."""
_END: Final = object()
_NO_METADATA: Final = grpc.aio.Metadata()

Metadata = Sequence[tuple[str, str | bytes]]


class LocalServers:
    """The servers of this process by their addresses, while they serve."""

    def __init__(self) -> None:
        self._servers: dict[str, LocalServer] = {}

    def add(self, address: str, server: "LocalServer") -> None:
        """Adds the server that listens on an address, `host:port`."""
        self._servers[_key(address)] = server

    def remove(self, address: str) -> None:
        """Removes a server, whose new calls go over its socket from then on."""
        self._servers.pop(_key(address), None)

    def at(self, target: str) -> "LocalServer | None":
        """Returns the server that a client of this machine reaches at a target."""
        return self._servers.get(_key(target))


@lru_cache(maxsize=1024)
def _key(address: str) -> str:
    """Returns the port of an address of this machine, or the address itself."""
    host = host_of(address).strip("[]")
    is_own = host in ("0.0.0.0", "::") or is_loopback(host)  # noqa: S104  (an address that is compared)
    return address.rpartition(":")[2] if is_own else address


class _Details(NamedTuple):
    method: str
    invocation_metadata: Metadata


class LocalServer:
    """Runs calls of this process in the pipeline of a server."""

    def __init__(self, name: str, pipeline: grpc.aio.ServerInterceptor) -> None:
        self._name = name
        self._pipeline = pipeline
        self._services: list[grpc.GenericRpcHandler] = []
        self._handlers: dict[str, Any] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Adds the handlers of a service, as generated code does."""
        self._services += handlers

    def add_registered_method_handlers(self, service_name: str, handlers: Mapping[str, Any]) -> None:
        """Adds nothing: the handlers of the service contain these."""

    def find(self, method: str) -> Any:
        """Returns the handler of a method, or None."""
        if method not in self._handlers:
            details: Any = _Details(method, ())
            found = (service.service(details) for service in self._services)
            self._handlers[method] = next((handler for handler in found if handler is not None), None)
        return self._handlers[method]

    def start(self, context: "LocalContext") -> asyncio.Task[Any]:
        """Runs a call in a task. It inherits nothing of its caller but what the metadata say."""
        task = asyncio.get_running_loop().create_task(self._run(context), context=service_context(self._name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self, grace_seconds: float) -> None:
        """Waits until the running calls end, and cancels those that take longer."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=grace_seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _run(self, context: "LocalContext") -> Any:
        details: Any = _Details(context.method, context.metadata)
        handler: Any = await self._pipeline.intercept_service(self._find, details)
        parse, serialize = handler.request_deserializer or bytes, handler.response_serializer or bytes
        requests: Any
        if handler.request_streaming:
            requests = (parse(data) async for data in context.requests())
        else:
            requests = parse(await context.sent.take())  # a generator that is not exhausted costs a task
        if handler.response_streaming:
            behavior = handler.stream_stream if handler.request_streaming else handler.unary_stream
            context.serialize = serialize
            await behavior(requests, context)
            return None
        behavior = handler.stream_unary if handler.request_streaming else handler.unary_unary
        return serialize(await behavior(requests, context))

    async def _find(self, details: Any) -> Any:
        return self.find(details.method)


class LocalContext:
    """The context of one call: what handlers and the pipeline use of gRPC's, and the streams between the two sides."""

    def __init__(self, method: str, metadata: Metadata, deadline: float | None) -> None:
        self.method = method
        self.metadata = metadata
        self.serialize: Callable[[Any], bytes] = bytes
        self.status: tuple[grpc.StatusCode, str, Metadata] = (grpc.StatusCode.OK, "", ())
        self.sent = _Pipe()
        self.written = _Pipe()
        self.deadline = deadline
        self._loop = asyncio.get_running_loop()

    def invocation_metadata(self) -> Metadata:
        """Returns the metadata of the caller."""
        return self.metadata

    def time_remaining(self) -> float | None:
        """Returns the seconds until the deadline of the call; None if it has none."""
        return None if self.deadline is None else max(0.0, self.deadline - self._loop.time())

    def code(self) -> grpc.StatusCode:
        return self.status[0]

    def set_code(self, code: grpc.StatusCode) -> None:
        """Sets the status of a failing call."""
        self.status = (code, *self.status[1:])

    def set_details(self, details: str) -> None:
        """Sets the text of the status."""
        self.status = (self.status[0], details, self.status[2])

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> None:
        """Ends the call with a status. Raises AbortError."""
        self.status = (code, details, trailing_metadata)
        raise grpc.aio.AbortError

    async def write(self, message: Any) -> None:
        """Sends a response of a stream; waits while the caller is late."""
        await self.written.put(self.serialize(message))

    async def requests(self) -> AsyncIterator[bytes]:
        while (data := await self.sent.take()) is not _END:
            yield data


class _Pipe:
    """The messages of one direction of a call: a bounded queue that ends."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._has_ended = False

    async def put(self, item: bytes) -> None:
        while len(self._items) >= UNREAD:
            await self._wait()
        self.put_now(item)

    def put_now(self, item: bytes) -> None:
        self._items.append(item)
        self._wake()

    def end(self) -> None:
        self._has_ended = True
        self._wake()

    async def take(self) -> Any:
        while not self._items:
            if self._has_ended:
                return _END
            await self._wait()
        item = self._items.popleft()
        self._wake()
        return item

    async def _wait(self) -> None:
        # One side waits at a time: the sender while the pipe is full, or the receiver while it is empty.
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class LocalMethod:
    """A method of a channel: calls a server of this process, or the same method over gRPC if none has the address."""

    def __init__(
        self,
        servers: LocalServers,
        target: str,
        kind: str,
        method: str,
        coding: tuple[Callable[[Any], bytes] | None, Callable[[bytes], Any] | None],
        connect: Callable[[], Any],
    ) -> None:
        """Prepares the calls of a method.

        Args:
            servers: the servers of this process.
            target: the address to call.
            kind: `unary_unary`, `unary_stream`, `stream_unary` or `stream_stream`.
            method: the path of the method.
            coding: the serializer of requests and the deserializer of responses.
            connect: returns the callable of gRPC.
        """
        self._servers, self._target, self._method = servers, target, method
        self._serialize, self._parse = (each or bytes for each in coding)
        self._connect = connect
        self._over_grpc: Any = None
        self._streams_requests = kind.startswith("stream")
        self._streams_responses = kind.endswith("stream")
        service, name = method.split("/")[1:]
        descriptor = service_descriptor(service)
        may_repeat = descriptor is not None and is_repeatable(descriptor.methods_by_name[name])
        self._attempts = ATTEMPTS if may_repeat and kind == "unary_unary" else 1

    def __call__(self, request: Any, *, timeout: float | None = None, metadata: Metadata = (), **options: Any) -> Any:
        """Returns the call, as a callable of gRPC does."""
        server = self._servers.at(self._target)
        if server is None or server.find(self._method) is None:
            if self._over_grpc is None:
                self._over_grpc = self._connect()
            return self._over_grpc(request, timeout=timeout, metadata=metadata, **options)
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        begin = partial(self._begin, server, deadline=deadline, metadata=metadata)
        if self._streams_responses:
            return begin(request) if self._streams_requests else begin(self._serialize(request))
        return self._answer(begin, request)

    def _begin(self, server: LocalServer, request: Any, *, deadline: float | None, metadata: Metadata) -> "LocalCall":
        context = LocalContext(self._method, metadata, deadline)
        sending = None
        if self._streams_requests:
            sending = asyncio.ensure_future(self._send(request, context))
        else:
            context.sent.put_now(request)
            context.sent.end()
        return LocalCall(server, context, sending, self._parse)

    async def _answer(self, begin: Callable[[Any], "LocalCall"], request: Any) -> Any:
        """Returns the response. Repeats a call that may be repeated while the server is unavailable, as gRPC does."""
        data = request if self._streams_requests else self._serialize(request)
        for attempt in range(1, self._attempts + 1):
            try:
                return await begin(data).answer()
            except grpc.aio.AioRpcError as error:
                is_final = any(key == PUSHBACK_KEY for key, _ in error.trailing_metadata())
                if error.code() is not grpc.StatusCode.UNAVAILABLE or is_final or attempt == self._attempts:
                    raise
            await asyncio.sleep(RETRIES.delay(attempt))
        raise AssertionError

    async def _send(self, requests: AsyncIterable[Any] | Iterable[Any], context: LocalContext) -> None:
        """Sends the requests of a stream, which may be of both kinds of iterators, as with gRPC."""
        if isinstance(requests, AsyncIterable):
            async for request in requests:
                await context.sent.put(self._serialize(request))
        else:
            for request in requests:
                await context.sent.put(self._serialize(request))
        context.sent.end()


class LocalCall:
    """A running call, seen from its caller."""

    def __init__(
        self,
        server: LocalServer,
        context: LocalContext,
        sending: asyncio.Task[None] | None,
        parse: Callable[[bytes], Any],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._context = context
        self._sending = sending
        self._parse = parse
        self._has_expired = False
        self._over: asyncio.Future[None] = loop.create_future()
        self._task = server.start(context)
        self._timer = None if context.deadline is None else loop.call_at(context.deadline, self._expire)
        self._task.add_done_callback(self._finish)
        if sending is not None:
            sending.add_done_callback(self._stop_without_requests)

    def cancel(self) -> bool:
        """Cancels the call. Returns False if it is over."""
        return self._task.cancel()

    async def answer(self) -> Any:
        """Returns the only response. Raises AioRpcError. A cancelled caller cancels the call."""
        try:
            await self._over
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        return self._read(self._result())

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Yields the responses; that of a method without a stream, too. Raises AioRpcError when a failed call ends."""
        try:
            while (data := await self._context.written.take()) is not _END:
                yield self._read(data)
            only = self._result()
            if only is not None:
                yield self._read(only)
        finally:
            self._task.cancel()

    def _stop_without_requests(self, sending: asyncio.Task[None]) -> None:
        """Cancels the call if the iterator of its requests has raised."""
        if not sending.cancelled() and sending.exception() is not None:
            self._task.cancel()

    def _expire(self) -> None:
        self._has_expired = True
        self._task.cancel()
        self._end()

    def _finish(self, task: asyncio.Task[Any]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()
        if not task.cancelled():
            task.exception()  # it is read here, so that asyncio does not report it
        self._end()

    def _end(self) -> None:
        """Lets the caller go on. A call whose time is over may still run, as one of another process."""
        self._context.written.end()
        if not self._over.done():
            self._over.set_result(None)

    def _result(self) -> Any:
        """Returns the result of the handler. Raises AioRpcError."""
        if self._has_expired:
            raise _error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        if self._sending is not None and self._sending.done() and not self._sending.cancelled():
            self._sending.result()  # raises the error of the iterator of requests
        if self._task.cancelled():
            raise _error(grpc.StatusCode.CANCELLED, "The call was cancelled.")
        if self._task.exception() is not None:
            raise _error(*self._context.status)
        return self._task.result()

    def _read(self, data: bytes) -> Any:
        if len(data) > MAX_MESSAGE_BYTES:
            details = f"Received message larger than max ({len(data)} vs. {MAX_MESSAGE_BYTES})"
            raise _error(grpc.StatusCode.RESOURCE_EXHAUSTED, details)
        return self._parse(data)


def _error(code: grpc.StatusCode, details: str, trailers: Metadata = ()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, _NO_METADATA, grpc.aio.Metadata(*trailers), details)
