"""The execution of the calls of an answer: results are journalled or committed, and no finished call runs again."""

import asyncio
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import Final

from mnemesh_kit.idempotency import EFFECT_RETENTION, RETENTION
from mnemesh_kit.secret_variables import SecretVariables
from mnemesh_kit.time import Clock
from mnemesh_types.messages import Approve, ClientReturn, Deny, Message, Role, ToolReturn, ToolStatus

from mnemesh_orchestrator.builtin.call import BuiltinCall
from mnemesh_orchestrator.builtin.executor import BuiltinTools
from mnemesh_orchestrator.builtin.schemas import CODE_TOOL_NAMES
from mnemesh_orchestrator.clients.blocks import BlocksClient
from mnemesh_orchestrator.clients.tools import ToolsClient
from mnemesh_orchestrator.llm.spans import add_tool_result, tool_span
from mnemesh_orchestrator.loop import step_commit
from mnemesh_orchestrator.loop.custom_tools import INTERRUPTED, CustomCalls, ProgramCalls, Programs, earlier_calls
from mnemesh_orchestrator.loop.rules import OutputUnmapped, RulesSolver
from mnemesh_orchestrator.loop.services import RetryPolicy, TurnMetrics
from mnemesh_orchestrator.loop.state import TurnContext, TurnState
from mnemesh_orchestrator.loop.step_commit import CallResult
from mnemesh_orchestrator.loop.step_messages import input_id, return_event
from mnemesh_orchestrator.model.agents import PromptPolicy
from mnemesh_orchestrator.model.conversations import PlannedCall
from mnemesh_orchestrator.model.core_memory import CoreMemory, MemoryAccess, SeenRevisions, memory_access
from mnemesh_orchestrator.model.events import EntryKind, JournalEntry, MessageEvent
from mnemesh_orchestrator.model.rules import CustomTool, ToolResult
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.processors import Processors, ToolResultFacts
from mnemesh_orchestrator.prompt.assembly import senders_of

_AFTER_EXIT: Final = "Error: {name} was not run, because {exit} had ended the turn. Call it before {exit}."
_CLIENT_RETURN_CHARACTERS: Final = 50_000


def turn_memory(context: TurnContext, state: TurnState) -> MemoryAccess:
    """Returns the scopes of memories of a turn: those of an identity only if it sent the whole input.

    A turn without user messages, such as one that continues after an approval, has the sender of the newest one.
    """
    run, agent = context.run, context.agent
    senders = tuple(message.sender_id for message in run.input if message.role is Role.USER)
    return memory_access(
        agent.id,
        agent.memory_scope,
        agent.memory_extraction,
        conversation_id=run.conversation_id,
        senders=senders or senders_of(state.window.messages)[-1:],
        group_id=run.group_id,
    )


def user_message_ids(run: Run) -> tuple[str, ...]:
    """Returns the ids of the messages of users in the input of a run. They are stored with its first step."""
    user_messages = (ordinal for ordinal, message in enumerate(run.input) if message.role is Role.USER)
    return tuple(input_id(run.first_run_id, ordinal) for ordinal in user_messages)


@dataclass(frozen=True, slots=True)
class _Calls:
    """The facts that the calls of one step share."""

    context: TurnContext
    step_id: str
    seen: SeenRevisions | None
    core: CoreMemory
    last_user_text: str
    memory: MemoryAccess
    held: int | None
    """The ordinal of the call whose result the commit of the step holds, unless the call cannot be repeated."""
    committed: Mapping[str, tuple[ToolReturn, datetime]]
    """The returns that the step has committed, by call id."""
    programs: dict[int, ProgramCalls] = field(default_factory=dict)
    """The calls that programs made, by the ordinal of the call that ran the program."""


