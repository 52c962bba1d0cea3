"""The calls that run in a sandbox: stored tools with the agent's blocks, and programs with the tools that they call."""

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from mnemesh_kit.errors import NOT_BEGUN, TEMPORARY, MnemeshError, Unavailable
from mnemesh_kit.secret_variables import SecretVariables
from mnemesh_kit.time import Clock
from mnemesh_types.blocks import RethinkEdit
from mnemesh_types.messages import ToolCall

from mnemesh_orchestrator.builtin.arguments import ParseFailure, check
from mnemesh_orchestrator.builtin.executor import program_of, shown_result
from mnemesh_orchestrator.builtin.schemas import AGENT_MESSAGE_TOOLS, BUILTIN_SCHEMAS, CODE_TOOL_NAMES, RUN_CODE
from mnemesh_orchestrator.clients.blocks import BlocksClient
from mnemesh_orchestrator.clients.tools import ToolsClient
from mnemesh_orchestrator.errors import LeaseLost, ToolSlotsBusy
from mnemesh_orchestrator.loop.rules import SPEAKING, OutputUnmapped, RulesSolver, planned_call
from mnemesh_orchestrator.loop.services import RetryPolicy
from mnemesh_orchestrator.loop.state import TurnContext
from mnemesh_orchestrator.loop.step_messages import call_id
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.conversations import PlannedCall
from mnemesh_orchestrator.model.core_memory import AgentAuthor, BlockEdit, CoreMemory, SeenRevisions
from mnemesh_orchestrator.model.events import EntryKind, JournalEntry, ToolProgress
from mnemesh_orchestrator.model.rules import (
    CallProgress,
    CustomTool,
    OnProgress,
    ProgramResult,
    ToolResult,
    no_progress,
)

INTERRUPTED: Final = (
    "The tool was interrupted, its outcome is unknown. It was not run again; check before you repeat it."
)

T = TypeVar("T")
Attempts = Callable[[Callable[[], Awaitable[T]]], Awaitable[T]]
Executed = tuple[ToolResult, Mapping[str, str]]
"""The result of a tool, and the values of the blocks that it changed."""
EditBlock = Callable[[str, AgentAuthor, str, BlockEdit], Awaitable[object]]


async def single_attempt(call: Callable[[], Awaitable[T]]) -> T:
    """Makes a call once."""
    return await call()


def refused(tool: CustomTool, error: MnemeshError) -> ToolResult:
    """Returns the result of a tool that the tools service refused to run."""
    return ToolResult(ok=False, text=f"Error executing function {tool.name}: {error.message}")


async def run_custom(
    tools: ToolsClient,
    secrets: SecretVariables,
    edit_block: EditBlock,
    agent: Agent,
    core: CoreMemory,
    tool: CustomTool,
    arguments: Mapping[str, Any],
    author: AgentAuthor,
    effect_prefix: str,
    attempts: Attempts[Executed] = single_attempt,
    on_progress: OnProgress = no_progress,
) -> ToolResult:
    """Runs a stored tool, and returns its result. If it is not known whether the tool ran, the result says so.

    Args:
        tools: the tools service.
        secrets: decrypts the variables of the agent.
        edit_block: stores one changed block.
        agent: the agent that calls the tool.
        core: the agent's blocks, which the tool sees. A block that was changed since `core` was read is not
            overwritten, because the tool did not see that change.
        author: the author of the edits.
        effect_prefix: the prefix of the edits' request ids, which end in "/{ordinal}".
        attempts: makes the call, once or more often. Only idempotent tools may run more often.
        on_progress: receives what the tool reports while it runs.

    Raises:
        Unreachable, ServerBusy: the tool was not run.
        Unavailable, DeadlineExceeded, StorageFull: an edit of the tool could not be stored.
    """

    async def execute() -> Executed:
        values = json.dumps(arguments, ensure_ascii=False)
        environment = secrets.opened(agent.id, agent.secrets)
        if tool.mcp_server_id is not None:
            return await tools.run_on_mcp_server(tool, values, agent.id, environment, on_progress), {}
        return await tools.execute(
            tool.id,
            values,
            agent_id=agent.id,
            agent_name=agent.name,
            project_id=agent.provenance.project_id,
            blocks=core.blocks,
            environment=environment,
        )

    try:
        result, changed = await attempts(execute)
    except NOT_BEGUN:
        raise
    except TEMPORARY:
        return ToolResult(ok=False, text=INTERRUPTED)
    except MnemeshError as error:
        return refused(tool, error)
    problems = []
    for ordinal, (label, value) in enumerate(sorted(changed.items())):
        block = core.block(label)
        edit = RethinkEdit(value, block.revision if block is not None else None)
        try:
            await edit_block(f"{effect_prefix}/{ordinal}", author, label, edit)
        except TEMPORARY:
            raise
        except MnemeshError as error:
            problems.append(f"The block {label} was not changed: {error.message}")
    return replace(result, ok=False, text="\n".join((result.text, *problems))) if problems else result


