"""Turns and tool interactions of TraceService over the wire, on each SQL engine."""

import json
from typing import Any

from mnemesh.recall.v1 import contexts_pb2, episodes_pb2, traces_pb2
from mnemesh.recall.v1 import episodes_service_pb2 as memories
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.recall.v1 import traces_service_pb2 as traces
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh.types.v1 import paging_pb2
from mnemesh_kit.errors import NotFound
from mnemesh_kit.ids import derive_id, new_id
from mnemesh_testkit.errors import catch_refusal

from .trace_requests import (
    AGENT,
    DENIED,
    ERROR,
    MAIN,
    PEER,
    PENDING,
    SIDE,
    SUCCESS,
    at,
    calling,
    exported,
    open_window,
    returning,
    said,
    take_in,
    tell,
    turn_of,
    turns,
)


async def test_turn_is_a_user_message_and_everything_after_it(recall: Any) -> None:
    await open_window(recall)
    heartbeat = said(json.dumps({"type": "heartbeat", "reason": "go on", "time": "now"}), is_event=True)
    first = [said("dig a hole"), calling("c1"), returning("c1", "dug"), heartbeat, said("done", pb.ROLE_ASSISTANT)]
    second = [said("and fill it"), calling("c2", "c3", text="on it")]
    await tell(recall, *first[:2])
    await tell(recall, *first[2:])
    await tell(recall, *second)
    assert await turn_of(recall, *first, *second) == ["turn_0001"] * 5 + ["turn_0002"] * 2
    one, two = await turns(recall, include_traces=True)
    assert (one.id, one.index, one.conversation_id, one.message_count, one.tool_call_count) == (
        "turn_0001", 1, MAIN, 5, 1,
    )  # fmt: skip
    assert (one.first_message_id, one.last_message_id) == (first[0].id, first[-1].id)
    assert (two.tool_call_count, one.compacted, two.compacted) == (2, False, False)
    kinds = [(trace.seq, traces_pb2.TraceType.Name(trace.trace_type)[11:], trace.content) for trace in one.traces]
    assert kinds == [(1, "USER", "dig a hole"), (2, "TOOL_CALL", ""), (3, "TOOL_RESULT", ""), (4, "ASSISTANT", "done")]
    assert [trace.id for trace in two.traces] == [f"{second[0].id}.1", *(f"{second[1].id}.{n}" for n in (1, 2, 3))]
    call = one.traces[1]
    assert (call.tool_name, call.tool_args, call.source_event) == (
        "dig", '{"deep": true}', "PendingToolInvocationEvent",
    )  # fmt: skip
    assert one.traces[2].tool_result == '"dug"'


async def test_late_result_keeps_the_turn_of_its_call(recall: Any) -> None:
    await open_window(recall)
    ask, call, other = said("dig"), calling("c1"), said("what time is it?")
    late, answer = returning("c1", "dug"), said("noon", pb.ROLE_ASSISTANT)
    for message in (ask, call, other, late, answer):
        await tell(recall, message)
    assert await turn_of(recall, ask, call, other, late, answer) == [
        "turn_0001", "turn_0001", "turn_0002", "turn_0001", "turn_0002",
    ]  # fmt: skip
    one = (await turns(recall, include_traces=True))[0]
    assert one.last_message_id == late.id
    assert [trace.seq for trace in one.traces] == [1, 2, 3]


async def test_input_that_was_stored_without_a_window_enters_it_with_its_answer(recall: Any) -> None:
    await open_window(recall)
    run, failed = new_id("run"), said("first try", conversation_id=MAIN, step_id=new_id("step"))
    failed.run_id = run
    await tell(recall, failed, conversation=None)
    await tell(recall, said("something else"), said("Yes.", pb.ROLE_ASSISTANT))
    window = rpc.GetContextRequest(conversation_id=MAIN)
    assert failed.id not in [m.id for m in (await recall.GetContext(window)).context.messages]
    listed = await recall.ListMessages(rpc.ListMessagesRequest(agent_ids=[AGENT], run_id=run))
    assert [message.id for message in listed.messages] == [failed.id]
    scope = rpc.ConversationScope(conversation_id=MAIN)
    shown = await recall.ListMessages(rpc.ListMessagesRequest(agent_ids=[AGENT], conversation=scope))
    assert failed.id in [message.id for message in shown.messages]
    answer = said("Done.", pb.ROLE_ASSISTANT)
    step = rpc.CommitStepRequest(
        agent_id=AGENT,
        conversation_id=MAIN,
        lease=contexts_pb2.WriterLease(run_id=new_id("run"), epoch=1),
        step_id=new_id("step"),
        base_version=2,
        messages=[failed, answer],
    )
    await recall.CommitStep(step)
    assert [m.id for m in (await recall.GetContext(window)).context.messages][-2:] == [failed.id, answer.id]
    assert await turn_of(recall, failed, answer) == ["turn_0001", "turn_0001"]
    assert [turn.message_count for turn in await turns(recall)] == [2, 2]


