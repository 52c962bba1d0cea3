"""Programs over RPC, and their calls of tools."""

import ast
import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from mnemesh.tools.v1 import execution_service_pb2 as pb
from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.timeouts import scaled

from .conftest import Stubs

PYTHON, JAVASCRIPT, TYPESCRIPT = pb.CODE_LANGUAGE_PYTHON, pb.CODE_LANGUAGE_JAVASCRIPT, pb.CODE_LANGUAGE_TYPESCRIPT
LOOK = pb.CallableTool(name="look", parameters=["what", "times"])


async def _run(stubs: Stubs, code: str, language: Any = PYTHON, **fields: Any) -> pb.RunCodeResponse:
    return await stubs.executions.RunCode(pb.RunCodeRequest(code=code, language=language, **fields))


@pytest.mark.parametrize(
    ("language", "code", "result"),
    [
        (pb.CODE_LANGUAGE_UNSPECIFIED, "print('out')\n[1, 2]", "[1, 2]"),
        (PYTHON, "import asyncio, os\nprint('out')\nawait asyncio.sleep(0)\nos.environ['KEY']", "value"),
        (JAVASCRIPT, "console.log('out');\nconst { KEY } = process.env;\nKEY", "value"),
        (
            JAVASCRIPT,
            "import os from 'node:os';\nconsole.log('out');\nawait Promise.resolve({ a: typeof os })",
            '{"a":"object"}',
        ),
        (TYPESCRIPT, "enum E { A = 'a' }\nconsole.log('out');\nE.A as string", "a"),
        (JAVASCRIPT, "console.log('out')", ""),
    ],
)
async def test_result_is_the_value_of_the_last_expression(
    embedded: Stubs, language: Any, code: str, result: str
) -> None:
    answer = await _run(embedded, code, language, environment={"KEY": "value"})
    assert (answer.status, answer.result, answer.stdout) == (pb.EXECUTION_STATUS_SUCCESS, result, "out\n"), answer


@pytest.mark.parametrize(
    ("language", "code", "error", "trace"),
    [
        (PYTHON, "def f():\n    raise KeyError('x')\nf()", "KeyError: 'x'", "line 2, in f"),
        (PYTHON, "x = (", "SyntaxError: ", "SyntaxError"),
        (JAVASCRIPT, "\nthrow new TypeError('x')", "TypeError: x", "tool:2:7"),
        (JAVASCRIPT, "const x = (", "SyntaxError: ", ""),
        (TYPESCRIPT, "let x: = 1", "Error", ""),
    ],
)
async def test_error_of_a_program_is_a_result(
    embedded: Stubs, language: Any, code: str, error: str, trace: str
) -> None:
    answer = await _run(embedded, code, language)
    assert answer.status == pb.EXECUTION_STATUS_ERROR
    assert error in answer.result
    assert trace in answer.stderr
    assert "mnemesh_sandbox" not in answer.stderr


async def test_program_is_killed_at_its_limit_and_has_no_network(embedded: Stubs) -> None:
    answer = await _run(embedded, "while True: pass", timeout=Duration(nanos=300_000_000))
    assert answer.status == pb.EXECUTION_STATUS_TIMED_OUT
    code = "import socket\nsocket.create_connection(('127.0.0.1', 1))"
    assert "PermissionError" in (await _run(embedded, code)).result


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"language": pb.CODE_LANGUAGE_R}, grpc.StatusCode.UNIMPLEMENTED, "language"),
        ({"language": pb.CODE_LANGUAGE_JAVA}, grpc.StatusCode.UNIMPLEMENTED, "language"),
        ({"language": 99}, grpc.StatusCode.INVALID_ARGUMENT, "language"),
        ({"code": "x" * 250_001}, grpc.StatusCode.INVALID_ARGUMENT, "code"),
        ({"code": "\0"}, grpc.StatusCode.INVALID_ARGUMENT, "code"),
        ({"timeout": Duration(seconds=-1)}, grpc.StatusCode.INVALID_ARGUMENT, "timeout"),
        ({"environment": {"A=": "b"}}, grpc.StatusCode.INVALID_ARGUMENT, "environment"),
        ({"network_hosts": ["a b"]}, grpc.StatusCode.INVALID_ARGUMENT, "network_hosts"),
    ],
)
async def test_invalid_program_is_refused_with_the_field(
    embedded: Stubs, fields: dict[str, Any], code: Any, field: str
) -> None:
    error = await catch_refusal(embedded.executions.RunCode(pb.RunCodeRequest(**{"code": "1", **fields})))
    assert (error.code, error.field) == (code, field)


