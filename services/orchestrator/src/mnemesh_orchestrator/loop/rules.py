"""When a turn continues or ends, which tools a step may call, and the plan of an answer's calls."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final, Protocol, TypeGuard

import msgspec
from mnemesh_kit.errors import FailedPrecondition, MnemeshError, typed_error
from mnemesh_types.agents import RunError
from mnemesh_types.messages import Message, ToolCall

from mnemesh_orchestrator.builtin.arguments import ParseFailure, check, parse, storage_problem
from mnemesh_orchestrator.builtin.executor import BuiltinTools
from mnemesh_orchestrator.builtin.schemas import AGENT_MESSAGE_TOOLS, BUILTIN_SCHEMAS, with_heartbeat, with_thinking
from mnemesh_orchestrator.errors import (
    BudgetExceeded,
    ContextWindowOverflow,
    RuleFault,
    SystemPromptOverflow,
    ToolsMissing,
)
from mnemesh_orchestrator.llm.errors import (
    ContextOverflow,
    ProviderBadAnswer,
    ProviderContentFilter,
    ProviderError,
    ProviderPaymentRequired,
)
from mnemesh_orchestrator.llm.schemas import is_structured, text_problem, value_problem, with_message_format
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.conversations import PlannedCall
from mnemesh_orchestrator.model.inputs import ClientTool
from mnemesh_orchestrator.model.models import ResponseFormat, ToolSchema, validator
from mnemesh_orchestrator.model.rules import (
    Conditional,
    ConditionalOutcome,
    ConstrainChildTools,
    ContinueLoop,
    CustomTool,
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


SPEAKING: Final = "send_message"
SPOKEN: Final = "message"


@dataclass(frozen=True)
class Toolbox:
    """The names of the agent's built-in tools, and its stored tools."""

    builtin: tuple[str, ...]
    custom: tuple[CustomTool, ...]
    schemas: tuple[ToolSchema, ...]
    """The schemas that the model receives, with the arguments that the loop adds."""
    plain: tuple[ToolSchema, ...]
    """The schemas of the tools themselves."""
    client: frozenset[str] = frozenset()
    """The tools that the client runs."""
    gated: frozenset[str] = frozenset()
    """The tools whose calls wait for a person's decision or for the client's return."""
    approval_schemas: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The gated tools of which only the calls wait whose arguments match one of these schemas."""
    speech_format: ResponseFormat = ResponseFormat()
    """The format of the speaking tool's message."""
    completed: "Callable[[tuple[CustomTool, ...]], Toolbox] | None" = None
    """Returns the toolbox with the stored tools; None if it has them. They could not be read when the turn began."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all tools, in the agent's order."""
        return tuple(schema.name for schema in self.plain)

    @cached_property
    def _plain_by_name(self) -> dict[str, ToolSchema]:
        return {schema.name: schema for schema in self.plain}

    def schema(self, name: str) -> ToolSchema | None:
        """Returns the schema of a tool, or None if the agent has no such tool."""
        return self._plain_by_name.get(name)

    def waits(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Returns whether a call of a tool with these arguments waits for a decision."""
        schemas = self.approval_schemas.get(name)
        if name not in self.gated or schemas is None:
            return name in self.gated
        return any(validator(schema).is_valid(dict(arguments)) for schema in schemas)

    def custom_tool(self, name: str) -> CustomTool | None:
        """Returns the stored tool of that name, or None."""
        return next((tool for tool in self.custom if tool.name == name), None)

    def offered(self, allowed: Sequence[str]) -> tuple[ToolSchema, ...]:
        """Returns the schemas of the tools that the rules allow next."""
        if len(allowed) == len(self.schemas):
            return self.schemas
        return tuple(schema for schema in self.schemas if schema.name in allowed)


def make_toolbox(
    agent: Agent,
    builtin: BuiltinTools,
    custom: tuple[CustomTool, ...],
    solver: RulesSolver,
    *,
    heartbeat: bool,
    thinking: bool,
    client_tools: Sequence[ClientTool] = (),
    speech_format: ResponseFormat | None = None,
    is_whole: bool = True,
) -> Toolbox:
    """Returns the toolbox of an agent. A stored tool hides a built-in one of its name; a client's tool hides both.

    Without `is_whole`, the stored tools could not be read, and the toolbox can be completed later.
    """
    completed = None
    if not is_whole:
        completed = partial(
            make_toolbox, agent, builtin, solver=solver, heartbeat=heartbeat, thinking=thinking,
            client_tools=client_tools, speech_format=speech_format,
        )  # fmt: skip
    client = frozenset(tool.name for tool in client_tools)
    custom = tuple(tool for tool in custom if tool.name not in client)
    stored = {tool.name: tool for tool in custom}
    plain: list[ToolSchema] = []
    for attached in agent.tools:
        if attached.name in client:
            continue
        if (tool := stored.get(attached.name)) is not None:
            plain.append(msgspec.json.decode(tool.json_schema, type=ToolSchema))
        elif attached.builtin and attached.name in builtin.names:
            plain.append(BUILTIN_SCHEMAS[attached.name])
    plain += [ToolSchema(tool.name, tool.description, json.loads(tool.parameters)) for tool in client_tools]
    offered = []
    for schema in plain:
        if speech_format is not None and schema.name == SPEAKING:
            schema = with_message_format(schema, speech_format, SPOKEN)  # noqa: PLW2901
        shown = with_heartbeat(schema) if heartbeat and not solver.is_terminal(schema.name) else schema
        offered.append(with_thinking(shown) if thinking else shown)
    names = tuple(schema.name for schema in plain if schema.name not in stored and schema.name not in client)
    gated = client | {schema.name for schema in plain if _waits(agent, solver, schema.name, stored.get(schema.name))}
    schemas = {
        name: found
        for name in gated - client
        if not _always_waits(agent, name, stored.get(name)) and (found := solver.approval_schemas(name))
    }
    speech_format = speech_format or ResponseFormat()
    return Toolbox(names, custom, tuple(offered), tuple(plain), client, gated, schemas, speech_format, completed)


def _always_waits(agent: Agent, name: str, custom: CustomTool | None) -> bool:
    """Returns whether every call of a tool waits, because of the agent's setting or the tool's default."""
    attached = agent.tool(name)
    is_set = attached is not None and attached.requires_approval is not None
    return is_set or (custom is not None and custom.requires_approval)


def _waits(agent: Agent, solver: RulesSolver, name: str, custom: CustomTool | None) -> bool:
    """Returns whether calls of a tool wait for a person: the agent's setting, else a rule, else the tool's default."""
    attached = agent.tool(name)
    if attached is not None and attached.requires_approval is not None:
        return attached.requires_approval
    return solver.needs_approval(name) or (custom is not None and custom.requires_approval)


def plan_calls(message: Message, toolbox: Toolbox, solver: RulesSolver) -> tuple[PlannedCall, ...]:
    """Returns how each call of an answer will run. Values that rules prefill replace those of the model.

    An argument that neither the model nor a rule gives stays missing.
    """
    planned: list[PlannedCall] = []
    for ordinal, call in enumerate(message.tool_calls):
        item = planned_call(ordinal, call, toolbox, solver.prefilled(call.name))
        # A call behind one that ends the turn is not run; if that one fails, the call is refused until it is requested.
        is_behind_exit = any(solver.is_terminal(before.call.name) and before.problem is None for before in planned)
        planned.append(replace(item, gated=not is_behind_exit and _is_gated(item, toolbox, solver)))
        # Prefilled values depend on the calls before, not on their results.
        solver = solver.after(call.name, "")
    return tuple(planned)


def with_gates(planned: Sequence[PlannedCall], gated: Sequence[int]) -> tuple[PlannedCall, ...]:
    """Returns the calls; those with the given ordinals wait for a decision."""
    return tuple(replace(item, gated=item.ordinal in gated) for item in planned)


def _is_gated(item: PlannedCall, toolbox: Toolbox, solver: RulesSolver) -> bool:
    """Returns whether a call waits for a decision. A call that cannot run is refused without asking.

    A rule about the output of an earlier call of the same answer cannot be applied yet, so the call waits.
    """
    name = item.call.name
    if item.problem is not None or not toolbox.waits(name, item.arguments):
        return False
    if item.ordinal and any(isinstance(rule, Conditional) for rule in solver.rules):
        return True
    try:
        return name in solver.allowed(toolbox.names)
    except OutputUnmapped:
        return False


def planned_call(ordinal: int, call: ToolCall, toolbox: Toolbox, prefilled: Mapping[str, Prefilled]) -> PlannedCall:
    """Returns how a call will run: with its arguments checked as far as its schema allows, or with its problem."""
    schema = toolbox.schema(call.name)
    if schema is None:
        known = ", ".join(toolbox.names) or "none"
        return PlannedCall(ordinal, call, {}, problem=f"Error: there is no tool {call.name} (the tools: {known}).")
    parsed = parse(call.arguments, schema)
    if isinstance(parsed, ParseFailure):
        return PlannedCall(ordinal, call, {}, problem=parsed.text)
    values = {**parsed.values, **{name: argument.value for name, argument in prefilled.items()}}
    if prefilled and (unstorable := storage_problem(values)) is not None:
        return PlannedCall(ordinal, call, {}, problem=f"Error: the arguments cannot be stored: {unstorable}.")
    if call.name == SPEAKING and is_structured(toolbox.speech_format) and SPOKEN in values:
        text, problem = _spoken(values[SPOKEN], toolbox.speech_format)
        if problem is not None:
            return PlannedCall(ordinal, call, {}, problem=f"Error: {SPOKEN} is not what it has to be: {problem}.")
        values[SPOKEN] = text
    item = PlannedCall(ordinal, call, values, parsed.request_heartbeat, parsed.thinking)
    if (fault := _rules_fault(prefilled, schema)) is not None:
        return replace(item, problem=fault, is_rules_fault=True)
    # The tools service coerces the arguments of custom tools by their own types.
    checked = check(item.arguments, schema) if call.name in toolbox.builtin else item.arguments
    if isinstance(checked, ParseFailure):
        return replace(item, problem=checked.text)
    return replace(item, arguments=checked)


def starts_runs(planned: Sequence[PlannedCall]) -> bool:
    """Returns whether a call may start runs of other agents."""
    return any(item.call.name in AGENT_MESSAGE_TOOLS for item in planned)


def _spoken(value: Any, format_: ResponseFormat) -> tuple[str, str | None]:
    """Returns a structured message as the text that is sent, and the problem with its format or None."""
    if isinstance(value, str):
        return value, text_problem(value, format_)
    return json.dumps(value, ensure_ascii=False), value_problem(value, format_)


def _rules_fault(prefilled: Mapping[str, Prefilled], schema: ToolSchema) -> str | None:
    """Returns why the tool does not take a prefilled value, in words that name the rule; None if it takes them all."""
    optional = replace(schema, parameters={**schema.parameters, "required": []})
    for name, argument in prefilled.items():
        checked = check({name: argument.value}, optional)
        if isinstance(checked, ParseFailure):
            problem = checked.text.removeprefix("Error: ")
            return f"Error: the rule {argument.rule} prefills the argument {name}, but {problem}. The tool was not run."
    return None


_STOPS: tuple[tuple[type[MnemeshError], StopReason], ...] = (
    (SystemPromptOverflow, StopReason.CONTEXT_WINDOW_OVERFLOW_IN_SYSTEM_PROMPT),
    (ContextWindowOverflow, StopReason.CONTEXT_WINDOW_OVERFLOW),
    (RuleFault, StopReason.INVALID_TOOL_CALL),
    (ContextOverflow, StopReason.CONTEXT_WINDOW_OVERFLOW),
    (ProviderBadAnswer, StopReason.INVALID_LLM_RESPONSE),
    (ProviderContentFilter, StopReason.CONTENT_FILTER),
    (ToolsMissing, StopReason.NO_TOOL_CALL),
    (ProviderPaymentRequired, StopReason.INSUFFICIENT_CREDITS),
    (BudgetExceeded, StopReason.BUDGET_EXCEEDED),
    (ProviderError, StopReason.LLM_API_ERROR),
)
STOP_ERRORS: Final = {
    StopReason.NO_TOOL_CALL: RunError(
        "PROVIDER_BAD_ANSWER", "The model called no tool; agents of this type act by tools only."
    ),
    StopReason.CONTENT_FILTER: RunError(
        "PROVIDER_CONTENT_FILTER", "The provider's content filter cut the answer off. The text before it is kept."
    ),
    StopReason.MAX_TOKENS_EXCEEDED: RunError(
        "PROVIDER_BAD_ANSWER", "The answer was cut at the model's output limit; raise max_output_tokens."
    ),
}
"""The errors of turns that stop without an exception and fail."""


def failure(error: Exception) -> tuple[StopReason, RunError]:
    """Returns the stop reason of a turn that an exception ended, and the error that clients see."""
    known = typed_error(error)
    stop = next((reason for kind, reason in _STOPS if isinstance(known, kind)), StopReason.ERROR)
    return stop, RunError(known.reason, known.message, dict(known.metadata))
