"""The revisions of a block: earlier values, their authors, and reverts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from mnemesh.blocks.v1 import blocks_pb2 as pb
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc
from mnemesh_kit.errors import FailedPrecondition, NotFound

from mnemesh_testkit.suites.blocks.calls import (
    AGENT,
    BY_AGENT,
    BlocksCases,
    create,
    edit,
    history,
    revert,
    update,
)

if TYPE_CHECKING:
    from mnemesh.blocks.v1.blocks_service_pb2_grpc import BlockServiceAsyncStub


class History(BlocksCases):
    """Revisions, undo and redo, and earlier values by time."""

    async def test_edit_records_its_author(self, blocks: BlockServiceAsyncStub) -> None:
        block = await create(blocks, "human", AGENT, value="a")
        edited = await edit(blocks, append=rpc.AppendEdit(text="b"))
        assert edited.update_time.ToDatetime() > edited.create_time.ToDatetime()
        newest, _ = await history(blocks, block.id, include_diff=True)
        assert newest.author == BY_AGENT
        assert (newest.revision, newest.operation, newest.value) == (2, pb.BLOCK_OPERATION_APPEND, "a\nb")
        assert newest.diff.splitlines()[2:] == ["@@ -1 +1,2 @@", " a", "+b"]

    async def test_undo_and_redo_move_through_the_history(self, blocks: BlockServiceAsyncStub) -> None:
        block = await create(blocks, "human", AGENT, value="0")
        for value in "123":
            await edit(blocks, rethink=rpc.RethinkEdit(value=value))
        undo: dict[str, Any] = {"undo": rpc.UndoTarget()}
        redo: dict[str, Any] = {"redo": rpc.RedoTarget()}
        walked = [(await revert(blocks, block.id, **step)).value for step in (undo, undo, redo)]
        assert walked == ["2", "1", "2"]
        await update(blocks, block.id, description="a change of something else is no step")
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

    async def test_block_is_read_as_of_a_time(self, blocks: BlockServiceAsyncStub) -> None:
        block = await create(blocks, "human", AGENT, value="then")
        await edit(blocks, rethink=rpc.RethinkEdit(value="now"))
        request = rpc.GetBlockRequest(block_id=block.id)
        request.as_of_time.CopyFrom(block.create_time)
        then = (await blocks.GetBlock(request)).block
        assert (then.value, then.revision) == ("then", 1)
        request.as_of_time.seconds -= 1
        with pytest.raises(NotFound):
            await blocks.GetBlock(request)

    async def test_revisions_are_paged_with_author_and_value(self, blocks: BlockServiceAsyncStub) -> None:
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
