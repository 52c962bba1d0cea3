"""The errors of the tools service."""

from typing import Final

from mnemesh_kit.errors import (
    Aborted,
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ServerBusy,
    Unavailable,
)

STDIO_TEXT: Final = "Its operator can allow it with MNEMESH_TOOLS_MCP_STDIO."


class ToolNotFound(NotFound):
    """The organization has no such tool."""

    def __init__(self, tool: str) -> None:
        super().__init__(f"Tool {tool} does not exist.", resource_id=tool)


class ToolNameTaken(AlreadyExists):
    """Another tool of the organization has the name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"A tool named {name} already exists.", name=name)


class ToolSourceInvalid(InvalidArgument):
    """The source yields no schema."""

    reason = "TOOL_SOURCE_INVALID"


class ToolArgumentsInvalid(InvalidArgument):
    """The arguments do not match the tool's schema."""

    reason = "TOOL_ARGUMENTS_INVALID"


class ToolRequirementsUnmet(FailedPrecondition):
    """The tool needs packages or a runtime that this server does not have."""

    reason = "TOOL_REQUIREMENTS_UNMET"


class SandboxTooWeak(FailedPrecondition):
    """The host cannot isolate tools as much as the settings require."""

    reason = "SANDBOX_UNAVAILABLE"


class ToolSlotsBusy(ServerBusy):
    """No slot became free in time."""

    reason = "TOOL_SLOTS_BUSY"

    def __init__(self, slots: int, held: int, seconds: float, work: str) -> None:
        super().__init__(
            f"No slot became free within {seconds:g} seconds: the server has {slots} {work} at the same time, {held} "
            "of them for this organization. Try again later.",
            slots=str(slots),
            held=str(held),
        )


class McpServerNotFound(NotFound):
    """The organization has no such MCP server."""

    def __init__(self, server_id: str) -> None:
        super().__init__(f"MCP server {server_id} does not exist.", resource_id=server_id)


class McpServerNameTaken(AlreadyExists):
    """Another MCP server of the organization has the name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"An MCP server named {name} already exists.", name=name)


class McpServerRevisionMismatch(Aborted):
    """The server was changed since its author read it."""

    def __init__(self, server_id: str, revision: int) -> None:
        super().__init__(
            f"MCP server {server_id} was changed and is now at revision {revision}. "
            "Read it again and repeat the update.",
            resource_id=server_id,
            revision=str(revision),
        )


class McpServerUnreachable(Unavailable):
    """The MCP server does not answer, or refuses. No tool was run, and the service has tried again already."""

    reason = "MCP_SERVER_UNREACHABLE"
    final = True

    def __init__(self, server_id: str, cause: str) -> None:
        super().__init__(f"The MCP server cannot be reached: {cause}", resource_id=server_id)


class McpServerUnauthorized(FailedPrecondition):
    """The MCP server asks for an authorization by a person. No tool was run."""

    reason = "MCP_SERVER_UNAUTHORIZED"

    def __init__(self, server_id: str, cause: str) -> None:
        super().__init__(f"MCP server {server_id} is not authorized: {cause}", resource_id=server_id)


class McpAuthorizationNotPending(FailedPrecondition):
    """No authorization of the MCP server waits to be completed, or can be started."""


class McpOutcomeUnknown(Aborted):
    """The result of a run was lost. The tool may have run."""

    def __init__(self, server_id: str, cause: str) -> None:
        super().__init__(
            f"The outcome of the tool is unknown: {cause} Check before you run it again.", resource_id=server_id
        )


class McpTransportDisabled(FailedPrecondition):
    """The operator does not allow the transport."""

    reason = "MCP_TRANSPORT_DISABLED"

    def __init__(self, transport: str) -> None:
        super().__init__(f"This server does not allow MCP servers over {transport}. {STDIO_TEXT}", transport=transport)


class WebSearchNotConfigured(FailedPrecondition):
    """The operator configured no provider of web searches."""

    reason = "WEB_SEARCH_NOT_CONFIGURED"

    def __init__(self) -> None:
        super().__init__(
            "Web search is not set up on this server. The operator can name a provider with MNEMESH_TOOLS_WEB_SEARCH."
        )


class WebSearchUnavailable(Unavailable):
    """The provider of web searches does not answer as it should. The service has tried again already."""

    reason = "WEB_SEARCH_UNAVAILABLE"
    final = True

    def __init__(self, provider: str, cause: str) -> None:
        super().__init__(f"The search provider {provider} {cause}. Try again later.", provider=provider)


class WebSearchRefused(FailedPrecondition):
    """The provider of web searches refuses the key or the request."""

    reason = "WEB_SEARCH_REFUSED"

    def __init__(self, provider: str, status: int, cause: str) -> None:
        super().__init__(f"The search provider {provider} {cause}", provider=provider, status=str(status))


class WebPageRefused(FailedPrecondition):
    """The URL of a page may not be fetched."""

    reason = "WEB_PAGE_REFUSED"

    def __init__(self, cause: str, url: str) -> None:
        super().__init__(cause, url=url[:500])


class WebPageUnreadable(FailedPrecondition):
    """No text can be read from a page."""

    reason = "WEB_PAGE_UNREADABLE"

    def __init__(self, cause: str, url: str, status: int = 0) -> None:
        super().__init__(cause, url=url[:500], **({"status": str(status)} if status else {}))
