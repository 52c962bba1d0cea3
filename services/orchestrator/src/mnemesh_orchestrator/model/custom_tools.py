"""Tools that users wrote, and the results of running them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CustomTool:
    """A stored tool that a turn may call.

    `json_schema` is {"name", "description", "parameters"} as text. A `builtin` tool is listed by the tools service and
    run by the orchestrator.
    """

    id: str
    name: str
    json_schema: str
    return_char_limit: int = 50_000
    requires_approval: bool = False
    parallel: bool = False
    idempotent: bool = False
    revision: int = 0
    builtin: bool = False


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of running a tool."""

    ok: bool
    text: str
    stdout: tuple[str, ...] = ()
    stderr: tuple[str, ...] = ()
