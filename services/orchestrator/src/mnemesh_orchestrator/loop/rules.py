"""The rules of a turn: which tools it may and must call, and whether it continues after a step."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, TypeGuard

from mnemesh_kit.errors import FailedPrecondition

from mnemesh_orchestrator.model.rules import (
    Conditional,
    ConditionalOutcome,
    ConstrainChildTools,
    ContinueLoop,
    ExitLoop,
    MaxCountPerStep,
    ParentLastTool,
    RequiredBeforeExit,
    RequiresApproval,
    RunFirst,
    ToolRule,
)
from mnemesh_orchestrator.model.runs import StopReason
from mnemesh_orchestrator.prompt.assembly import neutral

_SENTENCES: Final[Mapping[type[ToolRule], str]] = {
    RunFirst: "{tool} must be called first",
    ContinueLoop: "{tool} requires continuing your response when called",
    ConstrainChildTools: "After using {tool}, you must use one of these tools: {children}",
    Conditional: "{tool} will determine which tool to use next based on its output",
    MaxCountPerStep: "{tool}: at most {most} use(s) per response",
    ParentLastTool: "{children} can only be used after {tool}",
    ExitLoop: "{tool} ends your response (yields control) when called",
}
_SHOWN_CHARACTERS: Final = 200

HEARTBEAT = "Function called using request_heartbeat=true, returning control"
HEARTBEAT_AFTER_FAILURE = "Function call failed, returning control"


class OutputUnmapped(FailedPrecondition):
    """A conditional rule that requires an outcome for every result has none for this result."""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The value of an argument, and the rule that prefills it."""

    value: Any
    rule: str


@dataclass(frozen=True)
class RulesSolver:
    """The rules of an agent, and the tools that the turn has called. Immutable: `after` returns the next solver."""

    rules: tuple[ToolRule, ...] = ()
    history: tuple[str, ...] = ()
    """The names of the called tools, in order."""
    last_result: str = ""
    """The result of the last call, before packaging."""

    def after(self, tool_name: str, result_text: str) -> "RulesSolver":
        """Returns the solver after a call of the tool."""
        return RulesSolver(self.rules, (*self.history, tool_name), result_text)

    def allowed(self, available: Sequence[str]) -> tuple[str, ...]:
        """Returns the tools of `available` that may be called next, in the same order.

        Before the first call these are the tools that must run first, if one of them is available. Otherwise they are
        the tools that every rule about children, parents, outcomes and counts permits. If the rules contradict each
        other, every available tool is allowed, so that the agent can still act.

        Raises:
            OutputUnmapped: a strict conditional rule has no outcome for the last result.
        """
        if not self.rules:
            return tuple(available)
        if first := [name for name in available if name in self._pending_first]:
            return tuple(first)
        left = tuple(name for name in available if not any(hides(name) for hides in self._filters))
        return left or tuple(available)

    def must_call(self) -> bool:
        """Returns whether the model must call a tool next: one has to run first, or the last determines the next."""
        if not self.rules:
            return False
        deciding = (ConstrainChildTools, Conditional, ParentLastTool)
        return bool(self._pending_first) or any(isinstance(rule, deciding) for rule in self._of_last)

    def is_terminal(self, name: str) -> bool:
        """Returns whether the turn ends after the tool."""
        return name in self._names(ExitLoop)

    def continues(self, name: str) -> bool:
        """Returns whether a rule continues the turn after the tool."""
        return name in self._names(ContinueLoop)

    def has_children(self, name: str) -> bool:
        """Returns whether the tool determines the next one, so that the turn continues after it."""
        return name in self._names(ConstrainChildTools) or name in self._names(Conditional)

    def uncalled_required(self, available: Sequence[str]) -> tuple[str, ...]:
        """Returns the available tools that the turn still has to call before it may end, in the rules' order."""
        required = self._names(RequiredBeforeExit)
        return tuple(name for name in required if name in available and name not in self.history)

    def needs_approval(self, name: str) -> bool:
        """Returns whether a rule requires a person's approval of the tool's calls."""
        return name in self._names(RequiresApproval)

    def approval_schemas(self, name: str) -> tuple[str, ...]:
        """Returns the schemas of the arguments with which a tool needs approval; none if it needs it with any."""
        schemas = [rule.arguments_schema for rule in self.rules if _is_approval_of(rule, name)]
        return tuple(schema for schema in schemas if schema is not None) if None not in schemas else ()

    @property
    def permits_parallel_calls(self) -> bool:
        """True if a model may call several tools at once. Rules about the order of tools exclude it."""
        return all(isinstance(rule, RequiresApproval) for rule in self.rules)

    def prefilled(self, name: str) -> Mapping[str, Prefilled]:
        """Returns the arguments that rules prefill if the tool is called next. The later rule wins."""
        merged: dict[str, Prefilled] = {}
        for rule in self.rules:
            if isinstance(rule, RunFirst) and rule.tool_name == name and not self.history:
                merged |= _prefilled(rule.arguments, f"InitToolRule({name})")
            elif isinstance(rule, ConstrainChildTools) and rule in self._of_last:
                for node in rule.child_arguments:
                    if node.tool_name == name:
                        merged |= _prefilled(node.arguments, f"ChildToolRule({rule.tool_name}->{name})")
        return merged

    def violation_text(self, name: str, allowed: Sequence[str]) -> str:
        """Returns the error text for a call that the rules forbid, with the violated rules."""
        text = f"[ToolConstraintError] Cannot call {name}, valid tools include: {list(allowed)}."
        hints = [hint for rule in self.rules if (hint := self._hint(rule, name)) is not None]
        if not hints:
            return text
        return "\n".join((text, "** Hint: Possible rules that were violated:", *(f"\t- {hint}" for hint in hints)))

    def prompt(self) -> str:
        """Returns the rules as sentences in <tool_rule> tags, for <tool_usage_rules>; "" if there are none.

        The order is: rules that continue the turn, that limit the next tools, that require earlier tools, that end the
        turn.
        """
        groups = ((ContinueLoop,), (ConstrainChildTools, Conditional, MaxCountPerStep), (ParentLastTool,), (ExitLoop,))
        ordered = [rule for group in groups for rule in self.rules if isinstance(rule, group)]
        return "\n".join(f"<tool_rule>\n{neutral(_sentence(rule))}\n</tool_rule>" for rule in ordered)

    @cached_property
    def _pending_first(self) -> frozenset[str]:
        return frozenset() if self.history else frozenset(self._names(RunFirst))

    @cached_property
    def _of_last(self) -> tuple[ToolRule, ...]:
        last = self.history[-1] if self.history else None
        return tuple(rule for rule in self.rules if rule.tool_name == last)

    @cached_property
    def _filters(self) -> tuple[Callable[[str], bool], ...]:
        """One predicate per rule that excludes tools now; it returns whether a tool is excluded."""
        return tuple(hides for rule in self.rules if (hides := self._filter(rule)) is not None)

    def _filter(self, rule: ToolRule) -> Callable[[str], bool] | None:
        was_last = rule in self._of_last
        match rule:
            case ConstrainChildTools(children=children) if was_last:
                return lambda name: name not in children
            case ParentLastTool(children=children):
                return lambda name: (name in children) != was_last
            case MaxCountPerStep(tool_name=tool, max_count=most) if self.history.count(tool) >= most:
                return lambda name: name == tool
            case Conditional() if was_last and (child := _child(rule, self.last_result)) is not None:
                return lambda name: name != child
            case _:
                return None

    def _names(self, kind: type[ToolRule]) -> tuple[str, ...]:
        return tuple(rule.tool_name for rule in self.rules if isinstance(rule, kind))

    def _hint(self, rule: ToolRule, name: str) -> str | None:
        if self._pending_first:
            return _sentence(rule) if isinstance(rule, RunFirst) else None
        hides = self._filter(rule)
        return _sentence(rule) if hides is not None and hides(name) else None