async def test_turn_indexes_are_counted_per_agent_across_conversations_and_restarts(
    serve: Any, database_url: str
) -> None:
    async with serve(database_url=database_url) as recall:
        for conversation in (MAIN, SIDE):
            await open_window(recall, conversation=conversation)
        main, side = said("here"), said("there")
        await tell(recall, main)
        await tell(recall, side, conversation=SIDE)
    async with serve(database_url=database_url) as recall:
        answer, again = said("yes", pb.ROLE_ASSISTANT), said("here again")
        await tell(recall, answer)
        await tell(recall, again)
        assert await turn_of(recall, main, side, answer, again) == [
            "turn_0001", "turn_0002", "turn_0001", "turn_0003",
        ]  # fmt: skip
        assert [turn.id for turn in await turns(recall, conversation_id=SIDE)] == ["turn_0002"]


async def test_turn_index_is_never_used_again(recall: Any) -> None:
    await open_window(recall)
    events = [said(f"question {number}") for number in range(3)]
    await tell(recall, *events)
    for message in (events[0], events[2]):
        await recall.DeleteMessage(rpc.DeleteMessageRequest(message_id=message.id))
    assert [turn.id for turn in await turns(recall)] == ["turn_0002"]
    await tell(recall, said("one more"))
    assert [turn.id for turn in await turns(recall)] == ["turn_0002", "turn_0004"]
    # Storing the message again without its assigned turn is a repeat.
    await tell(recall, events[1])


async def test_turns_are_filtered_and_paged(recall: Any) -> None:
    await open_window(recall)
    for number in range(5):
        await tell(recall, said(f"question {number}", create_time=at(number)))
    request = traces.ListTurnsRequest(agent_id=AGENT, page_size=2, order=paging_pb2.SORT_ORDER_DESCENDING)
    seen = []
    while True:
        page = await recall.traces.ListTurns(request)
        seen += [turn.index for turn in page.turns]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert seen == [5, 4, 3, 2, 1]
    assert [turn.index for turn in await turns(recall, start_time=at(1), end_time=at(3))] == [2, 3]
    assert [turn.index for turn in await turns(recall, turn_ids=["turn_0002", "x"])] == [2]
    assert [turn.index for turn in await turns(recall, after_id="turn_0003")] == [4, 5]
    assert await turns(recall, agent=PEER) == []


async def test_tool_interactions_are_pending_then_complete(recall: Any) -> None:
    await open_window(recall)
    run = new_id("run")
    await tell(recall, said("dig"), calling("c1", "c2"), calling("c3", name="fill"))

    async def seen(**filters: Any) -> list[tuple[str, int]]:
        request = traces.ListToolInteractionsRequest(agent_id=AGENT, **filters)
        found = (await recall.traces.ListToolInteractions(request)).tool_interactions
        return [(item.tool_call_id, item.status) for item in found]

    assert await seen() == [("c1", PENDING), ("c2", PENDING), ("c3", PENDING)]
    await tell(recall, returning("c2", "stone", pb.TOOL_RETURN_STATUS_ERROR), said("next"))
    await tell(recall, returning("c1", "dug"))
    assert await seen() == [("c1", SUCCESS), ("c2", ERROR), ("c3", PENDING)]
    assert await seen(statuses=[SUCCESS, ERROR]) == [("c1", SUCCESS), ("c2", ERROR)]
    assert await seen(tool_name="fill") == [("c3", PENDING)]
    assert await seen(turn_id="turn_0002") == []
    assert await seen(run_id=run) == []
    assert await seen(order=paging_pb2.SORT_ORDER_DESCENDING, after_id="c3") == [("c2", ERROR), ("c1", SUCCESS)]
    assert await seen(before_id="c2") == [("c1", SUCCESS)]
    request = traces.ListToolInteractionsRequest(agent_id=AGENT, page_size=1)
    walked = []
    for _ in range(3):
        page = await recall.traces.ListToolInteractions(request)
        walked += [item.tool_call_id for item in page.tool_interactions]
        request.page_token = page.next_page_token
    assert (walked, request.page_token) == (["c1", "c2", "c3"], "")
    whole = await recall.traces.ListToolInteractions(traces.ListToolInteractionsRequest(agent_id=AGENT))
    done, failed, waiting = whole.tool_interactions
    assert (done.result, done.HasField("error"), done.turn_id) == ("dug", False, "turn_0001")
    assert (failed.error, failed.HasField("result")) == ("stone", False)
    assert not waiting.HasField("return_message_id")
    assert await seen(after_id="c2", statuses=[PENDING]) == [("c3", PENDING)]
    unknown = traces.ListToolInteractionsRequest(agent_id=AGENT, after_id="unknown")
    assert isinstance(await catch_refusal(recall.traces.ListToolInteractions(unknown)), NotFound)