class ToolExecution:
    """Runs the tools of a step."""

    def __init__(
        self,
        builtin: BuiltinTools,
        tools: ToolsClient,
        secrets: SecretVariables,
        core_memory: BlocksClient,
        retry: RetryPolicy,
        clock: Clock,
        processors: Processors,
        metrics: TurnMetrics,
    ) -> None:
        self._builtin = builtin
        self._custom = CustomCalls(tools, secrets, core_memory, retry, clock)
        self._retry = retry
        self._clock = clock
        self._processors = processors
        self._metrics = metrics
        self._programs = Programs(tools, retry, clock)

    async def run(
        self,
        context: TurnContext,
        state: TurnState,
        step_id: str,
        planned: Sequence[PlannedCall],
        seen: SeenRevisions | None,
        committed: Sequence[Message] | None = None,
    ) -> tuple[tuple[CallResult, ...], RulesSolver]:
        """Runs the calls of a step.

        The result of the last call needs no write of its own if the call can be repeated: the commit of the step, which
        follows, holds it.

        Neighbouring calls of tools that permit it run in parallel, unless a rule orders tools. Under rules the calls
        run one after another, each under the rules as the calls before it leave them. Once a call has ended the turn,
        the calls after it are not run.

        Args:
            step_id: the step that made the calls.
            seen: the block revisions that the agent has seen. The calls' own edits advance them.
            committed: the messages of the step that are committed; None if the commit belongs to another step.

        Returns:
            The results in the order of the calls, and the rules solver after them.
        """
        if seen is not None:
            seen.begin(state.core)
        is_held = committed is not None and context.journal.holds_results
        calls = _Calls(
            context,
            step_id,
            seen,
            state.core,
            state.last_user_text,
            turn_memory(context, state),
            held=planned[-1].ordinal if is_held else None,
            committed=_returns_of(committed or ()),
        )
        results: list[CallResult] = []
        solver = state.solver
        ended_by: str | None = None
        is_free = solver.permits_parallel_calls
        for parallel, group in groupby(planned, key=lambda item: is_free and _permits_parallel(context, item)):
            if parallel:
                for result in await self._run_parallel(calls, solver, list(group)):
                    results.append(result)
                    solver = _after(solver, result)
                continue
            for item in group:
                result = await self._run_call(calls, solver, item, ended_by)
                results.append(result)
                solver = _after(solver, result)
                ended_by = ended_by or _ends_turn(context, solver, result)
        return tuple(results), solver

    async def _run_parallel(self, calls: _Calls, solver: RulesSolver, items: Sequence[PlannedCall]) -> list[CallResult]:
        tasks = [asyncio.ensure_future(self._run_call(calls, solver, item)) for item in items]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            # An error of one call ends the turn in this process, so the other calls stop as well.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _run_call(
        self, calls: _Calls, solver: RulesSolver, item: PlannedCall, ended_by: str | None = None
    ) -> CallResult:
        context, seen = calls.context, calls.seen
        decision = context.decision(item.call.id)
        decided = step_commit.decided_result(decision, _return_limit(context, item))
        refusal = _refusal(context, solver, item) if decided is None else None
        is_denied = isinstance(decision, Deny)
        known = context.journal.entry(calls.step_id, EntryKind.RESULT, item.ordinal)
        if known is not None and known.result is not None:
            if seen is not None and known.seen is not None:
                seen.restore(known.seen)
            made = earlier_calls(context, calls.step_id, item.ordinal)
            return CallResult(item, known.result, known.at, refusal is not None, is_denied, made, ended_by)
        if item.call.id in calls.committed:
            returned, at = calls.committed[item.call.id]
            _hold(context, calls.step_id, item, returned, at)
            return CallResult(item, returned, at, refusal is not None, is_denied, ended_by=ended_by)
        before = seen.revisions if seen is not None else {}
        if ended_by is not None:
            result = ToolResult(ok=False, text=_AFTER_EXIT.format(name=item.call.name, exit=ended_by))
        elif item.problem is not None:
            result = ToolResult(ok=False, text=item.problem)
        elif decided is not None:
            result = await self._process(calls, item, decided) if isinstance(decision, ClientReturn) else decided
        elif refusal is not None:
            result = ToolResult(ok=False, text=refusal)
        elif self._is_forgotten(calls):
            result = ToolResult(ok=False, text=INTERRUPTED)
        else:
            if seen is not None:
                seen.begin_call()
            result = await self._execute(calls, item, solver)
        returned, at = result.to_return(item.call.id, item.call.name), self._clock.now()
        if item.ordinal == calls.held and self._is_repeatable(context, item):
            _hold(context, calls.step_id, item, returned, at)
        else:
            changed = seen.since(before) if seen is not None else None
            entry = JournalEntry(calls.step_id, EntryKind.RESULT, at, item.ordinal, result=returned, seen=changed)
            await context.journal.record(entry, _result_events(context.run, calls.step_id, item, returned, at))
        made = calls.programs.get(item.ordinal, ProgramCalls())
        return CallResult(item, returned, at, refusal is not None, is_denied, made, ended_by)

    def _is_forgotten(self, calls: _Calls) -> bool:
        """Returns whether services may have forgotten the effects of calls that an earlier holder of the run began."""
        journal = calls.context.journal
        begun = journal.entry(calls.step_id, EntryKind.ANSWER) or journal.entry(calls.step_id, EntryKind.DECISION)
        return begun is not None and self._clock.now() - begun.at > EFFECT_RETENTION - RETENTION

    async def _execute(
        self, calls: _Calls, item: PlannedCall, solver: RulesSolver, *, is_started: bool = False
    ) -> ToolResult:
        """Executes, counts and records a call. `is_started` says that this process has recorded its start."""
        with tool_span(item.call.name, item.call.id, item.arguments) as recorded:
            result = await self._run_tool(calls, item, solver, is_started=is_started)
            add_tool_result(recorded, result.text, ok=result.ok)
        self._metrics.tool_called(item.call.name, self._builtin.names, ok=result.ok)
        return result

    async def _run_tool(self, calls: _Calls, item: PlannedCall, solver: RulesSolver, *, is_started: bool) -> ToolResult:
        context, name = calls.context, item.call.name
        custom = context.toolbox.custom_tool(name)
        if context.toolbox.schema(name) is None:
            return ToolResult(ok=False, text=f"Error: there is no tool {name} any more. It was not run.")
        if context.toolbox.waits(name, item.arguments) and not isinstance(context.decision(item.call.id), Approve):
            return ToolResult(ok=False, text=step_commit.UNASKED.format(name=name))
        if custom is not None:
            return await self._execute_custom(calls, item, custom, is_started=is_started)
        if name in CODE_TOOL_NAMES:
            return await self._execute_program(calls, item, solver)
        call = BuiltinCall(
            name=name,
            arguments=item.arguments,
            agent_id=context.agent.id,
            agent_name=context.agent.name,
            time_zone=context.agent.time_zone,
            tool_call_id=item.call.id,
            run=context.run,
            effect_prefix=f"{calls.step_id}/{item.ordinal}",
            conversation=context.conversation,
            seen_revisions=calls.seen,
            last_user_text=calls.last_user_text,
            memory=calls.memory,
            user_message_ids=user_message_ids(context.run),
            shows_opened_files=context.agent.prompt_policy is PromptPolicy.CACHE,
            embedder=context.agent.embedder,
            show_approval=partial(context.journal.show_member, calls.step_id),
        )
        result = await self._retry.call(lambda: self._builtin.execute(call))
        return await self._process(calls, item, result)

    async def _execute_program(self, calls: _Calls, item: PlannedCall, solver: RulesSolver) -> ToolResult:
        async def run_tool(called: PlannedCall) -> ToolResult:
            return await self._execute(calls, called, solver, is_started=True)

        result, made = await self._programs.run(calls.context, calls.step_id, item, solver, run_tool)
        calls.programs[item.ordinal] = made
        return await self._process(calls, item, result)

    async def _process(self, calls: _Calls, item: PlannedCall, result: ToolResult) -> ToolResult:
        """Returns a result as the operator's processors leave it."""
        if not self._processors.has_result_processors:
            return result
        run = calls.context.run
        facts = ToolResultFacts(
            organization_id=run.organization_id,
            subject_id=run.subject_id,
            agent_id=calls.context.agent.id,
            conversation_id=run.conversation_id,
            run_id=run.id,
            step_id=calls.step_id,
            tool_call_id=item.call.id,
            tool_name=item.call.name,
            arguments=deepcopy(dict(item.arguments)),
            ok=result.ok,
        )
        return await self._processors.process_result(result, facts)

    async def _execute_custom(
        self, calls: _Calls, item: PlannedCall, tool: CustomTool, *, is_started: bool
    ) -> ToolResult:
        result = await self._custom.run(
            calls.context, calls.step_id, calls.seen, calls.core, item, tool, is_started=is_started
        )
        return await self._process(calls, item, result)

    def _is_repeatable(self, context: TurnContext, item: PlannedCall) -> bool:
        name = item.call.name
        return name in self._builtin.repeatable and context.toolbox.custom_tool(name) is None


