"""Lists of blocks and holders: filters, orders and pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc
from mnemesh.types.v1 import audit_pb2, paging_pb2
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.ids import new_id

from mnemesh_testkit.suites.blocks.calls import (
    AGENT,
    PEER,
    BlocksCases,
    create,
)

if TYPE_CHECKING:
    from mnemesh.blocks.v1.blocks_service_pb2_grpc import BlockServiceAsyncStub


class Listing(BlocksCases):
    """Filters, and pages that cover a list once."""

    async def test_holders_are_paged(self, blocks: BlockServiceAsyncStub) -> None:
        agents = sorted(new_id("agent") for _ in range(5))
        block = await create(blocks, "human", *agents)
        request = rpc.ListBlockAgentsRequest(block_id=block.id, page_size=2)
        seen: list[str] = []
        while True:
            page = await blocks.ListBlockAgents(request)
            seen += page.agent_ids
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
        assert seen == agents

    async def test_page_token_of_another_query_is_refused(self, blocks: BlockServiceAsyncStub) -> None:
        for label in "abc":
            await create(blocks, label)
        first = await blocks.ListBlocks(rpc.ListBlocksRequest(page_size=2))
        assert [block.label for block in first.blocks] == ["a", "b"]
        rest = await blocks.ListBlocks(rpc.ListBlocksRequest(page_size=1, page_token=first.next_page_token))
        assert ([block.label for block in rest.blocks], rest.next_page_token) == (["c"], "")
        for other in (
            rpc.ListBlocksRequest(page_token="garbage"),
            rpc.ListBlocksRequest(page_token=first.next_page_token, order=paging_pb2.SORT_ORDER_DESCENDING),
            rpc.ListBlocksRequest(page_token=first.next_page_token, filter=rpc.BlockFilter(label="a")),
        ):
            with pytest.raises(InvalidArgument) as refused:
                await blocks.ListBlocks(other)
            assert refused.value.reason == "PAGE_TOKEN_INVALID"
        with pytest.raises(InvalidArgument):
            await blocks.ListBlocks(rpc.ListBlocksRequest(page_size=1001))
        assert (await blocks.CountBlocks(rpc.CountBlocksRequest(filter=rpc.BlockFilter(label="a")))).count == 1

    async def test_every_filter_restricts_the_list(self, blocks: BlockServiceAsyncStub) -> None:
        identity = new_id("identity")
        one = await create(
            blocks, "human", AGENT, value="Likes 100% Tea_", tags=["a", "b"], name="One", identity_ids=[identity],
            hidden=True, is_template=True, description="A Person",
            provenance=audit_pb2.Provenance(project_id="p", template_id="t"),
        )  # fmt: skip
        await create(blocks, "persona", value="likes coffee", tags=["b"])
        narrowing: tuple[tuple[dict[str, Any], int], ...] = (
            ({"block_ids": [one.id, new_id("block")]}, 1), ({"label": "human"}, 1), ({"name": "One"}, 1),
            ({"label_search": "UMA"}, 1), ({"value_search": "100% tea_"}, 1), ({"description_search": "person"}, 1),
            ({"hidden": True}, 1), ({"is_template": True}, 1), ({"identity_id": identity}, 1),
            ({"agent_id": AGENT}, 1), ({"tags_any": ["a", "x"]}, 1), ({"tags_all": ["a", "b"]}, 1),
            ({"agents_more_than": 0}, 1), ({"agents_exactly": 1}, 1), ({"project_id": "p"}, 1),
            ({"template_id": "t"}, 1), ({"value_search": "%"}, 1), ({"value_search": "a_"}, 1),
            ({"tags_any": ["a", "b"]}, 2), ({"agents_fewer_than": 2}, 2), ({}, 2),
            ({"tags_all": ["b"], "agents_exactly": 0}, 1), ({"agent_id": PEER}, 0),
        )  # fmt: skip
        for fields, count in narrowing:
            wanted = rpc.BlockFilter(**fields)
            found = [block.id for block in (await blocks.ListBlocks(rpc.ListBlocksRequest(filter=wanted))).blocks]
            assert len(found) == (await blocks.CountBlocks(rpc.CountBlocksRequest(filter=wanted))).count == count, (
                fields
            )
            if count == 1 and "agents_exactly" not in fields:
                assert found == [one.id], fields

    async def test_pages_cover_a_list_once_with_equal_sort_keys(self, blocks: BlockServiceAsyncStub) -> None:
        ids = [(await create(blocks, "same")).id for _ in range(7)]

        async def seen(order_by: rpc.BlockOrderBy.ValueType, order: paging_pb2.SortOrder.ValueType) -> list[str]:
            request, found = rpc.ListBlocksRequest(page_size=3, order_by=order_by, order=order), []
            while True:
                page = await blocks.ListBlocks(request)
                found += [block.id for block in page.blocks]
                if not page.next_page_token:
                    return found
                request.page_token = page.next_page_token

        for order_by in (rpc.BLOCK_ORDER_BY_CREATE_TIME, rpc.BLOCK_ORDER_BY_UPDATE_TIME, rpc.BLOCK_ORDER_BY_LABEL):
            expected = sorted(ids) if order_by == rpc.BLOCK_ORDER_BY_LABEL else ids
            assert await seen(order_by, paging_pb2.SORT_ORDER_ASCENDING) == expected
            assert await seen(order_by, paging_pb2.SORT_ORDER_DESCENDING) == expected[::-1]

    async def test_list_is_bounded_by_after_id_and_before_id(self, blocks: BlockServiceAsyncStub) -> None:
        made = [await create(blocks, f"l{n}", hidden=n == 1) for n in range(5)]

        async def labels(**query: Any) -> list[str]:
            request = rpc.ListBlocksRequest(filter=rpc.BlockFilter(hidden=False), **query)
            return [block.label for block in (await blocks.ListBlocks(request)).blocks]

        # The row that cuts need not be in the list itself: l1 is filtered away.
        assert await labels(after_id=made[1].id) == ["l2", "l3", "l4"]
        assert await labels(order=paging_pb2.SORT_ORDER_DESCENDING, after_id=made[3].id) == ["l2", "l0"]
        assert await labels(after_id=made[0].id, before_id=made[3].id) == ["l2"]
        with pytest.raises(NotFound):
            await labels(after_id=new_id("block"))
