"""The adapters over a real channel, against servers that record requests and return prepared responses."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest
from mnemesh.archival.v1 import archives_service_pb2 as archives
from mnemesh.archival.v1 import archives_service_pb2_grpc, passages_service_pb2_grpc
from mnemesh.archival.v1 import passages_service_pb2 as passages
from mnemesh.blocks.v1 import blocks_pb2, blocks_service_pb2_grpc
from mnemesh.blocks.v1 import blocks_service_pb2 as blocks
from mnemesh.recall.v1 import contexts_pb2, messages_service_pb2_grpc
from mnemesh.recall.v1 import messages_service_pb2 as recall
from mnemesh.tools.v1 import execution_service_pb2 as execution
from mnemesh.tools.v1 import execution_service_pb2_grpc, tools_pb2, tools_service_pb2_grpc
from mnemesh.tools.v1 import tools_service_pb2 as tools
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.channels import Channels
from mnemesh_kit.errors import FailedPrecondition, Unavailable, to_trailers
from mnemesh_orchestrator.clients.archival import ArchivalClient
from mnemesh_orchestrator.clients.blocks import BlocksClient
from mnemesh_orchestrator.clients.recall import RecallClient
from mnemesh_orchestrator.clients.tools import ToolsClient
from mnemesh_orchestrator.errors import REMOTE, LeaseLost
from mnemesh_orchestrator.model.conversations import StepCommit
from mnemesh_orchestrator.model.core_memory import AgentAuthor, BlockEdit
from mnemesh_types.archival import ArchivalSummary
from mnemesh_types.blocks import (
    AppendEdit,
    Block,
    InsertLineEdit,
    PatchEdit,
    ReplaceAllEdit,
    ReplaceUniqueEdit,
    RethinkEdit,
)
from mnemesh_types.messages import Message, Role, TextPart

NOW = datetime(2026, 1, 20, tzinfo=UTC)
MESSAGE = Message("message-1", Role.USER, NOW, (TextPart("Hi"),))
CONTEXT = contexts_pb2.Context(
    conversation_id="conv-1",
    agent_id="agent-1",
    version=7,
    epoch=2,
    agent_message_count=9,
    messages=[message_pb2.Message(id="message-0", role=message_pb2.ROLE_SYSTEM)],
)


class FakeServices:
    """Records requests and deadlines of all services, and returns prepared responses by method."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.deadlines: list[float] = []
        self.responses: dict[str, Any] = {}

    async def answer(self, method: str, request: Any, context: Any, empty: type[Any]) -> Any:
        self.requests.append(request)
        self.deadlines.append(context.time_remaining())
        answer = self.responses.get(method, empty())
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, Exception):
            context.set_trailing_metadata(to_trailers(answer))  # type: ignore[arg-type]
            await context.abort(answer.code, str(answer))  # type: ignore[attr-defined]
        return answer

    def serve(self, server: grpc.aio.Server) -> None:
        for module, add in (
            (blocks, blocks_service_pb2_grpc.add_BlockServiceServicer_to_server),
            (recall, messages_service_pb2_grpc.add_MessageServiceServicer_to_server),
            (archives, archives_service_pb2_grpc.add_ArchiveServiceServicer_to_server),
            (passages, passages_service_pb2_grpc.add_PassageServiceServicer_to_server),
            (tools, tools_service_pb2_grpc.add_ToolServiceServicer_to_server),
            (execution, execution_service_pb2_grpc.add_ExecutionServiceServicer_to_server),
        ):
            add(self._servicer(module), server)

    def _servicer(self, module: Any) -> Any:
        def handler(method: Any) -> Any:
            empty = getattr(module, method.output_type.name)

            async def handle(_: object, request: Any, context: Any) -> Any:
                return await self.answer(method.name, request, context, empty)

            return handle

        (service,) = module.DESCRIPTOR.services_by_name.values()
        return type(service.name, (), {method.name: handler(method) for method in service.methods})()


@pytest.fixture
async def fakes() -> FakeServices:
    return FakeServices()


