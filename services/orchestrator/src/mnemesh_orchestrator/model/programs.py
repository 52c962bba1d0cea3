"""Programs that models write, and what running them gives."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from mnemesh_orchestrator.model.custom_tools import ToolResult


@dataclass(frozen=True, slots=True)
class Program:
    """Code that is run once. `tools` has the functions that it can call, with the names of their parameters."""

    code: str
    language: str = "python"
    tools: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The result of a program. `text` is the value of its last expression, or the error."""

    ok: bool
    text: str
    stdout: str = ""
    stderr: str = ""


AnswerCall = Callable[[str, str], Awaitable[ToolResult]]
"""Runs a tool that a program calls: its name, and its arguments as a JSON object."""
