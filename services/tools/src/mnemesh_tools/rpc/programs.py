"""The conversation of a program with its caller: calls of tools one way, their results the other way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Final

from mnemesh.tools.v1 import execution_service_pb2 as pb
from mnemesh_kit.errors import InvalidArgument
from mnemesh_sandbox.calls import ToolAnswer, ToolCall

_CLOSED: Final = "The caller does not answer calls any more."


class CallExchange:
    """Passes calls to the caller of an RPC, and results back to the program."""

    def __init__(self, requests: AsyncIterator[pb.RunCodeWithToolsRequest]) -> None:
        self._requests = requests
        self.outgoing: asyncio.Queue[pb.CodeToolCall] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[ToolAnswer]] = {}
        self._closed = False
        self._last = 0

    async def start(self) -> pb.RunCodeStart:
        """Returns the first request.

        Raises:
            InvalidArgument: There is none, or it does not start a program.
        """
        first = await anext(self._requests, None)
        if first is None or first.WhichOneof("message") != "start":
            raise InvalidArgument("The first request must have start.", field="start")
        return first.start

    async def answer(self, call: ToolCall) -> ToolAnswer:
        """Passes a call to the caller and returns its result."""
        if self._closed:
            return ToolAnswer(False, _CLOSED)
        self._last += 1
        number = self._last
        result: asyncio.Future[ToolAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = result
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        self.outgoing.put_nowait(pb.CodeToolCall(call_id=number, name=call.name, arguments=arguments))
        try:
            return await result
        finally:
            del self._waiting[number]

    async def read(self) -> None:
        """Reads results until the caller closes its side.

        Raises:
            InvalidArgument: A request is not the result of a call that waits.
        """
        try:
            async for request in self._requests:
                waiting = self._waiting.get(request.result.call_id)
                if request.WhichOneof("message") != "result" or waiting is None or waiting.done():
                    raise InvalidArgument("result must name a call that waits for it.", field="result.call_id")
                waiting.set_result(ToolAnswer(request.result.ok, request.result.text))
        finally:
            self._closed = True
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_result(ToolAnswer(False, _CLOSED))
