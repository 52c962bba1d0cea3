"""Blocks: how they are written, listed, and what their history holds."""

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from mnemesh.blocks.v1 import blocks_pb2 as pb
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc
from mnemesh.types.v1 import audit_pb2, paging_pb2
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import Aborted, AlreadyExists, FailedPrecondition, InvalidArgument, MnemeshError, NotFound
from mnemesh_kit.ids import new_id

from mnemesh_testkit.suites.blocks.calls import (
    AGENT,
    BY_AGENT,
    BY_OWNER,
    PEER,
    BlocksCases,
    core,
    create,
    edit,
    history,
    revert,
    update,
)

if TYPE_CHECKING:
    from mnemesh.blocks.v1.blocks_service_pb2_grpc import BlockServiceAsyncStub


class Writing(BlocksCases):
    """Limits, edits, concurrency and repeated requests."""

    async def test_created_block_has_defaults_and_author(self, blocks: "BlockServiceAsyncStub") -> None:
        block = await create(blocks, "human", AGENT, value="Ada")
        assert (block.limit, block.revision, block.read_only) == (20_000, 1, False)
        assert block.description
        assert block.provenance.created_by_id == current_principal().subject_id
        assert block.create_time == block.update_time
        assert not (await create(blocks, "anything")).HasField("description")
        assert list((await core(blocks)).blocks) == [block]
        [first] = await history(blocks, block.id)
        assert (first.operation, first.value, first.revision) == (pb.BLOCK_OPERATION_CREATE, "Ada", 1)
        assert first.author.owner.subject_id == current_principal().subject_id

    @pytest.mark.parametrize(
        ("field", "block"),
        [
            ("block.label", pb.Block()),
            ("block.label", pb.Block(label="no spaces")),
            ("block.label", pb.Block(label="x" * 101)),
            ("block.limit", pb.Block(label="a", limit=-1)),
            ("block.value", pb.Block(label="a", value="a\0b")),
            ("block.metadata", pb.Block(label="a", metadata="[1]")),
            ("block.metadata", pb.Block(label="a", metadata="{")),
            ("block.tags", pb.Block(label="a", tags=["x", "x"])),
        ],
    )
    async def test_invalid_block_is_refused_with_the_field(
        self, blocks: "BlockServiceAsyncStub", field: str, block: pb.Block
    ) -> None:
        with pytest.raises(InvalidArgument) as refused:
            await blocks.CreateBlock(rpc.CreateBlockRequest(block=block))
        assert refused.value.field == field

    async def test_limit_counts_characters_and_applies_to_every_write(self, blocks: "BlockServiceAsyncStub") -> None:
        block = await create(blocks, "human", AGENT, value="🙂" * 9, limit=10)
        assert (
            await edit(blocks, replace_all=rpc.ReplaceAllEdit(old_text="🙂" * 9, new_text="é" * 10))
        ).value == "é" * 10
        over = (
            create(blocks, "other", value="x" * 11, limit=10),
            edit(blocks, append=rpc.AppendEdit(text="x")),
            edit(blocks, rethink=rpc.RethinkEdit(value="y" * 12)),
            edit(blocks, replace_all=rpc.ReplaceAllEdit(old_text="é", new_text="ab")),
            edit(blocks, insert_line=rpc.InsertLineEdit(line=0, text="x")),
            edit(blocks, patch=rpc.PatchEdit(patch="+x")),
            update(blocks, block.id, value="y" * 11),
            update(blocks, block.id, limit=9),
        )
        for call in over:
            with pytest.raises(FailedPrecondition) as refused:
                await call
            assert refused.value.reason == "BLOCK_LIMIT_EXCEEDED"
            size, limit = refused.value.metadata["size"], refused.value.metadata["limit"]
            assert refused.value.message == f"Edit failed: Exceeds {limit} character limit (requested {size})"
        unchanged = (await blocks.GetBlock(rpc.GetBlockRequest(block_id=block.id))).block
        assert (unchanged.value, unchanged.revision) == ("é" * 10, 2)
        assert len(await history(blocks, block.id)) == 2

    async def test_read_only_block_can_be_edited_by_its_owner_only(self, blocks: "BlockServiceAsyncStub") -> None:
        block = await create(blocks, "human", AGENT, value="a", read_only=True)
        for kind in (
            {"append": rpc.AppendEdit(text="x")},
            {"replace_all": rpc.ReplaceAllEdit(old_text="a", new_text="b")},
            {"replace_unique": rpc.ReplaceUniqueEdit(old_text="a", new_text="b")},
            {"insert_line": rpc.InsertLineEdit(text="x")},
            {"rethink": rpc.RethinkEdit(value="x")},
            {"patch": rpc.PatchEdit(patch="+x")},
        ):
            with pytest.raises(FailedPrecondition) as refused:
                await edit(blocks, **kind)
            assert refused.value.reason == "BLOCK_READ_ONLY"
            assert refused.value.message == "Error This block is read-only and cannot be edited."
        assert (await edit(blocks, author=BY_OWNER, append=rpc.AppendEdit(text="b"))).value == "a\nb"
        assert (await update(blocks, block.id, value="c")).value == "c"

    async def test_unknown_label_is_refused_with_the_labels_of_the_agent(self, blocks: "BlockServiceAsyncStub") -> None:
        await create(blocks, "human", AGENT)
        await create(blocks, "persona", AGENT)
        with pytest.raises(NotFound) as refused:
            await edit(blocks, "notes", append=rpc.AppendEdit(text="x"))
        assert refused.value.reason == "BLOCK_LABEL_NOT_FOUND"
        assert refused.value.message == "Block field notes does not exist (available sections = human, persona)"

    async def test_hundred_concurrent_appends_are_all_kept(self, blocks: "BlockServiceAsyncStub") -> None:
        await create(blocks, "human", AGENT, PEER)
        before = (await core(blocks, PEER)).revision
        await asyncio.gather(*(edit(blocks, append=rpc.AppendEdit(text=f"line {i}")) for i in range(100)))
        memory = await core(blocks, PEER)
        assert sorted(memory.blocks[0].value.split("\n")) == sorted(f"line {i}" for i in range(100))
        assert memory.revision == before + 100

    async def test_fifty_agents_append_concurrently_to_one_block(self, blocks: "BlockServiceAsyncStub") -> None:
        agents = [new_id("agent") for _ in range(50)]
        shared = await create(blocks, "plan", *agents, value="Begin")

        def append(agent: str) -> Any:
            author = pb.Author(agent=pb.AgentAuthor(agent_id=agent))
            edit_ = rpc.AppendEdit(text=f"by {agent}")
            return blocks.EditBlock(rpc.EditBlockRequest(agent_id=agent, label="plan", author=author, append=edit_))

        answers = await asyncio.gather(*(append(agent) for agent in agents))
        assert sorted(answer.block.revision for answer in answers) == list(range(2, 52))
        first, *lines = (await core(blocks, agents[7])).blocks[0].value.split("\n")
        assert (first, sorted(lines)) == ("Begin", sorted(f"by {agent}" for agent in agents))
        changes = await history(blocks, shared.id, page_size=100)
        values = {change.revision: change.value for change in changes}
        assert {change.author.agent.agent_id for change in changes if change.revision > 1} == set(agents)
        for change in changes:
            if change.revision > 1:
                assert change.value == f"{values[change.revision - 1]}\nby {change.author.agent.agent_id}"

    async def test_edit_with_stale_base_revision_is_refused(self, blocks: "BlockServiceAsyncStub") -> None:
        block = await create(blocks, "human", AGENT, value="a")
        await edit(blocks, append=rpc.AppendEdit(text="b"))
        for kind in (
            {"rethink": rpc.RethinkEdit(value="mine", base_revision=1)},
            {"insert_line": rpc.InsertLineEdit(line=0, text="mine", base_revision=1)},
        ):
            with pytest.raises(Aborted) as refused:
                await edit(blocks, **kind)
            assert refused.value.reason == "BLOCK_REVISION_MISMATCH"
            assert refused.value.metadata == {"label": "human", "revision": "2", "value": "a\nb"}
        with pytest.raises(Aborted):
            await update(blocks, block.id, base_revision=1, value="mine")
        with pytest.raises(Aborted):
            await revert(blocks, block.id, base_revision=1, revision=1)
        assert (await edit(blocks, rethink=rpc.RethinkEdit(value="mine", base_revision=2))).value == "mine"

    async def test_one_of_two_updates_at_the_same_revision_succeeds(self, blocks: "BlockServiceAsyncStub") -> None:
        await create(blocks, "human", AGENT)
        rethinks = (edit(blocks, rethink=rpc.RethinkEdit(value=str(i), base_revision=1)) for i in range(10))
        results = await asyncio.gather(*rethinks, return_exceptions=True)
        assert sum(isinstance(result, pb.Block) for result in results) == 1
        assert sum(isinstance(result, Aborted) for result in results) == 9

    async def test_repeated_request_returns_the_first_result(self, blocks: "BlockServiceAsyncStub") -> None:
        made = rpc.CreateBlockRequest(request_id="r", block=pb.Block(label="human"), agent_ids=[AGENT])
        first, second = await blocks.CreateBlock(made), await blocks.CreateBlock(made)
        assert first == second
        append = rpc.EditBlockRequest(
            request_id="r", agent_id=AGENT, label="human", author=BY_AGENT, append=rpc.AppendEdit(text="once")
        )
        once, again = await blocks.EditBlock(append), await blocks.EditBlock(append)
        assert once == again
        assert once.block.value == "once"
        append.append.text = "other"
        with pytest.raises(InvalidArgument) as refused:
            await blocks.EditBlock(append)
        assert refused.value.reason == "REQUEST_ID_REUSED"

    async def test_update_clears_unset_fields_of_the_mask_and_keeps_others(
        self, blocks: "BlockServiceAsyncStub"
    ) -> None:
        block = await create(blocks, "human", value="v", description="d", tags=["a"], name="n", metadata="{}")
        block.provenance.project_id = "p"
        request = rpc.UpdateBlockRequest(block=pb.Block(id=block.id, tags=["b"], provenance=block.provenance))
        request.update_mask.paths.extend(["description", "tags", "provenance.project_id"])
        updated = (await blocks.UpdateBlock(request)).block
        assert not updated.HasField("description")
        assert (list(updated.tags), updated.name, updated.value, updated.revision) == (["b"], "n", "v", 2)
        assert updated.provenance.project_id == "p"
        for paths in ([], ["revision"], ["provenance.created_by_id"]):
            request.update_mask.paths[:] = paths
            with pytest.raises(InvalidArgument) as refused:
                await blocks.UpdateBlock(request)
            assert refused.value.field == "update_mask"

    @pytest.mark.parametrize(
        ("field", "request_"),
        [
            ("edit", rpc.EditBlockRequest(agent_id=AGENT, author=BY_AGENT)),
            ("author", rpc.EditBlockRequest(agent_id=AGENT, append=rpc.AppendEdit(text="x"))),
            ("agent_id", rpc.EditBlockRequest(agent_id="bob", author=BY_AGENT, append=rpc.AppendEdit(text="x"))),
        ],
    )
    async def test_invalid_edit_is_refused_with_the_field(
        self, blocks: "BlockServiceAsyncStub", field: str, request_: rpc.EditBlockRequest
    ) -> None:
        with pytest.raises(InvalidArgument) as refused:
            await blocks.EditBlock(request_)
        assert refused.value.field == field

    async def test_error_about_a_long_value_keeps_its_reason(self, blocks: "BlockServiceAsyncStub") -> None:
        await create(blocks, "human", AGENT, value="漢" * 19_000)
        with pytest.raises(MnemeshError) as refused:
            await edit(blocks, rethink=rpc.RethinkEdit(value="x", base_revision=7))
        assert refused.value.reason == "BLOCK_REVISION_MISMATCH"
        assert refused.value.metadata["revision"] == "1"
        with pytest.raises(MnemeshError) as refused:
            await edit(blocks, replace_unique=rpc.ReplaceUniqueEdit(old_text="字" * 9_000, new_text="x"))
        assert refused.value.reason == "BLOCK_TEXT_NOT_FOUND"

    async def test_created_block_is_returned_unchanged(self, blocks: "BlockServiceAsyncStub") -> None:
        given = pb.Block(
            label="human", value="näme:\tÉmile 🙂\n", limit=40, description="", read_only=True, name="n",
            tags=["b", "a"], metadata='{"k": 1}', hidden=True, is_template=True, template_name="t",
            preserve_on_migration=True, identity_ids=[new_id("identity")],
            provenance=audit_pb2.Provenance(
                project_id="p", template_id="t", base_template_id="bt", deployment_id="d", entity_id="e"
            ),
        )  # fmt: skip
        made = (await blocks.CreateBlock(rpc.CreateBlockRequest(block=given))).block
        assert (await blocks.GetBlock(rpc.GetBlockRequest(block_id=made.id))).block == made
        made.ClearField("id")
        made.ClearField("revision")
        made.ClearField("content_revision")
        made.ClearField("create_time")
        made.ClearField("update_time")
        made.provenance.ClearField("created_by_id")
        made.provenance.ClearField("last_updated_by_id")
        assert made == given

    async def test_concurrent_repeats_take_effect_once(self, blocks: "BlockServiceAsyncStub") -> None:
        request = rpc.CreateBlockRequest(request_id="r-1", block=pb.Block(label="human"))
        answers = await asyncio.gather(*(blocks.CreateBlock(request) for _ in range(8)))
        assert len({answer.block.id for answer in answers}) == 1
        assert (await blocks.CountBlocks(rpc.CountBlocksRequest())).count == 1

    async def test_refused_request_changes_nothing_and_can_be_repeated(self, blocks: "BlockServiceAsyncStub") -> None:
        taken = await create(blocks, "human", PEER)
        request = rpc.CreateBlockRequest(request_id="r-1", block=pb.Block(label="human"), agent_ids=[AGENT, PEER])
        with pytest.raises(AlreadyExists):
            await blocks.CreateBlock(request)
        assert not (await core(blocks)).blocks
        assert (await blocks.CountBlocks(rpc.CountBlocksRequest())).count == 1
        await blocks.DetachBlock(rpc.DetachBlockRequest(agent_id=PEER, block_id=taken.id))
        made = (await blocks.CreateBlock(request)).block
        assert list((await core(blocks)).blocks) == list((await core(blocks, PEER)).blocks) == [made]


