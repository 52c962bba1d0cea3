"""Tools that users wrote, programs, and searches of the web: their calls and results."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

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


@dataclass(frozen=True, slots=True)
class WebQuery:
    """A search of the web. `category` is one of the values of the tool's argument."""

    query: str
    num_results: int = 10
    category: str | None = None
    include_text: bool = False
    include_domains: tuple[str, ...] = ()
    exclude_domains: tuple[str, ...] = ()
    start_published_at: datetime | None = None
    end_published_at: datetime | None = None
    user_location: str = ""


@dataclass(frozen=True, slots=True)
class WebResult:
    """A page that a search found."""

    title: str
    url: str
    published_at: datetime | None = None
    snippets: tuple[str, ...] = ()
    text: str = ""
    author: str = ""


@dataclass(frozen=True, slots=True)
class WebPart:
    """A part of the text of a page, which has `total` characters in all."""

    url: str
    title: str
    text: str
    start: int
    total: int
    published_at: datetime | None = None
    truncated: bool = False

    @property
    def end(self) -> int:
        """The number of the first character after the part."""
        return self.start + len(self.text)
