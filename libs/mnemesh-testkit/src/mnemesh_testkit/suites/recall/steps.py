"""CommitStep: once, in order, and refused as the contract requires."""

import asyncio

from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.errors import Aborted, AlreadyExists, InvalidArgument
from mnemesh_kit.ids import new_id

from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.suites.recall.calls import Conversation, RecallCases, message, said


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
