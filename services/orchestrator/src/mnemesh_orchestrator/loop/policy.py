"""The policies of the two loops: whether a tool is required, and when a turn continues."""

from dataclasses import dataclass
from typing import Protocol

from mnemesh_orchestrator.loop.rules import RulesSolver
from mnemesh_orchestrator.model.runs import StopReason

HEARTBEAT = "Function called using request_heartbeat=true, returning control"
HEARTBEAT_AFTER_FAILURE = "Function call failed, returning control"


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The outcome of a call: success, a requested heartbeat, a violated rule, or a denial by a person."""

    name: str
    ok: bool
    heartbeat: bool = False
    violation: bool = False
    denied: bool = False


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The outcome of a step whose tools have run. `solver` includes its calls; `last` is set at max_steps."""

    calls: tuple[CallOutcome, ...]
    length_cut: bool
    filtered: bool
    last: bool
    solver: RulesSolver
    available: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision after a step: a stop with its reason, or another step, with a heartbeat message if one is due.

    `fault` describes a prefilled argument that the tool does not take. The turn fails with it.
    """

    stop: StopReason | None = None
    heartbeat: str | None = None
    fault: str | None = None

    @property
    def goes_on(self) -> bool:
        """True if another step follows."""
        return self.stop is None


class LoopPolicy(Protocol):
    """The policy of a loop."""

    requires_tool_call: bool
    """Every step must call a tool. Plain text is not an answer."""
    injects_heartbeat: bool
    """Tools have a request_heartbeat argument."""
    compacts_late: bool
    """The window is compacted at the end of a turn, and earlier only if a request does not fit."""

    def decide(self, outcome: StepOutcome) -> Verdict:
        """Returns whether the turn continues after a step."""
        ...


class HeartbeatPolicy:
    """V2: every step calls a tool. The turn continues, with a heartbeat message, on request_heartbeat or by a rule.

    A failed tool always returns control to the model: the prompts promise it, and an agent whose message failed must
    learn of it.
    """

    requires_tool_call = True
    injects_heartbeat = True
    compacts_late = True

    def decide(self, outcome: StepOutcome) -> Verdict:
        """See LoopPolicy."""
        heartbeat = self._heartbeat(outcome)
        if heartbeat is None:
            missing = outcome.solver.uncalled_required(outcome.available)
            if missing:
                heartbeat = f"Continuing, user expects these tools: [{', '.join(missing)}] to be called still."
        if heartbeat is None:
            asked = any(call.heartbeat for call in outcome.calls)
            return Verdict(StopReason.TOOL_RULE if asked else StopReason.END_TURN)
        return Verdict(StopReason.MAX_STEPS) if outcome.last else Verdict(heartbeat=heartbeat)

    def _heartbeat(self, outcome: StepOutcome) -> str | None:
        solver, last = outcome.solver, outcome.calls[-1]
        if any(call.violation for call in outcome.calls):
            return "Continuing: tool rule violation."
        if any(call.denied for call in outcome.calls):
            return "Continuing: user denied request to call tool."
        if not all(call.ok for call in outcome.calls):
            return HEARTBEAT_AFTER_FAILURE
        if any(solver.is_terminal(call.name) for call in outcome.calls):
            return None
        if solver.has_children(last.name):
            return "Continuing: child tool rule."
        if any(solver.continues(call.name) for call in outcome.calls):
            return "Continuing: continue tool rule."
        return HEARTBEAT if any(call.heartbeat for call in outcome.calls) else None


class ToolLoopPolicy:
    """V3: plain text ends the turn. It continues after any tool that is not terminal."""

    requires_tool_call = False
    injects_heartbeat = False
    compacts_late = False

    def decide(self, outcome: StepOutcome) -> Verdict:
        """See LoopPolicy."""
        missing = outcome.solver.uncalled_required(outcome.available)
        if not outcome.calls:
            if outcome.filtered:
                return Verdict(StopReason.CONTENT_FILTER)
            if missing and not outcome.last:
                return Verdict(
                    heartbeat=f"ToolRuleViolated: You must call {', '.join(missing)} at least once to exit the loop."
                )
            if outcome.length_cut:
                return Verdict(StopReason.MAX_TOKENS_EXCEEDED)
            return Verdict(StopReason.MAX_STEPS if missing else StopReason.END_TURN)
        ended = any(call.ok and outcome.solver.is_terminal(call.name) for call in outcome.calls)
        if ended and not missing:
            return Verdict(StopReason.TOOL_RULE)
        return Verdict(StopReason.MAX_STEPS) if outcome.last else Verdict()


POLICIES: dict[str, LoopPolicy] = {"v2": HeartbeatPolicy(), "v3": ToolLoopPolicy()}
