"""The servicer of `mnemesh.tools.v1.ExecutionService`: decodes, calls a use case, encodes."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
from mnemesh.tools.v1 import execution_service_pb2 as pb
from mnemesh.tools.v1 import execution_service_pb2_grpc
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import InvalidArgument
from mnemesh_sandbox.calls import ToolAnswer, ToolCall
from mnemesh_types.tools import AdHocTool

from mnemesh_tools.rpc.convert.executions import (
    code_run_to_proto,
    execution_to_proto,
    invocation_from_proto,
    program_from_proto,
)
from mnemesh_tools.usecases.executions import ExecutionService, ProgramService

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


Context = grpc.aio.ServicerContext[Any, Any]


class ExecutionServicer(execution_service_pb2_grpc.ExecutionServiceServicer):
    """Serves `mnemesh.tools.v1.ExecutionService`."""

    def __init__(self, service: ExecutionService, programs: ProgramService) -> None:
        self._service = service
        self._programs = programs

    async def ExecuteTool(self, request: pb.ExecuteToolRequest, context: Context) -> pb.ExecuteToolResponse:
        caller, invocation = current_principal(), invocation_from_proto(request)
        match request.WhichOneof("tool"):
            case "tool_id":
                execution = await self._service.execute_tool(caller, request.tool_id, invocation)
            case "ad_hoc":
                tool = AdHocTool.from_proto(request.ad_hoc, "ad_hoc")
                execution = await self._service.execute_ad_hoc_tool(caller, tool, invocation)
            case _:
                raise InvalidArgument("tool must be set to tool_id or ad_hoc.", field="tool_id")
        return execution_to_proto(execution)

    async def RunCode(self, request: pb.RunCodeRequest, context: Context) -> pb.RunCodeResponse:
        execution = await self._programs.run(current_principal(), program_from_proto(request))
        return code_run_to_proto(execution)

    async def RunCodeWithTools(
        self, requests: AsyncIterator[pb.RunCodeWithToolsRequest], context: Context
    ) -> AsyncIterator[pb.RunCodeWithToolsResponse]:
        """Executes a program, and passes its calls of tools to the caller."""
        exchange = CallExchange(requests)
        start = await exchange.start()
        program = program_from_proto(start.program, start.tools)
        running = asyncio.create_task(self._programs.run(current_principal(), program, exchange.answer))
        reading = asyncio.create_task(exchange.read())
        calling = asyncio.create_task(exchange.outgoing.get())
        try:
            while not running.done():
                waiting = {running, calling} if reading.done() else {running, calling, reading}
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    reading.result()  # raises for a request that is not valid
                if calling.done():
                    yield pb.RunCodeWithToolsResponse(call=calling.result())
                    calling = asyncio.create_task(exchange.outgoing.get())
            yield pb.RunCodeWithToolsResponse(result=code_run_to_proto(running.result()))
        finally:
            for task in (running, reading, calling):
                task.cancel()
            await asyncio.wait({running, reading, calling})
