"""The result of a call of a tool, as the step and the rules read it."""

from dataclasses import dataclass, field
from datetime import datetime

from mnemesh_types.messages import ToolReturn, ToolStatus

from mnemesh_orchestrator.loop.policy import CallOutcome
from mnemesh_orchestrator.loop.programs import ProgramCalls
from mnemesh_orchestrator.model.approvals import PlannedCall


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call."""

    planned: PlannedCall
    returned: ToolReturn
    at: datetime
    violation: bool = False
    """A rule forbade the call."""
    denied: bool = False
    """A person denied the call."""
    calls: ProgramCalls = field(default_factory=ProgramCalls)
    """The calls that a program made."""
    ended_by: str | None = None
    """The tool of an earlier call of the same answer that ended the turn. The call was not run, and does not count."""

    @property
    def has_run(self) -> bool:
        """True if the tool itself was called, with success or not. Only such calls count for the rules."""
        is_refused = self.violation or self.denied or self.ended_by is not None
        return self.planned.problem is None and not is_refused

    @property
    def outcome(self) -> CallOutcome:
        """The outcome as the loop policy reads it."""
        ok = self.returned.status is ToolStatus.SUCCESS
        return CallOutcome(self.planned.call.name, ok, self.planned.heartbeat, self.violation, self.denied)
