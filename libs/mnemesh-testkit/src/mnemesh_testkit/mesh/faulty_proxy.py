"""A proxy in front of a service that makes single methods fail as networks do. It forwards bytes unchanged."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from mnemesh_kit.transport import CHANNEL_OPTIONS, MAX_MESSAGE_BYTES, server_options


class ReservedPort:
    """A free port that is bound without listening: no other process gets it, and a server can still bind it."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"127.0.0.1:{self.number}"

    def release(self) -> None:
        self._socket.close()


_HOP_HEADERS = ("user-agent", "grpc-", ":")


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The call does not reach the service."""

    status: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE


@dataclass(frozen=True, slots=True)
class Delay:
    """The call reaches the service after a delay."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ExecuteThenTimeout:
    """The call reaches the service and takes effect, but its response is lost."""

    status: grpc.StatusCode = grpc.StatusCode.DEADLINE_EXCEEDED


@dataclass(frozen=True, slots=True)
class Hold:
    """The call waits in front of the service until it is released. `reached` is set when it waits.

    With `executed`, the call has taken effect, and its response waits.
    """

    executed: bool = False
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)


Fault = Unavailable | Delay | ExecuteThenTimeout | Hold


class FaultyProxy(grpc.GenericRpcHandler):
    """Listens on its own address in front of the service at `target`; an async context manager.

    `calls` counts the received calls by method name.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._port = ReservedPort()
        self._faults: dict[str, list[Fault]] = {}
        self.calls: Counter[str] = Counter()

    @property
    def address(self) -> str:
        """The address at which it listens."""
        return self._port.address

    async def __aenter__(self) -> "FaultyProxy":
        """Starts to listen. The service may start later."""
        options = [option for option in CHANNEL_OPTIONS if "reconnect_backoff" not in option[0]]
        options += [("grpc.enable_retries", 0), ("grpc.initial_reconnect_backoff_ms", 50)]
        options += [("grpc.min_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]
        self._channel = grpc.aio.insecure_channel(self._target, options=options)
        self._server = grpc.aio.server(options=server_options(MAX_MESSAGE_BYTES))
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(self.address)
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Aborts the running calls."""
        self.clear()
        await self._server.stop(0)
        await self._channel.close()
        self._port.release()

    def inject(self, method: str, fault: Fault, times: int = 1) -> Fault:
        """Applies the fault to the next `times` calls of `method` ("CommitStep"; "*" is any). Returns the fault."""
        self._faults.setdefault(method, []).extend([fault] * times)
        return fault

    def hold(self, method: str, *, executed: bool = False) -> Hold:
        """Holds the next call of `method`; see `Hold`."""
        hold = Hold(executed)
        self.inject(method, hold)
        return hold

    def clear(self) -> None:
        """Removes all faults and releases the held calls."""
        for faults in self._faults.values():
            for fault in faults:
                if isinstance(fault, Hold):
                    fault.release.set()
        self._faults.clear()

    def service(self, handler_call_details: Any) -> Any:
        """Returns the handler of every method."""
        path = handler_call_details.method

        async def carry(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async for answer in self._carry(path, requests, context):
                yield answer

        return grpc.stream_stream_rpc_method_handler(carry)

    def _due(self, method: str) -> Fault | None:
        for key in (method, "*"):
            faults = self._faults.get(key)
            if faults:
                return faults.pop(0)
        return None

    async def _carry(self, path: str, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        method = path.rpartition("/")[2]
        self.calls[method] += 1
        fault = self._due(method)
        if isinstance(fault, Unavailable):
            await context.abort(fault.status, "The service is unavailable.")
        if isinstance(fault, Delay):
            await asyncio.sleep(fault.seconds)
        if isinstance(fault, Hold) and not fault.executed:
            await _held(fault)
        metadata = [(key, value) for key, value in context.invocation_metadata() if not key.startswith(_HOP_HEADERS)]
        left = context.time_remaining()
        call: Any = self._channel.stream_stream(path)(requests, metadata=metadata, timeout=left)  # type: ignore[arg-type]
        lost = fault if isinstance(fault, ExecuteThenTimeout) else None
        kept = fault if isinstance(fault, Hold) and fault.executed else None
        try:
            answers = [answer async for answer in call] if lost or kept else None
            if lost is not None:
                await context.abort(lost.status, "The response was lost.")
            if kept is not None:
                await _held(kept)
            if answers is not None:
                for answer in answers:
                    yield answer
            else:
                async for answer in call:
                    yield answer
            context.set_trailing_metadata(tuple(await call.trailing_metadata()))
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata()))
        finally:
            call.cancel()


async def _held(fault: Hold) -> None:
    fault.reached.set()
    await fault.release.wait()