@dataclass(frozen=True, eq=False)
class CustomCalls:
    """Runs the stored tools that the answers of a turn call."""

    tools: ToolsClient
    secrets: SecretVariables
    core_memory: BlocksClient
    retry: RetryPolicy
    clock: Clock

    async def run(
        self,
        context: TurnContext,
        step_id: str,
        seen: SeenRevisions | None,
        core: CoreMemory,
        item: PlannedCall,
        tool: CustomTool,
        *,
        is_started: bool = False,
    ) -> ToolResult:
        """Runs a tool and returns its result. Its progress becomes live events of the run.

        Args:
            step_id: the step that made the call.
            seen: the block revisions that the agent has seen. The tool's edits advance them.
            core: the agent's blocks as the step began.
            is_started: this process has recorded the start of the call.

        Raises:
            Unavailable, DeadlineExceeded, StorageFull, ServerBusy: the tool was not run, or its edits are not stored.
        """
        started = context.journal.entry(step_id, EntryKind.STARTED, item.ordinal)
        if started is not None and not tool.idempotent:
            return ToolResult(ok=False, text=INTERRUPTED)
        agent, holder = context.agent, context.conversation.holder_id
        if tool.mcp_server_id is None:
            # Earlier calls of the same answer may have edited core memory.
            current = await self.retry.call(lambda: self.core_memory.get(agent.id, None, holder))
            core = current or core
        if started is None and not is_started:
            entry = JournalEntry(step_id, EntryKind.STARTED, self.clock.now(), item.ordinal)
            await context.journal.record(entry)
        author = AgentAuthor(agent.id, item.call.id, context.run.id, holder)
        prefix = f"{step_id}/{item.ordinal}"

        async def edit_block(request_id: str, author: AgentAuthor, label: str, edit: BlockEdit) -> None:
            edited = await self.retry.call(lambda: self.core_memory.edit(request_id, author, label, edit))
            if seen is not None:
                seen.record_edit(label, edited.block.revision)

        def publish(progress: CallProgress) -> None:
            event = ToolProgress(item.call.id, tool.name, progress.done, progress.total, progress.message)
            context.journal.publish_live(step_id, event)

        attempts = self._attempts(tool, in_program=is_started)
        return await run_custom(
            self.tools, self.secrets, edit_block, agent, core, tool, item.arguments, author, prefix, attempts, publish
        )

    def _attempts(self, tool: CustomTool, *, in_program: bool) -> Attempts[Executed]:
        """Returns what calls the tools service: until the tool has run, or may have run if it is not idempotent.

        A program that calls a tool holds a slot, and so must not wait until others free theirs.
        """

        async def attempts(execute: Callable[[], Awaitable[Executed]]) -> Executed:
            async def once() -> Executed:
                try:
                    return await execute()
                except ToolSlotsBusy as error:
                    if not in_program:
                        raise
                    return refused(tool, error), {}

            return await self.retry.call(once, errors=TEMPORARY if tool.idempotent else NOT_BEGUN)

        return attempts


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


@dataclass(frozen=True, eq=False)
class Programs:
    """Runs the programs of a step. A program is never run again, as custom tools."""

    tools: ToolsClient
    retry: RetryPolicy
    clock: Clock

    async def run(
        self, context: TurnContext, step_id: str, item: PlannedCall, solver: RulesSolver, run_tool: RunTool
    ) -> tuple[ToolResult, ProgramCalls]:
        """Runs the program of a call.

        Args:
            step_id: the step of the call.
            solver: the rules as the calls before it leave them.
            run_tool: runs a tool that the program calls. The start of the call is recorded before.

        Returns:
            The result, and the calls that the program made.

        Raises:
            Unreachable, ServerBusy: the program was not run.
        """
        if context.journal.entry(step_id, EntryKind.STARTED, item.ordinal) is not None:
            calls = earlier_calls(context, step_id, item.ordinal)
            return ToolResult(ok=False, text=_interrupted(calls)), calls
        arguments = check(item.arguments, BUILTIN_SCHEMAS[item.call.name])
        if isinstance(arguments, ParseFailure):
            return ToolResult(ok=False, text=arguments.text), ProgramCalls()
        await context.journal.record(JournalEntry(step_id, EntryKind.STARTED, self.clock.now(), item.ordinal))
        answers = _Answers(self.clock, context, step_id, item, solver, run_tool)
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
                return await self.tools.run_program(program, answer)
            except NOT_BEGUN as error:
                if answers.calls.has_begun:  # the program ran, and a tool that it called did not
                    raise Unavailable(error.message) from error
                raise

        return await self.retry.call(attempt, errors=NOT_BEGUN)


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
