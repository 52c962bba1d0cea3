"""Cases of messages, of the commits of steps, and of windows."""

import asyncio
import json
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh.types.v1.paging_pb2 import SORT_ORDER_DESCENDING
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import Aborted, AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from mnemesh_kit.ids import derive_id, new_id
from mnemesh_kit.paging import whole_answer

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
from mnemesh_testkit.timeouts import scaled


class Messages(RecallCases):
    """ListMessages, GetMessages, UpdateMessage, DeleteMessage."""

    async def test_lists_cover_every_row_in_both_directions(self, chat: Conversation) -> None:
        await chat.open(*(f"t{number}" for number in range(25)))
        call = called("call-7")
        await chat.commit(message("failed", is_err=True), call)
        shown = [number for number in range(1, 29) if number != 27]
        for narrow in ({"agent_ids": [chat.agent_id]}, {}):
            for order, expected in ((0, shown), (SORT_ORDER_DESCENDING, shown[::-1])):
                request = rpc.ListMessagesRequest(page_size=10, order=order, **narrow)  # type: ignore[arg-type]
                seen: list[int] = []
                while True:
                    page = await chat.stub.ListMessages(request)
                    seen += [each.sequence_id for each in page.messages]
                    if not page.next_page_token:
                        break
                    request.page_token = page.next_page_token
                assert seen == expected

        async def listed(**narrow: Any) -> list[str]:
            request = rpc.ListMessagesRequest(agent_ids=[chat.agent_id], page_size=100, **narrow)
            return [each.id for each in (await chat.stub.ListMessages(request)).messages]

        future = Timestamp()
        future.FromJsonString("2999-01-01T00:00:00Z")
        assert await listed(tool_call_id="call-7") == [call.id]
        assert await listed(include_err=True, text_search="nothing%") == []
        assert len(await listed(include_err=True)) == 28
        assert len(await listed(text_search="T1")) == 11
        assert await listed(roles=[pb.ROLE_ASSISTANT]) == [call.id]
        assert len(await listed(end_time=future)) == 27
        assert await listed(start_time=future) == []

    async def test_list_of_a_conversation_is_bounded_by_ids(self, chat: Conversation) -> None:
        chat.id = derive_id("conv", chat.agent_id)
        await chat.open(*(f"t{n}" for n in range(9)))
        await chat.append("elsewhere")

        async def numbers(**query: Any) -> tuple[list[int], str]:
            page = await chat.stub.ListMessages(rpc.ListMessagesRequest(agent_ids=[chat.agent_id], **query))
            return [each.sequence_id for each in page.messages], page.next_page_token

        scope = rpc.ConversationScope(default_conversation=rpc.DefaultConversation())
        assert (await numbers(conversation=scope))[0] == list(range(1, 11))
        rows = (await chat.stub.ListMessages(rpc.ListMessagesRequest(agent_ids=[chat.agent_id]))).messages
        assert (await numbers(after_id=rows[7].id))[0] == [9, 10, 11]
        newest_first = {"before_id": rows[7].id, "order": SORT_ORDER_DESCENDING, "page_size": 2}
        assert (await numbers(**newest_first))[0] == [11, 10]
        assert (await numbers(text_search="ELSE"))[0] == [11]
        _, token = await numbers(page_size=2)
        foreign = await catch_refusal(numbers(page_size=2, page_token=token, order=SORT_ORDER_DESCENDING))
        assert (foreign.reason, foreign.field) == ("PAGE_TOKEN_INVALID", "page_token")

    async def test_list_of_an_agent_is_bounded_by_sequence_ids(self, chat: Conversation) -> None:
        await chat.open(*(f"t{n}" for n in range(9)))
        await chat.append("outside of the window")
        await Conversation(chat.stub).open("of another agent")

        async def numbers(**query: Any) -> list[int]:
            request = rpc.ListMessagesRequest(agent_ids=[chat.agent_id], page_size=3, **query)
            seen: list[int] = []
            while True:
                page = await chat.stub.ListMessages(request)
                seen += [each.sequence_id for each in page.messages]
                if not page.next_page_token:
                    return seen
                request.page_token = page.next_page_token

        assert await numbers(after_sequence_id=2, until_sequence_id=11) == [3, 4, 5, 6, 7, 8, 9, 10, 11]
        assert await numbers(after_sequence_id=6, until_sequence_id=8, order=SORT_ORDER_DESCENDING) == [8, 7]
        assert await numbers(until_sequence_id=2) == [1, 2]
        assert await numbers(after_sequence_id=11) == []
        for field in ("after_sequence_id", "until_sequence_id"):
            for agents in ([], [chat.agent_id, new_id("agent")]):
                request = rpc.ListMessagesRequest(agent_ids=agents, **{field: 0})  # type: ignore[arg-type]
                error = await catch_refusal(chat.stub.ListMessages(request))
                assert (error.reason, error.field) == ("INVALID_ARGUMENT", field)

    async def test_list_of_several_agents_is_in_the_order_of_insertion(self, chat: Conversation) -> None:
        other = Conversation(chat.stub)
        await other.open("first", "second")
        await chat.open("third")
        await other.append("fourth")
        agents = [chat.agent_id, other.agent_id]
        seen: list[pb.Message] = []
        request = rpc.ListMessagesRequest(agent_ids=agents, roles=[pb.ROLE_USER], page_size=2)
        for _ in range(2):
            page = await chat.stub.ListMessages(request)
            seen += page.messages
            request.page_token = page.next_page_token
        assert said(seen) == ["first", "second", "third", "fourth"]
        assert not request.page_token

    async def test_messages_are_returned_in_the_requested_order(self, chat: Conversation) -> None:
        prompt, one, two = (await chat.open("one", "two")).messages
        wanted = rpc.GetMessagesRequest(message_ids=[two.id, new_id("message"), prompt.id])
        assert list((await chat.stub.GetMessages(wanted)).messages) == [two, prompt]
        assert one.conversation_id == chat.id

    async def test_updated_or_deleted_message_changes_windows_and_search(self, chat: Conversation) -> None:
        fox = (await chat.open("the red fox", "second", "third")).messages[1]
        assert (await chat.found("fox"))[0] == "the red fox"
        change = rpc.UpdateMessageRequest(message=pb.Message(id=fox.id, content=[part("the grey wolf")]))
        change.update_mask.paths.append("content")
        assert (await chat.stub.UpdateMessage(change)).message.sequence_id == fox.sequence_id
        assert await chat.found("fox") == []
        assert (await chat.found("wolf"))[0] == "the grey wolf"
        window = await chat.window()
        assert (window.version, said(window)[1]) == (2, "the grey wolf")
        for _ in range(2):
            await chat.stub.DeleteMessage(rpc.DeleteMessageRequest(message_id=fox.id))
        assert await chat.found("wolf") == []
        window = await chat.window()
        assert (window.version, said(window)) == (3, ["prompt", "second", "third"])
        assert window.agent_message_count == 3

    async def test_what_a_provider_added_is_stored_and_lost_with_its_words(self, chat: Conversation) -> None:
        added = {"carried": '{"api": "openai_chat"}', "model": "openai/gpt"}
        answer = message("the red fox", role=pb.ROLE_ASSISTANT, **added)
        await chat.append(answer)
        wanted = rpc.GetMessagesRequest(message_ids=[answer.id])
        (found,) = (await chat.stub.GetMessages(wanted)).messages
        assert found.carried == answer.carried
        for name, changed in (("name", {"name": "Ada"}), ("content", {"content": [part("the grey wolf")]})):
            change = rpc.UpdateMessageRequest(message=pb.Message(id=answer.id, **changed))
            change.update_mask.paths.append(name)
            shown = (await chat.stub.UpdateMessage(change)).message
            assert shown.HasField("carried") is (name == "name")

    async def test_too_much_of_a_provider_is_refused(self, chat: Conversation) -> None:
        answer = message("the red fox", role=pb.ROLE_ASSISTANT, carried="x" * ((1 << 20) + 1))
        assert (await catch_refusal(chat.append(answer))).field == "messages[0].carried"

    async def test_largest_allowed_values_are_stored(self, chat: Conversation) -> None:
        long = message("ü" * (1 << 19))
        inline = pb.InlineImage(data=b"i" * (10 << 20))
        picture = message(content=[pb.ContentPart(image=pb.ImagePart(inline=inline))])
        call = pb.ToolCall(id="c", name="n", arguments=json.dumps({"n": 2**70}))
        deep = message(role=pb.ROLE_ASSISTANT, tool_calls=[call])
        await chat.append(long, picture, deep)
        wanted = rpc.GetMessagesRequest(message_ids=[long.id, picture.id, deep.id])
        found = (await whole_answer(chat.stub.GetMessages, wanted, seconds=scaled(30), field="messages")).messages
        assert [each.content for each in found] == [long.content, picture.content, deep.content]
        assert found[2].tool_calls[0].arguments == call.arguments


