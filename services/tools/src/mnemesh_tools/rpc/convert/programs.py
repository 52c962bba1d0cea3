"""Programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mnemesh.tools.v1 import execution_service_pb2 as pb

from mnemesh_tools.model.executions import Execution
from mnemesh_tools.model.programs import CodeLanguage, Program
from mnemesh_tools.rpc.convert.executions import execution_to_proto
from mnemesh_tools.rpc.convert.fields import enum_from_proto

_LANGUAGES: Final = {
    pb.CODE_LANGUAGE_UNSPECIFIED: CodeLanguage.PYTHON,
    pb.CODE_LANGUAGE_PYTHON: CodeLanguage.PYTHON,
    pb.CODE_LANGUAGE_JAVASCRIPT: CodeLanguage.JAVASCRIPT,
    pb.CODE_LANGUAGE_TYPESCRIPT: CodeLanguage.TYPESCRIPT,
    pb.CODE_LANGUAGE_R: CodeLanguage.R,
    pb.CODE_LANGUAGE_JAVA: CodeLanguage.JAVA,
}


def program_from_proto(request: pb.RunCodeRequest, tools: Iterable[pb.CallableTool] = ()) -> Program:
    """Returns the program of a request.

    Raises:
        InvalidArgument: The language is unknown.
    """
    timeout = request.timeout
    return Program(
        code=request.code,
        language=enum_from_proto(_LANGUAGES, request.language, "language"),
        environment=dict(request.environment),
        network_hosts=tuple(request.network_hosts),
        timeout_seconds=timeout.seconds + timeout.nanos / 1e9 if request.HasField("timeout") else None,
        tools={tool.name: tuple(tool.parameters) for tool in tools},
    )


def code_run_to_proto(execution: Execution) -> pb.RunCodeResponse:
    """Returns the message of the execution of a program."""
    message = execution_to_proto(execution)
    return pb.RunCodeResponse(
        status=message.status,
        result=message.result,
        stdout=message.stdout,
        stderr=message.stderr,
        duration=message.duration,
        truncated=message.truncated,
        connections=message.connections,
    )
