"""Runs of code that a model wrote, and of the tools that the code calls."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mnemesh_kit.errors import NOT_BEGUN, TEMPORARY, MnemeshError, Unavailable
from mnemesh_kit.time import Clock
from mnemesh_types.messages import ToolCall

from mnemesh_orchestrator.builtin.arguments import ParseFailure, check
from mnemesh_orchestrator.builtin.code import program_of, shown_result
from mnemesh_orchestrator.builtin.schemas import AGENT_MESSAGE_TOOLS, BUILTIN_SCHEMAS, CODE_TOOL_NAMES, RUN_CODE
from mnemesh_orchestrator.clients.tools import ToolsClient
from mnemesh_orchestrator.errors import LeaseLost
from mnemesh_orchestrator.loop.call_plan import SPEAKING, planned_call
from mnemesh_orchestrator.loop.custom_tools import INTERRUPTED
from mnemesh_orchestrator.loop.retry import RetryPolicy
from mnemesh_orchestrator.loop.rules import OutputUnmapped, RulesSolver
from mnemesh_orchestrator.loop.state import TurnContext
from mnemesh_orchestrator.loop.step_messages import call_id
from mnemesh_orchestrator.model.approvals import PlannedCall
from mnemesh_orchestrator.model.custom_tools import ProgramResult, ToolResult
from mnemesh_orchestrator.model.journal import EntryKind, JournalEntry

_ORDINALS: Final = 1_000
"""The ordinals of the calls of one program; the tools service allows fewer calls."""
_DIRECTLY: Final = "Error: {name} cannot be called by a program. Call it directly."
_UNAPPROVED: Final = "Error: {name} needs a person's approval, which a program cannot request. Call it directly."
_IMAGES: Final = "[Images left out: {count}. A program gets text; call {name} directly to see them.]"

_WORD: Final = re.compile(r"\w+")

RunTool = Callable[[PlannedCall], Awaitable[ToolResult]]


@dataclass(slots=True)
class ProgramCalls:
    """The calls of a program, in order: the names of the tools and their results."""

    made: list[tuple[str, str]] = field(default_factory=list)
    running: str | None = None
    """The tool of a call that has begun and has no result yet."""

    @property
    def has_begun(self) -> bool:
        """True if the program called a tool."""
        return bool(self.made) or self.running is not None

    def after(self, solver: RulesSolver) -> RulesSolver:
        """Returns the solver after these calls."""
        for name, text in self.made:
            solver = solver.after(name, text)
        return solver


def earlier_calls(context: TurnContext, step_id: str, ordinal: int) -> ProgramCalls:
    """Returns the calls of a program that an earlier holder of the run recorded."""
    first = (ordinal + 1) * _ORDINALS
    found = [
        entry
        for (step, _, number), entry in context.journal.entries.items()
        if step == step_id and first < number < first + _ORDINALS
    ]
    results = {entry.ordinal: entry.result for entry in found if entry.result is not None}
    unfinished = [entry.tool for entry in found if entry.kind is EntryKind.STARTED and entry.ordinal not in results]
    made = [(result.name, result.text) for _, result in sorted(results.items())]
    return ProgramCalls(made, unfinished[0] if unfinished else None)


class Programs:
    """Runs the programs of a step. A program is never run again, as custom tools."""

    def __init__(self, tools: ToolsClient, retry: RetryPolicy, clock: Clock) -> None:
        self._tools = tools
        self._retry = retry
        self._clock = clock

    async def run(
        self, context: TurnContext, step_id: str, item: PlannedCall, solver: RulesSolver, run_tool: RunTool
    ) -> tuple[ToolResult, ProgramCalls]:
        """Runs the program of a call.

        Args:
            context: the turn.
            step_id: the step of the call.
            item: the call.
            solver: the rules as the calls before it leave them.
            run_tool: runs a tool that the program calls. The start of the call is recorded before.

        Returns:
            The result, and the calls that the program made.

        Raises:
            Unreachable, ServerBusy: the program was not run.
            LeaseLost: another process holds the run now.
        """
        if context.journal.entry(step_id, EntryKind.STARTED, item.ordinal) is not None:
            calls = earlier_calls(context, step_id, item.ordinal)
            return ToolResult(ok=False, text=_interrupted(calls)), calls
        arguments = check(item.arguments, BUILTIN_SCHEMAS[item.call.name])
        if isinstance(arguments, ParseFailure):
            return ToolResult(ok=False, text=arguments.text), ProgramCalls()
        await context.journal.record(JournalEntry(step_id, EntryKind.STARTED, self._clock.now(), item.ordinal))
        answers = _Answers(self._clock, context, step_id, item, solver, run_tool)
        try:
            result = await self._run_program(context, item, arguments, answers)
        except (LeaseLost, *NOT_BEGUN):
            raise
        except TEMPORARY:
            return ToolResult(ok=False, text=_interrupted(answers.calls)), answers.calls
        except MnemeshError as error:
            text = f"Error executing function {item.call.name}: {error.message}"
            return ToolResult(ok=False, text=text), answers.calls
        text = shown_result(result, [name for name, _ in answers.calls.made])
        return ToolResult(result.ok, text), answers.calls

    async def _run_program(
        self, context: TurnContext, item: PlannedCall, arguments: Mapping[str, Any], answers: "_Answers"
    ) -> ProgramResult:
        signatures = _signatures(context)
        if item.call.name == RUN_CODE:
            signatures = _named_in(str(arguments["code"]), signatures)
        program, answer = program_of(arguments, signatures), answers.answer if signatures else None

        async def attempt() -> ProgramResult:
            try:
                return await self._tools.run_program(program, answer)
            except NOT_BEGUN as error:
                if answers.calls.has_begun:  # the program ran, and a tool that it called did not
                    raise Unavailable(error.message) from error
                raise

        return await self._retry.call(attempt, errors=NOT_BEGUN)


class _Answers:
    """Runs the tools that one program calls, and records each result before the program sees it."""

    def __init__(
        self,
        clock: Clock,
        context: TurnContext,
        step_id: str,
        item: PlannedCall,
        solver: RulesSolver,
        run_tool: RunTool,
    ) -> None:
        self._clock = clock
        self._context = context
        self._step_id = step_id
        self._solver = solver
        self._run_tool = run_tool
        self._ordinal = (item.ordinal + 1) * _ORDINALS
        self.calls = ProgramCalls()

    async def answer(self, name: str, arguments: str) -> ToolResult:
        """Runs a tool under the rules of the agent."""
        self._ordinal += 1
        call = ToolCall(call_id(self._step_id, self._ordinal), name, arguments)
        item = planned_call(self._ordinal, call, self._context.toolbox, self._solver.prefilled(name))
        problem = item.problem or _refusal(self._context, self._solver, item)
        if problem is not None:
            return ToolResult(ok=False, text=problem)
        started = JournalEntry(self._step_id, EntryKind.STARTED, self._clock.now(), self._ordinal, tool=name)
        await self._context.journal.record(started)
        self.calls.running = name
        result = _as_text(name, await self._run_tool(item))
        returned = result.to_return(call.id, name)
        entry = JournalEntry(self._step_id, EntryKind.RESULT, self._clock.now(), self._ordinal, result=returned)
        await self._context.journal.record(entry)
        self.calls.made.append((name, result.text))
        self.calls.running = None
        self._solver = self._solver.after(name, result.text)
        return result


def _as_text(name: str, result: ToolResult) -> ToolResult:
    """Returns a result without its images, which a program cannot receive, with a note about them."""
    if not result.images:
        return result
    note = _IMAGES.format(count=len(result.images), name=name)
    return replace(result, text=f"{result.text}\n{note}".lstrip(), images=())


def _refusal(context: TurnContext, solver: RulesSolver, item: PlannedCall) -> str | None:
    """Returns why a program must not call the tool, or None."""
    name, toolbox = item.call.name, context.toolbox
    if name in CODE_TOOL_NAMES | AGENT_MESSAGE_TOOLS | toolbox.client | {SPEAKING} or solver.is_terminal(name):
        return _DIRECTLY.format(name=name)
    if toolbox.waits(name, item.arguments):
        return _UNAPPROVED.format(name=name)
    try:
        allowed = solver.allowed(toolbox.names)
    except OutputUnmapped as error:
        return error.message
    return None if name in allowed else solver.violation_text(name, allowed)


def _signatures(context: TurnContext) -> dict[str, tuple[str, ...]]:
    return {
        schema.name: tuple(schema.parameters.get("properties", {}))
        for schema in context.toolbox.plain
        if schema.name.isidentifier() and schema.name not in CODE_TOOL_NAMES
    }


def _named_in(code: str, signatures: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Returns the custom tools that code names. Those are functions in all code; the built-in ones are not."""
    words = set(_WORD.findall(code))
    return {name: names for name, names in signatures.items() if name in words and name not in BUILTIN_SCHEMAS}


def _interrupted(calls: ProgramCalls) -> str:
    names = ", ".join(name for name, _ in calls.made)
    before = f" Before that it had called: {names}." if names else ""
    running = f" It was calling {calls.running}, whose outcome is unknown too." if calls.running is not None else ""
    return f"{INTERRUPTED}{before}{running}"
