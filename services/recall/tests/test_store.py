"""The rules of windows, steps and numbers, on each SQL engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
import pytest_asyncio
import sqlalchemy as sa
from engram_kit.clock import FrozenClock
from engram_kit.errors import AlreadyExists, InvalidArgument, NotFound, RequestIdReused
from engram_kit.idempotency import RequestKey
from engram_kit.ids import SequentialIds
from engram_kit.paging import PageQuery
from engram_kit.sql import Database
from engram_recall.commands import Batch, Fork, MessageFilter, NewContext, Replacement, SearchScope, StepCommit
from engram_recall.errors import Erased, LeaseLost, StepConflict, WindowMoved
from engram_recall.model import (
    ApprovalDecision,
    Approve,
    Context,
    Message,
    Role,
    TextPart,
    ToolCall,
    ToolReturn,
    ToolStatus,
    WindowIds,
)
from engram_recall.store.sql import SqlRecallStore

ORG = "org-00000000-0000-4000-8000-000000000001"
OTHER = "org-00000000-0000-4000-8000-000000000002"


def said(context: Context) -> list[str]:
    assert context.messages is not None
    return [part.text for message in context.messages for part in message.content if isinstance(part, TextPart)]


class Room:
    """One agent with one conversation, and short ways to write to them."""

    def __init__(self, store: SqlRecallStore, clock: FrozenClock, ids: SequentialIds) -> None:
        self.store, self.clock, self.ids = store, clock, ids
        self.agent, self.conversation = ids.new("agent"), ids.new("conv")

    def message(self, text: str, role: Role = Role.USER, **more: object) -> Message:
        values = {
            "id": self.ids.new("message"), "agent_id": self.agent, "role": role, "created_at": self.clock.now(),
            "content": (TextPart(text),), "conversation_id": self.conversation, **more,
        }  # fmt: skip
        return Message(**values)  # type: ignore[arg-type]

    async def open(self, *texts: str, key: RequestKey | None = None) -> Context:
        rows = (self.message("prompt", Role.SYSTEM), *(self.message(text) for text in texts))
        new = NewContext(agent_id=self.agent, conversation_id=self.conversation, messages=rows)
        return await self.store.create_context(ORG, new, key)

    def step(self, *texts: str, base: int = 1, epoch: int = 1, **more: object) -> StepCommit:
        values = {
            "agent_id": self.agent, "conversation_id": self.conversation, "step_id": self.ids.new("step"),
            "epoch": epoch, "base_version": base, "messages": tuple(self.message(text) for text in texts), **more,
        }  # fmt: skip
        return StepCommit(**values)  # type: ignore[arg-type]

    async def window(self) -> Context:
        return await self.store.get_context(ORG, self.conversation, None)


class RecallStoreSuite:
    """What every store of recall does."""

    @pytest.fixture
    def room(self, store: SqlRecallStore, clock: FrozenClock) -> Room:
        return Room(store, clock, SequentialIds())

    async def test_a_step_extends_the_window_and_rewrites_the_system_message_in_place(self, room: Room) -> None:
        opened = await room.open("hello")
        assert opened.messages is not None
        step = room.step("hi", "there", system_text="new prompt", hidden_messages=(room.message("hidden"),))
        result = await room.store.commit_step(ORG, step)
        assert (result.version, result.rebased, result.replayed, result.context) == (2, False, False, None)
        assert result.sequence_ids == (3, 4, 5)
        assert result.agent_message_count == 5
        window = await room.window()
        assert said(window) == ["new prompt", "hello", "hi", "there"]
        assert window.messages is not None
        assert window.messages[0].id == opened.messages[0].id
        assert (window.version, window.epoch, window.agent_message_count) == (2, 1, 5)

    async def test_a_known_version_brings_no_messages(self, room: Room) -> None:
        await room.open("hello")
        assert (await room.store.get_context(ORG, room.conversation, 1)).messages is None
        assert (await room.store.get_context(ORG, room.conversation, 2)).messages is not None

    async def test_the_ids_of_many_windows_come_at_once(self, room: Room) -> None:
        other = Room(room.store, room.clock, room.ids)
        mine, theirs = await room.open("one", "two"), await other.open()
        assert mine.messages is not None
        assert theirs.messages is not None
        await room.store.commit_step(ORG, room.step("three"))
        shown = (await room.window()).messages
        assert shown is not None
        asked = [other.conversation, room.ids.new("conv"), room.conversation]
        found = await room.store.get_window_ids(ORG, asked)
        assert found == (
            WindowIds(other.conversation, other.agent, 1, (theirs.messages[0].id,)),
            WindowIds(room.conversation, room.agent, 2, tuple(message.id for message in shown)),
        )
        assert await room.store.get_window_ids(OTHER, asked) == ()
        assert await room.store.get_window_ids(ORG, []) == ()

    async def test_a_step_is_committed_once(self, room: Room) -> None:
        await room.open()
        step = room.step("once")
        first = await room.store.commit_step(ORG, step)
        room.clock.advance(60)
        # The holder that takes over has a higher epoch, another version, other times, another rendering.
        again = room.step("x", base=7, epoch=9, step_id=step.step_id, messages=step.messages, system_text="later")
        second = await room.store.commit_step(ORG, again)
        assert second.replayed
        assert (second.version, second.sequence_ids) == (first.version, first.sequence_ids)
        assert said(await room.window()) == ["prompt", "once"]
        with pytest.raises(StepConflict):
            await room.store.commit_step(ORG, room.step("other", step_id=step.step_id))

    async def test_idempotency_is_checked_before_the_epoch_and_the_epoch_before_the_version(self, room: Room) -> None:
        await room.open()
        old = room.step("old", epoch=1)
        await room.store.commit_step(ORG, old)
        await room.store.commit_step(ORG, room.step("new", epoch=2, base=2))
        assert (await room.store.commit_step(ORG, old)).replayed
        with pytest.raises(LeaseLost) as lost:
            await room.store.commit_step(ORG, room.step("late", epoch=1, base=99))
        assert lost.value.metadata == {"conversation_id": room.conversation, "epoch": "2"}
        assert said(await room.window()) == ["prompt", "old", "new"]

    async def test_a_moved_window_gets_the_step_behind_it(self, room: Room) -> None:
        await room.open()
        batch = Batch(agent_id=room.agent, conversation_id=room.conversation, messages=(room.message("between"),))
        await room.store.append_messages(ORG, batch, None)
        step = room.step("step", base=1)
        result = await room.store.commit_step(ORG, step)
        assert result.rebased
        assert result.context is not None
        assert said(result.context) == ["prompt", "between", "step"]
        assert result.context.version == result.version == 3
        assert (await room.store.commit_step(ORG, step)).context == result.context

    async def test_a_message_stored_before_enters_the_window_once(self, room: Room) -> None:
        await room.open()
        early = room.message("input", conversation_id=None)
        batch = Batch(agent_id=room.agent, conversation_id=None, messages=(early,))
        assert (await room.store.append_messages(ORG, batch, None)).sequence_ids == (2,)
        assert (await room.store.append_messages(ORG, batch, None)).sequence_ids == (2,)
        result = await room.store.commit_step(ORG, room.step(messages=(early, room.message("answer"))))
        assert result.sequence_ids == (2, 3)
        again = await room.store.commit_step(ORG, room.step(messages=(early,), base=2))
        assert (again.sequence_ids, again.agent_message_count) == ((2,), 3)
        assert said(await room.window()) == ["prompt", "input", "answer"]

    async def test_an_id_with_other_content_stores_nothing(self, room: Room) -> None:
        await room.open()
        first = room.message("first")
        await room.store.commit_step(ORG, room.step(messages=(first,)))
        clash = room.message("second", id=first.id)
        with pytest.raises(AlreadyExists):
            await room.store.commit_step(ORG, room.step(messages=(room.message("new"), clash), base=2))
        assert said(await room.window()) == ["prompt", "first"]

    async def test_a_replacement_keeps_the_rows_that_leave(self, room: Room) -> None:
        opened = await room.open("one", "two", "three")
        assert opened.messages is not None
        system, one, *_, three = opened.messages
        summary = room.message("so far", Role.SUMMARY)
        new = Replacement(
            agent_id=room.agent,
            conversation_id=room.conversation,
            base_version=1,
            message_ids=(system.id, summary.id, three.id),
            new_messages=(summary,),
            system_text="compacted",
            epoch=3,
        )
        replaced = await room.store.replace_context(ORG, new, None)
        assert said(replaced) == ["compacted", "so far", "three"]
        assert (replaced.version, replaced.epoch) == (2, 3)
        assert await room.store.get_messages(ORG, [one.id]) == (one,)
        with pytest.raises(WindowMoved) as moved:
            await room.store.replace_context(ORG, new, None)
        assert moved.value.metadata["version"] == "2"
        with pytest.raises(LeaseLost):
            await room.store.commit_step(ORG, room.step("late", epoch=2, base=2))

    async def test_a_replacement_of_unknown_or_foreign_rows_is_refused(self, room: Room) -> None:
        opened = await room.open("one")
        assert opened.messages is not None
        system, one = opened.messages

        def window(*ids: str) -> Replacement:
            return Replacement(agent_id=room.agent, conversation_id=room.conversation, base_version=1, message_ids=ids)

        with pytest.raises(NotFound):
            await room.store.replace_context(ORG, window(system.id, room.ids.new("message")), None)
        with pytest.raises(InvalidArgument):
            await room.store.replace_context(ORG, window(one.id, system.id), None)
        assert said(await room.window()) == ["prompt", "one"]

    async def test_a_call_without_a_return_is_answered_in_the_window_until_its_return_comes(self, room: Room) -> None:
        await room.open()
        calls = (ToolCall("call-1", "dig", "{}"), ToolCall("call-2", "dig", "{}"))
        asked = room.message("", Role.ASSISTANT, content=(), tool_calls=calls, turn_id="turn-1")
        dug = room.message("", Role.TOOL, content=(), tool_returns=(ToolReturn("call-1", "dig", ToolStatus.SUCCESS),))
        await room.store.commit_step(ORG, room.step(messages=(asked, dug, room.message("and?"))))
        window = await room.window()
        assert window.messages is not None
        _, first, repair, *rest = window.messages
        assert (first.id, next(message.id for message in rest), said(window)[-1]) == (asked.id, dug.id, "and?")
        (answer,) = repair.tool_returns
        assert (repair.role, repair.sequence_id, repair.turn_id) == (Role.TOOL, 0, "turn-1")
        assert (answer.tool_call_id, answer.name, answer.status) == ("call-2", "dig", ToolStatus.ERROR)
        assert await room.window() == window
        assert await room.store.get_messages(ORG, [repair.id]) == ()
        (ids,) = await room.store.get_window_ids(ORG, [room.conversation])
        assert ids.message_ids == tuple(message.id for message in window.messages if message is not repair)
        late = room.message("", Role.TOOL, content=(), tool_returns=(ToolReturn("call-2", "dig", ToolStatus.SUCCESS),))
        await room.store.commit_step(ORG, room.step(messages=(late,), base=2))
        healed = (await room.window()).messages
        assert healed is not None
        assert repair.id not in {message.id for message in healed}

    async def test_a_call_that_waits_for_approval_waits(self, room: Room) -> None:
        await room.open()
        call = ToolCall("call-1", "dig", "{}")
        request = room.message("", Role.APPROVAL, content=(), tool_calls=(call,))
        await room.store.commit_step(ORG, room.step(messages=(request,)))
        assert len((await room.window()).messages or ()) == 2
        decision = (ApprovalDecision("call-1", Approve()),)
        answer = room.message(
            "", Role.APPROVAL, content=(), approval_decisions=decision, approval_request_id=request.id
        )
        await room.store.commit_step(ORG, room.step(messages=(answer,), base=2))
        window = (await room.window()).messages or ()
        assert [message.role for message in window[1:]] == [Role.APPROVAL, Role.TOOL, Role.APPROVAL]

    async def test_calls_beside_one_that_waits_wait_with_it(self, room: Room) -> None:
        await room.open()
        calls = (ToolCall("call-1", "look", "{}"), ToolCall("call-2", "dig", "{}"))
        asked = room.message("", Role.ASSISTANT, content=(), tool_calls=calls)
        request = room.message("", Role.APPROVAL, content=(), tool_calls=calls[1:])
        await room.store.commit_step(ORG, room.step(messages=(asked, request)))
        assert [message.role for message in (await room.window()).messages or ()][1:] == [Role.ASSISTANT, Role.APPROVAL]
        answer = room.message(
            "",
            Role.APPROVAL,
            content=(),
            approval_decisions=(ApprovalDecision("call-2", Approve()),),
            approval_request_id=request.id,
        )
        returns = tuple(ToolReturn(item.id, item.name, ToolStatus.SUCCESS) for item in calls)
        returned = room.message("", Role.TOOL, content=(), tool_returns=returns)
        await room.store.commit_step(ORG, room.step(messages=(answer, returned), base=2))
        window = (await room.window()).messages or ()
        roles = [Role.ASSISTANT, Role.APPROVAL, Role.APPROVAL, Role.TOOL]
        assert [message.role for message in window[1:]] == roles

    async def test_a_repair_that_a_new_window_keeps_is_stored(self, room: Room) -> None:
        await room.open()
        asked = room.message("", Role.ASSISTANT, content=(), tool_calls=(ToolCall("call-1", "dig", "{}"),))
        await room.store.commit_step(ORG, room.step(messages=(asked,)))
        fork_id = room.ids.new("conv")
        shown = (await room.window()).messages or ()
        fork = Fork(
            source_conversation_id=room.conversation,
            conversation_id=fork_id,
            system_message=room.message("fork prompt", Role.SYSTEM, conversation_id=fork_id),
            until_message_id=shown[-1].id,
        )
        forked = (await room.store.fork_context(ORG, fork, None)).messages or ()
        assert forked[1:] == shown[1:]
        new = Replacement(
            agent_id=room.agent,
            conversation_id=room.conversation,
            base_version=2,
            message_ids=tuple(message.id for message in shown),
        )
        kept = (await room.store.replace_context(ORG, new, None)).messages or ()
        assert [message.id for message in kept] == [message.id for message in shown]
        assert kept[-1].sequence_id == 4
        assert await room.store.get_messages(ORG, [shown[-1].id]) == (kept[-1],)
        # The fork shows the same answer to the same call, stored or not.
        assert ((await room.store.get_context(ORG, fork_id, None)).messages or ())[-1].id == shown[-1].id
        strange = replace(new, base_version=3, message_ids=(*new.message_ids, room.ids.new("message")))
        with pytest.raises(NotFound):
            await room.store.replace_context(ORG, strange, None)

    async def test_a_request_id_gives_the_first_result_again(self, room: Room) -> None:
        key = RequestKey(ORG, "CreateContext", "r1", "f1")
        first = await room.open("hello", key=key)
        assert await room.open("ignored by the key", key=key) == first
        with pytest.raises(RequestIdReused):
            await room.open(key=RequestKey(ORG, "CreateContext", "r1", "f2"))
        with pytest.raises(AlreadyExists):
            await room.open("hello")
        append = RequestKey(ORG, "AppendMessages", "r2", "f")
        batch = Batch(agent_id=room.agent, conversation_id=room.conversation, messages=(room.message("more"),))
        done = await room.store.append_messages(ORG, batch, append)
        assert (done.sequence_ids, done.version) == ((3,), 2)
        assert await room.store.append_messages(ORG, batch, append) == done

    async def test_a_fork_shares_rows_and_goes_its_own_way(self, room: Room) -> None:
        opened = await room.open("one", "two")
        assert opened.messages is not None
        fork_id = room.ids.new("conv")
        system = room.message("fork prompt", Role.SYSTEM, conversation_id=fork_id)
        fork = Fork(
            source_conversation_id=room.conversation,
            conversation_id=fork_id,
            system_message=system,
            until_message_id=opened.messages[1].id,
        )
        assert said(await room.store.fork_context(ORG, fork, None)) == ["fork prompt", "one"]
        await room.store.commit_step(ORG, room.step("only here", system_text="renamed"))
        assert said(await room.store.get_context(ORG, fork_id, None)) == ["fork prompt", "one"]
        # What the fork shows stays when the source goes with its messages.
        gone = await room.store.delete_context(ORG, room.conversation, None, delete_messages=True)
        assert gone == 3
        assert said(await room.store.get_context(ORG, fork_id, None)) == ["fork prompt", "one"]
        with pytest.raises(NotFound):
            await room.window()

    async def test_a_changed_or_deleted_message_is_seen_by_windows_and_search(self, room: Room) -> None:
        opened = await room.open("the red fox", "second", "third")
        assert opened.messages is not None
        fox = opened.messages[1]
        scope = SearchScope(organization_id=ORG, agent_id=room.agent)
        assert (await room.store.search_words(scope, ["fox"], 5))[0][0] == fox.id
        changed = room.message("the grey wolf", id=fox.id)
        updated = await room.store.update_message(ORG, changed, frozenset({"content"}), None)
        assert updated.sequence_id == fox.sequence_id
        assert await room.store.search_words(scope, ["fox"], 5) == []
        assert (await room.store.search_words(scope, ["wolf"], 5))[0][0] == fox.id
        window = await room.window()
        assert (window.version, said(window)[1]) == (2, "the grey wolf")
        await room.store.delete_message(ORG, fox.id, None)
        await room.store.delete_message(ORG, fox.id, None)
        assert await room.store.search_words(scope, ["wolf"], 5) == []
        window = await room.window()
        assert (window.version, said(window)) == (3, ["prompt", "second", "third"])
        assert window.agent_message_count == 3

    async def test_an_erased_agent_is_gone_and_stays_gone(self, room: Room) -> None:
        await room.open("secret")
        step = room.step("late")
        gone = await room.store.erase_agent(ORG, room.agent, None)
        assert (gone.messages, gone.contexts) == (2, 1)
        scope = SearchScope(organization_id=ORG)
        assert await room.store.search_words(scope, ["secret"], 5) == []
        with pytest.raises(NotFound):
            await room.window()
        for write in (
            room.store.commit_step(ORG, step),
            room.open(),
            room.store.append_messages(
                ORG, Batch(agent_id=room.agent, conversation_id=None, messages=(room.message("x"),)), None
            ),
        ):
            with pytest.raises(Erased):
                await write
        assert (await room.store.erase_agent(ORG, room.agent, None)).messages == 0

    async def test_an_agent_that_was_never_seen_can_be_erased(self, room: Room) -> None:
        assert (await room.store.erase_agent(ORG, room.agent, None)).messages == 0
        with pytest.raises(Erased):
            await room.open()

    async def test_another_organization_sees_nothing(self, room: Room) -> None:
        opened = await room.open("ours")
        assert opened.messages is not None
        theirs = Room(room.store, room.clock, room.ids)
        theirs.agent, theirs.conversation = room.agent, room.conversation
        store = room.store
        for attempt in (
            store.get_context(OTHER, room.conversation, None),
            store.get_context(OTHER, room.conversation, 1),
            store.commit_step(OTHER, room.step("theirs")),
            store.append_messages(
                OTHER, Batch(agent_id=room.agent, conversation_id=None, messages=(room.message("x"),)), None
            ),
            store.delete_context(OTHER, room.conversation, None, delete_messages=True),
            store.erase_agent(OTHER, room.agent, None),
            store.update_message(OTHER, opened.messages[1], frozenset({"content"}), None),
        ):
            with pytest.raises(NotFound):
                await attempt
        assert await store.get_messages(OTHER, [opened.messages[1].id]) == ()
        assert await store.search_words(SearchScope(organization_id=OTHER), ["ours"], 5) == []
        await store.delete_message(OTHER, opened.messages[1].id, None)
        assert said(await room.window()) == ["prompt", "ours"]

    async def test_many_writers_of_one_agent_lose_and_double_nothing(self, room: Room) -> None:
        await room.open()
        writers, each = 8, 12

        async def write(writer: int) -> list[int]:
            numbers: list[int] = []
            for turn in range(each):
                result = await room.store.commit_step(ORG, room.step(f"w{writer} t{turn}", base=0))
                numbers += result.sequence_ids
            return numbers

        per_writer = await asyncio.gather(*(write(writer) for writer in range(writers)))
        assert all(numbers == sorted(numbers) for numbers in per_writer)
        assert sorted(number for numbers in per_writer for number in numbers) == list(range(2, writers * each + 2))
        window = await room.window()
        assert len(set(said(window))) == writers * each + 1
        assert window.version == writers * each + 1
        assert window.messages is not None
        assert [m.sequence_id for m in window.messages] == list(range(1, writers * each + 2))

    async def test_lists_page_through_every_row_in_both_directions(self, room: Room) -> None:
        await room.open(*(f"t{number}" for number in range(25)))
        failed = room.message("failed", is_err=True)
        called = room.message("calls", Role.ASSISTANT, tool_calls=(ToolCall("call-7", "dig", "{}"),))
        await room.store.commit_step(ORG, room.step(messages=(failed, called)))
        for wanted in (MessageFilter(agent_ids=(room.agent,)), MessageFilter()):
            for ascending in (True, False):
                seen: list[int] = []
                page = await room.store.list_messages(ORG, wanted, PageQuery(limit=10, ascending=ascending))
                seen += [message.sequence_id for message in page.items]
                while page.next_cursor is not None:
                    query = PageQuery(limit=10, ascending=ascending, cursor=page.next_cursor)
                    page = await room.store.list_messages(ORG, wanted, query)
                    seen += [message.sequence_id for message in page.items]
                expected = [number for number in range(1, 29) if number != 27]
                assert seen == (expected if ascending else expected[::-1])

        async def listed(**narrow: object) -> list[str]:
            wanted = MessageFilter(agent_ids=(room.agent,), **narrow)  # type: ignore[arg-type]
            page = await room.store.list_messages(ORG, wanted, PageQuery(limit=100, ascending=True))
            return [message.id for message in page.items]

        assert await listed(tool_call_id="call-7") == [called.id]
        assert await listed(include_err=True, text="nothing%") == []
        assert len(await listed(text="T1")) == 11
        assert await listed(roles=(Role.ASSISTANT,)) == [called.id]
        assert len(await listed(until_time=room.clock.now())) == 27
        assert await listed(from_time=datetime.fromisoformat("2999-01-01T00:00+00:00")) == []


async def opened(url: str, clock: FrozenClock) -> AsyncIterator[SqlRecallStore]:
    database = Database.open(url)
    await database.migrate("engram_recall")
    yield SqlRecallStore(database, clock)
    await database.close()


class TestOnSqlite(RecallStoreSuite):
    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path, clock: FrozenClock) -> AsyncIterator[SqlRecallStore]:
        async for store in opened(f"sqlite:///{tmp_path / 'recall.db'}", clock):
            yield store


class TestOnPostgres(RecallStoreSuite):
    @pytest_asyncio.fixture
    async def store(self, postgres_url: str, clock: FrozenClock) -> AsyncIterator[SqlRecallStore]:
        async for store in opened(postgres_url, clock):
            yield store


async def test_the_migrations_make_the_tables_that_the_code_declares(database_url: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from engram_recall.store.tables import metadata

    database = Database.open(database_url)
    await database.migrate("engram_recall")

    def differences(conn: sa.Connection) -> list[object]:
        # The word index is each engine's own, and no table of SQLAlchemy's.
        options = {"include_name": lambda name, *_: not (name or "").startswith(("message_words", "ix_message_words"))}
        return list(compare_metadata(MigrationContext.configure(conn, opts=options), metadata))

    assert await database.read(differences) == []
    await database.close()
