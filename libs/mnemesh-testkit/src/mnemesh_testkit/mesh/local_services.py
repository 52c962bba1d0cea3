"""The real blocks, recall, archival and tools services in this process, called without a network or files.

Each service is its own wiring over a database in memory. A call goes from the generated stub to the servicer through
`LocalChannel`, which still encodes and decodes requests and responses. Background tasks do not run.

archival opens at its first call: it takes 80 ms of CPU to create its vector index, and few tests use it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial, partialmethod
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from mnemesh_kit.call_context import Principal, Role, as_principal, current_principal
from mnemesh_kit.errors import MnemeshError, by_reason, typed_error
from mnemesh_kit.failpoints import async_failpoint
from mnemesh_kit.server import Assembly
from mnemesh_kit.time import Clock

from mnemesh_testkit.mesh.memory_indexes import INDEXES

MEMORY_URL: Final = "sqlite:///:memory:"
EMBEDDER: Final = "mnemesh/hashing-256"
ON_DEMAND: Final = {"archival"}
"""Services that open at their first call."""


@dataclass(frozen=True, slots=True)
class LocalServices:
    """Channels into the services, by name."""

    channels: "Mapping[str, LocalChannel | ChannelOnDemand]"

    def __getitem__(self, service: str) -> "LocalChannel | ChannelOnDemand":
        return self.channels[service]


@asynccontextmanager
async def local_services(
    directory: Path,
    *services: str,
    clock: Clock | None = None,
    errors: tuple[type[MnemeshError], ...] = (),
    parts: Mapping[str, Mapping[str, Any]] | None = None,
) -> AsyncIterator[LocalServices]:
    """Opens services in this process.

    Args:
        directory: of the vector indexes.
        services: their names.
        clock: of every service; None is the system's.
        errors: the caller's own error classes, as of `Channels`.
        parts: service → further arguments of its `assemble`.
    """
    async with AsyncExitStack() as stack:

        async def opened(name: str) -> LocalChannel:
            config = import_module(f"mnemesh_{name}.config").Config(
                port=0, data_dir=str(directory), database_url=MEMORY_URL, log_level="error", shutdown_grace_seconds=0,
                **({"embedder": EMBEDDER} if name in ("recall", "archival") else {}),
            )  # fmt: skip
            assemble = import_module(f"mnemesh_{name}.wiring").assemble
            indexed = {"index": INDEXES[name](directory)} if name in INDEXES else {}
            assembly = await assemble(config, clock=clock, **indexed, **(parts or {}).get(name, {}))
            return await stack.enter_async_context(
                in_process(assembly, errors=errors, background=False, role=Role.SERVICE)
            )

        channels: dict[str, LocalChannel | ChannelOnDemand] = {}
        for name in services:
            channels[name] = ChannelOnDemand(partial(opened, name)) if name in ON_DEMAND else await opened(name)
        yield LocalServices(channels)


@asynccontextmanager
async def in_process(
    assembly: Assembly,
    *,
    errors: tuple[type[MnemeshError], ...] = (),
    background: bool = True,
    role: Role | None = None,
) -> "AsyncIterator[LocalChannel]":
    """Starts the parts of a service without a server, yields a channel into them, and closes them.

    `role` is the role of every call, as the credential of a channel asserts it; None is that of the principal.
    """
    async with AsyncExitStack() as stack:
        for close in assembly.close:
            stack.push_async_callback(close)
        for hook in assembly.start:
            await hook()
        tasks = [asyncio.ensure_future(hook()) for hook in assembly.background] if background else []
        try:
            yield LocalChannel(assembly, errors, role)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class LocalChannel:
    """A channel for generated stubs that calls the servicers of an assembly directly."""

    def __init__(
        self, assembly: Assembly, errors: tuple[type[MnemeshError], ...] = (), role: Role | None = None
    ) -> None:
        self._known = by_reason(errors)
        self._role = role
        self._handlers: dict[str, Any] = {}
        for add, servicer in assembly.servicers:
            add(servicer, self)

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Ignores the handlers, which `add_registered_method_handlers` also receives."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        self._handlers |= {f"/{service}/{name}": handler for name, handler in handlers.items()}

    def _single(
        self,
        kind: str,
        method: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        _registered_method: bool = False,
    ) -> Callable[..., Any]:
        """Returns a callable from a request, or requests, to a response. It raises the errors of a `Channel`."""
        handler = self._handlers[method]

        async def call(request: Any, **_: Any) -> Any:
            await async_failpoint("call.before", method)
            try:
                received = _received(handler, request, request_serializer)
                with self._as_caller():
                    response = handler.response_serializer(await getattr(handler, kind)(received, None))
            except Exception as error:
                raise self._remote(typed_error(error)) from error
            await async_failpoint("call.after", method)
            return response_deserializer(response)

        return call

    def _streaming(
        self,
        kind: str,
        method: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        _registered_method: bool = False,
    ) -> Callable[..., Any]:
        """Returns a callable from a request, or requests, to an asynchronous iterator of responses; see `_single`."""
        handler = self._handlers[method]

        async def call(request: Any, **_: Any) -> AsyncIterator[Any]:
            await async_failpoint("call.before", method)
            with self._as_caller():
                responses = getattr(handler, kind)(_received(handler, request, request_serializer), None)
            try:
                async with aclosing(responses):
                    async for response in responses:
                        yield response_deserializer(handler.response_serializer(response))
            except Exception as error:
                raise self._remote(typed_error(error)) from error

        return call

    unary_unary = partialmethod(_single, "unary_unary")
    stream_unary = partialmethod(_single, "stream_unary")
    unary_stream = partialmethod(_streaming, "unary_stream")
    stream_stream = partialmethod(_streaming, "stream_stream")

    def _as_caller(self) -> AbstractContextManager[Principal]:
        caller = current_principal()
        return as_principal(replace(caller, role=self._role or caller.role))

    def _remote(self, error: MnemeshError) -> MnemeshError:
        """Returns the error as a caller in another process would see it."""
        kind = self._known.get(error.reason)
        if kind is None or isinstance(error, kind):
            return error
        remote = kind.__new__(kind)
        MnemeshError.__init__(remote, error.message)
        remote.code, remote.reason, remote.metadata = error.code, error.reason, dict(error.metadata)
        return remote


def _received(handler: Any, request: Any, serialize: Callable[[Any], bytes]) -> Any:
    """Returns what a server receives of a request, or of an asynchronous iterator of requests."""
    if not handler.request_streaming:
        return handler.request_deserializer(serialize(request))
    return (handler.request_deserializer(serialize(each)) async for each in request)


class ChannelOnDemand:
    """A `LocalChannel` that opens its service at the first call."""

    def __init__(self, open_: Callable[[], Awaitable[LocalChannel]]) -> None:
        self._open = open_
        self._lock = asyncio.Lock()
        self._channel: LocalChannel | None = None

    def unary_unary(self, method: str, *serializers: Any, **options: Any) -> Callable[..., Any]:
        """See LocalChannel.unary_unary."""

        async def call(request: Any, **more: Any) -> Any:
            channel = await self.open()
            return await channel.unary_unary(method, *serializers, **options)(request, **more)

        return call

    def unary_stream(self, method: str, *_: Any, **__: Any) -> Callable[..., Any]:
        """Refuses: no service that is opened at its first call has such a method."""

        def call(*_: Any, **__: Any) -> Any:
            raise NotImplementedError(method)

        return call

    stream_unary = stream_stream = unary_stream

    async def open(self) -> LocalChannel:
        async with self._lock:
            if self._channel is None:
                self._channel = await self._open()
            return self._channel
