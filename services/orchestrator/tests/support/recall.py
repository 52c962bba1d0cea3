"""The real recall service of a world, with views of what it stores."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mnemesh.recall.v1 import (
    messages_service_pb2,
    traces_pb2,
    traces_service_pb2,
    traces_service_pb2_grpc,
)
from mnemesh.types.v1.paging_pb2 import SORT_ORDER_ASCENDING
from mnemesh_kit.errors import MnemeshError, NotFound
from mnemesh_orchestrator.clients.recall import RecallClient
from mnemesh_orchestrator.model.conversations import ContextWindow
from mnemesh_orchestrator.model.creation import Erased
from mnemesh_orchestrator.model.episodes import EpisodeCommit
from mnemesh_testkit.mesh.local_services import LocalChannel
from mnemesh_types.convert import message_from_proto
from mnemesh_types.messages import Message

from .synchronous import run_now

_MOST_NEW_MESSAGES = 1_000


class Recall(RecallClient):
    """Messages and windows."""

    def __init__(self, channel: LocalChannel) -> None:
        super().__init__(channel)
        self._traces = traces_service_pb2_grpc.TraceServiceStub(channel)
        self._conversations: dict[str, None] = {}
        self.rows = Rows(self._stored)
        self.commits: list[EpisodeCommit] = []
        self.learned: list[str] = []
        """The texts of facts in the order in which they were learned."""
        self.refuses: MnemeshError | None = None
        self.erased: list[str] = []

    def window(self, conversation_id: str) -> ContextWindow:
        found = run_now(super().get_context(conversation_id))
        assert found is not None
        return found

    @property
    def windows(self) -> dict[str, ContextWindow]:
        """Every window by conversation."""
        return dict(self._windows())

    def _windows(self) -> Iterator[tuple[str, ContextWindow]]:
        for conversation in self._conversations:
            try:
                yield conversation, self.window(conversation)
            except NotFound:
                continue

    def _stored(self, agent_id: str) -> list[Message]:
        found: list[Message] = []
        token = ""
        while True:
            request = messages_service_pb2.ListMessagesRequest(
                agent_ids=[agent_id], page_size=1000, page_token=token, order=SORT_ORDER_ASCENDING
            )
            page = run_now(self._stub.ListMessages(request))
            found += map(message_from_proto, page.messages)
            token = page.next_page_token
            if not token:
                return found

    def interactions(self, agent_id: str) -> list[tuple[str, str, str]]:
        """Returns the tool, the status and the error of each tool call of an agent."""
        request = traces_service_pb2.ListToolInteractionsRequest(agent_id=agent_id)
        found = run_now(self._traces.ListToolInteractions(request)).tool_interactions
        prefix = len("TOOL_INTERACTION_STATUS_")
        return [
            (item.tool_name, traces_pb2.ToolInteractionStatus.Name(item.status)[prefix:], item.error) for item in found
        ]

    def fill(self, agent_id: str, conversation_id: str, messages: Sequence[Message]) -> None:
        """Adds any number of messages to a window."""
        for start in range(0, len(messages), _MOST_NEW_MESSAGES):
            window, added = self.window(conversation_id), messages[start : start + _MOST_NEW_MESSAGES]
            ids = [message.id for message in (*window.messages, *added)]
            key = f"fill-{window.version}"
            run_now(super().replace_context(key, agent_id, conversation_id, window.version, ids, added))

    async def delete_message(self, message_id: str) -> None:
        """Deletes a message, as an owner may at any time."""
        await self._stub.DeleteMessage(messages_service_pb2.DeleteMessageRequest(message_id=message_id))

    async def create_context(self, request_id: str, agent_id: str, conversation_id: str, *more: Any) -> None:
        self._conversations[conversation_id] = None
        await super().create_context(request_id, agent_id, conversation_id, *more)

    async def fork_context(self, *arguments: Any) -> ContextWindow:
        self._conversations[arguments[3]] = None
        return await super().fork_context(*arguments)

    async def replace_context(self, *arguments: Any, memories: Sequence[EpisodeCommit] = (), **more: Any) -> Any:
        if memories and self.refuses is not None:
            raise self.refuses
        before = self.window(arguments[2]).version
        window = await super().replace_context(*arguments, memories=memories, **more)
        if window.version != before:
            self.commits += memories
            self.learned += [change.text for commit in memories for change in commit.changes]
        return window

    async def erase_agent(self, request_id: str, agent_id: str, **scope: Any) -> Erased:
        self.erased.append(agent_id)
        return await super().erase_agent(request_id, agent_id, **scope)


class Rows(Mapping[str, list[Message]]):
    """Every message of an agent, oldest first."""

    def __init__(self, stored: Callable[[str], list[Message]]) -> None:
        self._stored = stored
        self._agents: dict[str, None] = {}

    def __getitem__(self, agent_id: str) -> list[Message]:
        self._agents[agent_id] = None
        return self._stored(agent_id)

    def __iter__(self) -> Iterator[str]:
        return iter(self._agents)

    def __len__(self) -> int:
        return len(self._agents)