def hold_committed(
    context: TurnContext, step_id: str, planned: Sequence[PlannedCall], committed: Sequence[Message]
) -> None:
    """Holds the results that a committed step has and that the journal does not have yet."""
    returns = _returns_of(committed)
    for item in planned:
        if item.call.id in returns and context.journal.entry(step_id, EntryKind.RESULT, item.ordinal) is None:
            _hold(context, step_id, item, *returns[item.call.id])


def _returns_of(messages: Sequence[Message]) -> dict[str, tuple[ToolReturn, datetime]]:
    """Returns the returns in messages with their times, by call id."""
    return {item.tool_call_id: (item, message.created_at) for message in messages for item in message.tool_returns}


def _hold(context: TurnContext, step_id: str, item: PlannedCall, returned: ToolReturn, at: datetime) -> None:
    entry = JournalEntry(step_id, EntryKind.RESULT, at, item.ordinal, result=returned)
    context.journal.hold(entry, _result_events(context.run, step_id, item, returned, at))


def _result_events(
    run: Run, step_id: str, item: PlannedCall, returned: ToolReturn, at: datetime
) -> Sequence[MessageEvent]:
    """Returns the event of a result, if clients see one."""
    event: MessageEvent | None = return_event(step_id, item.ordinal, returned, at)
    if (
        run.config.assistant_messages
        and returned.name == run.config.assistant_tool_name
        and returned.status is ToolStatus.SUCCESS
    ):
        # Clients see the words of the speaking tool; its return says nothing more.
        event = step_commit.speech_event(run, item, at)
    return () if event is None else (event,)


