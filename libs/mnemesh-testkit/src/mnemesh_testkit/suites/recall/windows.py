"""Windows: created, read, replaced, forked and deleted."""

from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import Aborted, FailedPrecondition, InvalidArgument, NotFound
from mnemesh_kit.ids import new_id

from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.suites.recall.calls import (
    Conversation,
    RecallCases,
    approved,
    called,
    message,
    part,
    returned,
    said,
)


class Windows(RecallCases):
    """ReplaceContext, ForkContext, erasure, organizations."""

    async def test_known_version_returns_no_messages(self, chat: Conversation) -> None:
        await chat.open("hello")
        known = await chat.stub.GetContext(rpc.GetContextRequest(conversation_id=chat.id, if_version=1))
        assert known.not_modified
        assert not known.context.messages
        assert known.context.agent_message_count == 2
        other = await chat.stub.GetContext(rpc.GetContextRequest(conversation_id=chat.id, if_version=2))
        assert not other.not_modified
        assert said(other.context) == ["prompt", "hello"]

    async def test_message_ids_of_many_windows_are_read_in_one_call(self, chat: Conversation) -> None:
        other = Conversation(chat.stub)
        await chat.open("one", "two")
        theirs = await other.open()
        await chat.commit("three")
        shown = await chat.window()
        wanted = rpc.BatchGetContextIdsRequest(conversation_ids=[other.id, new_id("conv"), chat.id])
        found = (await chat.stub.BatchGetContextIds(wanted)).contexts
        assert [(each.conversation_id, each.agent_id, each.version, list(each.message_ids)) for each in found] == [
            (other.id, other.agent_id, 1, [theirs.messages[0].id]),
            (chat.id, chat.agent_id, 2, [each.id for each in shown.messages]),
        ]
        assert not (await chat.stub.BatchGetContextIds(rpc.BatchGetContextIdsRequest())).contexts

    async def test_replacement_keeps_the_rows_of_removed_messages(self, chat: Conversation) -> None:
        opened = await chat.open("one", "two", "three")
        system, one, *_, three = opened.messages
        summary = message("so far", pb.ROLE_SUMMARY)
        new = chat.replacement(system.id, summary.id, three.id, new_messages=[summary], system_text="compacted")
        new.lease.CopyFrom(chat.step(epoch=3).lease)
        replaced = (await chat.stub.ReplaceContext(new)).context
        assert said(replaced) == ["compacted", "so far", "three"]
        assert (replaced.version, replaced.epoch) == (2, 3)
        kept = await chat.stub.GetMessages(rpc.GetMessagesRequest(message_ids=[one.id]))
        assert list(kept.messages) == [one]
        moved = await catch_refusal(chat.stub.ReplaceContext(new))
        assert (isinstance(moved, Aborted), moved.reason, moved.metadata["version"]) == (True, "WINDOW_MOVED", "2")
        assert (await catch_refusal(chat.commit("late", epoch=2, base=2))).reason == "LEASE_LOST"
        assert said(await chat.window()) == ["compacted", "so far", "three"]

    async def test_replacement_with_unknown_or_foreign_rows_is_refused(self, chat: Conversation) -> None:
        stranger = Conversation(chat.stub)
        system, one = (await chat.open("one")).messages
        _, theirs = (await stranger.open("theirs")).messages
        for id_ in (new_id("message"), theirs.id):
            assert isinstance(await catch_refusal(chat.stub.ReplaceContext(chat.replacement(system.id, id_))), NotFound)
        swapped = chat.stub.ReplaceContext(chat.replacement(one.id, system.id))
        assert isinstance(await catch_refusal(swapped), InvalidArgument)
        assert said(await chat.window()) == ["prompt", "one"]

    async def test_fork_shares_rows_and_is_independent_afterwards(self, chat: Conversation) -> None:
        opened = await chat.open("one", "two")
        fork = new_id("conv")
        forked = (await chat.stub.ForkContext(chat.fork(fork, opened.messages[1].id))).context
        assert said(forked) == ["fork prompt", "one"]
        assert forked.messages[1].id == opened.messages[1].id
        assert forked.agent_message_count == 4
        await chat.commit("only here", system_text="renamed")
        assert said(await chat.window(fork)) == ["fork prompt", "one"]
        # What the fork shows stays when the source goes with its messages.
        gone = rpc.DeleteContextRequest(conversation_id=chat.id, delete_messages=True)
        assert (await chat.stub.DeleteContext(gone)).deleted_messages == 3
        assert said(await chat.window(fork)) == ["fork prompt", "one"]
        assert isinstance(await catch_refusal(chat.window()), NotFound)

    async def test_message_is_updated_and_deleted_and_its_context_forked(self, chat: Conversation) -> None:
        target = (await chat.open("before")).messages[1]
        request = rpc.UpdateMessageRequest(message=pb.Message(id=target.id, content=[part("after")], name="ignored"))
        request.update_mask.paths.append("content")
        updated = (await chat.stub.UpdateMessage(request)).message
        assert (updated.content[0].text.text, updated.name) == ("after", "")
        assert updated.HasField("update_time")
        fork = new_id("conv")
        assert said((await chat.stub.ForkContext(chat.fork(fork))).context) == ["fork prompt", "after"]
        await chat.stub.DeleteMessage(rpc.DeleteMessageRequest(message_id=target.id))
        for conversation_id in (chat.id, fork):
            shown = (await chat.window(conversation_id)).messages
            assert len(shown) == 1
            kept = await catch_refusal(chat.stub.DeleteMessage(rpc.DeleteMessageRequest(message_id=shown[0].id)))
            assert isinstance(kept, FailedPrecondition)
        await chat.stub.DeleteContext(rpc.DeleteContextRequest(conversation_id=fork))
        assert isinstance(await catch_refusal(chat.window(fork)), NotFound)

    async def test_erased_agent_is_deleted_and_refuses_late_writes(self, chat: Conversation) -> None:
        await chat.open("secret")
        gone = await chat.stub.EraseAgent(rpc.EraseAgentRequest(agent_id=chat.agent_id))
        assert (gone.deleted_messages, gone.deleted_contexts) == (2, 1)
        assert await chat.found("secret", agent_id=None) == []
        assert isinstance(await catch_refusal(chat.window()), NotFound)
        for late in (chat.commit("late"), chat.open(), chat.append("x")):
            error = await catch_refusal(late)
            assert (isinstance(error, FailedPrecondition), error.reason) == (True, "ERASED")
            assert error.metadata["resource_id"] == chat.agent_id
        again = await chat.stub.EraseAgent(rpc.EraseAgentRequest(agent_id=chat.agent_id))
        assert again.deleted_messages == 0

    async def test_unknown_agent_can_be_erased(self, chat: Conversation) -> None:
        gone = await chat.stub.EraseAgent(rpc.EraseAgentRequest(agent_id=chat.agent_id))
        assert gone.deleted_messages == 0
        assert (await catch_refusal(chat.open())).reason == "ERASED"

    async def test_windows_of_another_organization_are_not_found(self, chat: Conversation) -> None:
        _, ours = (await chat.open("ours alone")).messages
        conversation = {"conversation_id": chat.id}
        rewrite = rpc.UpdateMessageRequest(message=pb.Message(id=ours.id, content=[part("theirs")]))
        rewrite.update_mask.paths.append("content")
        with as_principal(Principal(new_id("org"), new_id("user"))):
            for attempt in (
                chat.window(),
                chat.stub.GetContext(rpc.GetContextRequest(if_version=1, **conversation)),
                chat.commit("theirs"),
                chat.append("theirs"),
                chat.stub.ReplaceContext(chat.replacement(ours.id)),
                chat.stub.ForkContext(chat.fork(new_id("conv"))),
                chat.stub.DeleteContext(rpc.DeleteContextRequest(delete_messages=True, **conversation)),
                chat.stub.EraseAgent(rpc.EraseAgentRequest(agent_id=chat.agent_id)),
                chat.stub.UpdateMessage(rewrite),
            ):
                assert isinstance(await catch_refusal(attempt), NotFound)
            assert not (await chat.stub.GetMessages(rpc.GetMessagesRequest(message_ids=[ours.id]))).messages
            assert not (await chat.stub.ListMessages(rpc.ListMessagesRequest())).messages
            wanted = rpc.BatchGetContextIdsRequest(conversation_ids=[chat.id])
            assert not (await chat.stub.BatchGetContextIds(wanted)).contexts
            assert await chat.found("ours alone", agent_id=None) == []
            await chat.stub.DeleteMessage(rpc.DeleteMessageRequest(message_id=ours.id))
        assert said(await chat.window()) == ["prompt", "ours alone"]


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
        assert isinstance(await catch_refusal(strange), NotFound)
