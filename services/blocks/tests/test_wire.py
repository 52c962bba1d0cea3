"""Core memory as a client sees it, through a running server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from engram.blocks.v1 import blocks_pb2 as pb
from engram.blocks.v1 import blocks_service_pb2 as rpc
from engram.types.v1 import paging_pb2
from engram_kit.clock import FrozenClock
from engram_kit.errors import Aborted, AlreadyExists, EngramError, FailedPrecondition, InvalidArgument, NotFound
from engram_kit.ids import new_id
from engram_kit.principal import DEFAULT_PRINCIPAL, Principal, as_principal

if TYPE_CHECKING:
    from engram.blocks.v1.blocks_service_pb2_grpc import BlockServiceAsyncStub

AGENT, PEER = new_id("agent"), new_id("agent")
BY_AGENT = pb.Author(agent=pb.AgentAuthor(agent_id=AGENT, tool_call_id="call_1", run_id="run_1"))
BY_OWNER = pb.Author(owner=pb.OwnerAuthor())


async def create(blocks: BlockServiceAsyncStub, label: str = "human", *holders: str, **fields: Any) -> pb.Block:
    request = rpc.CreateBlockRequest(block=pb.Block(label=label, **fields), agent_ids=holders)
    return (await blocks.CreateBlock(request)).block


async def edit(
    blocks: BlockServiceAsyncStub, label: str = "human", author: pb.Author = BY_AGENT, **kind: Any
) -> pb.Block:
    request = rpc.EditBlockRequest(agent_id=AGENT, label=label, author=author, **kind)
    return (await blocks.EditBlock(request)).block


async def core(blocks: BlockServiceAsyncStub, agent_id: str = AGENT) -> pb.CoreMemory:
    return (await blocks.GetCoreMemory(rpc.GetCoreMemoryRequest(agent_id=agent_id))).core_memory


async def history(blocks: BlockServiceAsyncStub, block_id: str, **fields: Any) -> list[pb.BlockRevision]:
    return list((await blocks.ListBlockRevisions(rpc.ListBlockRevisionsRequest(block_id=block_id, **fields))).revisions)


async def test_a_block_is_created_with_defaults_and_authorship(blocks: BlockServiceAsyncStub) -> None:
    block = await create(blocks, "human", AGENT, value="Ada")
    assert (block.limit, block.revision, block.read_only) == (20_000, 1, False)
    assert block.description
    assert block.provenance.created_by_id == DEFAULT_PRINCIPAL.subject_id
    assert block.create_time == block.update_time
    assert not (await create(blocks, "anything")).HasField("description")
    assert list((await core(blocks)).blocks) == [block]
    [first] = await history(blocks, block.id)
    assert (first.operation, first.value, first.revision) == (pb.BLOCK_OPERATION_CREATE, "Ada", 1)
    assert first.author.owner.subject_id == DEFAULT_PRINCIPAL.subject_id


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
async def test_a_bad_block_names_its_field(blocks: BlockServiceAsyncStub, field: str, block: pb.Block) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await blocks.CreateBlock(rpc.CreateBlockRequest(block=block))
    assert refused.value.field == field


async def test_the_limit_counts_characters_and_holds_at_every_write(blocks: BlockServiceAsyncStub) -> None:
    block = await create(blocks, "human", AGENT, value="🙂" * 9, limit=10)
    assert (await edit(blocks, replace_all=rpc.ReplaceAllEdit(old_text="🙂" * 9, new_text="é" * 10))).value == "é" * 10
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


async def update(
    blocks: BlockServiceAsyncStub, block_id: str, base_revision: int | None = None, **fields: Any
) -> pb.Block:
    request = rpc.UpdateBlockRequest(block=pb.Block(id=block_id, **fields), base_revision=base_revision)
    request.update_mask.paths.extend(fields)
    return (await blocks.UpdateBlock(request)).block


async def test_an_agent_may_not_edit_a_read_only_block_and_its_owner_may(blocks: BlockServiceAsyncStub) -> None:
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


async def test_an_edit_records_who_made_it(blocks: BlockServiceAsyncStub, clock: FrozenClock) -> None:
    block = await create(blocks, "human", AGENT, value="a")
    clock.advance(60)
    edited = await edit(blocks, append=rpc.AppendEdit(text="b"))
    assert edited.update_time.seconds - edited.create_time.seconds == 60
    newest, _ = await history(blocks, block.id, include_diff=True)
    assert newest.author == BY_AGENT
    assert (newest.revision, newest.operation, newest.value) == (2, pb.BLOCK_OPERATION_APPEND, "a\nb")
    assert newest.diff.splitlines()[2:] == ["@@ -1 +1,2 @@", " a", "+b"]


async def test_a_label_that_the_agent_does_not_hold_is_told_with_those_it_does(blocks: BlockServiceAsyncStub) -> None:
    await create(blocks, "human", AGENT)
    await create(blocks, "persona", AGENT)
    with pytest.raises(NotFound) as refused:
        await edit(blocks, "notes", append=rpc.AppendEdit(text="x"))
    assert refused.value.reason == "BLOCK_LABEL_NOT_FOUND"
    assert refused.value.message == "Block field notes does not exist (available sections = human, persona)"


async def test_a_hundred_concurrent_appends_all_stand(blocks: BlockServiceAsyncStub) -> None:
    await create(blocks, "human", AGENT, PEER)
    before = (await core(blocks, PEER)).revision
    await asyncio.gather(*(edit(blocks, append=rpc.AppendEdit(text=f"line {i}")) for i in range(100)))
    memory = await core(blocks, PEER)
    assert sorted(memory.blocks[0].value.split("\n")) == sorted(f"line {i}" for i in range(100))
    assert memory.revision == before + 100


async def test_fifty_agents_that_append_to_one_block_at_once_lose_nothing(blocks: BlockServiceAsyncStub) -> None:
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
    changes = await history(blocks, shared.id, page_size=100, with_previous_value=True)
    assert {change.author.agent.agent_id for change in changes if change.revision > 1} == set(agents)
    for change in changes:
        if change.revision > 1:
            assert change.value == f"{change.previous_value}\nby {change.author.agent.agent_id}"


async def test_edits_that_depend_on_what_was_seen_are_refused_when_it_moved(blocks: BlockServiceAsyncStub) -> None:
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


async def test_one_of_two_writers_at_the_same_revision_wins(blocks: BlockServiceAsyncStub) -> None:
    await create(blocks, "human", AGENT)
    rethinks = (edit(blocks, rethink=rpc.RethinkEdit(value=str(i), base_revision=1)) for i in range(10))
    results = await asyncio.gather(*rethinks, return_exceptions=True)
    assert sum(isinstance(result, pb.Block) for result in results) == 1
    assert sum(isinstance(result, Aborted) for result in results) == 9


async def revert(blocks: BlockServiceAsyncStub, block_id: str, author: pb.Author = BY_OWNER, **target: Any) -> pb.Block:
    return (await blocks.RevertBlock(rpc.RevertBlockRequest(block_id=block_id, author=author, **target))).block


async def test_undo_and_redo_walk_the_history(blocks: BlockServiceAsyncStub) -> None:
    block = await create(blocks, "human", AGENT, value="0")
    for value in "123":
        await edit(blocks, rethink=rpc.RethinkEdit(value=value))
    undo, redo = {"undo": rpc.UndoTarget()}, {"redo": rpc.RedoTarget()}
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


async def test_what_a_block_said_then(blocks: BlockServiceAsyncStub, clock: FrozenClock) -> None:
    block = await create(blocks, "human", AGENT, value="then")
    clock.advance(10)
    await edit(blocks, rethink=rpc.RethinkEdit(value="now"))
    request = rpc.GetBlockRequest(block_id=block.id)
    request.as_of_time.seconds = block.create_time.seconds + 5
    then = (await blocks.GetBlock(request)).block
    assert (then.value, then.revision) == ("then", 1)
    request.as_of_time.seconds = block.create_time.seconds - 5
    with pytest.raises(NotFound):
        await blocks.GetBlock(request)


async def test_labels_are_unique_for_each_agent(blocks: BlockServiceAsyncStub) -> None:
    held = await create(blocks, "human", AGENT)
    other = await create(blocks, "human", PEER)
    third = await create(blocks, "free", AGENT)
    for call in (
        blocks.AttachBlock(rpc.AttachBlockRequest(agent_id=AGENT, block_id=other.id)),
        create(blocks, "human", AGENT),
        update(blocks, third.id, label="human"),
    ):
        with pytest.raises(AlreadyExists) as refused:
            await call
        assert refused.value.reason == "BLOCK_LABEL_TAKEN"
        assert refused.value.metadata == {"label": "human", "agent_id": AGENT}
    again = await blocks.AttachBlock(rpc.AttachBlockRequest(agent_id=AGENT, block_id=held.id))
    assert again.core_memory_revision == (await core(blocks)).revision == 2
    assert (await update(blocks, third.id, label="renamed")).label == "renamed"
    assert [block.label for block in (await core(blocks)).blocks] == ["human", "renamed"]


async def test_core_memory_is_shared_and_given_back(blocks: BlockServiceAsyncStub) -> None:
    shared = await create(blocks, "human", AGENT, PEER, value="a")
    seen = (await core(blocks, PEER)).revision
    unchanged = await blocks.GetCoreMemory(rpc.GetCoreMemoryRequest(agent_id=PEER, if_revision=seen))
    assert unchanged.not_modified
    assert not unchanged.HasField("core_memory")
    await edit(blocks, append=rpc.AppendEdit(text="b"))
    changed = await blocks.GetCoreMemory(rpc.GetCoreMemoryRequest(agent_id=PEER, if_revision=seen))
    assert changed.core_memory.blocks[0].value == "a\nb"
    gone = await blocks.DetachBlock(rpc.DetachBlockRequest(agent_id=PEER, label="human"))
    assert gone.block_id == shared.id
    assert not (await core(blocks, PEER)).blocks
    with pytest.raises(NotFound):
        await blocks.DetachBlock(rpc.DetachBlockRequest(agent_id=PEER, block_id=shared.id))
    batch = rpc.BatchGetCoreMemoryRequest(agent_ids=[PEER, AGENT, PEER, new_id("agent")])
    memories = (await blocks.BatchGetCoreMemory(batch)).core_memories
    assert [(memory.agent_id, len(memory.blocks)) for memory in memories[:3]] == [(PEER, 0), (AGENT, 1), (PEER, 0)]
    assert memories[3].revision == 0


async def test_holders_are_listed_page_by_page(blocks: BlockServiceAsyncStub) -> None:
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


async def test_a_page_token_belongs_to_its_query(blocks: BlockServiceAsyncStub) -> None:
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


async def test_a_deleted_block_is_gone_everywhere(blocks: BlockServiceAsyncStub) -> None:
    block = await create(blocks, "human", AGENT)
    for _ in range(2):
        await blocks.DeleteBlock(rpc.DeleteBlockRequest(block_id=block.id))
    assert not (await core(blocks)).blocks
    for call in (
        blocks.GetBlock(rpc.GetBlockRequest(block_id=block.id)),
        history(blocks, block.id),
        edit(blocks, append=rpc.AppendEdit(text="x")),
        update(blocks, block.id, value="x"),
    ):
        with pytest.raises(NotFound):
            await call


async def test_another_organization_finds_nothing(blocks: BlockServiceAsyncStub) -> None:
    block = await create(blocks, "human", AGENT, value="secret")
    with as_principal(Principal(new_id("org"), new_id("user"))):
        for call in (
            blocks.GetBlock(rpc.GetBlockRequest(block_id=block.id)),
            update(blocks, block.id, value="x"),
            edit(blocks, append=rpc.AppendEdit(text="x")),
            blocks.AttachBlock(rpc.AttachBlockRequest(agent_id=AGENT, block_id=block.id)),
            blocks.DetachBlock(rpc.DetachBlockRequest(agent_id=AGENT, block_id=block.id)),
            blocks.ListBlockAgents(rpc.ListBlockAgentsRequest(block_id=block.id)),
            history(blocks, block.id),
            revert(blocks, block.id, revision=1),
        ):
            with pytest.raises(NotFound):
                await call
        assert not (await core(blocks)).blocks
        assert not (await blocks.ListBlocks(rpc.ListBlocksRequest())).blocks
        await blocks.DeleteBlock(rpc.DeleteBlockRequest(block_id=block.id))
    assert (await core(blocks)).blocks[0].value == "secret"


async def test_an_erased_agent_gets_no_late_writes(blocks: BlockServiceAsyncStub) -> None:
    shared, _ = await create(blocks, "human", AGENT, PEER), await create(blocks, "own", AGENT)
    erase = rpc.EraseAgentRequest(request_id="erase-1", agent_id=AGENT, delete_unshared_blocks=True)
    for _ in range(2):
        done = await blocks.EraseAgent(erase)
        assert (done.detached_blocks, done.deleted_blocks) == (2, 1)
    for call in (
        edit(blocks, append=rpc.AppendEdit(text="late")),
        create(blocks, "late", AGENT),
        blocks.AttachBlock(rpc.AttachBlockRequest(agent_id=AGENT, block_id=shared.id)),
    ):
        with pytest.raises(FailedPrecondition) as refused:
            await call
        assert refused.value.reason == "ERASED"
    assert [block.label for block in (await core(blocks, PEER)).blocks] == ["human"]
    assert (await blocks.CountBlocks(rpc.CountBlocksRequest())).count == 1


async def test_a_repeated_request_gives_the_first_result(blocks: BlockServiceAsyncStub) -> None:
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


async def test_an_update_clears_what_its_mask_names_and_leaves_the_rest(blocks: BlockServiceAsyncStub) -> None:
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
async def test_an_edit_that_cannot_be_meant_names_its_field(
    blocks: BlockServiceAsyncStub, field: str, request_: rpc.EditBlockRequest
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await blocks.EditBlock(request_)
    assert refused.value.field == field


async def test_a_long_value_in_an_error_does_not_break_the_error(blocks: BlockServiceAsyncStub) -> None:
    await create(blocks, "human", AGENT, value="漢" * 19_000)
    with pytest.raises(EngramError) as refused:
        await edit(blocks, rethink=rpc.RethinkEdit(value="x", base_revision=7))
    assert refused.value.reason == "BLOCK_REVISION_MISMATCH"
    assert refused.value.metadata["revision"] == "1"
    with pytest.raises(EngramError) as refused:
        await edit(blocks, replace_unique=rpc.ReplaceUniqueEdit(old_text="字" * 9_000, new_text="x"))
    assert refused.value.reason == "BLOCK_TEXT_NOT_FOUND"
