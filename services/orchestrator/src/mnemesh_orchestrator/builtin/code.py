"""The tools that run code."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mnemesh_orchestrator.builtin.call import BuiltinCall, Refused
from mnemesh_orchestrator.clients.tools import ToolsClient
from mnemesh_orchestrator.model.custom_tools import Program, ProgramResult

_STREAM_CHARACTERS: Final = 20_000
"""The most characters of the output that the model reads."""
_OUTSIDE: Final = "run_code_with_tools runs only within a turn of the agent."


async def run_code(tools: ToolsClient, _call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    """Runs run_code. Code that fails is a refusal, whose text has the error."""
    result = await tools.run_program(program_of(arguments))
    shown = shown_result(result)
    if not result.ok:
        raise Refused(shown)
    return shown


async def outside_of_turn(_call: BuiltinCall, _arguments: Mapping[str, Any]) -> str:
    """Refuses run_code_with_tools: the loop of a turn runs it."""
    raise Refused(_OUTSIDE)


def program_of(arguments: Mapping[str, Any], tools: Mapping[str, tuple[str, ...]] | None = None) -> Program:
    """Returns the program in the arguments of a call."""
    return Program(arguments["code"], arguments.get("language", "python"), tools or {})


def shown_result(result: ProgramResult, calls: Sequence[str] = ()) -> str:
    """Returns the result of a program as the model reads it.

    Args:
        result: the result.
        calls: the names of the tools that the program called.
    """
    fields: dict[str, Any] = {"result" if result.ok else "error": result.text}
    for name, text in (("stdout", result.stdout), ("stderr", result.stderr)):
        if text:
            fields[name] = text if len(text) <= _STREAM_CHARACTERS else f"…{text[-_STREAM_CHARACTERS:]}"
    if calls:
        fields["called_tools"] = list(calls)
    return json.dumps(fields, ensure_ascii=False)
