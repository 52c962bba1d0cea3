"""Random requests are refused with a documented reason or executed: never INTERNAL, and never partly."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.descriptor import MethodDescriptor
from mnemesh.recall.v1 import (
    contexts_pb2,
    episodes_pb2,
    episodes_service_pb2,
    messages_service_pb2,
    traces_pb2,
    traces_service_pb2,
)
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh.types.v1 import paging_pb2
from mnemesh_kit.ids import new_id
from mnemesh_testkit.fuzzing.contract import hostile_request, spoiled
from mnemesh_testkit.fuzzing.fuzzers import ACCEPTED_CODES, RAW, FuzzedService
from mnemesh_testkit.plugin import Sample

METHODS: list[MethodDescriptor] = [
    *messages_service_pb2.DESCRIPTOR.services_by_name["MessageService"].methods,
    *episodes_service_pb2.DESCRIPTOR.services_by_name["EpisodeService"].methods,
    *(
        method
        for method in traces_service_pb2.DESCRIPTOR.services_by_name["TraceService"].methods
        if not method.client_streaming and not method.server_streaming
    ),
]
SEEDS = 12


class Target(FuzzedService):
    """A service with an agent that has data."""

    def __init__(self, recall: Any, channel: grpc.aio.Channel) -> None:
        super().__init__(channel)
        self.recall = recall
        self.agent, self.conversation = new_id("agent"), new_id("conv")
        self.scope = episodes_pb2.MemoryScope(agent_id=self.agent)
        self.episode, self.fact = episodes_pb2.Episode(), episodes_pb2.Fact()
        self.messages = [said("prompt", pb.ROLE_SYSTEM), said("a red fox"), said("and a grey one", pb.ROLE_ASSISTANT)]

    @property
    def known(self) -> dict[str, list[str]]:
        return {
            "agent": [self.agent],
            "conv": [self.conversation],
            "conversation": [self.conversation],
            "message": [message.id for message in self.messages],
            "fact": [self.fact.id],
            "episode": [self.episode.id],
        }

    async def create(self) -> None:
        await self.recall.CreateContext(
            rpc.CreateContextRequest(
                agent_id=self.agent, conversation_id=self.conversation, messages=self.messages, request_id=new_id("r")
            )
        )
        add = episodes_pb2.FactOperation(add=episodes_pb2.Fact(text="foxes are red"))
        done = await self.recall.episodes.CommitEpisode(
            episodes_service_pb2.CommitEpisodeRequest(
                scope=self.scope, episode=episodes_pb2.Episode(summary="of foxes"), operations=[add]
            )
        )
        self.episode, self.fact = done.episode, done.facts[0]

    async def read_stored(self) -> list[bytes]:
        """Returns every message, the window, the episodes and the facts."""
        listed = await self.recall.ListMessages(rpc.ListMessagesRequest(page_size=1000, include_err=True))
        ids = await self.recall.BatchGetContextIds(rpc.BatchGetContextIdsRequest(conversation_ids=[self.conversation]))
        episodes = await self.recall.episodes.ListEpisodes(episodes_service_pb2.ListEpisodesRequest(page_size=1000))
        every = episodes_service_pb2.FactFilter(include_invalid=True)
        facts = await self.recall.episodes.ListFacts(
            episodes_service_pb2.ListFactsRequest(page_size=1000, filter=every)
        )
        rows = (*listed.messages, *ids.contexts, *episodes.episodes, *facts.facts)
        return [row.SerializeToString() for row in rows]


def said(text: str, role: int = pb.ROLE_USER) -> pb.Message:
    content = [pb.ContentPart(text=pb.TextPart(text=text))]
    return pb.Message(id=new_id("message"), role=pb.Role.ValueType(role), content=content)


def good_memories(target: Target) -> list[tuple[str, Any]]:
    scope, lease = target.scope, contexts_pb2.WriterLease(run_id=new_id("run"), epoch=1)
    source = episodes_pb2.MemorySource(
        message_ids=[target.messages[1].id], agent_id=target.agent, run_id=new_id("run"), model="a/b",
        conversation_id=target.conversation, episode_id=target.episode.id,
    )  # fmt: skip
    fact = episodes_pb2.Fact(
        scope=scope,
        text="foxes dig",
        tags=["t"],
        confidence=0.5,
        salience=0.5,
        source=source,
        metadata="{}",
        extra="{}",
    )
    episode = episodes_pb2.Episode(
        scope=scope,
        summary="of digging",
        turn_ids=["turn_0001"],
        tags=["t"],
        salience=1.0,
        source=source,
        metadata="{}",
    )
    replacement = episodes_pb2.SupersedeOperation(fact_id=target.fact.id, fact=fact)
    end = episodes_pb2.InvalidateOperation(fact_id=target.fact.id, reason="no", source=source)
    again = episodes_pb2.ConfirmOperation(fact_id=target.fact.id, confidence=0.5, source=source)
    operations = [
        episodes_pb2.FactOperation(confirm=again),
        episodes_pb2.FactOperation(add=fact),
        episodes_pb2.FactOperation(supersede=replacement),
    ]
    memories = episodes_service_pb2
    of_facts = memories.FactFilter(
        scopes=[scope], tags_any=["t"], tags_all=["t"], min_confidence=0.1, episode_id=target.episode.id,
        message_id=target.messages[1].id,
    )  # fmt: skip
    of_episodes = memories.EpisodeFilter(scopes=[scope], tags_any=["t"], agent_id=target.agent, turn_id="turn_0001")
    return [
        (
            "CommitEpisode",
            memories.CommitEpisodeRequest(
                scope=scope, episode=episode, operations=operations, conversation_id=target.conversation, lease=lease
            ),
        ),
        ("CreateFact", memories.CreateFactRequest(fact=fact)),
        ("ListFacts", memories.ListFactsRequest(page_size=3, page_token="x", filter=of_facts)),
        ("ListEpisodes", memories.ListEpisodesRequest(page_size=3, filter=of_episodes, after_id=target.episode.id)),
        ("SearchFacts", memories.SearchFactsRequest(query="fox", limit=3, filter=of_facts)),
        (
            "SearchEpisodes",
            memories.SearchEpisodesRequest(query="fox", start_date="2026-01-01", time_zone="UTC", filter=of_episodes),
        ),
        ("GetMemoryBundle", memories.GetMemoryBundleRequest(scopes=[scope], max_facts=3, max_episodes=1)),
        ("ListMemoryScopes", memories.ListMemoryScopesRequest(page_size=3, name_prefix="t", after_id=target.agent)),
        ("InvalidateFact", memories.InvalidateFactRequest(operation=end)),
    ]


def good_requests(target: Target) -> list[tuple[str, Any]]:
    agent, conversation = target.agent, target.conversation
    lease = contexts_pb2.WriterLease(run_id=new_id("run"), epoch=1)
    call = pb.ToolCall(id="c", name="dig", arguments='{"deep": true}')
    answer = pb.ToolReturn(tool_call_id="c", name="dig", status=pb.TOOL_RETURN_STATUS_SUCCESS)
    full = said("full")
    full.MergeFrom(
        pb.Message(name="n", otid="o", turn_id="t", tool_calls=[call], tool_returns=[answer], run_id=new_id("run"))
    )
    update = rpc.UpdateMessageRequest(message=pb.Message(id=target.messages[1].id, name="changed"))
    update.update_mask.paths.append("name")
    return [
        ("GetContext", rpc.GetContextRequest(conversation_id=conversation, if_version=9)),
        ("BatchGetContextIds", rpc.BatchGetContextIdsRequest(conversation_ids=[conversation])),
        (
            "CommitStep",
            rpc.CommitStepRequest(
                agent_id=agent, conversation_id=conversation, lease=lease, step_id=new_id("step"), base_version=1,
                messages=[full], system_text="new",
            ),
        ),
        ("AppendMessages", rpc.AppendMessagesRequest(agent_id=agent, conversation_id=conversation, messages=[full])),
        ("GetMessages", rpc.GetMessagesRequest(message_ids=[message.id for message in target.messages])),
        (
            "ListMessages",
            rpc.ListMessagesRequest(
                page_size=10, page_token="x", order=paging_pb2.SORT_ORDER_ASCENDING,
                order_by=rpc.MESSAGE_ORDER_BY_SEQUENCE, agent_ids=[agent], roles=[pb.ROLE_USER], text_search="fox",
                conversation=rpc.ConversationScope(conversation_id=conversation), run_id=new_id("run"),
                tool_call_id="c", turn_id="t", otid="o", after_id=target.messages[1].id,
            ),
        ),
        ("UpdateMessage", update),
        (
            "SearchMessages",
            rpc.SearchMessagesRequest(
                query="fox", mode=rpc.SEARCH_MODE_HYBRID, limit=5, agent_id=agent, roles=[pb.ROLE_USER],
                start_date="2026-01-01",
                end_date="2026-12-31T10:00", time_zone="Europe/Berlin", exclude_message_ids=[target.messages[1].id],
            ),
        ),
    ]  # fmt: skip


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """SQLite only: tests/contract fuzzes the mesh on PostgreSQL."""
    return f"sqlite:///{tmp_path / 'recall.db'}"


@pytest_asyncio.fixture
async def target(recall: Any) -> Any:
    async with grpc.aio.insecure_channel(recall.address) as channel:
        created = Target(recall, channel)
        await created.create()
        yield created


async def test_random_requests_are_refused_or_executed(target: Target, *, is_full: bool, is_sweep: bool) -> None:
    for method in METHODS:
        await target.require_hostile_answered(method, SEEDS if is_sweep else SEEDS // 3 if is_full else 1)


async def test_request_with_one_random_field_is_refused_or_executed(target: Target, sample: Sample) -> None:
    methods = {method.name: method for method in METHODS}
    for name, request in sample(good_requests(target) + good_memories(target), 3):
        await target.require_spoiled_answered(methods[name], request)


@pytest.mark.full
async def test_bytes_that_are_not_a_request_are_refused(target: Target) -> None:
    for method in METHODS:
        await target.require_bytes_refused(method)


async def test_random_export_is_refused_or_executed(target: Target) -> None:
    (method,) = (
        m for m in traces_service_pb2.DESCRIPTOR.services_by_name["TraceService"].methods if m.server_streaming
    )
    path = f"/{method.containing_service.full_name}/{method.name}"
    for seed in range(SEEDS):
        request = hostile_request(method, seed, target.known)
        call = target.channel.unary_stream(path, **RAW)(request.SerializeToString(), timeout=30)
        with suppress(grpc.aio.AioRpcError):
            async for _ in call:
                pass
        assert await call.code() in ACCEPTED_CODES, (seed, request)


async def test_one_invalid_record_refuses_the_whole_import(target: Target, *, is_full: bool) -> None:
    trace = traces_pb2.RawTrace(
        id="rt_1", turn_id="t", seq=1, trace_type=traces_pb2.TRACE_TYPE_TOOL_RESULT, content="c", source_event="e",
        tool_name="dig", tool_call_id="c", tool_args="{}", tool_result="[1]", tool_error="e", correlation_id="k",
        tags=["t"], tool_result_ref="r", extra="{}", run_id=new_id("run"), conversation_id=target.conversation,
        media=traces_pb2.TraceMedia(images=["i"], audio=["a"]), create_time=target.fact.create_time,
    )  # fmt: skip
    fact = episodes_pb2.Fact(
        id="sem_1", text="foxes", tags=["t"], confidence=0.5, create_time=target.fact.create_time, extra="{}",
        valid_from_time=target.fact.create_time, supersedes_id="sem_0", invalid_reason="r",
        close_time=target.fact.create_time,
    )  # fmt: skip
    episode = episodes_pb2.Episode(id="ep_1", summary="s", turn_ids=["t"], create_time=target.fact.create_time)
    header = traces_service_pb2.ImportTracesHeader(agent_id=target.agent, conversation_id=target.conversation)
    good = [
        traces_service_pb2.ImportTracesRequest(record=record)
        for record in (
            traces_service_pb2.TraceRecord(raw_trace=trace),
            traces_service_pb2.TraceRecord(fact=fact),
            traces_service_pb2.TraceRecord(episode=episode),
        )
    ]
    path = "/mnemesh.recall.v1.TraceService/ImportTraces"
    before = await target.read_stored()
    for request in (traces_service_pb2.ImportTracesRequest(request_id="r", header=header), *good):
        for where, broken in spoiled(request, 1 if is_full else 12):
            parts = [traces_service_pb2.ImportTracesRequest(request_id=new_id("r"), header=header), broken]
            if broken.HasField("header"):
                parts = [broken, good[0]]
            call = target.channel.stream_unary(path, **RAW)(iter([p.SerializeToString() for p in parts]), timeout=30)
            code = await call.code()
            assert code in ACCEPTED_CODES, where
            after = await target.read_stored()
            assert code is grpc.StatusCode.OK or after == before, where
            before = after


@pytest.mark.parametrize("size", [2_000_000, 10_000_000])
async def test_megabytes_of_text_are_refused(target: Target, size: int) -> None:
    huge = "x" * size
    methods = {method.name: method for method in METHODS}
    requests = (
        ("AppendMessages", rpc.AppendMessagesRequest(agent_id=target.agent, messages=[said(huge)])),
        ("AppendMessages", rpc.AppendMessagesRequest(agent_id=huge, messages=[said("x")])),
        ("SearchMessages", rpc.SearchMessagesRequest(query=huge)),
        ("SearchMessages", rpc.SearchMessagesRequest(query="x", time_zone=huge)),
        ("ListMessages", rpc.ListMessagesRequest(text_search=huge)),
        ("ListMessages", rpc.ListMessagesRequest(page_token=huge)),
        ("DeleteMessage", rpc.DeleteMessageRequest(message_id=huge)),
    )
    await target.require_refused(
        ((methods[name], request.SerializeToString()) for name, request in requests),
        (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED),
    )
