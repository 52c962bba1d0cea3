"""The errors of the tools service."""

from __future__ import annotations

from mnemesh_kit.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted


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


class ToolSlotsBusy(ResourceExhausted):
    """No slot for an execution became free in time."""

    reason = "TOOL_SLOTS_BUSY"

    def __init__(self, slots: int, held: int, seconds: float) -> None:
        super().__init__(
            f"No slot for the tool became free within {seconds:g} seconds: the server runs {slots} tools at the same "
            f"time, {held} of them for this organization. Try again later.",
            slots=str(slots),
            held=str(held),
        )
