"""Invalid requests of MessageService are refused with the name of the field."""

from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.recall.v1 import contexts_pb2
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import new_id
from mnemesh_testkit.errors import catch_refusal

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
    arguments = {
        "agent_id": AGENT, "conversation_id": CONVERSATION, "lease": LEASE, "step_id": new_id("step"),
        "base_version": 1, "messages": [user("hi")], **more,
    }  # fmt: skip
    return rpc.CommitStepRequest(**arguments)


def append(*messages: pb.Message, **more: Any) -> rpc.AppendMessagesRequest:
    return rpc.AppendMessagesRequest(**{"agent_id": AGENT, "messages": messages, **more})


LONG = "x" * ((1 << 20) + 1)


def assistant(**call: str) -> pb.Message:
    tool_call = pb.ToolCall(**{"id": "c", "name": "n", "arguments": "{}", **call})
    return pb.Message(id=new_id("message"), role=pb.ROLE_ASSISTANT, tool_calls=[tool_call])


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
    ("SearchMessages", rpc.SearchMessagesRequest(query="x" * 2_000_000), "query"),
    ("SearchMessages", rpc.SearchMessagesRequest(query="\0"), "query"),
    ("SearchMessages", rpc.SearchMessagesRequest(limit=101), "limit"),
    ("SearchMessages", rpc.SearchMessagesRequest(limit=-1), "limit"),
    ("SearchMessages", rpc.SearchMessagesRequest(mode=9), "mode"),  # type: ignore[arg-type]
    ("SearchMessages", rpc.SearchMessagesRequest(roles=[pb.ROLE_SYSTEM]), "roles"),
    ("SearchMessages", rpc.SearchMessagesRequest(start_date="soon"), "start_date"),
    ("SearchMessages", rpc.SearchMessagesRequest(end_date="2026-02-30"), "end_date"),
    ("SearchMessages", rpc.SearchMessagesRequest(time_zone="Moon/Crater"), "time_zone"),
    ("SearchMessages", rpc.SearchMessagesRequest(exclude_message_ids=["x"]), "exclude_message_ids[0]"),
    ("SearchMessages", rpc.SearchMessagesRequest(further_queries=["x"] * 10), "further_queries"),
    ("SearchMessages", rpc.SearchMessagesRequest(further_queries=["x", "x" * 10_001]), "further_queries[1]"),
    ("SearchMessages", rpc.SearchMessagesRequest(further_queries=["\0"]), "further_queries[0]"),
    ("SearchMessages", rpc.SearchMessagesRequest(speakers=[f"s{n}" for n in range(21)]), "speakers"),
    ("SearchMessages", rpc.SearchMessagesRequest(speakers=["Ada", " "]), "speakers[1]"),
    ("SearchMessages", rpc.SearchMessagesRequest(speakers=["x" * 10_001]), "speakers[0]"),
    ("SearchMessages", rpc.SearchMessagesRequest(sender_ids=[f"s{n}" for n in range(21)]), "sender_ids"),
    ("SearchMessages", rpc.SearchMessagesRequest(sender_ids=[""]), "sender_ids[0]"),
    ("SearchMessages", rpc.SearchMessagesRequest(sender_ids=["x" * 513]), "sender_ids[0]"),
    ("SearchMessages", rpc.SearchMessagesRequest(messages_before=-1), "messages_before"),
    ("SearchMessages", rpc.SearchMessagesRequest(messages_after=11), "messages_after"),
    ("SearchMessages", rpc.SearchMessagesRequest(reference_time=Timestamp(nanos=-1)), "reference_time"),
    ("SearchMessages", rpc.SearchMessagesRequest(reference_time=Timestamp(seconds=1 << 60)), "reference_time"),
    ("EraseAgent", rpc.EraseAgentRequest(agent_id="x"), "agent_id"),
]


async def test_invalid_request_is_refused_by_field_and_stores_nothing(serve: Any) -> None:
    async with serve() as recall:
        for method, request, field in BAD:
            error = await catch_refusal(getattr(recall, method)(request))
            assert isinstance(error, InvalidArgument), (method, field, error)
            assert error.field == field
        assert not (await recall.ListMessages(rpc.ListMessagesRequest())).messages


@pytest.mark.parametrize("date", ["2026-01-01", "2026-01-01 10:00", "2026-01-01T10:00:59.5+01:00", "9999-12-31"])
async def test_dates_of_all_forms_are_accepted(recall: Any, date: str) -> None:
    search = rpc.SearchMessagesRequest(query="x", start_date=date, end_date=date, time_zone="Europe/Rome")
    assert not (await recall.SearchMessages(search)).hits
