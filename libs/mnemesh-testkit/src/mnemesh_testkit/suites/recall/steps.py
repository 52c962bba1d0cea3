"""CommitStep: once, in order, and refused where the contract says so."""

from __future__ import annotations

import asyncio

from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.errors import Aborted, AlreadyExists
from mnemesh_kit.ids import new_id

from mnemesh_testkit.suites.recall.calls import RecallCases, Room, message, refused, said


class Steps(RecallCases):
    """Idempotency, epochs, versions, and many writers."""

    async def test_a_step_extends_the_window_and_rewrites_the_system_message_in_place(self, room: Room) -> None:
        opened = await room.open("hello")
        result = await room.commit("hi", "there", system_text="new prompt", hidden_messages=[message("hidden")])
        assert (result.version, result.rebased, result.replayed) == (2, False, False)
        assert not result.HasField("context")
        assert list(result.sequence_ids) == [3, 4, 5]
        assert result.agent_message_count == 5
        window = await room.window()
        assert said(window) == ["new prompt", "hello", "hi", "there"]
        assert window.messages[0].id == opened.messages[0].id
        assert (window.version, window.epoch, window.agent_message_count) == (2, 1, 5)

    async def test_a_step_is_committed_once(self, room: Room) -> None:
        await room.open()
        step = room.step("once")
        first = await room.stub.CommitStep(step)
        # The holder that takes over has a higher epoch, another version, another rendering.
        again = room.step(*step.messages, base=7, epoch=9, step_id=step.step_id, system_text="later")
        second = await room.stub.CommitStep(again)
        assert second.replayed
        assert (second.version, list(second.sequence_ids)) == (first.version, list(first.sequence_ids))
        assert said(await room.window()) == ["prompt", "once"]

    async def test_a_step_that_comes_many_times_at_once_is_committed_once(self, room: Room) -> None:
        await room.open()
        step = room.step("once")
        answers = await asyncio.gather(*(room.stub.CommitStep(step) for _ in range(8)))
        assert {tuple(answer.sequence_ids) for answer in answers} == {(2,)}
        assert sum(not answer.replayed for answer in answers) == 1
        assert said(await room.window()) == ["prompt", "once"]

    async def test_a_step_is_refused_in_the_contracts_order(self, room: Room) -> None:
        """Its own repetition first, then other content, then the epoch; a moved window refuses nothing."""
        await room.open()
        old = room.step("old", epoch=1)
        await room.stub.CommitStep(old)
        await room.commit("new", epoch=5, base=2)
        assert (await room.stub.CommitStep(old)).replayed
        conflict = await refused(room.commit("other", epoch=1, base=99, step_id=old.step_id))
        assert (isinstance(conflict, Aborted), conflict.reason) == (True, "STEP_CONFLICT")
        lost = await refused(room.commit("late", epoch=4, base=99))
        assert (isinstance(lost, Aborted), lost.reason) == (True, "LEASE_LOST")
        assert lost.metadata == {"conversation_id": room.conversation, "epoch": "5"}
        assert (await room.commit("next", epoch=5, base=1)).rebased
        assert said(await room.window()) == ["prompt", "old", "new", "next"]

    async def test_a_moved_window_gets_the_step_behind_it(self, room: Room) -> None:
        await room.open()
        await room.append("between", to=room.conversation)
        step = room.step("step", base=1)
        result = await room.stub.CommitStep(step)
        assert result.rebased
        assert said(result.context) == ["prompt", "between", "step"]
        assert result.context.version == result.version == 3
        assert (await room.stub.CommitStep(step)).context == result.context

    async def test_a_message_stored_before_enters_the_window_once(self, room: Room) -> None:
        await room.open()
        early = message("input")
        for _ in range(2):
            assert list((await room.append(early)).sequence_ids) == [2]
        assert list((await room.commit(early, "answer")).sequence_ids) == [2, 3]
        again = await room.commit(early, base=2)
        assert (list(again.sequence_ids), again.agent_message_count) == ([2], 3)
        assert said(await room.window()) == ["prompt", "input", "answer"]

    async def test_an_id_with_other_content_stores_nothing(self, room: Room) -> None:
        await room.open()
        first = message("first")
        await room.commit(first)
        clash = await refused(room.commit("new", message("second", id=first.id), base=2))
        assert isinstance(clash, AlreadyExists)
        window = await room.window()
        assert (said(window), window.agent_message_count, window.version) == (["prompt", "first"], 2, 2)

    async def test_many_writers_of_one_agent_lose_and_double_nothing(self, room: Room) -> None:
        await room.open()
        writers, each = 8, 6

        async def write(writer: int) -> list[int]:
            numbers: list[int] = []
            for turn in range(each):
                numbers += (await room.commit(f"w{writer} t{turn}", base=0)).sequence_ids
            return numbers

        per_writer = await asyncio.gather(*(write(writer) for writer in range(writers)))
        assert all(numbers == sorted(numbers) for numbers in per_writer)
        assert sorted(number for numbers in per_writer for number in numbers) == list(range(2, writers * each + 2))
        window = await room.window()
        assert len(set(said(window))) == writers * each + 1
        assert window.version == writers * each + 1
        assert [one.sequence_id for one in window.messages] == list(range(1, writers * each + 2))

    async def test_a_request_id_gives_the_first_result_again(self, room: Room) -> None:
        creation = room.creation("hello", request_id="r1")
        first = await room.stub.CreateContext(creation)
        assert await room.stub.CreateContext(creation) == first
        reused = await refused(room.stub.CreateContext(room.creation(request_id="r1")))
        assert reused.reason == "REQUEST_ID_REUSED"
        assert isinstance(await refused(room.open("hello")), AlreadyExists)
        more = message("more")
        done = await room.append(more, to=room.conversation, request_id="r2")
        assert (list(done.sequence_ids), done.version) == ([3], 2)
        assert await room.append(more, to=room.conversation, request_id="r2") == done
        reused = await refused(room.append("other", to=room.conversation, request_id="r2"))
        assert reused.reason == "REQUEST_ID_REUSED"
        await room.commit("step", request_id="r3")
        reused = await refused(room.commit("step", request_id="r3"))
        assert reused.reason == "REQUEST_ID_REUSED"
        assert said(await room.window()) == ["prompt", "hello", "more", "step"]

    async def test_numbers_are_an_agents_over_all_its_conversations(self, room: Room) -> None:
        other = Room(room.stub)
        other.agent = room.agent
        await room.open()
        await other.open()
        await asyncio.gather(*(one.commit("x", base=0) for one in (room, other) for _ in range(6)))
        shown = [*(await room.window()).messages, *(await other.window()).messages]
        assert sorted(one.sequence_id for one in shown) == list(range(1, 15))

    async def test_a_message_keeps_all_that_it_came_with(self, room: Room) -> None:
        call = pb.ToolCall(id="c1", name="send_message", arguments='{"message": "hi there"}')
        given = message(
            "ü" * 70_000, pb.ROLE_ASSISTANT, tool_calls=[call], otid="o1", name="n", sender_id="s", model="m",
            turn_id="t", agent_id=room.agent, conversation_id=room.conversation, run_id=new_id("run"),
        )  # fmt: skip
        await room.open(given)
        shown = (await room.window()).messages[1]
        assert shown.HasField("create_time")
        shown.ClearField("create_time")
        shown.ClearField("sequence_id")
        assert shown == given
