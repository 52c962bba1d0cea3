"""Use cases refuse invalid arguments of every caller, including callers other than the servicer."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mnemesh_blocks.model.blocks import DEFAULT_LIMIT, MAX_SEARCH, BlockOrder, Undo
from mnemesh_blocks.model.edits import MAX_AGENTS, MAX_LABELS, Append
from mnemesh_blocks.store.blocks import BlockStore
from mnemesh_blocks.usecases.blocks import BlockService, RevisionService
from mnemesh_blocks.usecases.core_memory import ConversationBlockService, CoreMemoryService
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL as CALLER
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import SequentialIds, new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.time import FrozenClock
from mnemesh_types.blocks import AgentAuthor, Block, BlockFilter, OwnerAuthor

AGENT, BLOCK, CONVERSATION = new_id("agent"), new_id("block"), new_id("conv")
OWNER = OwnerAuthor(CALLER.subject_id)
PAGE = PageQuery(limit=10, ascending=True)
DRAFT = Block(
    limit=DEFAULT_LIMIT,
    revision=1,
    content_revision=1,
    id="",
    label="human",
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    updated_at=datetime(2026, 1, 1, tzinfo=UTC),
)


@dataclass(frozen=True)
class Services:
    """The use cases on one database."""

    blocks: BlockService
    core_memory: CoreMemoryService
    conversation_blocks: ConversationBlockService
    revisions: RevisionService


@pytest_asyncio.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    """The use cases on SQLite."""
    clock, ids = FrozenClock(), SequentialIds()
    database = Database.open(f"sqlite:///{tmp_path / 'blocks.db'}")
    await database.migrate("mnemesh_blocks")
    store = BlockStore(database, clock)
    yield Services(
        BlockService(store, clock, ids),
        CoreMemoryService(store, clock),
        ConversationBlockService(store, clock, ids),
        RevisionService(store, clock),
    )
    await database.close()


CALLS: dict[str, tuple[Callable[[Services], Awaitable[Any]], str]] = {
    "agent of a new block": (lambda s: s.blocks.create_block(CALLER, DRAFT, ["agent"], None), "agent_ids"),
    "label": (lambda s: s.blocks.create_block(CALLER, replace(DRAFT, label="a b"), [], None), "block.label"),
    "limit": (lambda s: s.blocks.create_block(CALLER, replace(DRAFT, limit=0), [], None), "block.limit"),
    "NUL in a value": (lambda s: s.blocks.create_block(CALLER, replace(DRAFT, value="\0"), [], None), "block.value"),
    "repeated tag": (lambda s: s.blocks.create_block(CALLER, replace(DRAFT, tags=("a", "a")), [], None), "block.tags"),
    "empty tag": (lambda s: s.blocks.create_block(CALLER, replace(DRAFT, tags=("",)), [], None), "block.tags"),
    "metadata": (lambda s: s.blocks.create_block(CALLER, replace(DRAFT, metadata="[]"), [], None), "block.metadata"),
    "block to get": (lambda s: s.blocks.get_block(CALLER, "x"), "block_id"),
    "block to delete": (lambda s: s.blocks.delete_block(CALLER, "x", None), "block_id"),
    "block to update": (lambda s: s.blocks.update_block(CALLER, "x", {"value": "v"}, None, None), "block.id"),
    "long search": (
        lambda s: s.blocks.count_blocks(CALLER, BlockFilter(value_search="x" * (MAX_SEARCH + 1))),
        "filter.value_search",
    ),
    "NUL in a filter": (
        lambda s: s.blocks.list_blocks(CALLER, BlockFilter(tags_any=("\0",)), BlockOrder.LABEL, PAGE),
        "filter.tags_any",
    ),
    "block to attach": (lambda s: s.core_memory.attach_block(CALLER, AGENT, "x", None), "block_id"),
    "NUL in a label": (lambda s: s.core_memory.detach_block(CALLER, AGENT, None, label="\0"), "label"),
    "conversation": (lambda s: s.core_memory.get_core_memory(CALLER, AGENT, None, "x"), "conversation_id"),
    "large batch": (lambda s: s.core_memory.batch_get_core_memory(CALLER, [AGENT] * (MAX_AGENTS + 1)), "agent_ids"),
    "author": (
        lambda s: s.core_memory.edit_block(CALLER, AGENT, "human", Append("x"), AgentAuthor("x"), None),
        "author.agent.agent_id",
    ),
    "tool call of an author": (
        lambda s: s.core_memory.edit_block(CALLER, AGENT, "human", Append("x"), AgentAuthor(AGENT, "\0"), None),
        "author.agent.tool_call_id",
    ),
    "no labels": (
        lambda s: s.conversation_blocks.isolate_blocks(CALLER, AGENT, CONVERSATION, [], None, None),
        "labels",
    ),
    "many labels": (
        lambda s: s.conversation_blocks.isolate_blocks(
            CALLER, AGENT, CONVERSATION, ["a"] * (MAX_LABELS + 1), None, None
        ),
        "labels",
    ),
    "block to revert": (lambda s: s.revisions.revert_block(CALLER, "x", Undo(), OWNER, None, None), "block_id"),
}


@pytest.mark.parametrize("name", CALLS)
async def test_invalid_arguments_are_refused_with_the_field(services: Services, name: str) -> None:
    call, field = CALLS[name]
    with pytest.raises(InvalidArgument) as refused:
        await call(services)
    assert refused.value.field == field
