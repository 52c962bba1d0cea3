"""The calls of stored tools: their execution with the agent's blocks, and the storage of the changes that they made."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from mnemesh_kit.errors import NOT_BEGUN, TEMPORARY, MnemeshError
from mnemesh_kit.secret_variables import SecretVariables
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.clients.blocks import BlocksClient
from mnemesh_orchestrator.clients.tools import ToolsClient
from mnemesh_orchestrator.errors import ToolSlotsBusy
from mnemesh_orchestrator.loop.retry import RetryPolicy
from mnemesh_orchestrator.loop.state import TurnContext
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.approvals import PlannedCall
from mnemesh_orchestrator.model.core_memory import AgentAuthor, Block, BlockEdit, CoreMemory, Rethink, SeenRevisions
from mnemesh_orchestrator.model.custom_tools import CallProgress, CustomTool, OnProgress, ToolResult, no_progress
from mnemesh_orchestrator.model.events import ToolProgress
from mnemesh_orchestrator.model.journal import EntryKind, JournalEntry

INTERRUPTED: Final = (
    "The tool was interrupted, its outcome is unknown. It was not run again; check before you repeat it."
)

T = TypeVar("T")
Attempts = Callable[[Callable[[], Awaitable[T]]], Awaitable[T]]
Executed = tuple[ToolResult, Mapping[str, str]]
"""The result of a tool, and the values of the blocks that it changed."""
EditBlock = Callable[[str, AgentAuthor, str, BlockEdit], Awaitable[Block]]


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
        tool: the tool.
        arguments: its arguments.
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
        edit = Rethink(value, block.revision if block is not None else None)
        try:
            await edit_block(f"{effect_prefix}/{ordinal}", author, label, edit)
        except TEMPORARY:
            raise
        except MnemeshError as error:
            problems.append(f"The block {label} was not changed: {error.message}")
    return replace(result, ok=False, text="\n".join((result.text, *problems))) if problems else result


class CustomCalls:
    """Runs the stored tools that the answers of a turn call."""

    def __init__(
        self,
        tools: ToolsClient,
        secrets: SecretVariables,
        core_memory: BlocksClient,
        retry: RetryPolicy,
        clock: Clock,
    ) -> None:
        self._tools = tools
        self._secrets = secrets
        self._core_memory = core_memory
        self._retry = retry
        self._clock = clock

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
            context: the turn.
            step_id: the step that made the call.
            seen: the block revisions that the agent has seen. The tool's edits advance them.
            core: the agent's blocks as the step began.
            item: the call.
            tool: its tool.
            is_started: this process has recorded the start of the call.

        Raises:
            LeaseLost: another process holds the run now.
            Unavailable, DeadlineExceeded, StorageFull, ServerBusy: the tool was not run, or its edits are not stored.
        """
        started = context.journal.entry(step_id, EntryKind.STARTED, item.ordinal)
        if started is not None and not tool.idempotent:
            return ToolResult(ok=False, text=INTERRUPTED)
        agent, holder = context.agent, context.conversation.holder_id
        if tool.mcp_server_id is None:
            # Earlier calls of the same answer may have edited core memory.
            current = await self._retry.call(lambda: self._core_memory.get(agent.id, None, holder))
            core = current or core
        if started is None and not is_started:
            entry = JournalEntry(step_id, EntryKind.STARTED, self._clock.now(), item.ordinal)
            await context.journal.record(entry)
        author = AgentAuthor(agent.id, item.call.id, context.run.id, holder)
        prefix = f"{step_id}/{item.ordinal}"

        async def edit_block(request_id: str, author: AgentAuthor, label: str, edit: BlockEdit) -> Block:
            block = await self._retry.call(lambda: self._core_memory.edit(request_id, author, label, edit))
            if seen is not None:
                seen.record_edit(label, block.revision)
            return block

        def publish(progress: CallProgress) -> None:
            event = ToolProgress(item.call.id, tool.name, progress.done, progress.total, progress.message)
            context.journal.publish_live(step_id, event)

        attempts = self._attempts(tool, in_program=is_started)
        return await run_custom(
            self._tools, self._secrets, edit_block, agent, core, tool, item.arguments, author, prefix, attempts, publish
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

            return await self._retry.call(once, errors=TEMPORARY if tool.idempotent else NOT_BEGUN)

        return attempts
