"""Tool calls without a return: the window is still valid for a provider."""

from __future__ import annotations

from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.errors import NotFound
from mnemesh_kit.ids import new_id

from mnemesh_testkit.errors import refused
from mnemesh_testkit.suites.recall.calls import Conversation, RecallCases, approved, called, returned, said


class UnansweredCalls(RecallCases):
    """A call without a return is shown with a generated error return, unless it waits for approval."""

    async def test_call_without_a_return_has_a_generated_one_until_the_real_return(self, chat: Conversation) -> None:
        await chat.open()
        asked, dug = called("call-1", "call-2", turn_id="turn-1"), returned("call-1")
        await chat.commit(asked, dug, "and?")
        window = await chat.window()
        _, first, repair, *rest = window.messages
        assert (first.id, rest[0].id, said(window)[-1]) == (asked.id, dug.id, "and?")
        (answer,) = repair.tool_returns
        assert (repair.role, repair.sequence_id, repair.turn_id) == (pb.ROLE_TOOL, 0, "turn-1")
        assert (answer.tool_call_id, answer.name, answer.status) == ("call-2", "dig", pb.TOOL_RETURN_STATUS_ERROR)
        assert await chat.window() == window
        assert not (await chat.stub.GetMessages(rpc.GetMessagesRequest(message_ids=[repair.id]))).messages
        wanted = rpc.BatchGetContextIdsRequest(conversation_ids=[chat.id])
        (ids,) = (await chat.stub.BatchGetContextIds(wanted)).contexts
        assert list(ids.message_ids) == [each.id for each in window.messages if each.id != repair.id]
        await chat.commit(returned("call-2"), base=2)
        assert repair.id not in {each.id for each in (await chat.window()).messages}

    async def test_call_that_waits_for_approval_gets_no_generated_return(self, chat: Conversation) -> None:
        await chat.open()
        request = called("call-1", role=pb.ROLE_APPROVAL)
        await chat.commit(request)
        assert len((await chat.window()).messages) == 2
        await chat.commit(approved(request, "call-1"), base=2)
        shown = (await chat.window()).messages[1:]
        assert [each.role for each in shown] == [pb.ROLE_APPROVAL, pb.ROLE_TOOL, pb.ROLE_APPROVAL]

    async def test_other_calls_of_a_waiting_answer_get_no_generated_return(self, chat: Conversation) -> None:
        await chat.open()
        request = called("call-2", role=pb.ROLE_APPROVAL)
        await chat.commit(called("call-1", "call-2"), request)
        assert [each.role for each in (await chat.window()).messages][1:] == [
            pb.ROLE_ASSISTANT,
            pb.ROLE_APPROVAL,
        ]
        await chat.commit(approved(request, "call-2"), returned("call-1", "call-2"), base=2)
        roles = [pb.ROLE_ASSISTANT, pb.ROLE_APPROVAL, pb.ROLE_APPROVAL, pb.ROLE_TOOL]
        assert [each.role for each in (await chat.window()).messages][1:] == roles

    async def test_generated_return_kept_by_a_new_window_is_stored(self, chat: Conversation) -> None:
        await chat.open()
        await chat.commit(called("call-1"))
        fork = new_id("conv")
        shown = (await chat.window()).messages
        forked = (await chat.stub.ForkContext(chat.fork(fork, shown[-1].id))).context.messages
        assert list(forked)[1:] == list(shown)[1:]
        ids = [each.id for each in shown]
        kept = (await chat.stub.ReplaceContext(chat.replacement(*ids, base=2))).context.messages
        assert [each.id for each in kept] == ids
        assert kept[-1].sequence_id == 4
        stored = await chat.stub.GetMessages(rpc.GetMessagesRequest(message_ids=[ids[-1]]))
        assert list(stored.messages) == [kept[-1]]
        # The fork shows the same answer to the same call, stored or not.
        assert (await chat.window(fork)).messages[-1].id == ids[-1]
        strange = chat.stub.ReplaceContext(chat.replacement(*ids, new_id("message"), base=3))
        assert isinstance(await refused(strange), NotFound)
