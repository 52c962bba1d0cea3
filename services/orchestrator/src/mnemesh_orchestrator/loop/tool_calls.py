"""Carrying out the calls of an answer: each journalled, none done twice, in the order of the calls."""

import asyncio
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby

from mnemesh_kit.clock import Clock
from mnemesh_kit.ids import derive_id
from mnemesh_types.messages import Approve, ClientReturn, Deny, ToolReturn, ToolStatus

from mnemesh_orchestrator.builtin.executor import BuiltinCall, BuiltinTools
from mnemesh_orchestrator.loop import approvals
from mnemesh_orchestrator.loop.custom_tools import INTERRUPTED, once, run_custom
from mnemesh_orchestrator.loop.journal import JournalWriter
from mnemesh_orchestrator.loop.message_events import otid
from mnemesh_orchestrator.loop.policy import CallOutcome
from mnemesh_orchestrator.loop.retry import RetryPolicy
from mnemesh_orchestrator.loop.rules import OutputUnmapped
from mnemesh_orchestrator.loop.state import Turn
from mnemesh_orchestrator.model.approvals import PlannedCall
from mnemesh_orchestrator.model.core_memory import AgentAuthor, Block, BlockEdit
from mnemesh_orchestrator.model.custom_tools import CustomTool, ToolResult
from mnemesh_orchestrator.model.events import MessageEvent
from mnemesh_orchestrator.model.journal import EntryKind, JournalEntry
from mnemesh_orchestrator.ports.blocks import CoreMemoryPort
from mnemesh_orchestrator.ports.tools import ToolsPort
from mnemesh_orchestrator.processors.chain import Processors
from mnemesh_orchestrator.processors.port import ToolResultFacts

_CLIENT_RETURN_CHARACTERS = 50_000


@dataclass(frozen=True, slots=True)
class Carried:
    """A call that was carried out."""

    planned: PlannedCall
    returned: ToolReturn
    at: datetime
    violation: bool = False
    denied: bool = False

    @property
    def has_run(self) -> bool:
        """The tool itself was called, whatever it came to; only such calls count for the rules."""
        return self.planned.problem is None and not self.violation and not self.denied

    @property
    def outcome(self) -> CallOutcome:
        """What the policy wants to know of it."""
        ok = self.returned.status is ToolStatus.SUCCESS
        return CallOutcome(self.planned.call.name, ok, self.planned.heartbeat, self.violation, self.denied)


