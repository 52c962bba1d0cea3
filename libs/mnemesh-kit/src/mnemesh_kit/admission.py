"""Decides before the request of a call is read whether the call may proceed.

gRPC receives the request of a unary call before its handler runs. A refused call therefore gets a handler that reads
nothing: what the caller sends stays within the flow control window of its stream.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import grpc

from mnemesh_kit.access import RPC_RULES, UNLISTED, RpcRule
from mnemesh_kit.auth import Authenticator
from mnemesh_kit.call_context import Role, set_principal
from mnemesh_kit.errors import MnemeshError, PermissionDenied, ServerBusy, to_trailers, typed_error
from mnemesh_kit.request_bounds import readable, sized_parser

OPEN_REQUEST_BYTES: Final = 64 * 1024
"""The largest request of a method that needs no token."""
OPEN_CALLS: Final = 1_000
"""How many calls of methods that need no token may be open at the same time."""
_READERS: Final = 2
_WAITING: Final = 32
_READ_SECONDS: Final = 5.0


class Admission:
    """Authenticates callers, checks their role, and bounds the number of calls of clients."""

    def __init__(self, authenticator: Authenticator, max_calls: int) -> None:
        self._authenticator = authenticator
        self._max_calls = max_calls
        self._calls = 0

    def admit(self, method: str, metadata: Mapping[str, str | bytes]) -> RpcRule:
        """Makes the caller the current principal of this task, and returns the rule of the method.

        The call counts as open until the task ends. Services of the mesh are not counted: the calls of clients cause
        theirs.

        Raises:
            Unauthenticated: the metadata does not prove who calls.
            PermissionDenied: the role of the caller does not allow the call.
            ServerBusy: too many calls are open.
        """
        principal = self._authenticator.principal(metadata)
        set_principal(principal)
        rule = RPC_RULES.get(method, UNLISTED)
        if principal.role is Role.SERVICE:
            return rule
        if rule.role is Role.SERVICE:
            raise PermissionDenied(
                "Only services of the mesh may call this method. Use the methods of the orchestrator.",
                required_role=rule.role.value,
            )
        if self._calls >= self._max_calls:
            raise ServerBusy(
                f"{self._max_calls:,} calls are open. Try again later, or raise MNEMESH_MAX_CONCURRENT_CALLS.",
                limit=str(self._max_calls),
            )
        task = asyncio.current_task()
        if task is not None:
            self._calls += 1
            task.add_done_callback(self._leave)
        return rule

    def _leave(self, _: object) -> None:
        self._calls -= 1


class OpenService:
    """The calls of a service that needs no token: few at once may have their requests read, and these are small."""

    def __init__(self) -> None:
        self._readers = asyncio.Semaphore(_READERS)
        self._waiting = 0
        self._calls = 0

    def wrap(self, handler: Any) -> Any:
        """Returns a handler that reads requests itself, so that it can bound how many are read at the same time."""
        response = "stream" if handler.response_streaming else "unary"
        request = "stream" if handler.request_streaming else "unary"
        behavior = getattr(handler, f"{request}_{response}")

        async def serve(requests: AsyncIterator[Any], context: Any) -> Any:
            try:
                with self:
                    bounded = self._bound(readable(requests))
                    if handler.request_streaming:
                        return await _write_all(behavior(bounded, context), context)
                    async for request in bounded:
                        return await behavior(request, context)
                    raise TimeoutError
            except (MnemeshError, TimeoutError) as error:
                refusal = typed_error(error)
                await context.abort(refusal.code, refusal.message, to_trailers(refusal))

        make_handler = getattr(grpc, f"stream_{response}_rpc_method_handler")
        return make_handler(
            serve,
            request_deserializer=sized_parser(OPEN_REQUEST_BYTES, handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )

    def __enter__(self) -> None:
        """Counts a call.

        Raises:
            ServerBusy: too many calls are open.
        """
        if self._calls >= OPEN_CALLS:
            raise ServerBusy(f"{OPEN_CALLS:,} calls of this service are open. Try again later.")
        self._calls += 1

    def __exit__(self, *_: object) -> None:
        """Counts the end of a call."""
        self._calls -= 1

    async def _read(self, requests: AsyncIterator[Any]) -> Any:
        if self._waiting >= _WAITING:
            raise ServerBusy("Too many requests of this service are being read. Try again later.")
        self._waiting += 1
        try:
            async with asyncio.timeout(_READ_SECONDS), self._readers:
                return await anext(requests)
        finally:
            self._waiting -= 1

    async def _bound(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        while True:
            try:
                request = await self._read(requests)
            except (StopAsyncIteration, TimeoutError):
                return
            yield request


async def _write_all(responses: AsyncIterator[Any], context: Any) -> None:
    async for response in responses:
        await context.write(response)
