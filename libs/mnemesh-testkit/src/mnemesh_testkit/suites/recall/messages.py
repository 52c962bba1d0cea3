"""Messages as rows: listed, updated, deleted, and stored completely."""

import json
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh.types.v1.paging_pb2 import SORT_ORDER_DESCENDING
from mnemesh_kit.ids import derive_id, new_id
from mnemesh_kit.paging import whole_answer

from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.suites.recall.calls import Conversation, RecallCases, called, message, part, said
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