class Steps(RecallCases):
    """Idempotency, epochs, versions, and concurrent writers."""

    async def test_step_extends_the_window_and_replaces_the_system_message(self, chat: Conversation) -> None:
        opened = await chat.open("hello")
        result = await chat.commit("hi", "there", system_text="new prompt", hidden_messages=[message("hidden")])
        assert (result.version, result.rebased, result.replayed) == (2, False, False)
        assert not result.HasField("context")
        assert list(result.sequence_ids) == [3, 4, 5]
        assert result.agent_message_count == 5
        window = await chat.window()
        assert said(window) == ["new prompt", "hello", "hi", "there"]
        assert window.messages[0].id == opened.messages[0].id
        assert (window.version, window.epoch, window.agent_message_count) == (2, 1, 5)

    async def test_step_is_committed_once(self, chat: Conversation) -> None:
        await chat.open()
        step = chat.step("once")
        first = await chat.stub.CommitStep(step)
        # The holder that takes over has a higher epoch, another version, another rendering.
        again = chat.step(*step.messages, base=7, epoch=9, step_id=step.step_id, system_text="later")
        second = await chat.stub.CommitStep(again)
        assert second.replayed
        assert (second.version, list(second.sequence_ids)) == (first.version, list(first.sequence_ids))
        assert said(await chat.window()) == ["prompt", "once"]

    async def test_concurrent_repeats_of_a_step_are_committed_once(self, chat: Conversation) -> None:
        await chat.open()
        step = chat.step("once")
        answers = await asyncio.gather(*(chat.stub.CommitStep(step) for _ in range(8)))
        assert {tuple(answer.sequence_ids) for answer in answers} == {(2,)}
        assert sum(not answer.replayed for answer in answers) == 1
        assert said(await chat.window()) == ["prompt", "once"]

    async def test_step_is_checked_in_the_order_of_the_contract(self, chat: Conversation) -> None:
        """A repeat first, then other content, then the epoch; a changed window version refuses nothing."""
        await chat.open()
        old = chat.step("old", epoch=1)
        await chat.stub.CommitStep(old)
        await chat.commit("new", epoch=5, base=2)
        assert (await chat.stub.CommitStep(old)).replayed
        conflict = await catch_refusal(chat.commit("other", epoch=1, base=99, step_id=old.step_id))
        assert (isinstance(conflict, Aborted), conflict.reason) == (True, "STEP_CONFLICT")
        lost = await catch_refusal(chat.commit("late", epoch=4, base=99))
        assert (isinstance(lost, Aborted), lost.reason) == (True, "LEASE_LOST")
        assert lost.metadata == {"conversation_id": chat.id, "epoch": "5"}
        forged = await catch_refusal(chat.commit("forged", epoch=1 << 62, base=99))
        assert (isinstance(forged, InvalidArgument), forged.field) == (True, "lease.epoch")
        assert (await chat.commit("next", epoch=5, base=1)).rebased
        assert said(await chat.window()) == ["prompt", "old", "new", "next"]

    async def test_step_is_appended_to_a_window_that_has_changed(self, chat: Conversation) -> None:
        await chat.open()
        await chat.append("between", to=chat.id)
        step = chat.step("step", base=1)
        result = await chat.stub.CommitStep(step)
        assert result.rebased
        assert said(result.context) == ["prompt", "between", "step"]
        assert result.context.version == result.version == 3
        assert (await chat.stub.CommitStep(step)).context == result.context

    async def test_message_that_is_already_stored_enters_the_window_once(self, chat: Conversation) -> None:
        await chat.open()
        early = message("input")
        for _ in range(2):
            assert list((await chat.append(early)).sequence_ids) == [2]
        assert list((await chat.commit(early, "answer")).sequence_ids) == [2, 3]
        again = await chat.commit(early, base=2)
        assert (list(again.sequence_ids), again.agent_message_count) == ([2], 3)
        assert said(await chat.window()) == ["prompt", "input", "answer"]

    async def test_id_with_other_content_stores_nothing(self, chat: Conversation) -> None:
        await chat.open()
        first = message("first")
        await chat.commit(first)
        clash = await catch_refusal(chat.commit("new", message("second", id=first.id), base=2))
        assert isinstance(clash, AlreadyExists)
        window = await chat.window()
        assert (said(window), window.agent_message_count, window.version) == (["prompt", "first"], 2, 2)

    async def test_concurrent_writers_of_one_agent_lose_and_duplicate_nothing(self, chat: Conversation) -> None:
        await chat.open()
        writers, each = 8, 6

        async def write(writer: int) -> list[int]:
            numbers: list[int] = []
            for turn in range(each):
                numbers += (await chat.commit(f"w{writer} t{turn}", base=0)).sequence_ids
            return numbers

        per_writer = await asyncio.gather(*(write(writer) for writer in range(writers)))
        assert all(numbers == sorted(numbers) for numbers in per_writer)
        assert sorted(number for numbers in per_writer for number in numbers) == list(range(2, writers * each + 2))
        window = await chat.window()
        assert len(set(said(window))) == writers * each + 1
        assert window.version == writers * each + 1
        assert [one.sequence_id for one in window.messages] == list(range(1, writers * each + 2))

    async def test_repeated_request_id_returns_the_first_result(self, chat: Conversation) -> None:
        creation = chat.creation("hello", request_id="r1")
        first = await chat.stub.CreateContext(creation)
        assert await chat.stub.CreateContext(creation) == first
        reused = await catch_refusal(chat.stub.CreateContext(chat.creation(request_id="r1")))
        assert reused.reason == "REQUEST_ID_REUSED"
        assert isinstance(await catch_refusal(chat.open("hello")), AlreadyExists)
        more = message("more")
        done = await chat.append(more, to=chat.id, request_id="r2")
        assert (list(done.sequence_ids), done.version) == ([3], 2)
        assert await chat.append(more, to=chat.id, request_id="r2") == done
        reused = await catch_refusal(chat.append("other", to=chat.id, request_id="r2"))
        assert reused.reason == "REQUEST_ID_REUSED"
        await chat.commit("step", request_id="r3")
        reused = await catch_refusal(chat.commit("step", request_id="r3"))
        assert reused.reason == "REQUEST_ID_REUSED"
        assert said(await chat.window()) == ["prompt", "hello", "more", "step"]

    async def test_sequence_ids_are_unique_over_all_conversations_of_an_agent(self, chat: Conversation) -> None:
        other = Conversation(chat.stub)
        other.agent_id = chat.agent_id
        await chat.open()
        await other.open()
        await asyncio.gather(*(one.commit("x", base=0) for one in (chat, other) for _ in range(6)))
        shown = [*(await chat.window()).messages, *(await other.window()).messages]
        assert sorted(one.sequence_id for one in shown) == list(range(1, 15))

    async def test_message_keeps_all_fields(self, chat: Conversation) -> None:
        call = pb.ToolCall(id="c1", name="send_message", arguments='{"message": "hi there"}')
        given = message(
            "ü" * 70_000, pb.ROLE_ASSISTANT, tool_calls=[call], otid="o1", name="n", sender_id="s", model="m",
            turn_id="t", agent_id=chat.agent_id, conversation_id=chat.id, run_id=new_id("run"),
        )  # fmt: skip
        await chat.open(given)
        shown = (await chat.window()).messages[1]
        assert shown.HasField("create_time")
        shown.ClearField("create_time")
        shown.ClearField("sequence_id")
        assert shown == given


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
