"""MessageService as its callers meet it."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from engram.recall.v1 import contexts_pb2
from engram.recall.v1 import messages_service_pb2 as rpc
from engram.types.v1 import message_pb2 as pb
from engram_kit.errors import EngramError, FailedPrecondition, InvalidArgument, NotFound
from engram_kit.ids import derive_id, new_id
from engram_kit.principal import Principal, as_principal

AGENT, CONVERSATION = new_id("agent"), new_id("conv")
LEASE = contexts_pb2.WriterLease(run_id=new_id("run"), epoch=1)


def part(text: str) -> pb.ContentPart:
    return pb.ContentPart(text=pb.TextPart(text=text))


def user(text: str, **more: Any) -> pb.Message:
    return pb.Message(**{"id": new_id("message"), "role": pb.ROLE_USER, "content": [part(text)], **more})


def system(text: str = "prompt") -> pb.Message:
    return user(text, role=pb.ROLE_SYSTEM)


def create(**more: Any) -> rpc.CreateContextRequest:
    return rpc.CreateContextRequest(
        **{"agent_id": AGENT, "conversation_id": CONVERSATION, "messages": [system()], **more}
    )


def commit(**more: Any) -> rpc.CommitStepRequest:
    given = {
        "agent_id": AGENT, "conversation_id": CONVERSATION, "lease": LEASE, "step_id": new_id("step"),
        "base_version": 1, "messages": [user("hi")], **more,
    }  # fmt: skip
    return rpc.CommitStepRequest(**given)


def append(*messages: pb.Message, **more: Any) -> rpc.AppendMessagesRequest:
    return rpc.AppendMessagesRequest(**{"agent_id": AGENT, "messages": messages, **more})


async def refused(call: Any) -> EngramError:
    with pytest.raises(EngramError) as error:
        await call
    return error.value


async def test_a_conversation_lives(recall: Any) -> None:
    made = (await recall.CreateContext(create(messages=[system(), user("hello", otid="o1")]))).context
    assert [message.sequence_id for message in made.messages] == [1, 2]
    assert made.messages[1].agent_id == AGENT
    assert made.messages[1].conversation_id == CONVERSATION
    assert made.messages[1].otid == "o1"
    step = commit(
        messages=[
            pb.Message(
                id=new_id("message"),
                role=pb.ROLE_ASSISTANT,
                tool_calls=[pb.ToolCall(id="c1", name="send_message", arguments='{"message": "hi there"}')],
            )
        ],
        system_text="prompt two",
    )
    done = await recall.CommitStep(step)
    assert (done.version, done.rebased, list(done.sequence_ids)) == (2, False, [3])
    again = await recall.CommitStep(step)
    assert again.replayed
    assert list(again.sequence_ids) == [3]
    window = (await recall.GetContext(rpc.GetContextRequest(conversation_id=CONVERSATION))).context
    assert window.messages[0].content[0].text.text == "prompt two"
    assert window.messages[2].tool_calls[0].arguments == '{"message": "hi there"}'
    asked = rpc.BatchGetContextIdsRequest(conversation_ids=[new_id("conv"), CONVERSATION])
    listed = (await recall.BatchGetContextIds(asked)).contexts[0]
    assert (listed.conversation_id, listed.agent_id, listed.version) == (CONVERSATION, AGENT, 2)
    # The return of the call is still to come: one that says so is shown, and not stored.
    assert window.messages[3].tool_returns[0].tool_call_id == "c1"
    assert list(listed.message_ids) == [message.id for message in window.messages[:3]]
    same = await recall.GetContext(rpc.GetContextRequest(conversation_id=CONVERSATION, if_version=2))
    assert same.not_modified
    assert not same.context.messages
    assert same.context.agent_message_count == 3
    found = await recall.GetMessages(
        rpc.GetMessagesRequest(message_ids=[window.messages[2].id, new_id("message"), window.messages[0].id])
    )
    assert [message.id for message in found.messages] == [window.messages[2].id, window.messages[0].id]


async def test_a_lost_lease_and_a_step_conflict_say_so(recall: Any) -> None:
    await recall.CreateContext(create())
    step = commit(lease=contexts_pb2.WriterLease(run_id=LEASE.run_id, epoch=5))
    await recall.CommitStep(step)
    lost = await refused(recall.CommitStep(commit()))
    assert (lost.code, lost.reason) == (grpc.StatusCode.ABORTED, "LEASE_LOST")
    assert lost.metadata == {"conversation_id": CONVERSATION, "epoch": "5"}
    conflict = await refused(recall.CommitStep(commit(step_id=step.step_id)))
    assert (conflict.code, conflict.reason) == (grpc.StatusCode.ABORTED, "STEP_CONFLICT")
    moved = await refused(
        recall.ReplaceContext(
            rpc.ReplaceContextRequest(
                agent_id=AGENT, conversation_id=CONVERSATION, base_version=1, message_ids=[new_id("message")]
            )
        )
    )
    assert (moved.code, moved.reason) == (grpc.StatusCode.ABORTED, "WINDOW_MOVED")


async def test_a_reused_request_id_is_refused(recall: Any) -> None:
    await recall.CreateContext(create())
    first = append(user("one"), request_id="r1")
    done = await recall.AppendMessages(first)
    assert await recall.AppendMessages(first) == done
    reused = await refused(recall.AppendMessages(append(user("two"), request_id="r1")))
    assert reused.reason == "REQUEST_ID_REUSED"
    await recall.CommitStep(commit(request_id="r2"))
    reused = await refused(recall.CommitStep(commit(request_id="r2")))
    assert reused.reason == "REQUEST_ID_REUSED"


async def test_pages_of_messages(recall: Any) -> None:
    conversation = derive_id("conv", AGENT)
    await recall.CreateContext(create(conversation_id=conversation))
    await recall.AppendMessages(append(*(user(f"t{n}") for n in range(9)), conversation_id=conversation))
    await recall.AppendMessages(append(user("elsewhere")))

    async def numbers(**query: Any) -> tuple[list[int], str]:
        page = await recall.ListMessages(rpc.ListMessagesRequest(agent_ids=[AGENT], **query))
        return [message.sequence_id for message in page.messages], page.next_page_token

    first, token = await numbers(page_size=4)
    assert first == [1, 2, 3, 4]
    second, token = await numbers(page_size=7, page_token=token)
    assert (second, token) == ([5, 6, 7, 8, 9, 10, 11], "")
    assert (await numbers(order=2, page_size=2))[0] == [11, 10]
    scope = rpc.ConversationScope(default_conversation=rpc.DefaultConversation())
    assert (await numbers(conversation=scope))[0] == list(range(1, 11))
    everything = (await recall.ListMessages(rpc.ListMessagesRequest(agent_ids=[AGENT]))).messages
    assert (await numbers(after_id=everything[7].id))[0] == [9, 10, 11]
    assert (await numbers(before_id=everything[7].id, order=2, page_size=2))[0] == [11, 10]
    assert (await numbers(text_search="ELSE"))[0] == [11]
    _, token = await numbers(page_size=2)
    foreign = await refused(numbers(page_size=2, page_token=token, order=2))
    assert (foreign.reason, foreign.field) == ("PAGE_TOKEN_INVALID", "page_token")


async def test_a_message_is_updated_deleted_and_its_context_forked(recall: Any) -> None:
    made = (await recall.CreateContext(create(messages=[system(), user("before")]))).context
    target = made.messages[1]
    request = rpc.UpdateMessageRequest(message=pb.Message(id=target.id, content=[part("after")], name="ignored"))
    request.update_mask.paths.append("content")
    updated = (await recall.UpdateMessage(request)).message
    assert (updated.content[0].text.text, updated.name) == ("after", "")
    assert updated.HasField("update_time")
    fork = new_id("conv")
    forked = await recall.ForkContext(
        rpc.ForkContextRequest(
            source_conversation_id=CONVERSATION,
            conversation_id=fork,
            system_message=user("of the fork", role=pb.ROLE_SYSTEM, agent_id=AGENT),
        )
    )
    assert [message.content[0].text.text for message in forked.context.messages] == ["of the fork", "after"]
    await recall.DeleteMessage(rpc.DeleteMessageRequest(message_id=target.id))
    for conversation in (CONVERSATION, fork):
        window = await recall.GetContext(rpc.GetContextRequest(conversation_id=conversation))
        assert len(window.context.messages) == 1
    kept = await refused(recall.DeleteMessage(rpc.DeleteMessageRequest(message_id=made.messages[0].id)))
    assert isinstance(kept, FailedPrecondition)
    await recall.DeleteContext(rpc.DeleteContextRequest(conversation_id=fork))
    assert isinstance(await refused(recall.GetContext(rpc.GetContextRequest(conversation_id=fork))), NotFound)


async def test_another_organization_finds_nothing(recall: Any) -> None:
    await recall.CreateContext(create(messages=[system(), user("ours alone")]))
    with as_principal(Principal(new_id("org"), new_id("user"))):
        for call in (
            recall.GetContext(rpc.GetContextRequest(conversation_id=CONVERSATION)),
            recall.CommitStep(commit()),
            recall.AppendMessages(append(user("x"))),
            recall.EraseAgent(rpc.EraseAgentRequest(agent_id=AGENT)),
        ):
            error = await refused(call)
            assert error.code is grpc.StatusCode.NOT_FOUND
        assert not (await recall.ListMessages(rpc.ListMessagesRequest())).messages
        assert not (await recall.SearchMessages(rpc.SearchMessagesRequest(query="ours alone"))).hits


async def test_an_erased_agent_refuses_late_writes(recall: Any) -> None:
    await recall.CreateContext(create(messages=[system(), user("x")]))
    gone = await recall.EraseAgent(rpc.EraseAgentRequest(agent_id=AGENT))
    assert (gone.deleted_messages, gone.deleted_contexts) == (2, 1)
    late = await refused(recall.CommitStep(commit()))
    assert (late.code, late.reason, late.metadata["resource_id"]) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "ERASED",
        AGENT,
    )


LONG = "x" * ((1 << 20) + 1)


def assistant(**call: str) -> pb.Message:
    made = pb.ToolCall(**{"id": "c", "name": "n", "arguments": "{}", **call})
    return pb.Message(id=new_id("message"), role=pb.ROLE_ASSISTANT, tool_calls=[made])


def image(size: int) -> pb.Message:
    return user("", content=[pb.ContentPart(image=pb.ImagePart(inline=pb.InlineImage(data=b"i" * size)))])


REPEATED = user("twice")
BAD: list[tuple[str, Any, str]] = [
    ("CreateContext", create(agent_id="agent-1"), "agent_id"),
    ("CreateContext", create(agent_id=new_id("message")), "agent_id"),
    ("CreateContext", create(conversation_id=""), "conversation_id"),
    ("CreateContext", create(messages=[]), "messages"),
    ("CreateContext", create(messages=[user("x")]), "messages[0].role"),
    ("CreateContext", create(messages=[system(), user("x", id="message-x")]), "messages[1].id"),
    ("CreateContext", create(request_id="r" * 300), "request_id"),
    ("GetContext", rpc.GetContextRequest(conversation_id="default"), "conversation_id"),
    ("CommitStep", commit(step_id="step-1"), "step_id"),
    ("CommitStep", commit(lease=None), "lease"),
    ("CommitStep", commit(lease=contexts_pb2.WriterLease(epoch=1)), "lease.run_id"),
    ("CommitStep", commit(lease=contexts_pb2.WriterLease(run_id=LEASE.run_id, epoch=-1)), "lease.epoch"),
    ("CommitStep", commit(messages=[]), "messages"),
    ("CommitStep", commit(messages=[REPEATED, REPEATED]), "messages[1].id"),
    ("CommitStep", commit(system_text=LONG), "system_text"),
    ("CommitStep", commit(messages=[user("x", agent_id=new_id("agent"))]), "messages[0].agent_id"),
    ("CommitStep", commit(messages=[user("x", conversation_id=new_id("conv"))]), "messages[0].conversation_id"),
    ("CommitStep", commit(hidden_messages=[user("x", run_id="run-x")]), "hidden_messages[0].run_id"),
    ("ReplaceContext", rpc.ReplaceContextRequest(agent_id=AGENT, conversation_id=CONVERSATION), "message_ids"),
    ("AppendMessages", append(), "messages"),
    ("AppendMessages", append(*(user("x") for _ in range(1001))), "messages"),
    ("AppendMessages", append(user(LONG)), "messages[0].content[0].text.text"),
    ("AppendMessages", append(user("a\0b")), "messages[0].content[0].text.text"),
    ("AppendMessages", append(user("x", name="a\0b")), "messages[0].name"),
    ("AppendMessages", append(user("x", role=pb.ROLE_UNSPECIFIED)), "messages[0].role"),
    ("AppendMessages", append(user("x", content=[pb.ContentPart()])), "messages[0].content[0].part"),
    ("AppendMessages", append(image((10 << 20) + 1)), "messages[0].content[0].image.inline.data"),
    ("AppendMessages", append(assistant(arguments="not json")), "messages[0].tool_calls[0].arguments"),
    ("AppendMessages", append(assistant(arguments="[1]")), "messages[0].tool_calls[0].arguments"),
    ("AppendMessages", append(assistant(arguments='{"a":' * 99_999)), "messages[0].tool_calls[0].arguments"),
    ("AppendMessages", append(assistant(id="")), "messages[0].tool_calls[0].id"),
    ("BatchGetContextIds", rpc.BatchGetContextIdsRequest(conversation_ids=["x"]), "conversation_ids[0]"),
    ("BatchGetContextIds", rpc.BatchGetContextIdsRequest(conversation_ids=[CONVERSATION] * 1001), "conversation_ids"),
    ("GetMessages", rpc.GetMessagesRequest(message_ids=["message-x"]), "message_ids[0]"),
    ("GetMessages", rpc.GetMessagesRequest(message_ids=[new_id("message")] * 1001), "message_ids"),
    ("ListMessages", rpc.ListMessagesRequest(page_size=-1), "page_size"),
    ("ListMessages", rpc.ListMessagesRequest(page_size=1001), "page_size"),
    ("ListMessages", rpc.ListMessagesRequest(page_token="garbage"), "page_token"),
    ("ListMessages", rpc.ListMessagesRequest(agent_ids=["x"]), "agent_ids[0]"),
    ("ListMessages", rpc.ListMessagesRequest(roles=[99]), "roles"),  # type: ignore[list-item]
    (
        "ListMessages",
        rpc.ListMessagesRequest(conversation=rpc.ConversationScope(default_conversation=rpc.DefaultConversation())),
        "conversation.default_conversation",
    ),
    ("UpdateMessage", rpc.UpdateMessageRequest(message=pb.Message(id=new_id("message"))), "update_mask"),
    ("DeleteMessage", rpc.DeleteMessageRequest(message_id="x"), "message_id"),
    ("SearchMessages", rpc.SearchMessagesRequest(query="x" * 10_000_000), "query"),
    ("SearchMessages", rpc.SearchMessagesRequest(query="\0"), "query"),
    ("SearchMessages", rpc.SearchMessagesRequest(limit=101), "limit"),
    ("SearchMessages", rpc.SearchMessagesRequest(limit=-1), "limit"),
    ("SearchMessages", rpc.SearchMessagesRequest(mode=9), "mode"),  # type: ignore[arg-type]
    ("SearchMessages", rpc.SearchMessagesRequest(roles=[pb.ROLE_SYSTEM]), "roles"),
    ("SearchMessages", rpc.SearchMessagesRequest(start_date="soon"), "start_date"),
    ("SearchMessages", rpc.SearchMessagesRequest(end_date="2026-02-30"), "end_date"),
    ("SearchMessages", rpc.SearchMessagesRequest(time_zone="Moon/Crater"), "time_zone"),
    ("SearchMessages", rpc.SearchMessagesRequest(exclude_message_ids=["x"]), "exclude_message_ids[0]"),
    ("EraseAgent", rpc.EraseAgentRequest(agent_id="x"), "agent_id"),
]


async def test_bad_input_is_refused_by_field_and_leaves_nothing(serve: Any) -> None:
    async with serve() as recall:
        for method, request, field in BAD:
            error = await refused(getattr(recall, method)(request))
            assert isinstance(error, InvalidArgument), (method, field, error)
            assert error.field == field
        assert not (await recall.ListMessages(rpc.ListMessagesRequest())).messages


async def test_the_largest_things_that_are_allowed_are_stored(recall: Any) -> None:
    long = user("ü" * (1 << 19))
    picture = image(10 << 20)
    deep = assistant(arguments=json.dumps({"n": 2**70}))
    await recall.AppendMessages(append(long, picture, deep))
    found = await recall.GetMessages(rpc.GetMessagesRequest(message_ids=[long.id, picture.id, deep.id]))
    assert [message.content for message in found.messages] == [long.content, picture.content, deep.content]
    assert found.messages[2].tool_calls[0].arguments == deep.tool_calls[0].arguments