def approved_calls() -> list[pb.Message]:
    """Returns a turn whose three calls wait for approval: one is approved, one denied, one run by the client."""
    call = calling("c1", "c2", "c3", text="may I?")
    request = said("", pb.ROLE_APPROVAL, tool_calls=call.tool_calls)
    done = [returning("c1", "dug"), returning("c2", "denied", 2), returning("c3", "by hand")]
    answer = said("", pb.ROLE_APPROVAL, approval_request_id=request.id)
    answer.approval_decisions.add(tool_call_id="c1", approve=pb.Approve())
    answer.approval_decisions.add(tool_call_id="c2", deny=pb.Deny(reason="no"))
    answer.approval_decisions.add(tool_call_id="c3", client_return=done[2].tool_returns[0])
    tool = said("", pb.ROLE_TOOL, tool_returns=[item for message in done for item in message.tool_returns])
    return [said("dig"), call, request, answer, tool]


async def test_call_that_waited_for_approval_exists_once(recall: Any) -> None:
    await open_window(recall)
    *waiting, answer, tool = approved_calls()

    async def seen(**filters: Any) -> list[tuple[str, int]]:
        request = traces.ListToolInteractionsRequest(agent_id=AGENT, **filters)
        found = (await recall.traces.ListToolInteractions(request)).tool_interactions
        return [(item.tool_call_id, item.status) for item in found]

    await tell(recall, *waiting)
    assert await seen() == [("c1", PENDING), ("c2", PENDING), ("c3", PENDING)]
    await tell(recall, answer)
    assert await seen() == [("c1", PENDING), ("c2", DENIED), ("c3", SUCCESS)]
    await tell(recall, tool)
    assert await seen() == [("c1", SUCCESS), ("c2", DENIED), ("c3", SUCCESS)]
    assert await seen(statuses=[DENIED], order=paging_pb2.SORT_ORDER_DESCENDING) == [("c2", DENIED)]
    assert [turn.tool_call_count for turn in await turns(recall)] == [3]
    records = await exported(recall, record_types=[1])
    assert [(each.raw_trace.trace_type, each.raw_trace.tool_call_id) for each in records] == [
        (1, ""), (2, ""), (3, "c1"), (3, "c2"), (3, "c3"), (4, "c1"), (4, "c2"), (4, "c3"),
    ]  # fmt: skip
    assert records[6].raw_trace.tool_error == "denied"
    await open_window(recall, agent=PEER, conversation=derive_id("conv", PEER))
    await take_in(recall, records, extend_window=True)
    window = (await recall.GetContext(rpc.GetContextRequest(conversation_id=derive_id("conv", PEER)))).context
    assert [len(message.tool_calls) for message in window.messages] == [0, 0, 3, 0]


async def test_repeated_call_id_is_paired_with_its_own_return(recall: Any) -> None:
    await open_window(recall)
    await tell(recall, said("one"), calling("same"), returning("same", "first"))
    await tell(recall, said("two"), calling("same"), returning("same", "second"))
    await tell(recall, said("three"), calling("same"))
    found = await recall.traces.ListToolInteractions(traces.ListToolInteractionsRequest(agent_id=AGENT))
    seen = [(item.turn_id, item.status, item.result) for item in found.tool_interactions]
    assert seen == [
        ("turn_0001", SUCCESS, "first"), ("turn_0002", SUCCESS, "second"), ("turn_0003", PENDING, ""),
    ]  # fmt: skip


async def test_turn_outside_of_the_window_is_archived_and_resets_are_counted(recall: Any) -> None:
    await open_window(recall)
    await tell(recall, said("old"), said("answer", pb.ROLE_ASSISTANT), said("new"))
    window = (await recall.GetContext(rpc.GetContextRequest(conversation_id=MAIN))).context
    assert (await exported(recall, record_types=[4]))[0].snapshot.epoch_id == 1
    kept = [window.messages[0].id, window.messages[3].id]
    await recall.ReplaceContext(
        rpc.ReplaceContextRequest(agent_id=AGENT, conversation_id=MAIN, base_version=window.version, message_ids=kept)
    )
    episode = episodes_pb2.Episode(summary="They greeted.", turn_ids=["turn_0001"])
    scope = episodes_pb2.MemoryScope(agent_id=AGENT)
    done = await recall.episodes.CommitEpisode(memories.CommitEpisodeRequest(scope=scope, episode=episode))
    assert done.episode.HasField("start_time")
    old, new = await turns(recall)
    assert (old.compacted, old.episode_id, new.compacted, new.HasField("episode_id")) == (
        True, done.episode.id, False, False,
    )  # fmt: skip
    assert await turns(recall, compacted=True) == [old]
    assert await turns(recall, compacted=False) == [new]
    active = await exported(recall, record_types=[1], archived=False)
    assert [record.raw_trace.content for record in active] == ["new"]
    archive = await exported(recall, record_types=[1], archived=True)
    assert [record.raw_trace.content for record in archive] == ["old", "answer"]
    (snapshot,) = [record.snapshot for record in await exported(recall, record_types=[4])]
    assert (snapshot.schema_version, snapshot.epoch_id, snapshot.conversation_id) == (1, 2, MAIN)
    assert snapshot.HasField("last_compaction_time")
    assert [message.id for message in snapshot.messages] == kept