async def _converse(
    stubs: Stubs, start: pb.RunCodeStart, answer: Callable[[pb.CodeToolCall], pb.CodeToolResult | None]
) -> pb.RunCodeResponse:
    """Runs a program and answers its calls. None as an answer closes the side of the caller."""
    requests: asyncio.Queue[pb.RunCodeWithToolsRequest | None] = asyncio.Queue()
    requests.put_nowait(pb.RunCodeWithToolsRequest(start=start))

    async def outgoing() -> AsyncIterator[pb.RunCodeWithToolsRequest]:
        while (request := await requests.get()) is not None:
            yield request

    async for response in stubs.executions.RunCodeWithTools(outgoing(), timeout=scaled(60)):
        if response.WhichOneof("message") == "result":
            return response.result
        result = answer(response.call)
        requests.put_nowait(None if result is None else pb.RunCodeWithToolsRequest(result=result))
    raise AssertionError("the program has no result")


@pytest.mark.parametrize(
    ("language", "code"),
    [
        (PYTHON, "[look('a', times=2), look(what='é')]"),
        (JAVASCRIPT, "await Promise.all([look('a', 2), look({ what: 'é' })])"),
    ],
)
async def test_program_calls_functions_of_the_caller(embedded: Stubs, language: Any, code: str) -> None:
    calls: list[Any] = []

    def answer(call: pb.CodeToolCall) -> pb.CodeToolResult:
        calls.append((call.name, json.loads(call.arguments)))
        return pb.CodeToolResult(call_id=call.call_id, ok=True, text=f"seen {len(calls)}")

    program = pb.RunCodeRequest(language=language, code=code)
    result = await _converse(embedded, pb.RunCodeStart(program=program, tools=[LOOK]), answer)
    assert ast.literal_eval(result.result) == ["seen 1", "seen 2"], result
    assert calls == [("look", {"what": "a", "times": 2}), ("look", {"what": "é"})]


async def test_errors_of_calls_are_exceptions_and_their_number_is_bounded(embedded: Stubs) -> None:
    body = "try:\n        look(number)\n    except ToolError as error:\n        print(error)"
    code = f"for number in range(200):\n    {body}"

    def answer(call: pb.CodeToolCall) -> pb.CodeToolResult:
        return pb.CodeToolResult(call_id=call.call_id, ok=json.loads(call.arguments)["what"] != 3, text="no such thing")

    program = pb.RunCodeRequest(code=code)
    result = await _converse(embedded, pb.RunCodeStart(program=program, tools=[LOOK]), answer)
    lines = result.stdout.splitlines()
    assert lines[0] == "no such thing"
    assert lines[1:] == ["A program can make at most 100 calls of tools."] * 100


async def test_caller_that_closes_its_side_answers_no_calls(embedded: Stubs) -> None:
    start = pb.RunCodeStart(program=pb.RunCodeRequest(code="look(1)"), tools=[LOOK])
    result = await _converse(embedded, start, lambda _: None)
    assert (result.status, result.result) == (
        pb.EXECUTION_STATUS_ERROR,
        "Error executing function run_code_with_tools: ToolError: The caller does not answer calls any more.",
    )


async def test_request_out_of_place_is_refused(embedded: Stubs) -> None:
    start = pb.RunCodeStart(program=pb.RunCodeRequest(code="look(1)"), tools=[LOOK])
    for call, field in (
        (_converse(embedded, start, lambda _: pb.CodeToolResult(call_id=9)), "result.call_id"),
        (_converse(embedded, pb.RunCodeStart(tools=[pb.CallableTool(name="a b")]), lambda _: None), "tools"),
    ):
        error = await catch_refusal(call)
        assert (error.code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)

    async def none() -> AsyncIterator[pb.RunCodeWithToolsRequest]:
        return
        yield

    async def drain() -> None:
        async for _ in embedded.executions.RunCodeWithTools(none()):
            pass

    assert (await catch_refusal(drain())).field == "start"


async def test_disconnected_caller_ends_the_program(embedded: Stubs) -> None:
    start = pb.RunCodeStart(program=pb.RunCodeRequest(code="look(1)"), tools=[LOOK])

    async def outgoing() -> AsyncIterator[pb.RunCodeWithToolsRequest]:
        yield pb.RunCodeWithToolsRequest(start=start)
        await asyncio.Event().wait()

    call = embedded.executions.RunCodeWithTools(outgoing())
    async for _ in call:
        break
    call.cancel()
    # The next program gets the slot and runs.
    assert (await _run(embedded, "1")).result == "1"
