"""What every block store must do, whatever it keeps its rows in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from engram_blocks.model import (
    AgentAuthor,
    Author,
    Block,
    BlockRevision,
    CoreMemory,
    Operation,
    OwnerAuthor,
    Provenance,
)
from engram_blocks.store.base import BlockFilter, BlockOrder, BlockStore, BlockTransaction
from engram_kit.clock import FrozenClock
from engram_kit.errors import NotFound, RequestIdReused
from engram_kit.idempotency import RequestKey
from engram_kit.ids import new_id
from engram_kit.paging import Page, PageQuery

ORG, OTHER_ORG = new_id("org"), new_id("org")
AGENT, PEER = new_id("agent"), new_id("agent")


Make = Callable[..., Block]


def _insert(block: Block, *holders: str) -> Callable[[BlockTransaction], None]:
    def work(tx: BlockTransaction) -> None:
        tx.insert_block(block)
        for agent_id in holders:
            tx.attach(agent_id, block)

    return work


async def _memory(store: BlockStore, organization_id: str, agent_id: str) -> CoreMemory:
    memory = await store.read(organization_id, lambda tx: tx.core_memory(agent_id))
    assert memory is not None
    return memory


async def _count(store: BlockStore, wanted: BlockFilter) -> int:
    return await store.read(ORG, lambda tx: tx.count_blocks(wanted))


async def _page(store: BlockStore, wanted: BlockFilter, order: BlockOrder, query: PageQuery) -> Page[Block]:
    return await store.read(ORG, lambda tx: tx.list_blocks(wanted, order, query))


class BlockStoreSuite:
    """Subclass it with a `store` fixture that gives an empty store on the `clock` fixture's clock."""

    @pytest.fixture
    def clock(self) -> FrozenClock:
        """The store's clock."""
        return FrozenClock()

    @pytest.fixture
    def make(self, clock: FrozenClock) -> Make:
        """Makes blocks, each a second younger than the one before."""

        def make(label: str = "human", **fields: object) -> Block:
            clock.advance(1)
            now = clock.now()
            return Block(id=new_id("block"), label=label, created_at=now, updated_at=now, **fields)  # type: ignore[arg-type]

        return make

    async def test_a_block_comes_back_as_it_was_stored(self, store: BlockStore, make: Make) -> None:
        block = make(
            value="näme:\tÉmile 🙂\n",
            limit=40,
            description="",
            read_only=True,
            name="n",
            tags=("b", "a"),
            metadata='{"k": 1}',
            hidden=True,
            is_template=True,
            template_name="t",
            preserve_on_migration=True,
            identity_ids=(new_id("identity"),),
            provenance=Provenance("user-1", "user-2", "p", "t", "bt", "d", "e"),
        )
        await store.write(ORG, lambda tx: tx.insert_block(block))
        assert await store.read(ORG, lambda tx: tx.block(block.id)) == block

    async def test_another_organization_sees_and_touches_nothing(self, store: BlockStore, make: Make) -> None:
        block = make(value="mine")
        await store.write(ORG, _insert(block, AGENT))
        assert await store.read(OTHER_ORG, lambda tx: tx.block(block.id)) is None
        assert await store.read(OTHER_ORG, lambda tx: tx.held_block(AGENT, "human")) is None
        assert (await _memory(store, OTHER_ORG, AGENT)).blocks == ()
        assert await store.read(OTHER_ORG, lambda tx: tx.count_blocks(BlockFilter())) == 0
        assert not await store.write(OTHER_ORG, lambda tx: tx.delete_block(block.id))
        assert await store.write(OTHER_ORG, lambda tx: tx.erase_agent(AGENT, with_unshared_blocks=True)) == (0, 0)
        memory = await _memory(store, ORG, AGENT)
        assert memory.blocks == (block,)

    async def test_core_memory_is_in_the_order_of_attachment(self, store: BlockStore, make: Make) -> None:
        blocks = [make(label) for label in ("z", "a", "m")]
        for block in blocks:
            await store.write(ORG, _insert(block, AGENT))
        await store.write(ORG, lambda tx: tx.detach(AGENT, blocks[0].id))
        await store.write(ORG, lambda tx: tx.attach(AGENT, blocks[0]))
        memory = await _memory(store, ORG, AGENT)
        assert [block.label for block in memory.blocks] == ["a", "m", "z"]
        assert await store.read(ORG, lambda tx: tx.labels(AGENT)) == ["a", "m", "z"]

    async def test_the_revision_moves_for_every_holder_and_nobody_else(self, store: BlockStore, make: Make) -> None:
        shared, own = make("shared"), make("own")
        bystander = new_id("agent")

        def prepare(tx: BlockTransaction) -> None:
            for block in (shared, own):
                tx.insert_block(block)
            tx.attach(AGENT, shared)
            tx.attach(PEER, shared)
            tx.attach(bystander, own)

        await store.write(ORG, prepare)
        agents = (AGENT, PEER, bystander)
        before = [m.revision for m in await store.read(ORG, lambda tx: tx.core_memories(agents))]
        await store.write(ORG, lambda tx: tx.update_block(replace(shared, value="new", revision=2), shared))
        after = [m.revision for m in await store.read(ORG, lambda tx: tx.core_memories(agents))]
        assert [a - b for a, b in zip(after, before, strict=True)] == [1, 1, 0]
        await store.write(ORG, lambda tx: tx.delete_block(shared.id))
        memories = await store.read(ORG, lambda tx: tx.core_memories(agents))
        assert [m.revision - b for m, b in zip(memories, after, strict=True)] == [1, 1, 0]
        assert [len(m.blocks) for m in memories] == [0, 0, 1]

    async def test_an_unchanged_core_memory_is_not_sent_again(self, store: BlockStore, make: Make) -> None:
        block = make()
        await store.write(ORG, _insert(block, AGENT))
        memory = await _memory(store, ORG, AGENT)
        assert await store.read(ORG, lambda tx: tx.core_memory(AGENT, memory.revision)) is None
        assert await store.read(ORG, lambda tx: tx.core_memory(AGENT, memory.revision - 1)) == memory
        unknown = await _memory(store, ORG, new_id("agent"))
        assert (unknown.revision, unknown.blocks) == (0, ())

    async def test_a_renamed_block_is_held_under_its_new_label(self, store: BlockStore, make: Make) -> None:
        block, other = make("old"), make("taken")
        await store.write(ORG, _insert(block, AGENT))
        await store.write(ORG, _insert(other))
        await store.write(ORG, lambda tx: tx.attach(AGENT, other))
        assert await store.read(ORG, lambda tx: tx.label_conflict(block.id, "taken")) == AGENT
        assert await store.read(ORG, lambda tx: tx.label_conflict(block.id, "free")) is None
        await store.write(ORG, lambda tx: tx.update_block(replace(block, label="new"), block))
        held = await store.read(ORG, lambda tx: tx.held_block(AGENT, "new"))
        assert held is not None
        assert held.id == block.id
        assert await store.read(ORG, lambda tx: tx.held_block(AGENT, "old")) is None

    async def test_every_filter_narrows(self, store: BlockStore, make: Make) -> None:
        identity = new_id("identity")
        one = make(
            "human", value="Likes 100% Tea_", tags=("a", "b"), name="One", identity_ids=(identity,), hidden=True,
            is_template=True, description="A Person", provenance=Provenance(project_id="p", template_id="t"),
        )  # fmt: skip
        two = make("persona", value="likes coffee", tags=("b",))
        for block in (one, two):
            await store.write(ORG, _insert(block))
        await store.write(ORG, lambda tx: tx.attach(AGENT, one))
        only_one = (
            BlockFilter(block_ids=(one.id, new_id("block"))), BlockFilter(label="human"), BlockFilter(name="One"),
            BlockFilter(label_search="UMA"), BlockFilter(value_search="100% tea_"),
            BlockFilter(description_search="person"), BlockFilter(hidden=True), BlockFilter(is_template=True),
            BlockFilter(identity_id=identity), BlockFilter(agent_id=AGENT), BlockFilter(tags_any=("a", "x")),
            BlockFilter(tags_all=("a", "b")), BlockFilter(agents_more_than=0), BlockFilter(agents_exactly=1),
            BlockFilter(project_id="p"), BlockFilter(template_id="t"),
        )  # fmt: skip
        for wanted in only_one:
            found = await _page(store, wanted, BlockOrder.LABEL, PageQuery(limit=10, ascending=True))
            assert [b.id for b in found.items] == [one.id], wanted
            assert await _count(store, wanted) == 1, wanted
        for wanted, count in (
            (BlockFilter(tags_any=("a", "b")), 2),
            (BlockFilter(agents_fewer_than=2), 2),
            (BlockFilter(tags_all=("b",), agents_exactly=0), 1),
            (BlockFilter(value_search="%"), 1),
            (BlockFilter(value_search="a_"), 1),
            (BlockFilter(agent_id=PEER), 0),
        ):
            assert await _count(store, wanted) == count, wanted

    @pytest.mark.parametrize("order", BlockOrder)
    @pytest.mark.parametrize("ascending", [True, False])
    async def test_pages_cover_a_list_once_even_where_keys_tie(
        self, store: BlockStore, make: Make, order: BlockOrder, ascending: bool
    ) -> None:
        moment = make()
        blocks = [replace(make("same"), created_at=moment.created_at, updated_at=moment.updated_at) for _ in range(7)]
        for block in blocks:
            await store.write(ORG, _insert(block))
        seen: list[str] = []
        query = PageQuery(limit=3, ascending=ascending)
        while True:
            page = await _page(store, BlockFilter(), order, query)
            seen += [block.id for block in page.items]
            if page.next_cursor is None:
                break
            query = replace(query, cursor=page.next_cursor)
        assert seen == sorted((b.id for b in blocks), reverse=not ascending)

    async def test_a_list_may_be_cut_by_the_ids_of_its_rows(self, store: BlockStore, make: Make) -> None:
        blocks = [make(f"l{i}", hidden=i == 1) for i in range(5)]
        for block in blocks:
            await store.write(ORG, _insert(block))

        async def labels(**query: object) -> list[str]:
            page = PageQuery(limit=10, **query)  # type: ignore[arg-type]
            wanted = BlockFilter(hidden=False)
            found = await _page(store, wanted, BlockOrder.CREATE_TIME, page)
            return [block.label for block in found.items]

        # The row that cuts need not be in the list itself: l1 is filtered away.
        assert await labels(ascending=True, after_id=blocks[1].id) == ["l2", "l3", "l4"]
        assert await labels(ascending=False, after_id=blocks[3].id) == ["l2", "l0"]
        assert await labels(ascending=True, after_id=blocks[0].id, before_id=blocks[3].id) == ["l2"]
        with pytest.raises(NotFound):
            await labels(ascending=True, after_id=new_id("block"))

    async def test_revisions_keep_who_and_what(self, store: BlockStore, make: Make, clock: FrozenClock) -> None:
        block = make(value="v1")
        authors: tuple[Author, ...] = (OwnerAuthor("user-1"), AgentAuthor(AGENT, "call-1", "run-1"), AgentAuthor(AGENT))
        recorded = []
        await store.write(ORG, lambda tx: tx.insert_block(block))
        for number, author in enumerate(authors, 1):
            recorded.append(
                BlockRevision(
                    block_id=block.id, revision=number, operation=Operation.APPEND, label="human", value=f"v{number}",
                    description=None, limit=10, read_only=False, author=author, created_at=clock.now(),
                    parent=number - 1 or None,
                )
            )  # fmt: skip
            await store.write(ORG, lambda tx: tx.insert_revision(recorded[-1]))
            clock.advance(10)
        newest = PageQuery(limit=2, ascending=False)
        page = await store.read(ORG, lambda tx: tx.list_revisions(block.id, newest, with_previous=True))
        assert [r.revision for r in page.items] == [3, 2]
        assert [r.previous_value for r in page.items] == ["v2", "v1"]
        rest = replace(newest, cursor=page.next_cursor)
        page = await store.read(ORG, lambda tx: tx.list_revisions(block.id, rest, with_previous=False))
        assert page.items == (recorded[0],)
        assert await store.read(ORG, lambda tx: tx.revision(block.id, 2)) == recorded[1]
        then = recorded[1].created_at + timedelta(seconds=5)
        assert await store.read(ORG, lambda tx: tx.revision_at(block.id, then)) == recorded[1]
        assert (
            await store.read(ORG, lambda tx: tx.revision_at(block.id, block.created_at - timedelta(seconds=1))) is None
        )
        assert await store.read(ORG, lambda tx: tx.newest_child(block.id, 2)) == recorded[2]
        after = PageQuery(limit=5, ascending=True, after_id="2")
        page = await store.read(ORG, lambda tx: tx.list_revisions(block.id, after, with_previous=False))
        assert page.items == (recorded[2],)

    async def test_an_erased_agent_leaves_a_tombstone_and_shared_blocks(self, store: BlockStore, make: Make) -> None:
        shared, own = make("shared"), make("own")

        def prepare(tx: BlockTransaction) -> None:
            for block in (shared, own):
                tx.insert_block(block)
                tx.attach(AGENT, block)
            tx.attach(PEER, shared)

        await store.write(ORG, prepare)
        assert await store.write(ORG, lambda tx: tx.erase_agent(AGENT, with_unshared_blocks=True)) == (2, 1)
        assert await store.read(ORG, lambda tx: tx.is_erased(AGENT))
        assert not await store.read(ORG, lambda tx: tx.is_erased(PEER))
        assert await store.read(ORG, lambda tx: tx.block(own.id)) is None
        assert (await _memory(store, ORG, PEER)).blocks == (shared,)
        holders = await store.read(ORG, lambda tx: tx.list_holders(shared.id, PageQuery(limit=5, ascending=True)))
        assert holders.items == (PEER,)
        unknown = new_id("agent")
        await store.write(ORG, lambda tx: tx.erase_agent(unknown, with_unshared_blocks=False))
        assert await store.read(ORG, lambda tx: tx.is_erased(unknown))

    async def test_a_request_takes_effect_once_even_when_it_comes_at_once(self, store: BlockStore, make: Make) -> None:
        key = RequestKey(ORG, "Create", "r-1", "fingerprint")

        async def create() -> str:
            block = make()

            def insert(tx: BlockTransaction) -> str:
                tx.insert_block(block)
                return block.id

            return await store.write_once(key, ORG, insert, result=lambda id_: [id_], again=lambda _, ids: ids[0])

        ids = await asyncio.gather(*(create() for _ in range(8)))
        assert len(set(ids)) == 1
        assert await _count(store, BlockFilter()) == 1
        with pytest.raises(RequestIdReused):
            await store.write_once(
                replace(key, fingerprint="other"), ORG, lambda _: "x", result=lambda x: [x], again=lambda _, ids: ids[0]
            )

    async def test_a_failed_request_is_not_remembered(self, store: BlockStore, make: Make) -> None:
        key = RequestKey(ORG, "Create", "r-1", "fingerprint")
        block = make()

        def fail(tx: BlockTransaction) -> None:
            tx.insert_block(block)
            raise LookupError

        with pytest.raises(LookupError):
            await store.write_once(key, ORG, fail, result=lambda _: [], again=lambda _tx, _ids: None)
        assert await store.read(ORG, lambda tx: tx.block(block.id)) is None
        await store.write_once(
            key,
            ORG,
            lambda tx: tx.insert_block(block),
            result=lambda _: [],
            again=lambda _tx, _ids: pytest.fail("replay"),
        )