class History(BlocksCases):
    """Revisions, undo and redo, and earlier values by time."""

    async def test_edit_records_its_author(self, blocks: "BlockServiceAsyncStub") -> None:
        block = await create(blocks, "human", AGENT, value="a")
        edited = await edit(blocks, append=rpc.AppendEdit(text="b"))
        assert edited.update_time.ToDatetime() > edited.create_time.ToDatetime()
        newest, _ = await history(blocks, block.id, include_diff=True)
        assert newest.author == BY_AGENT
        assert (newest.revision, newest.operation, newest.value) == (2, pb.BLOCK_OPERATION_APPEND, "a\nb")
        assert newest.diff.splitlines()[2:] == ["@@ -1 +1,2 @@", " a", "+b"]

    async def test_undo_and_redo_move_through_the_history(self, blocks: "BlockServiceAsyncStub") -> None:
        block = await create(blocks, "human", AGENT, value="0")
        for value in "123":
            await edit(blocks, rethink=rpc.RethinkEdit(value=value))
        undo: dict[str, Any] = {"undo": rpc.UndoTarget()}
        redo: dict[str, Any] = {"redo": rpc.RedoTarget()}
        walked = [(await revert(blocks, block.id, **step)).value for step in (undo, undo, redo)]
        assert walked == ["2", "1", "2"]
        await update(blocks, block.id, description="a change of something else is not a step")
        assert [(await revert(blocks, block.id, **step)).value for step in (undo, undo)] == ["1", "0"]
        with pytest.raises(FailedPrecondition) as refused:
            await revert(blocks, block.id, **undo)
        assert refused.value.reason == "BLOCK_NO_HISTORY"
        await edit(blocks, rethink=rpc.RethinkEdit(value="another future"))
        with pytest.raises(FailedPrecondition) as refused:
            await revert(blocks, block.id, **redo)
        assert refused.value.reason == "BLOCK_NO_HISTORY"
        reverted = await revert(blocks, block.id, revision=4)
        assert (reverted.value, reverted.revision) == ("3", 12)
        assert (await revert(blocks, block.id, **undo)).value == "another future"
        with pytest.raises(NotFound):
            await revert(blocks, block.id, revision=99)

    async def test_block_is_read_as_of_a_time(self, blocks: "BlockServiceAsyncStub") -> None:
        block = await create(blocks, "human", AGENT, value="then")
        await edit(blocks, rethink=rpc.RethinkEdit(value="now"))
        request = rpc.GetBlockRequest(block_id=block.id)
        request.as_of_time.CopyFrom(block.create_time)
        then = (await blocks.GetBlock(request)).block
        assert (then.value, then.revision) == ("then", 1)
        request.as_of_time.seconds -= 1
        with pytest.raises(NotFound):
            await blocks.GetBlock(request)

    async def test_revisions_are_paged_with_author_and_value(self, blocks: "BlockServiceAsyncStub") -> None:
        block = await create(blocks, "human", AGENT, value="1")
        bare = pb.Author(agent=pb.AgentAuthor(agent_id=AGENT))
        for author in (BY_AGENT, bare):
            await edit(blocks, author=author, append=rpc.AppendEdit(text="+"))
        request = rpc.ListBlockRevisionsRequest(block_id=block.id, page_size=2)
        page = await blocks.ListBlockRevisions(request)
        assert [(each.revision, each.value) for each in page.revisions] == [(3, "1\n+\n+"), (2, "1\n+")]
        assert [each.author for each in page.revisions] == [bare, BY_AGENT]
        request.page_token = page.next_page_token
        rest = await blocks.ListBlockRevisions(request)
        assert ([each.revision for each in rest.revisions], rest.next_page_token) == ([1], "")


class Listing(BlocksCases):
    """Filters, and pages that cover a list once."""

    async def test_holders_are_paged(self, blocks: "BlockServiceAsyncStub") -> None:
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

    async def test_page_token_of_another_query_is_refused(self, blocks: "BlockServiceAsyncStub") -> None:
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

    async def test_every_filter_restricts_the_list(self, blocks: "BlockServiceAsyncStub") -> None:
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

    async def test_pages_cover_a_list_once_with_equal_sort_keys(self, blocks: "BlockServiceAsyncStub") -> None:
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

    async def test_list_is_bounded_by_after_id_and_before_id(self, blocks: "BlockServiceAsyncStub") -> None:
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
