"""Exports and imports of TraceService over the wire, on each SQL engine."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from mnemesh.recall.v1 import episodes_pb2, traces_pb2
from mnemesh.recall.v1 import episodes_service_pb2 as memories
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.recall.v1 import traces_service_pb2 as traces
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import AlreadyExists, InvalidArgument, MnemeshError, NotFound
from mnemesh_kit.ids import derive_id, new_id
from mnemesh_testkit.errors import catch_refusal

from .trace_requests import (
    AGENT,
    MAIN,
    PEER,
    PENDING,
    SUCCESS,
    at,
    bare,
    calling,
    exported,
    open_window,
    part,
    parts,
    returning,
    said,
    take_in,
    tell,
    turns,
)


async def lived(recall: Any) -> list[traces.TraceRecord]:
    """Returns the export of an agent with messages, tool calls, episodes and facts."""
    await open_window(recall)
    scope = episodes_pb2.MemoryScope(agent_id=AGENT)
    image = pb.ContentPart(image=pb.ImagePart(url="https://example.org/fox.png"))
    look = said("what is this?", create_time=at(0.123456))
    look.content.append(image)
    await tell(recall, look, calling("c1", "c2", text="let me see"), returning("c1", '{"fox": [1, 2.5]}'))
    await tell(recall, said("and?"), returning("c2", "it ran", pb.TOOL_RETURN_STATUS_ERROR))
    await tell(recall, said("a fox", pb.ROLE_ASSISTANT))
    facts = [episodes_pb2.Fact(text="There is a fox", tags=["fox"], confidence=0.5), episodes_pb2.Fact(text="It ran")]
    done = await recall.episodes.CommitEpisode(
        memories.CommitEpisodeRequest(
            scope=scope,
            episode=episodes_pb2.Episode(summary="Of a fox", turn_ids=["turn_0001"], tags=["fox"], salience=0.5),
            operations=[episodes_pb2.FactOperation(add=fact) for fact in facts],
        )
    )
    operation = episodes_pb2.SupersedeOperation(
        fact_id=done.facts[0].id, fact=episodes_pb2.Fact(text="There was a fox")
    )
    await recall.episodes.SupersedeFact(memories.SupersedeFactRequest(operation=operation))
    return [record for record in await exported(recall) if record.WhichOneof("record") != "snapshot"]


async def test_export_can_be_imported_completely(recall: Any) -> None:
    records = await lived(recall)
    kinds = [record.WhichOneof("record") for record in records]
    assert kinds == ["raw_trace"] * 8 + ["episode"] + ["fact"] * 3
    await open_window(recall, agent=PEER, conversation=derive_id("conv", PEER))
    done = await take_in(recall, records, extend_window=True)
    assert (done.imported_traces, done.imported_episodes, done.imported_facts, done.created_turns) == (8, 1, 3, 2)
    again = [record for record in await exported(recall, PEER) if record.WhichOneof("record") != "snapshot"]
    assert [bare(record) for record in again] == [bare(record) for record in records]
    # A second import, and an import into the exporting agent, skip every record.
    for agent in (PEER, AGENT):
        repeated = await take_in(recall, again, agent=agent)
        assert (repeated.imported_traces, repeated.imported_facts, repeated.skipped_records) == (0, 0, len(records))
    window = (await recall.GetContext(rpc.GetContextRequest(conversation_id=derive_id("conv", PEER)))).context
    assert [len(message.tool_calls) for message in window.messages if message.role == pb.ROLE_ASSISTANT] == [2, 0]
    found = await recall.SearchMessages(rpc.SearchMessagesRequest(query="fox", agent_id=PEER, mode=2))
    assert found.hits
    history = await recall.episodes.ListFacts(
        memories.ListFactsRequest(
            filter=memories.FactFilter(scopes=[episodes_pb2.MemoryScope(agent_id=PEER)], include_invalid=True)
        )
    )
    old, new = (
        next(fact for fact in history.facts if fact.text == text) for text in ("There is a fox", "There was a fox")
    )
    assert (old.superseded_by_id, new.supersedes_id) == (new.id, old.id)
    chain = await recall.episodes.ListFactHistory(memories.ListFactHistoryRequest(fact_id=old.id))
    assert [fact.id for fact in chain.facts] == [old.id, new.id]
    # New turns follow the imported ones.
    await tell(recall, said("more"), agent=PEER, conversation=derive_id("conv", PEER))
    assert [turn.id for turn in await turns(recall, PEER)] == ["turn_0001", "turn_0002", "turn_0003"]


async def test_inline_images_survive_an_export_and_an_import(recall: Any) -> None:
    await open_window(recall)
    png = pb.ContentPart(image=pb.ImagePart(inline=pb.InlineImage(data=bytes(range(256)), media_type="image/png")))
    file = pb.ContentPart(image=pb.ImagePart(file_id="file-1"))
    look, drawn = said("what is this?"), returning("c1", "a drawing")
    look.content.extend([png, file])
    drawn.tool_returns[0].content.append(png)
    await tell(recall, look, calling("c1"), drawn)
    records = await exported(recall, record_types=[1])
    images = [list(record.raw_trace.media.images) for record in records]
    assert images[0][0].startswith("data:image/png;base64,AAECAwQF")
    assert images == [[images[0][0], "file-1"], [], [images[0][0]]]
    conversation = derive_id("conv", PEER)
    await open_window(recall, agent=PEER, conversation=conversation)
    await take_in(recall, records, extend_window=True)
    window = (await recall.GetContext(rpc.GetContextRequest(conversation_id=conversation))).context
    assert list(window.messages[1].content) == [part("what is this?"), png, file]
    assert list(window.messages[3].tool_returns[0].content) == [part("a drawing"), png]
    again = await exported(recall, PEER, record_types=[1])
    assert [bare(record) for record in again] == [bare(record) for record in records]
    odd = "data:image/png;base64,%%%"
    await take_in(recall, [line("odd", 1, 1, turn="odd", media=traces_pb2.TraceMedia(images=[odd]))])
    assert list((await exported(recall, PEER, record_types=[1]))[-1].raw_trace.media.images) == [odd]


async def test_pages_are_bounded_by_bytes(recall: Any) -> None:
    await open_window(recall)
    for number in range(4):
        id_, big = f"c{number}", str(number) * 900_000
        await tell(recall, said("dig"), calling(id_), returning(id_, big))
    request = traces.ListTurnsRequest(agent_id=AGENT, include_traces=True, page_size=100)
    seen = []
    while True:
        page = await recall.traces.ListTurns(request)
        assert page.ByteSize() < 4 << 20
        seen.append([turn.index for turn in page.turns])
        request.page_token = page.next_page_token
        if not page.next_page_token:
            break
    assert seen == [[1, 2, 3], [4]]
    listed = await recall.ListMessages(rpc.ListMessagesRequest(agent_ids=[AGENT], page_size=100))
    assert (len(listed.messages), bool(listed.next_page_token)) == (12, True)
    calls = await recall.traces.ListToolInteractions(traces.ListToolInteractionsRequest(agent_id=AGENT, page_size=100))
    assert (len(calls.tool_interactions), bool(calls.next_page_token)) == (3, True)


async def test_summary_of_an_exported_window_is_imported_into_an_empty_window(recall: Any) -> None:
    conversation = derive_id("conv", PEER)
    await open_window(recall, agent=PEER, conversation=conversation)
    summary = said("They dug.", pb.ROLE_SUMMARY, create_time=at(0))
    snapshot = traces_pb2.TraceSnapshot(conversation_id=MAIN, messages=[said("p", pb.ROLE_SYSTEM), summary])
    records = [*SEED, traces.TraceRecord(snapshot=snapshot)]
    for _ in range(2):
        done = await take_in(recall, records, extend_window=True)
        window = (await recall.GetContext(rpc.GetContextRequest(conversation_id=conversation))).context
        assert [message.role for message in window.messages[:3]] == [pb.ROLE_SYSTEM, pb.ROLE_SUMMARY, pb.ROLE_USER]
        assert window.messages[1].content[0].text.text == "They dug."
    assert (done.imported_traces, done.skipped_records, len(window.messages)) == (0, len(records), 9)


async def test_memories_of_a_named_scope_are_exported_and_imported(recall: Any) -> None:
    await open_window(recall)
    team = episodes_pb2.MemoryScope(name="team")
    done = await recall.episodes.CommitEpisode(
        memories.CommitEpisodeRequest(
            scope=team,
            episode=episodes_pb2.Episode(summary="Of a fox", source=episodes_pb2.MemorySource(agent_id=AGENT)),
            operations=[episodes_pb2.FactOperation(add=episodes_pb2.Fact(text="There is a fox"))],
        )
    )
    operation = episodes_pb2.SupersedeOperation(fact_id=done.facts[0].id, fact=episodes_pb2.Fact(text="It left"))
    await recall.episodes.SupersedeFact(memories.SupersedeFactRequest(operation=operation))
    assert await exported(recall, record_types=[2, 3]) == []
    records = await exported(recall, record_types=[2, 3], scope_names=["team", "other"])
    assert [record.WhichOneof("record") for record in records] == ["episode", "fact", "fact"]
    # In this organization the scope has them; in another one it gets them, once.
    assert (await take_in(recall, records)).skipped_records == 3
    with as_principal(Principal(new_id("org"), new_id("user"))):
        stranger = new_id("agent")
        for count in (3, 0):
            taken = await take_in(recall, records, agent=stranger)
            assert taken.imported_episodes + taken.imported_facts == count
        again = await exported(recall, stranger, record_types=[2, 3], scope_names=["team"])
        assert [bare(record) for record in again] == [bare(record) for record in records]
        assert again[0].episode.scope.name == "team"
        await recall.EraseAgent(rpc.EraseAgentRequest(agent_id=stranger))
        found = await recall.episodes.ListFacts(
            memories.ListFactsRequest(filter=memories.FactFilter(scopes=[team], include_invalid=True))
        )
        chain = {fact.id: fact.superseded_by_id for fact in found.facts}
        assert len(chain) == 2
        assert set(chain.values()) - {""} < set(chain)


def line(id_: str, seq: int, kind: int, turn: str = "turn_0001", **more: Any) -> traces.TraceRecord:
    trace = traces_pb2.RawTrace(
        id=id_, create_time=at(seq), turn_id=turn, seq=seq, trace_type=traces_pb2.TraceType.ValueType(kind), **more
    )
    return traces.TraceRecord(raw_trace=trace)


SEED = [
    line("rt_001", 1, 1, content="Please refactor the parser.", source_event="LLMUserMessageReadyEvent",
         media=traces_pb2.TraceMedia(audio=["a.mp3"]), tags=["processed"]),
    line("rt_002", 2, 3, source_event="PendingToolInvocationEvent", tool_name="list_directory",
         tool_args='{"path":"src"}'),
    line("rt_003", 4, 4, source_event="ToolResultEvent", tool_name="list_directory",
         tool_result='["app.py","parser.py"]'),
    line("rt_004", 5, 2, content="I will.", source_event="Other", tags=["final"], extra='{"mood":"calm"}',
         correlation_id="x", tool_result_ref="r"),
    line("rt_005", 1, 3, turn="morning", tool_args="[1]", content="odd", tool_name="walk"),
    line("rt_006", 2, 4, turn="morning", tool_result="3", tool_error="but", tool_name="walk", tool_call_id="w"),
]  # fmt: skip


async def test_lines_of_other_programs_keep_all_their_fields(recall: Any) -> None:
    done = await take_in(recall, SEED)
    assert (done.imported_traces, done.created_turns) == (6, 2)
    records = [record for record in await exported(recall, PEER) if record.WhichOneof("record") == "raw_trace"]
    assert all(record.raw_trace.archived for record in records)
    for record in records:
        record.raw_trace.archived = False
    assert [bare(record) for record in records] == SEED
    found = await recall.traces.ListToolInteractions(traces.ListToolInteractionsRequest(agent_id=PEER))
    assert [(item.tool_name, item.status) for item in found.tool_interactions] == [
        ("list_directory", SUCCESS), ("walk", PENDING),
    ]  # fmt: skip
    assert [(turn.id, turn.index) for turn in await turns(recall, PEER)] == [("turn_0001", 1), ("morning", 2)]
    await tell(recall, said("hello"), agent=PEER, conversation=None)
    assert (await turns(recall, PEER))[-1].id == "turn_0003"


async def test_import_into_an_agent_with_turns_renumbers_the_turns_that_collide(recall: Any) -> None:
    conversation = derive_id("conv", PEER)
    await open_window(recall, agent=PEER, conversation=conversation)
    await tell(recall, said("Welcome.", pb.ROLE_ASSISTANT), agent=PEER, conversation=conversation)
    episode = episodes_pb2.Episode(
        id="ep_1", summary="A parser", create_time=at(9), turn_ids=["turn_0001", "turn_0002"]
    )
    file = [
        *SEED,
        line("rt_007", 1, 1, turn="turn_0002", content="And the lexer?"),
        traces.TraceRecord(episode=episode),
    ]
    done = await take_in(recall, file, extend_window=True)
    assert (done.imported_traces, done.imported_episodes, done.created_turns) == (7, 1, 3)

    async def seen() -> list[tuple[str, str, str]]:
        return [(turn.id, turn.imported_id, turn.episode_id) for turn in await turns(recall, PEER)]

    episodes = [record.episode for record in await exported(recall, PEER, record_types=[2])]
    assert [list(each.turn_ids) for each in episodes] == [["turn_0002", "turn_0004"]]
    listed = await recall.episodes.ListEpisodes(
        memories.ListEpisodesRequest(filter=memories.EpisodeFilter(scopes=[episodes_pb2.MemoryScope(agent_id=PEER)]))
    )
    covering = listed.episodes[0].id
    numbered = [
        ("turn_0001", "", ""), ("turn_0002", "turn_0001", covering), ("morning", "", ""),
        ("turn_0004", "turn_0002", covering),
    ]  # fmt: skip
    assert await seen() == numbered
    records = [record for record in await exported(recall, PEER) if record.WhichOneof("record") != "snapshot"]
    first = next(record.raw_trace for record in records if record.raw_trace.id == "rt_001")
    assert (first.turn_id, first.imported_turn_id, first.seq) == ("turn_0002", "turn_0001", 1)
    # The same file again, and the agent's own export, change nothing.
    for again, skipped in ((file, 8), (records, 9)):
        repeated = await take_in(recall, again)
        assert (repeated.imported_traces, repeated.imported_episodes, repeated.skipped_records) == (0, 0, skipped)
    # The file has grown: the new line joins its turn. Another file with the same turn ids does not.
    grown = [*file, line("rt_008", 2, 2, turn="turn_0002", content="Later.")]
    assert (await take_in(recall, grown)).created_turns == 0
    assert [turn.message_count for turn in await turns(recall, PEER, turn_ids=["turn_0004"])] == [2]
    await take_in(recall, [line("other", 1, 1, turn="turn_0002", content="Another history")])
    assert await seen() == [*numbered, ("turn_0005", "turn_0002", "")]


async def test_import_with_a_conflicting_record_is_refused(recall: Any) -> None:
    await take_in(recall, SEED)
    other = traces.TraceRecord()
    other.CopyFrom(SEED[3])
    other.raw_trace.content = "I will not."
    fresh = line("rt_100", 1, 1, turn="turn_0009", content="new")
    for wrong in (other, line("rt_101", 1, 1, turn="turn_0009", content="at the same place")):
        error = await catch_refusal(take_in(recall, [fresh, wrong]))
        assert (type(error), error.metadata["record_id"]) == (AlreadyExists, wrong.raw_trace.id)
    assert "turn_0009" not in [turn.id for turn in await turns(recall, PEER)]


async def test_invalid_stream_writes_nothing_and_names_the_record(recall: Any) -> None:
    good = line("rt_001", 1, 1, content="fine")
    for broken, field in (
        (line("", 2, 1), "record.raw_trace.id"),
        (line("rt", 0, 1), "record.raw_trace.seq"),
        (line("rt", 2, 0), "record.raw_trace.trace_type"),
        (line("rt", 2, 3, tool_args="{"), "record.raw_trace.tool_args"),
        (line("rt", 2, 1, extra="[]"), "record.raw_trace.extra"),
        (traces.TraceRecord(raw_trace=traces_pb2.RawTrace(id="rt", turn_id="t", seq=1, trace_type=1)),
         "record.raw_trace.create_time"),
        (traces.TraceRecord(fact=episodes_pb2.Fact(id="f", create_time=at(0))), "record.fact.text"),
        (traces.TraceRecord(), "record"),
    ):  # fmt: skip
        error = await catch_refusal(take_in(recall, [good, broken]))
        assert (type(error), error.field, error.metadata["record"]) == (InvalidArgument, field, "2")
    only = traces.ImportTracesRequest(record=good)
    assert (await catch_refusal(recall.traces.ImportTraces(iter([only])))).field == "header"
    assert (await catch_refusal(recall.traces.ImportTraces(iter(())))).field == "header"
    twice = [*parts([good]), *parts([])]
    assert (await catch_refusal(recall.traces.ImportTraces(iter(twice)))).field == "record"

    def cut() -> Iterator[traces.ImportTracesRequest]:
        yield from parts([good], record_count=2)
        raise ConnectionError

    with pytest.raises(asyncio.CancelledError):
        await recall.traces.ImportTraces(cut())
    short = await catch_refusal(recall.traces.ImportTraces(parts([good], record_count=2)))
    assert (type(short), short.field) == (InvalidArgument, "header.record_count")
    no_window = await catch_refusal(take_in(recall, [good], extend_window=True))
    assert isinstance(no_window, NotFound)
    assert await turns(recall, PEER) == []


async def test_import_is_idempotent(recall: Any) -> None:
    first = await take_in(recall, SEED, request_id="i1")
    assert await take_in(recall, SEED, request_id="i1") == first
    error = await catch_refusal(take_in(recall, SEED[:1], request_id="i1"))
    assert error.reason == "REQUEST_ID_REUSED"


async def test_exports_are_filtered(recall: Any) -> None:
    records = await lived(recall)
    only = await exported(recall, record_types=[traces.TRACE_RECORD_TYPE_FACT])
    assert {record.WhichOneof("record") for record in only} == {"fact"}
    early = await exported(recall, record_types=[1], start_time=at(0), end_time=at(1))
    assert early == records[:1]
    assert await exported(recall, conversation_id=MAIN, record_types=[1]) == records[:8]
    for unknown in (exported(recall, conversation_id=new_id("conv")), exported(recall, new_id("agent"))):
        assert isinstance(await catch_refusal(unknown), NotFound)
    nowhere = take_in(recall, SEED, agent=AGENT, conversation_id=new_id("conv"))
    assert isinstance(await catch_refusal(nowhere), NotFound)


async def test_other_organizations_see_nothing_and_an_erased_agent_refuses_imports(recall: Any) -> None:
    await lived(recall)
    with as_principal(Principal(new_id("org"), new_id("user"))):
        assert await turns(recall) == []
        assert isinstance(await catch_refusal(exported(recall)), NotFound)
        found = await recall.traces.ListToolInteractions(traces.ListToolInteractionsRequest(agent_id=AGENT))
        assert not found.tool_interactions
        assert isinstance(await catch_refusal(take_in(recall, SEED, agent=AGENT)), NotFound)
    await recall.EraseAgent(rpc.EraseAgentRequest(agent_id=AGENT))
    assert await turns(recall) == []
    assert await exported(recall) == []
    assert (await catch_refusal(take_in(recall, SEED, agent=AGENT))).reason == "ERASED"


async def test_invalid_requests_are_refused_by_field(recall: Any) -> None:
    for call, field in (
        (recall.traces.ListTurns(traces.ListTurnsRequest(agent_id="ada")), "agent_id"),
        (recall.traces.ListTurns(traces.ListTurnsRequest(agent_id=AGENT, turn_ids=[""])), "turn_ids[0]"),
        (recall.traces.ListTurns(traces.ListTurnsRequest(agent_id=AGENT, page_size=-1)), "page_size"),
        (
            recall.traces.ListToolInteractions(
                traces.ListToolInteractionsRequest(agent_id=AGENT, statuses=[0])  # type: ignore[list-item]
            ),
            "statuses",
        ),
        (recall.traces.ListToolInteractions(traces.ListToolInteractionsRequest()), "agent_id"),
    ):
        error = await catch_refusal(call)
        assert (type(error), error.field) == (InvalidArgument, field)
    with pytest.raises(MnemeshError) as refusal:
        await exported(recall, record_types=[0])
    assert refusal.value.field == "record_types"