def _permits_parallel(context: TurnContext, item: PlannedCall) -> bool:
    tool = context.toolbox.custom_tool(item.call.name)
    return tool is not None and tool.parallel


def _return_limit(context: TurnContext, item: PlannedCall) -> int:
    """Returns the most characters that a client's return of the call may have."""
    custom = context.toolbox.custom_tool(item.call.name)
    return custom.return_char_limit if custom is not None else _CLIENT_RETURN_CHARACTERS


def _refusal(context: TurnContext, solver: RulesSolver, item: PlannedCall) -> str | None:
    """Returns why a rule forbids the call, or None."""
    name, toolbox = item.call.name, context.toolbox
    if toolbox.schema(name) is None:
        return None
    try:
        allowed = solver.allowed(toolbox.names)
    except OutputUnmapped as error:
        return error.message
    return None if name in allowed else solver.violation_text(name, allowed)


def _ends_turn(context: TurnContext, solver: RulesSolver, result: CallResult) -> str | None:
    """Returns the tool of a call if the turn ends with it, or None. `solver` includes the call."""
    name, is_done = result.returned.name, result.has_run and result.returned.status is ToolStatus.SUCCESS
    ends = is_done and solver.is_terminal(name) and not solver.uncalled_required(context.toolbox.names)
    return name if ends else None


def _after(solver: RulesSolver, result: CallResult) -> RulesSolver:
    if not result.has_run:
        return solver
    return result.calls.after(solver).after(result.returned.name, result.returned.text)
