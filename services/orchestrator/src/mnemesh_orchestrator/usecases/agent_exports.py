"""The export of everything of an agent as records."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeVar

from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import NotFound
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.principal import Principal

from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.conversations import ConversationFilter, ConversationOrder
from mnemesh_orchestrator.model.runs import RunFilter
from mnemesh_orchestrator.model.steps import StepFilter
from mnemesh_orchestrator.model.transfers import DEFAULT_TYPES, FRAME, ExportScope, Record, RecordType, Window
from mnemesh_orchestrator.ports.recall import RecallPort
from mnemesh_orchestrator.ports.records import RecordParts
from mnemesh_orchestrator.store.base.stores import Stores

T = TypeVar("T")

_PAGE: Final = 200


class AgentExportService:
    """Reads the records of agents, from the own stores and from the other services."""

    def __init__(self, stores: Stores, parts: RecordParts, recall: RecallPort, clock: Clock) -> None:
        self._stores = stores
        self._parts = parts
        self._recall = recall
        self._clock = clock

    async def export(
        self, caller: Principal, agent_id: str, types: frozenset[RecordType], *, with_vectors: bool
    ) -> AsyncIterator[Record]:
        """Yields the records of an agent in the order of their types, without the one that ends the stream.

        Args:
            caller: The caller.
            agent_id: The agent.
            types: The types to export; empty for all but raw traces.
            with_vectors: Whether passages have their vectors.

        Raises:
            NotFound: The agent does not exist.
            Unavailable: A service cannot be reached.
        """
        agent = await self._stores.agents.get(caller.organization_id, agent_id)
        wanted = (types or DEFAULT_TYPES) - FRAME
        conversations = [window async for window in self._conversations(agent)] if wanted else []
        scope = ExportScope(
            agent_id=agent_id,
            conversation_ids=tuple(
                window.conversation.id for window in conversations if window.conversation.isolated_block_labels
            ),
            memory_scope=agent.memory_scope,
            tool_ids=tuple(tool.tool_id for tool in agent.tools if tool.tool_id is not None),
            with_vectors=with_vectors,
        )
        yield Record(RecordType.HEADER, "", self._clock.now())
        yield Record(RecordType.AGENT, agent.id, agent)
        for kind in sorted(wanted):
            if kind is RecordType.CONVERSATION:
                for window in conversations:
                    yield Record(kind, window.conversation.id, window)
            elif kind in self._parts:
                async for record in self._parts[kind].export(kind, scope):
                    yield record
            else:
                async for record in self._own(kind, agent):
                    yield record

    async def _own(self, kind: RecordType, agent: Agent) -> AsyncIterator[Record]:
        """Yields the records of a type that the orchestrator stores."""
        organization_id, stores = agent.organization_id, self._stores
        match kind:
            case RecordType.IDENTITY:
                for identity_id in agent.identity_ids:
                    try:
                        identity = await stores.identities.get(organization_id, identity_id)
                    except NotFound:
                        continue  # deleted meanwhile
                    yield Record(kind, identity_id, identity)
            case RecordType.RUN:
                filter_ = RunFilter(agent_ids=(agent.id,))
                async for run in _every(lambda page: stores.runs.list(organization_id, filter_, page)):
                    if run.status.ended:
                        yield Record(kind, run.id, run)
            case RecordType.STEP:
                of_agent = StepFilter(agent_id=agent.id)
                async for step in _every(lambda page: stores.steps.list(organization_id, of_agent, page)):
                    yield Record(kind, step.id, step)
            case RecordType.GROUP:
                groups = await stores.groups.of_agents(organization_id, [agent.id])
                for group_id in groups.get(agent.id, ()):
                    yield Record(kind, group_id, await stores.groups.get(organization_id, group_id))

    async def _conversations(self, agent: Agent) -> AsyncIterator[Window]:
        """Yields the conversations of an agent with the messages of their windows, the oldest first."""
        filter_, order = ConversationFilter(agent_id=agent.id), ConversationOrder.CREATED_AT
        query = PageQuery(_PAGE, ascending=True)
        while True:
            page = await self._stores.conversations.list(agent.organization_id, filter_, order, query)
            windows = await self._recall.window_ids([item.id for item in page.items])
            for item in page.items:
                yield Window(item, windows.get(item.id, ()))
            if page.next_cursor is None:
                return
            query = PageQuery(_PAGE, ascending=True, cursor=page.next_cursor)


async def _every(read: Callable[[PageQuery], Awaitable[Page[T]]]) -> AsyncIterator[T]:
    """Yields the items of all pages, the oldest first."""
    query = PageQuery(_PAGE, ascending=True)
    while True:
        page = await read(query)
        for item in page.items:
            yield item
        if page.next_cursor is None:
            return
        query = PageQuery(_PAGE, ascending=True, cursor=page.next_cursor)
