"""Short ways to call the recall service."""

from collections.abc import Iterable
from typing import Any

import pytest_asyncio
from mnemesh.recall.v1 import contexts_pb2
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.recall.v1.messages_service_pb2_grpc import MessageServiceStub
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.ids import new_id

from mnemesh_testkit.suites.service_suite import ServiceSuite

RUN = new_id("run")


def part(text: str) -> pb.ContentPart:
    return pb.ContentPart(text=pb.TextPart(text=text))


def message(text: str = "", role: pb.Role.ValueType = pb.ROLE_USER, **more: Any) -> pb.Message:
    """A message under a new id."""
    content = [part(text)] if text else []
    return pb.Message(**{"id": new_id("message"), "role": role, "content": content, **more})


def returned(*call_ids: str) -> pb.Message:
    """Returns the results of the tool `dig` for those calls."""
    success = pb.TOOL_RETURN_STATUS_SUCCESS
    returns = [pb.ToolReturn(tool_call_id=each, name="dig", status=success) for each in call_ids]
    return message(role=pb.ROLE_TOOL, tool_returns=returns)


def called(*call_ids: str, role: pb.Role.ValueType = pb.ROLE_ASSISTANT, **more: Any) -> pb.Message:
    """Calls of the tool `dig`."""
    calls = [pb.ToolCall(id=each, name="dig", arguments="{}") for each in call_ids]
    return message(role=role, tool_calls=calls, **more)


def approved(request: pb.Message, call_id: str) -> pb.Message:
    """The answer to a request for approval."""
    decision = pb.ApprovalDecision(tool_call_id=call_id, approve=pb.Approve())
    return message(role=pb.ROLE_APPROVAL, approval_decisions=[decision], approval_request_id=request.id)


def said(shown: contexts_pb2.Context | Iterable[pb.Message]) -> list[str]:
    """The texts of a window."""
    messages = shown.messages if isinstance(shown, contexts_pb2.Context) else shown
    return [each.text.text for one in messages for each in one.content if each.HasField("text")]


class Conversation:
    """One agent with one conversation, and short ways to write to them."""

    def __init__(self, stub: Any) -> None:
        self.stub = stub
        self.agent_id, self.id = new_id("agent"), new_id("conv")

    def creation(self, *messages: pb.Message | str, **more: Any) -> rpc.CreateContextRequest:
        """The request for the window: a prompt, and those messages."""
        rows = [message("prompt", pb.ROLE_SYSTEM), *(message(m) if isinstance(m, str) else m for m in messages)]
        given = {"agent_id": self.agent_id, "conversation_id": self.id, "messages": rows, **more}
        return rpc.CreateContextRequest(**given)

    async def open(self, *messages: pb.Message | str) -> contexts_pb2.Context:
        """Makes the window."""
        made = (await self.stub.CreateContext(self.creation(*messages))).context
        shown = await self.window()
        assert not made.messages
        made.messages.extend(shown.messages)
        assert made == shown
        return shown

    def step(self, *messages: pb.Message | str, base: int = 1, epoch: int = 1, **more: Any) -> rpc.CommitStepRequest:
        rows = [message(each) if isinstance(each, str) else each for each in messages]
        given = {
            "agent_id": self.agent_id, "conversation_id": self.id, "step_id": new_id("step"),
            "lease": contexts_pb2.WriterLease(run_id=RUN, epoch=epoch), "base_version": base, "messages": rows, **more,
        }  # fmt: skip
        return rpc.CommitStepRequest(**given)

    async def commit(self, *messages: pb.Message | str, **more: Any) -> rpc.CommitStepResponse:
        done: rpc.CommitStepResponse = await self.stub.CommitStep(self.step(*messages, **more))
        return done

    async def append(self, *messages: pb.Message | str, to: str | None = None, **more: Any) -> Any:
        """Stores messages, in a conversation's window or outside of any."""
        rows = [message(each) if isinstance(each, str) else each for each in messages]
        given = {"agent_id": self.agent_id, "conversation_id": to, "messages": rows, **more}
        return await self.stub.AppendMessages(rpc.AppendMessagesRequest(**given))

    def replacement(self, *message_ids: str, base: int = 1, **more: Any) -> rpc.ReplaceContextRequest:
        """The request for another window."""
        given = {
            "agent_id": self.agent_id, "conversation_id": self.id, "base_version": base,
            "message_ids": message_ids, **more,
        }  # fmt: skip
        return rpc.ReplaceContextRequest(**given)

    def fork(self, to: str, until: str | None = None) -> rpc.ForkContextRequest:
        """The request for a fork under a prompt of its own."""
        prompt = message("fork prompt", pb.ROLE_SYSTEM, agent_id=self.agent_id, conversation_id=to)
        return rpc.ForkContextRequest(
            source_conversation_id=self.id, conversation_id=to, system_message=prompt, until_message_id=until
        )

    async def window(self, conversation_id: str | None = None) -> contexts_pb2.Context:
        """Returns the conversation's window."""
        request = rpc.GetContextRequest(conversation_id=conversation_id or self.id)
        shown: contexts_pb2.Context = (await self.stub.GetContext(request)).context
        return shown

    async def found(self, query: str, **more: Any) -> list[str]:
        """The texts that the words of a query find in the agent's messages, best first."""
        given = {"query": query, "agent_id": self.agent_id, "mode": rpc.SEARCH_MODE_TEXT, **more}
        return [hit.text for hit in (await self.stub.SearchMessages(rpc.SearchMessagesRequest(**given))).hits]


class RecallCases(ServiceSuite):
    @pytest_asyncio.fixture(loop_scope="class")
    async def chat(self, channel: Any) -> Conversation:
        """An agent and its conversation that is yet to be made."""
        return Conversation(MessageServiceStub(channel))
