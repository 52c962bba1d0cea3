"""What goes wrong with tools."""

from __future__ import annotations

from mnemesh_kit.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound


class ToolNotFound(NotFound):
    """No such tool in the caller's organization."""

    def __init__(self, tool: str) -> None:
        super().__init__(f"There is no tool {tool}.", resource_id=tool)


class ToolNameTaken(AlreadyExists):
    """Another tool of the organization has the name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is a tool named {name} already.", name=name)


class ToolSourceInvalid(InvalidArgument):
    """No schema can be made of the source."""

    reason = "TOOL_SOURCE_INVALID"


class ToolArgumentsInvalid(InvalidArgument):
    """The arguments do not fit the tool's schema."""

    reason = "TOOL_ARGUMENTS_INVALID"


class ToolRequirementsUnmet(FailedPrecondition):
    """The tool needs packages or a runtime that this server does not have."""

    reason = "TOOL_REQUIREMENTS_UNMET"


class SandboxTooWeak(FailedPrecondition):
    """The host cannot isolate tools as far as it must."""

    reason = "SANDBOX_UNAVAILABLE"