def _is_approval_of(rule: ToolRule, name: str) -> TypeGuard[RequiresApproval]:
    return isinstance(rule, RequiresApproval) and rule.tool_name == name


def _prefilled(arguments: str | None, rule: str) -> dict[str, Prefilled]:
    return {name: Prefilled(value, rule) for name, value in json.loads(arguments or "{}").items()}


def _child(rule: Conditional, result: str) -> str | None:
    """Returns the tool that the result leads to; None if any tool may follow."""
    for outcome in rule.outcomes:
        if _matches(outcome, result):
            return outcome.child
    if rule.require_output_mapping:
        shown = result if len(result) <= _SHOWN_CHARACTERS else result[:_SHOWN_CHARACTERS] + "…"
        raise OutputUnmapped(
            f"{rule.tool_name} returned {shown!r}, for which its rule names no next tool.", tool=rule.tool_name
        )
    return rule.default_child


def _matches(outcome: ConditionalOutcome, result: str) -> bool:
    """Returns whether a result equals the outcome's value, read as a value of the outcome's type."""
    expected, said = outcome.output, result.strip()
    match expected:
        case bool():
            return said.lower() == str(expected).lower()
        case int():
            return _number(int, said) == expected
        case float():
            return _number(float, said) == expected
        case _:
            return result == expected


def _number(kind: type[int] | type[float], text: str) -> float | None:
    try:
        return kind(text)
    except ValueError:
        return None


def _sentence(rule: ToolRule) -> str:
    children = ", ".join(rule.children) if isinstance(rule, ConstrainChildTools | ParentLastTool) else ""
    most = rule.max_count if isinstance(rule, MaxCountPerStep) else 0
    return _SENTENCES[type(rule)].format(tool=rule.tool_name, children=children, most=most)


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
