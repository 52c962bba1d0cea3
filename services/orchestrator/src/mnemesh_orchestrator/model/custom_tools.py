"""Tools that users wrote, and the results of running them."""

from collections.abc import Callable
from dataclasses import dataclass

from mnemesh_kit.unicode import MAX_TEXT_BYTES, well_formed
from mnemesh_types.messages import ImagePart, TextPart, ToolReturn, ToolStatus


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
    mcp_server_id: str | None = None
    """The MCP server that runs the tool; None for a tool that runs in the sandbox."""
    mcp_tool_name: str = ""
    """Its name on that server."""


@dataclass(frozen=True, slots=True)
class CallProgress:
    """How far a call is, in a unit of the tool."""

    done: float
    total: float | None = None
    """The whole; None if the tool does not know it."""
    message: str | None = None


OnProgress = Callable[[CallProgress], None]


def no_progress(progress: CallProgress) -> None:
    """Ignores the progress of a call."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of running a tool."""

    ok: bool
    text: str
    stdout: tuple[str, ...] = ()
    stderr: tuple[str, ...] = ()
    images: tuple[ImagePart, ...] = ()
    """Images besides the text: inline, or files of the files service."""

    def to_return(self, call_id: str, name: str) -> ToolReturn:
        """Returns the result as the return of a call: every text is well-formed and at most 1 MB."""
        return ToolReturn(
            call_id,
            name,
            ToolStatus.SUCCESS if self.ok else ToolStatus.ERROR,
            (TextPart(well_formed(self.text, MAX_TEXT_BYTES)), *self.images),
            tuple(well_formed(line, MAX_TEXT_BYTES) for line in self.stdout),
            tuple(well_formed(line, MAX_TEXT_BYTES) for line in self.stderr),
        )
