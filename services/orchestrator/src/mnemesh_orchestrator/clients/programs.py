"""Programs over gRPC."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from mnemesh.tools.v1 import execution_service_pb2 as pb
from mnemesh_kit.errors import Unavailable

from mnemesh_orchestrator.clients import deadlines
from mnemesh_orchestrator.model.programs import AnswerCall, Program, ProgramResult

if TYPE_CHECKING:  # only the stub file has this class
    from mnemesh.tools.v1.execution_service_pb2_grpc import ExecutionServiceAsyncStub

_SECONDS: Final = 180
_LANGUAGES: Final = {
    "python": pb.CODE_LANGUAGE_PYTHON,
    "javascript": pb.CODE_LANGUAGE_JAVASCRIPT,
    "typescript": pb.CODE_LANGUAGE_TYPESCRIPT,
    "js": pb.CODE_LANGUAGE_JAVASCRIPT,
    "ts": pb.CODE_LANGUAGE_TYPESCRIPT,
    "r": pb.CODE_LANGUAGE_R,
    "java": pb.CODE_LANGUAGE_JAVA,
}


async def run_program(stub: "ExecutionServiceAsyncStub", program: Program, answer: AnswerCall | None) -> ProgramResult:
    """Runs a program; see `ToolsPort.run_program`."""
    request = pb.RunCodeRequest(language=_LANGUAGES[program.language], code=program.code)
    request.timeout.seconds = _SECONDS
    seconds = _SECONDS + deadlines.EXECUTE_MARGIN
    if answer is None:
        return _result(await stub.RunCode(request, timeout=seconds))
    tools = [pb.CallableTool(name=name, parameters=parameters) for name, parameters in program.tools.items()]
    results: asyncio.Queue[pb.RunCodeWithToolsRequest] = asyncio.Queue()
    results.put_nowait(pb.RunCodeWithToolsRequest(start=pb.RunCodeStart(program=request, tools=tools)))

    async def outgoing() -> AsyncIterator[pb.RunCodeWithToolsRequest]:
        while True:
            yield await results.get()

    call: Any = stub.RunCodeWithTools(outgoing(), timeout=seconds)
    # Closing the responses early ends the call, and with it the program.
    async with aclosing(aiter(call)) as responses:
        async for response in responses:
            if response.WhichOneof("message") == "result":
                return _result(response.result)
            given = await answer(response.call.name, response.call.arguments)
            result = pb.CodeToolResult(call_id=response.call.call_id, ok=given.ok, text=given.text)
            results.put_nowait(pb.RunCodeWithToolsRequest(result=result))
    raise Unavailable("The tools service ended the program without a result.")


def _result(response: pb.RunCodeResponse) -> ProgramResult:
    ok = response.status == pb.EXECUTION_STATUS_SUCCESS
    return ProgramResult(ok, response.result, response.stdout, response.stderr)
