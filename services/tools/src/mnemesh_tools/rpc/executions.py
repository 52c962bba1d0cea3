"""The servicer of `mnemesh.tools.v1.ExecutionService`: decodes, calls a use case, encodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from mnemesh.tools.v1 import execution_service_pb2 as pb
from mnemesh.tools.v1 import execution_service_pb2_grpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.principal import current_principal

from mnemesh_tools.rpc.convert.executions import ad_hoc_tool_from_proto, execution_to_proto, invocation_from_proto
from mnemesh_tools.rpc.convert.programs import code_run_to_proto, program_from_proto
from mnemesh_tools.rpc.programs import CallExchange
from mnemesh_tools.usecases.executions import ExecutionService
from mnemesh_tools.usecases.programs import ProgramService

Context = grpc.aio.ServicerContext[Any, Any]


class ExecutionServicer(execution_service_pb2_grpc.ExecutionServiceServicer):
    """Serves `mnemesh.tools.v1.ExecutionService`."""

    def __init__(self, service: ExecutionService, programs: ProgramService) -> None:
        self._service = service
        self._programs = programs

    async def ExecuteTool(self, request: pb.ExecuteToolRequest, context: Context) -> pb.ExecuteToolResponse:
        """Executes a stored tool or an ad hoc one."""
        caller, invocation = current_principal(), invocation_from_proto(request)
        match request.WhichOneof("tool"):
            case "tool_id":
                execution = await self._service.execute_tool(caller, request.tool_id, invocation)
            case "ad_hoc":
                tool = ad_hoc_tool_from_proto(request.ad_hoc)
                execution = await self._service.execute_ad_hoc_tool(caller, tool, invocation)
            case _:
                raise InvalidArgument("tool must be set to tool_id or ad_hoc.", field="tool_id")
        return execution_to_proto(execution)

    async def RunCode(self, request: pb.RunCodeRequest, context: Context) -> pb.RunCodeResponse:
        """Executes a program."""
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
