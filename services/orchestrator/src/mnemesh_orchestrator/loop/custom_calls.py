"""The calls of stored tools in a turn: each is journalled before it runs, and none but an idempotent one runs again."""

from collections.abc import Awaitable, Callable

from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import NOT_BEGUN, TEMPORARY
from mnemesh_kit.secret_variables import SecretVariables

from mnemesh_orchestrator.errors import ToolSlotsBusy
from mnemesh_orchestrator.loop.custom_tools import INTERRUPTED, Attempts, Executed, refused, run_custom
from mnemesh_orchestrator.loop.retry import RetryPolicy
from mnemesh_orchestrator.loop.state import TurnContext
from mnemesh_orchestrator.model.approvals import PlannedCall
from mnemesh_orchestrator.model.core_memory import AgentAuthor, Block, BlockEdit, CoreMemory
from mnemesh_orchestrator.model.custom_tools import CallProgress, CustomTool, ToolResult
from mnemesh_orchestrator.model.events import ToolProgress
from mnemesh_orchestrator.model.journal import EntryKind, JournalEntry
from mnemesh_orchestrator.model.seen_revisions import SeenRevisions
from mnemesh_orchestrator.ports.blocks import CoreMemoryPort
from mnemesh_orchestrator.ports.tools import ToolsPort


class CustomCalls:
    """Runs the stored tools that the answers of a turn call."""

    def __init__(
        self,
        tools: ToolsPort,
        secrets: SecretVariables,
        core_memory: CoreMemoryPort,
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