@pytest.fixture
async def channel(fakes: FakeServices) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    fakes.serve(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channels = Channels(errors=REMOTE)
    yield channels.channel(f"127.0.0.1:{port}")
    await channels.close()
    await server.stop(None)


async def test_core_memory_is_read_with_its_blocks_unless_unchanged(
    fakes: FakeServices, channel: grpc.aio.Channel
) -> None:
    block = blocks_pb2.Block(id="block-1", label="human", value="v", limit=9, read_only=True, revision=4)
    core = blocks_pb2.CoreMemory(agent_id="agent-1", revision=5, blocks=[block])
    fakes.responses["GetCoreMemory"] = blocks.GetCoreMemoryResponse(core_memory=core)
    client = BlocksClient(channel)
    held = await client.get("agent-1")
    assert held is not None
    assert held.blocks == (
        Block(id="block-1", label="human", value="v", limit=9, description=None, read_only=True, revision=4),
    )
    assert (held.revision, held.updated_at) == (5, None)
    fakes.responses["GetCoreMemory"] = blocks.GetCoreMemoryResponse(not_modified=True)
    assert await client.get("agent-1", 5) is None
    assert not fakes.requests[0].HasField("if_revision")
    assert fakes.requests[1].if_revision == 5
    assert 0 < fakes.deadlines[0] < 6


@pytest.mark.parametrize(
    ("edit", "kind", "sent"),
    [
        (AppendEdit("x"), "append", blocks.AppendEdit(text="x")),
        (ReplaceAllEdit("a", "b"), "replace_all", blocks.ReplaceAllEdit(old_text="a", new_text="b")),
        (ReplaceUniqueEdit("a", ""), "replace_unique", blocks.ReplaceUniqueEdit(old_text="a")),
        (InsertLineEdit(-1, "x"), "insert_line", blocks.InsertLineEdit(line=-1, text="x")),
        (InsertLineEdit(3, "x", 7), "insert_line", blocks.InsertLineEdit(line=3, text="x", base_revision=7)),
        (RethinkEdit("x"), "rethink", blocks.RethinkEdit(value="x")),
        (RethinkEdit("x", 7), "rethink", blocks.RethinkEdit(value="x", base_revision=7)),
        (PatchEdit("x"), "patch", blocks.PatchEdit(patch="x")),
    ],
)
async def test_edit_has_its_author(
    fakes: FakeServices, channel: grpc.aio.Channel, edit: BlockEdit, kind: str, sent: Any
) -> None:
    await BlocksClient(channel).edit("step-1/0/0", AgentAuthor("agent-1", "call-1", "run-1"), "human", edit)
    (request,) = fakes.requests
    author = blocks_pb2.AgentAuthor(agent_id="agent-1", tool_call_id="call-1", run_id="run-1")
    assert (request.request_id, request.agent_id, request.label) == ("step-1/0/0", "agent-1", "human")
    assert request.author.agent == author
    assert request.WhichOneof("edit") == kind
    assert getattr(request, kind) == sent
    assert 6 < fakes.deadlines[0] < 11


async def test_blocks_are_created_attached_detached_and_renamed(fakes: FakeServices, channel: grpc.aio.Channel) -> None:
    client = BlocksClient(channel)
    await client.create("r1", "agent-1", Block(label="plans", value="v", description="d", metadata="{}", tags=("t",)))
    await client.attach("r2", "agent-1", "block-1")
    await client.detach("r3", "agent-1", "plans")
    await client.relabel("r4", "block-1", "goals")
    await client.describe("r5", "block-1", "")
    await client.erase_agent("r6", "agent-1")
    await client.erase_agent("r7", "agent-1", unshared=True)
    created, given, taken, renamed, described, *erased = fakes.requests
    assert created.block == blocks_pb2.Block(label="plans", value="v", description="d", metadata="{}", tags=["t"])
    assert list(created.agent_ids) == ["agent-1"]
    assert given.block_id == "block-1"
    assert (taken.agent_id, taken.label) == ("agent-1", "plans")
    assert (renamed.block.id, renamed.block.label, list(renamed.update_mask.paths)) == ("block-1", "goals", ["label"])
    assert described.block.HasField("description")
    assert list(described.update_mask.paths) == ["description"]
    assert created.created_for_agent_id == "agent-1"
    assert [request.delete_unshared_blocks for request in erased] == [False, True]
    assert [request.request_id for request in fakes.requests] == ["r1", "r2", "r3", "r4", "r5", "r6", "r7"]


async def test_windows_are_forked_and_deleted(fakes: FakeServices, channel: grpc.aio.Channel) -> None:
    client = RecallClient(channel)
    fakes.responses["ForkContext"] = recall.ForkContextResponse(context=CONTEXT)
    forked = await client.fork_context("r1", "agent-1", "conv-0", "conv-1", MESSAGE)
    assert (forked.conversation_id, forked.version) == ("conv-1", 7)
    request = fakes.requests[-1]
    assert (request.request_id, request.source_conversation_id, request.conversation_id) == ("r1", "conv-0", "conv-1")
    assert (request.system_message.id, request.system_message.agent_id) == ("message-1", "agent-1")
    assert not request.HasField("until_message_id")
    await client.fork_context("r2", "agent-1", "conv-0", "conv-1", MESSAGE, "message-0")
    assert fakes.requests[-1].until_message_id == "message-0"
    await client.delete_context("r3", "conv-1")
    assert (fakes.requests[-1].request_id, fakes.requests[-1].conversation_id) == ("r3", "conv-1")
    assert not fakes.requests[-1].delete_messages


async def test_window_is_read_with_its_messages_unless_unchanged(
    fakes: FakeServices, channel: grpc.aio.Channel
) -> None:
    client = RecallClient(channel)
    fakes.responses["CreateContext"] = recall.CreateContextResponse(context=CONTEXT)
    await client.create_context("r1", "agent-1", "conv-1", [MESSAGE])
    assert fakes.requests[0].messages[0].agent_id == "agent-1"
    fakes.responses["GetContext"] = recall.GetContextResponse(not_modified=True, context=CONTEXT)
    assert await client.get_context("conv-1", 7) is None
    fakes.responses["GetContext"] = recall.GetContextResponse(context=CONTEXT)
    window = await client.get_context("conv-1")
    assert window is not None
    assert (window.version, window.epoch, window.agent_message_count) == (7, 2, 9)
    assert window.messages[0].role is Role.SYSTEM
    shown = recall.ContextIds(conversation_id="conv-1", message_ids=["message-0", "message-1"])
    fakes.responses["BatchGetContextIds"] = recall.BatchGetContextIdsResponse(contexts=[shown])
    assert await client.window_ids(["conv-0", "conv-1"]) == {"conv-1": ("message-0", "message-1")}
    assert list(fakes.requests[-1].conversation_ids) == ["conv-0", "conv-1"]


async def test_step_has_its_lease_and_no_request_id(fakes: FakeServices, channel: grpc.aio.Channel) -> None:
    client = RecallClient(channel)
    commit = StepCommit("agent-1", "conv-1", "run-1", 3, "step-1", 6, (MESSAGE,), "system")
    fakes.responses["CommitStep"] = recall.CommitStepResponse(version=7, agent_message_count=9)
    outcome = await client.commit_step(commit)
    assert (outcome.version, outcome.agent_message_count, outcome.window) == (7, 9, None)
    fakes.responses["CommitStep"] = recall.CommitStepResponse(version=8, rebased=True, context=CONTEXT)
    assert (await client.commit_step(commit)).window is not None
    first, second = fakes.requests
    assert (first.lease.run_id, first.lease.epoch, first.base_version) == ("run-1", 3, 6)
    assert (first.step_id, first.system_text) == ("step-1", "system")
    assert first.request_id != second.request_id
    fakes.responses["CommitStep"] = LeaseLost("taken over", epoch="4")
    with pytest.raises(LeaseLost) as lost:
        await client.commit_step(commit)
    assert lost.value.metadata == {"epoch": "4"}


async def test_window_is_replaced_with_a_lease_or_by_the_owner(fakes: FakeServices, channel: grpc.aio.Channel) -> None:
    client = RecallClient(channel)
    fakes.responses["ReplaceContext"] = recall.ReplaceContextResponse(context=CONTEXT)
    await client.replace_context("r1", "agent-1", "conv-1", 7, ["message-0"], [MESSAGE], run_id="run-1", epoch=0)
    await client.replace_context("r2", "agent-1", "conv-1", 7, ["message-0"], system_text="s")
    held, owned = fakes.requests
    assert held.HasField("lease")
    assert not held.HasField("system_text")
    assert not owned.HasField("lease")
    assert (owned.system_text, list(owned.message_ids)) == ("s", ["message-0"])


async def test_messages_are_stored_and_found(fakes: FakeServices, channel: grpc.aio.Channel) -> None:
    client = RecallClient(channel)
    await client.append("r1", "agent-1", [MESSAGE])
    await client.erase_agent("r2", "agent-1")
    found = recall.MessageHit(
        message=message_pb2.Message(id="message-1", role=message_pb2.ROLE_USER),
        text="Hi",
        score=0.5,
        text_rank=1,
        mode=recall.SEARCH_MODE_TEXT,
    )
    fakes.responses["SearchMessages"] = recall.SearchMessagesResponse(hits=[found])
    told = await client.search("agent-1", "hi", roles=["user", "assistant"], start_date="2026-01-01", time_zone="UTC")
    (hit,) = told.hits
    assert (hit.text, hit.score, hit.vector_rank, hit.text_rank, hit.mode) == ("Hi", 0.5, None, 1, "text")
    appended, erased, searched = fakes.requests
    assert not appended.HasField("conversation_id")
    assert erased.agent_id == "agent-1"
    assert list(searched.roles) == [message_pb2.ROLE_USER, message_pb2.ROLE_ASSISTANT]
    assert (searched.limit, searched.start_date, searched.HasField("end_date")) == (5, "2026-01-01", False)


async def test_searches_read_all_pages(fakes: FakeServices, channel: grpc.aio.Channel) -> None:
    told = [recall.MessageHit(message=message_pb2.Message(role=message_pb2.ROLE_USER), text=text) for text in "ab"]
    fakes.responses["SearchMessages"] = [
        recall.SearchMessagesResponse(hits=told[:1], next_page_token="more"),
        recall.SearchMessagesResponse(hits=told[1:]),
    ]
    noted = [passages.PassageHit(passage={"text": text, "create_time": NOW}) for text in "cd"]
    fakes.responses["SearchPassages"] = [
        passages.SearchPassagesResponse(hits=noted[:1], next_page_token="rest"),
        passages.SearchPassagesResponse(hits=noted[1:]),
    ]
    found = await RecallClient(channel).search("agent-1", "hi")
    assert [hit.text for hit in found.hits] == ["a", "b"]
    assert [hit.text for hit in await ArchivalClient(channel).search("agent-1", "hi")] == ["c", "d"]
    assert [request.page_token for request in fakes.requests] == ["", "more", "", "rest"]


async def test_passages_are_stored_found_and_counted(fakes: FakeServices, channel: grpc.aio.Channel) -> None:
    client = ArchivalClient(channel)
    stored = passages.InsertResult()
    stored.passage.id = "passage-1"
    fakes.responses["InsertPassages"] = passages.InsertPassagesResponse(results=[stored])
    assert await client.insert("r1", "agent-1", "Tea.", ["food"], embedder="a/b") == "passage-1"
    hit = passages.PassageHit(score=0.5, vector_rank=2)
    hit.passage.text = "Tea."
    hit.passage.create_time.FromDatetime(NOW)
    fakes.responses["SearchPassages"] = passages.SearchPassagesResponse(hits=[hit])
    (found,) = await client.search("agent-1", "tea", tags=["food"], match_all_tags=True, end_date="2026-01-01")
    assert (found.text, found.created_at, found.vector_rank, found.text_rank) == ("Tea.", NOW, 2, None)
    fakes.responses["GetArchivalSummary"] = passages.GetArchivalSummaryResponse(
        revision=3, passage_count=2, tags=["food"]
    )
    assert await client.summary("agent-1") == ArchivalSummary(revision=3, passage_count=2, tags=("food",))
    fakes.responses["GetArchivalSummary"] = passages.GetArchivalSummaryResponse(not_modified=True, revision=3)
    assert await client.summary("agent-1", 3) is None
    await client.attach("r2", "agent-1", "archive-1")
    await client.erase_agent("r3", "agent-1", unshared=True)
    inserted, searched, *_, attached, erased = fakes.requests
    assert (inserted.agent_id, list(inserted.passages[0].tags)) == ("agent-1", ["food"])
    assert inserted.default_embedder == "a/b"
    assert searched.filter.agent_id == "agent-1"
    assert searched.filter.tag_match == passages.TAG_MATCH_ALL
    assert searched.filter.end_date == "2026-01-01"
    assert (attached.archive_id, erased.request_id, erased.delete_unshared_archives) == ("archive-1", "r3", True)


async def test_refused_passage_is_an_error(fakes: FakeServices, channel: grpc.aio.Channel) -> None:
    failed = passages.InsertResult(failure=passages.InsertFailure(reason="INVALID_ARGUMENT", message="blank"))
    fakes.responses["InsertPassages"] = passages.InsertPassagesResponse(results=[failed])
    with pytest.raises(FailedPrecondition, match="blank"):
        await ArchivalClient(channel).insert("r1", "agent-1", " ")


async def test_deadline_of_a_tool_call_is_its_timeout_and_a_margin(
    fakes: FakeServices, channel: grpc.aio.Channel
) -> None:
    slow = tools_pb2.Tool(id="tool-1", name="slow", json_schema="{}", timeout_seconds=600, idempotent=True, revision=2)
    quick = tools_pb2.Tool(id="tool-2", name="quick", json_schema="{}", default_requires_approval=True)
    fakes.responses["BatchGetTools"] = tools.BatchGetToolsResponse(tools=[slow, quick])
    client = ToolsClient(channel)
    first, second = await client.definitions(ids=["tool-1", "tool-2"])
    assert (first.idempotent, first.requires_approval, first.revision) == (True, False, 2)
    assert (second.requires_approval, second.return_char_limit) == (True, 50_000)
    fakes.responses["ExecuteTool"] = execution.ExecuteToolResponse(
        status=execution.EXECUTION_STATUS_SUCCESS, result="5", stdout="a\nb\n", changed_blocks={"human": "new"}
    )
    context: dict[str, Any] = {"agent_id": "agent-1", "agent_name": "Ada", "project_id": None}
    given: dict[str, Any] = {
        "blocks": [Block(id="block-1", label="human", value="old", limit=500, description="The user.")],
        "environment": {"K": "V"},
    }
    result, changed = await client.execute("tool-1", "{}", **context, **given)
    assert (result.ok, result.text, result.stdout, result.stderr) == (True, "5", ("a", "b"), ())
    assert changed == {"human": "new"}
    assert 600 < fakes.deadlines[-1] < 632
    request = fakes.requests[-1]
    assert (request.tool_id, request.arguments, dict(request.environment)) == ("tool-1", "{}", {"K": "V"})
    assert dict(request.agent_state.blocks) == {"human": "old"}
    properties = request.agent_state.block_properties["human"]
    assert (properties.description, properties.limit) == ("The user.", 500)
    fakes.responses["ExecuteTool"] = execution.ExecuteToolResponse(
        status=execution.EXECUTION_STATUS_TIMED_OUT, result="It took too long."
    )
    failed, _ = await client.execute("tool-2", "{}", **context, blocks=(), environment={})
    assert (failed.ok, failed.text) == (False, "It took too long.")
    assert 180 < fakes.deadlines[-1] < 212


async def test_source_is_stored_as_a_tool(fakes: FakeServices, channel: grpc.aio.Channel) -> None:
    fakes.responses["UpsertTool"] = tools.UpsertToolResponse(tool=tools_pb2.Tool(id="tool-1", name="roll"))
    stored = await ToolsClient(channel).upsert_source("r1", "def roll() -> int: ...")
    assert (stored.id, stored.name) == ("tool-1", "roll")
    (request,) = fakes.requests
    assert (request.request_id, request.tool.source_type) == ("r1", tools_pb2.SOURCE_TYPE_PYTHON)
    assert request.tool.type == tools_pb2.TOOL_TYPE_CUSTOM


async def test_channel_does_not_retry_tool_calls(fakes: FakeServices, channel: grpc.aio.Channel) -> None:
    fakes.responses["ExecuteTool"] = Unavailable("gone in the midst of it")
    context: dict[str, Any] = {"agent_id": "agent-1", "agent_name": "Ada"}
    with pytest.raises(Unavailable):
        await ToolsClient(channel).execute("tool-1", "{}", **context, project_id=None, blocks=(), environment={})
    assert len(fakes.requests) == 1
