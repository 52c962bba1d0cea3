"""The real blocks service of a world, with views of what it stores."""

from collections.abc import Sequence
from typing import Any

from mnemesh.blocks.v1 import blocks_pb2, blocks_service_pb2
from mnemesh_orchestrator.clients.blocks import BlocksClient
from mnemesh_orchestrator.model.core_memory import AgentAuthor, BlockEdit, CoreMemory, EditedBlock
from mnemesh_orchestrator.model.creation import Erased
from mnemesh_testkit.mesh.local_services import LocalChannel
from mnemesh_types.blocks import Block

from .synchronous import run_now


class Blocks(BlocksClient):
    """Core memory."""

    def __init__(self, channel: LocalChannel) -> None:
        super().__init__(channel)
        self._agents: dict[str, None] = {}
        self._conversations: dict[str, str] = {}
        self._created: dict[str, None] = {}
        self.effects: list[str] = []
        """The ids of the requests that edited a block, once for each change that a request made."""
        self.erased: list[str] = []

    @property
    def blocks(self) -> dict[str, Block]:
        """Every block by id, in the order of creation."""
        request = blocks_service_pb2.ListBlocksRequest(page_size=1000)
        found = {block.id: Block.from_proto(block) for block in run_now(self._stub.ListBlocks(request)).blocks}
        return {block_id: found[block_id] for block_id in (*self._created, *found) if block_id in found}

    @property
    def held(self) -> dict[str, list[str]]:
        """The ids of the blocks that agents and conversations have."""
        found = {}
        for agent in self._agents:
            memory = run_now(super().get(agent))
            found[agent] = [block.id for block in memory.blocks] if memory is not None else []
        for conversation, agent in self._conversations.items():
            memory = run_now(super().get(agent, None, conversation))
            shown = [block.id for block in memory.blocks] if memory is not None else []
            found[conversation] = [block_id for block_id in shown if block_id not in found.get(agent, [])]
        return {holder: ids for holder, ids in found.items() if ids}

    def value(self, agent_id: str, label: str) -> str:
        memory = run_now(super().get(agent_id))
        assert memory is not None
        return next(block.value for block in memory.blocks if block.label == label)

    def put(self, block: Block) -> None:
        """Writes the value of a block, as an owner may at any time."""
        changed = blocks_pb2.Block(id=block.id, value=block.value, limit=max(block.limit, len(block.value)))
        request = blocks_service_pb2.UpdateBlockRequest(block=changed)
        request.update_mask.paths.extend(["value", "limit"])
        run_now(self._stub.UpdateBlock(request))

    def give(self, agent_id: str, block_id: str) -> None:
        """Attaches a block to an agent, as an owner may at any time."""
        run_now(self._stub.AttachBlock(blocks_service_pb2.AttachBlockRequest(agent_id=agent_id, block_id=block_id)))

    async def create(self, request_id: str, agent_id: str, *arguments: Any, **more: Any) -> Block:
        self._agents[agent_id] = None
        block = await super().create(request_id, agent_id, *arguments, **more)
        self._created[block.id] = None
        return block

    async def create_core_memory(self, request_id: str, agent_id: str, *arguments: Any, **more: Any) -> CoreMemory:
        self._agents[agent_id] = None
        memory = await super().create_core_memory(request_id, agent_id, *arguments, **more)
        self._created.update(dict.fromkeys(block.id for block in memory.blocks))
        return memory

    async def attach(self, request_id: str, agent_id: str, block_id: str) -> None:
        self._agents[agent_id] = None
        await super().attach(request_id, agent_id, block_id)

    async def isolate(
        self, request_id: str, agent_id: str, conversation_id: str, *more: Any, **options: Any
    ) -> tuple[str, ...]:
        self._conversations[conversation_id] = agent_id
        return await super().isolate(request_id, agent_id, conversation_id, *more, **options)

    async def link(self, request_id: str, link_id: str, agent_ids: Sequence[str], source_agent_id: str) -> None:
        self._agents.update(dict.fromkeys(agent_ids))
        await super().link(request_id, link_id, agent_ids, source_agent_id)

    async def edit(self, request_id: str, author: AgentAuthor, label: str, edit: BlockEdit) -> EditedBlock:
        before = self._changes(author.agent_id)
        edited = await super().edit(request_id, author, label, edit)
        self.effects.extend([request_id] * (self._changes(author.agent_id) - before))
        return edited

    async def erase_agent(self, request_id: str, agent_id: str, **scope: Any) -> Erased:
        self.erased.append(agent_id)
        return await super().erase_agent(request_id, agent_id, **scope)

    def _changes(self, agent_id: str) -> int:
        memory = run_now(super().get(agent_id))
        return sum(block.revision for block in memory.blocks) if memory is not None else 0
