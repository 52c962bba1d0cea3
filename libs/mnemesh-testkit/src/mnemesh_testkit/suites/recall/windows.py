"""Windows: made, read, replaced, forked, and gone."""

from __future__ import annotations

from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.errors import Aborted, FailedPrecondition, InvalidArgument, NotFound
from mnemesh_kit.ids import new_id
from mnemesh_kit.principal import Principal, as_principal

from mnemesh_testkit.suites.recall.calls import RecallCases, Room, message, part, refused, said


class Windows(RecallCases):
    """ReplaceContext, ForkContext, erasure, organizations."""

    async def test_a_known_version_brings_no_messages(self, room: Room) -> None:
        await room.open("hello")
        known = await room.stub.GetContext(rpc.GetContextRequest(conversation_id=room.conversation, if_version=1))
        assert known.not_modified
        assert not known.context.messages
        assert known.context.agent_message_count == 2
        other = await room.stub.GetContext(rpc.GetContextRequest(conversation_id=room.conversation, if_version=2))
        assert not other.not_modified
        assert said(other.context) == ["prompt", "hello"]

    async def test_the_ids_of_many_windows_come_at_once(self, room: Room) -> None:
        other = Room(room.stub)
        await room.open("one", "two")
        theirs = await other.open()
        await room.commit("three")
        shown = await room.window()
        wanted = rpc.BatchGetContextIdsRequest(conversation_ids=[other.conversation, new_id("conv"), room.conversation])
        found = (await room.stub.BatchGetContextIds(wanted)).contexts
        assert [(each.conversation_id, each.agent_id, each.version, list(each.message_ids)) for each in found] == [
            (other.conversation, other.agent, 1, [theirs.messages[0].id]),
            (room.conversation, room.agent, 2, [each.id for each in shown.messages]),
        ]
        assert not (await room.stub.BatchGetContextIds(rpc.BatchGetContextIdsRequest())).contexts

    async def test_a_replacement_keeps_the_rows_that_leave(self, room: Room) -> None:
        opened = await room.open("one", "two", "three")
        system, one, *_, three = opened.messages
        summary = message("so far", pb.ROLE_SUMMARY)
        new = room.replacement(system.id, summary.id, three.id, new_messages=[summary], system_text="compacted")
        new.lease.CopyFrom(room.step(epoch=3).lease)
        replaced = (await room.stub.ReplaceContext(new)).context
        assert said(replaced) == ["compacted", "so far", "three"]
        assert (replaced.version, replaced.epoch) == (2, 3)
        kept = await room.stub.GetMessages(rpc.GetMessagesRequest(message_ids=[one.id]))
        assert list(kept.messages) == [one]
        moved = await refused(room.stub.ReplaceContext(new))
        assert (isinstance(moved, Aborted), moved.reason, moved.metadata["version"]) == (True, "WINDOW_MOVED", "2")
        assert (await refused(room.commit("late", epoch=2, base=2))).reason == "LEASE_LOST"
        assert said(await room.window()) == ["compacted", "so far", "three"]

    async def test_a_replacement_of_unknown_or_foreign_rows_is_refused(self, room: Room) -> None:
        stranger = Room(room.stub)
        system, one = (await room.open("one")).messages
        _, theirs = (await stranger.open("theirs")).messages
        for id_ in (new_id("message"), theirs.id):
            assert isinstance(await refused(room.stub.ReplaceContext(room.replacement(system.id, id_))), NotFound)
        swapped = room.stub.ReplaceContext(room.replacement(one.id, system.id))
        assert isinstance(await refused(swapped), InvalidArgument)
        assert said(await room.window()) == ["prompt", "one"]

    async def test_a_fork_shares_rows_and_goes_its_own_way(self, room: Room) -> None:
        opened = await room.open("one", "two")
        fork = new_id("conv")
        forked = (await room.stub.ForkContext(room.fork(fork, opened.messages[1].id))).context
        assert said(forked) == ["fork prompt", "one"]
        assert forked.messages[1].id == opened.messages[1].id
        assert forked.agent_message_count == 4
        await room.commit("only here", system_text="renamed")
        assert said(await room.window(fork)) == ["fork prompt", "one"]
        # What the fork shows stays when the source goes with its messages.
        gone = rpc.DeleteContextRequest(conversation_id=room.conversation, delete_messages=True)
        assert (await room.stub.DeleteContext(gone)).deleted_messages == 3
        assert said(await room.window(fork)) == ["fork prompt", "one"]
        assert isinstance(await refused(room.window()), NotFound)

    async def test_a_message_is_updated_deleted_and_its_context_forked(self, room: Room) -> None:
        target = (await room.open("before")).messages[1]
        request = rpc.UpdateMessageRequest(message=pb.Message(id=target.id, content=[part("after")], name="ignored"))
        request.update_mask.paths.append("content")
        updated = (await room.stub.UpdateMessage(request)).message
        assert (updated.content[0].text.text, updated.name) == ("after", "")
        assert updated.HasField("update_time")
        fork = new_id("conv")
        assert said((await room.stub.ForkContext(room.fork(fork))).context) == ["fork prompt", "after"]
        await room.stub.DeleteMessage(rpc.DeleteMessageRequest(message_id=target.id))
        for conversation in (room.conversation, fork):
            shown = (await room.window(conversation)).messages
            assert len(shown) == 1
            kept = await refused(room.stub.DeleteMessage(rpc.DeleteMessageRequest(message_id=shown[0].id)))
            assert isinstance(kept, FailedPrecondition)
        await room.stub.DeleteContext(rpc.DeleteContextRequest(conversation_id=fork))
        assert isinstance(await refused(room.window(fork)), NotFound)

    async def test_an_erased_agent_is_gone_and_stays_gone(self, room: Room) -> None:
        await room.open("secret")
        gone = await room.stub.EraseAgent(rpc.EraseAgentRequest(agent_id=room.agent))
        assert (gone.deleted_messages, gone.deleted_contexts) == (2, 1)
        assert await room.found("secret", agent_id=None) == []
        assert isinstance(await refused(room.window()), NotFound)
        for late in (room.commit("late"), room.open(), room.append("x")):
            error = await refused(late)
            assert (isinstance(error, FailedPrecondition), error.reason) == (True, "ERASED")
            assert error.metadata["resource_id"] == room.agent
        again = await room.stub.EraseAgent(rpc.EraseAgentRequest(agent_id=room.agent))
        assert again.deleted_messages == 0

    async def test_an_agent_that_was_never_seen_can_be_erased(self, room: Room) -> None:
        gone = await room.stub.EraseAgent(rpc.EraseAgentRequest(agent_id=room.agent))
        assert gone.deleted_messages == 0
        assert (await refused(room.open())).reason == "ERASED"

    async def test_another_organization_sees_nothing(self, room: Room) -> None:
        _, ours = (await room.open("ours alone")).messages
        conversation = {"conversation_id": room.conversation}
        rewrite = rpc.UpdateMessageRequest(message=pb.Message(id=ours.id, content=[part("theirs")]))
        rewrite.update_mask.paths.append("content")
        with as_principal(Principal(new_id("org"), new_id("user"))):
            for attempt in (
                room.window(),
                room.stub.GetContext(rpc.GetContextRequest(if_version=1, **conversation)),
                room.commit("theirs"),
                room.append("theirs"),
                room.stub.ReplaceContext(room.replacement(ours.id)),
                room.stub.ForkContext(room.fork(new_id("conv"))),
                room.stub.DeleteContext(rpc.DeleteContextRequest(delete_messages=True, **conversation)),
                room.stub.EraseAgent(rpc.EraseAgentRequest(agent_id=room.agent)),
                room.stub.UpdateMessage(rewrite),
            ):
                assert isinstance(await refused(attempt), NotFound)
            assert not (await room.stub.GetMessages(rpc.GetMessagesRequest(message_ids=[ours.id]))).messages
            assert not (await room.stub.ListMessages(rpc.ListMessagesRequest())).messages
            wanted = rpc.BatchGetContextIdsRequest(conversation_ids=[room.conversation])
            assert not (await room.stub.BatchGetContextIds(wanted)).contexts
            assert await room.found("ours alone", agent_id=None) == []
            await room.stub.DeleteMessage(rpc.DeleteMessageRequest(message_id=ours.id))
        assert said(await room.window()) == ["prompt", "ours alone"]