class ToolExecution:
    """Runs the tools of one step."""

    def __init__(
        self,
        recorder: JournalWriter,
        builtin: BuiltinTools,
        tools: ToolsPort,
        core_memory: CoreMemoryPort,
        patience: RetryPolicy,
        clock: Clock,
        processors: Processors,
    ) -> None:
        self._recorder = recorder
        self._builtin = builtin
        self._tools = tools
        self._core_memory = core_memory
        self._patience = patience
        self._clock = clock
        self._processors = processors

    async def carry_out(self, turn: Turn, step: str, planned: Sequence[PlannedCall]) -> tuple[Carried, ...]:
        """Every call's return, in order; advances the turn's rules solver by each.

        Neighbouring calls of tools that permit it run beside each other, as
        long as no rule orders tools.
        """
        carried: list[Carried] = []
        free = turn.solver.permits_parallel_calls
        for parallel, group in groupby(planned, key=lambda item: free and self._parallel(turn, item)):
            if parallel:
                for result in await self._together(turn, step, list(group)):
                    carried.append(_counted(turn, result))
                continue
            for item in group:
                carried.append(_counted(turn, await self._one(turn, step, item)))
        return tuple(carried)

    async def _together(self, turn: Turn, step: str, items: Sequence[PlannedCall]) -> list[Carried]:
        tasks = [asyncio.ensure_future(self._one(turn, step, item)) for item in items]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            # What ends one of them ends the turn here: the others stop with it.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    def _parallel(self, turn: Turn, item: PlannedCall) -> bool:
        tool = turn.toolbox.custom_tool(item.call.name)
        return tool is not None and tool.parallel

    async def _one(self, turn: Turn, step: str, item: PlannedCall) -> Carried:
        decision = turn.decision(item.call.id)
        decided = approvals.decided(decision, self._limit(turn, item))
        refusal = self._refusal(turn, item) if decided is None else None
        denied = isinstance(decision, Deny)
        known = turn.entry(step, EntryKind.RESULT, item.ordinal)
        if known is not None and known.result is not None:
            if turn.sight is not None and known.seen is not None:
                turn.sight.learnt(known.seen)
            return Carried(item, known.result, known.at, refusal is not None, denied)
        seen = turn.sight.revisions if turn.sight is not None else {}
        if item.problem is not None:
            result = ToolResult(ok=False, text=item.problem)
        elif decided is not None:
            result = await self._kept(turn, step, item, decided) if isinstance(decision, ClientReturn) else decided
        elif refusal is not None:
            result = ToolResult(ok=False, text=refusal)
        else:
            result = await self._run(turn, step, item)
        learnt = turn.sight.since(seen) if turn.sight is not None else None
        carried = await self._journal(turn, step, item, result, learnt)
        return replace(carried, violation=refusal is not None, denied=denied)

    def _limit(self, turn: Turn, item: PlannedCall) -> int:
        """The most characters that a client's return of the call may have."""
        custom = turn.toolbox.custom_tool(item.call.name)
        return custom.return_char_limit if custom is not None else _CLIENT_RETURN_CHARACTERS

    def _refusal(self, turn: Turn, item: PlannedCall) -> str | None:
        """Why a rule forbids the call, or None."""
        name = item.call.name
        if turn.toolbox.schema(name) is None:
            return None
        try:
            allowed = turn.solver.allowed(turn.toolbox.names)
        except OutputUnmapped as error:
            return error.message
        return None if name in allowed else turn.solver.violation_text(name, allowed)

    async def _run(self, turn: Turn, step: str, item: PlannedCall) -> ToolResult:
        name = item.call.name
        custom = turn.toolbox.custom_tool(name)
        if turn.toolbox.schema(name) is None:
            return ToolResult(ok=False, text=f"Error: there is no tool {name} any more. It was not run.")
        if name in turn.toolbox.gated and not isinstance(turn.decision(item.call.id), Approve):
            return ToolResult(ok=False, text=approvals.UNASKED.format(name=name))
        if custom is not None:
            return await self._run_custom(turn, step, item, custom)
        call = BuiltinCall(
            name=name,
            arguments=item.arguments,
            agent_id=turn.agent.id,
            time_zone=turn.agent.time_zone,
            tool_call_id=item.call.id,
            run_id=turn.run.id,
            effect_prefix=f"{step}/{item.ordinal}",
            conversation=turn.conversation,
            sight=turn.sight,
            heard=turn.heard,
            memory_scope=turn.agent.memory_scope,
        )
        result = await self._patience.call(lambda: self._builtin.execute(call))
        return await self._kept(turn, step, item, result)

    async def _kept(self, turn: Turn, step: str, item: PlannedCall, result: ToolResult) -> ToolResult:
        """What a tool came to, as processors leave it."""
        if not self._processors.takes_results:
            return result
        facts = ToolResultFacts(
            organization_id=turn.run.organization_id,
            subject_id=turn.run.subject_id,
            agent_id=turn.agent.id,
            conversation_id=turn.run.conversation_id,
            run_id=turn.run.id,
            step_id=step,
            tool_call_id=item.call.id,
            tool_name=item.call.name,
            arguments=deepcopy(dict(item.arguments)),
            ok=result.ok,
        )
        return await self._processors.result(result, facts)

    async def _run_custom(self, turn: Turn, step: str, item: PlannedCall, tool: CustomTool) -> ToolResult:
        started = turn.entry(step, EntryKind.STARTED, item.ordinal)
        if started is not None and not tool.idempotent:
            return ToolResult(ok=False, text=INTERRUPTED)
        # As it is now: calls before this one in the same answer may have edited it.
        holder = turn.conversation.holder_id
        core = await self._patience.call(lambda: self._core_memory.get(turn.agent.id, None, holder)) or turn.core
        if started is None:
            entry = JournalEntry(step, EntryKind.STARTED, self._clock.now(), item.ordinal)
            await self._recorder.record(turn, step, entry)
        author = AgentAuthor(turn.agent.id, item.call.id, turn.run.id, holder)
        prefix = f"{step}/{item.ordinal}"

        async def edit(request_id: str, author: AgentAuthor, label: str, edit: BlockEdit) -> Block:
            block = await self._patience.call(lambda: self._core_memory.edit(request_id, author, label, edit))
            if turn.sight is not None:
                turn.sight.edited(label, block.revision)
            return block

        calling = self._patience.call if tool.idempotent else once
        result = await run_custom(self._tools, edit, turn.agent, core, tool, item.arguments, author, prefix, calling)
        return await self._kept(turn, step, item, result)

    async def _journal(
        self, turn: Turn, step: str, item: PlannedCall, result: ToolResult, seen: Mapping[str, int] | None
    ) -> Carried:
        call = item.call
        returned = ToolReturn.from_text(
            call.id,
            call.name,
            ToolStatus.SUCCESS if result.ok else ToolStatus.ERROR,
            result.text.replace("\0", "�"),
            result.stdout,
            result.stderr,
        )
        at = self._clock.now()
        entry = JournalEntry(step, EntryKind.RESULT, at, item.ordinal, result=returned, seen=seen)
        shown: MessageEvent | None = shown_return(step, item.ordinal, returned, at)
        if self._is_speech(turn, returned):
            shown = approvals.shown_speech(turn, item, at)
        await self._recorder.record(turn, step, entry, () if shown is None else (shown,))
        return Carried(item, returned, at)

    def _is_speech(self, turn: Turn, returned: ToolReturn) -> bool:
        """Speaking succeeded by being shown; its return is noise to a client."""
        config = turn.run.config
        is_spoken = config.assistant_messages and returned.name == config.assistant_tool_name
        return is_spoken and returned.status is ToolStatus.SUCCESS


def shown_return(step: str, ordinal: int, returned: ToolReturn, at: datetime) -> MessageEvent:
    """The event of a tool's return; it belongs to the step's one tool message."""
    message_id = derive_id("message", step, "returns")
    return MessageEvent(
        kind="tool_return",
        message_id=message_id,
        otid=otid(message_id, ordinal),
        message_time=at,
        tool_returns=(returned,),
    )


def _counted(turn: Turn, carried: Carried) -> Carried:
    if carried.has_run:
        turn.solver = turn.solver.after(carried.returned.name, carried.returned.text)
    return carried
