"""The suite of conversation stores."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from mnemesh_kit.errors import FailedPrecondition, MnemeshError, NotFound, RequestIdReused
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.errors import ConversationBusy
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.conversations import Conversation, ConversationFilter, ConversationOrigin
from mnemesh_orchestrator.model.events import RunEnd
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.conversations import ConversationStore
from mnemesh_orchestrator.store.runs import RunStore
from mnemesh_types.agents import ModelSettings

from .records import ALL, ORG, OTHER_ORG, a_run, an_agent, an_end, key, made

CREATE, FORK = "CreateConversation", "ForkConversation"
NO_ORIGIN = ConversationOrigin()


def a_thread(agent: Agent, clock: FrozenClock, **fields: Any) -> Conversation:
    return Conversation(
        id=new_id("conv"),
        organization_id=ORG,
        agent_id=agent.id,
        is_default=False,
        created_at=clock.now(),
        updated_at=clock.now(),
        **fields,
    )


async def opened(threads: ConversationStore, agent: Agent, clock: FrozenClock, **fields: Any) -> Conversation:
    thread = a_thread(agent, clock, **fields)
    await threads.begin_creation(None, thread, NO_ORIGIN)
    await threads.activate(thread, fields.get("last_message_at"))
    return await threads.get(ORG, thread.id)


class ConversationStoreSuite:
    """Subclass it with fixtures `threads`, `agents` and `runs` that return empty stores on the clock of `clock`."""

    @pytest.fixture
    async def agent(self, agents: AgentStore, clock: FrozenClock) -> Agent:
        return await made(agents, an_agent(clock))

    async def test_conversation_in_creation_is_not_found(
        self, threads: ConversationStore, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        thread, origin = a_thread(agent, clock), ConversationOrigin(new_id("message"), CREATE, "r-1")
        assert await threads.begin_creation(key(CREATE), thread, origin) == (thread.id, False)
        with pytest.raises(NotFound):
            await threads.get(ORG, thread.id)
        with pytest.raises(NotFound):
            await threads.update(None, ORG, thread.id, lambda thread: thread)
        with pytest.raises(NotFound):
            await threads.begin_deletion(None, ORG, thread.id)
        with pytest.raises(NotFound) as raised:
            await runs.start(None, a_run(agent, clock, conversation_id=thread.id), "me", reject_busy=False)
        assert raised.value.metadata["resource_id"] == thread.id
        listed = await threads.list(ORG, ConversationFilter(), "created_at", ALL)
        assert [found.id for found in listed.items] == [agent.default_conversation_id]
        (found,) = await threads.list_unfinished()
        assert (found.conversation, found.origin) == (thread, origin)
        assert await threads.list_unfinished(thread.id) == (found,)
        assert await threads.list_unfinished(new_id("conv")) == ()

    async def test_active_conversation_is_returned_unchanged(
        self, threads: ConversationStore, agent: Agent, clock: FrozenClock
    ) -> None:
        thread = a_thread(
            agent, clock, summary="s", description="", archived=True, model="a/b", created_by_id="user-1",
            model_settings=ModelSettings(temperature=0.0),
        )  # fmt: skip
        await threads.begin_creation(None, thread, NO_ORIGIN)
        await threads.activate(thread, clock.now())
        expected = replace(thread, last_message_at=clock.now())
        assert await threads.get(ORG, thread.id) == expected
        assert await threads.list_unfinished() == ()
        await threads.activate(thread, None)
        assert await threads.get(ORG, thread.id) == expected
        with pytest.raises(NotFound):
            await threads.get(OTHER_ORG, thread.id)

    async def test_creation_begins_once_for_each_request(
        self, threads: ConversationStore, agent: Agent, clock: FrozenClock
    ) -> None:
        candidates = [a_thread(agent, clock) for _ in range(4)]
        begun = await asyncio.gather(*(threads.begin_creation(key(CREATE), one, NO_ORIGIN) for one in candidates))
        assert len({id_ for id_, _ in begun}) == 1
        assert sorted(replayed for _, replayed in begun) == [False, True, True, True]
        with pytest.raises(RequestIdReused):
            await threads.begin_creation(key(CREATE, fingerprint="other"), candidates[0], NO_ORIGIN)

    async def test_conversation_requires_its_agent(
        self, threads: ConversationStore, agents: AgentStore, clock: FrozenClock
    ) -> None:
        half = an_agent(clock)
        await agents.begin_creation(None, half, b"")
        foreign = await made(agents, an_agent(clock, organization_id=OTHER_ORG))
        for agent in (half, foreign):
            with pytest.raises(NotFound):
                await threads.begin_creation(None, a_thread(agent, clock), NO_ORIGIN)
            with pytest.raises(NotFound):
                await threads.get(ORG, agent.default_conversation_id)

    async def test_abandoned_creation_releases_its_request_id(
        self, threads: ConversationStore, agent: Agent, clock: FrozenClock
    ) -> None:
        first, second = a_thread(agent, clock), a_thread(agent, clock)
        await threads.begin_creation(key(CREATE), first, NO_ORIGIN)
        assert await threads.abandon(first.id, key(CREATE))
        assert not await threads.abandon(first.id, key(CREATE))
        assert [(found.conversation.id, found.origin) for found in await threads.list_unfinished()] == [
            (first.id, None)
        ]
        assert await threads.begin_creation(key(CREATE), second, NO_ORIGIN) == (second.id, False)
        await threads.activate(second, None)
        assert not await threads.abandon(second.id, None)
        await threads.remove(second.id)  # only what is being deleted goes
        await threads.remove(first.id)
        assert (await threads.get(ORG, second.id)).id == second.id
        assert await threads.list_unfinished() == ()

    async def test_busy_conversation_is_not_deleted(
        self, threads: ConversationStore, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        source = await opened(threads, agent, clock)
        claim = (await runs.start(None, a_run(agent, clock, conversation_id=source.id), "me", reject_busy=False)).claim
        assert claim is not None
        with pytest.raises(ConversationBusy) as raised:
            await threads.begin_deletion(None, ORG, source.id)
        assert raised.value.metadata["run_id"] == claim.run.id
        await runs.finish(claim.lease, RunEnd(an_end(claim.run, clock)), ())
        assert await threads.begin_deletion(None, ORG, source.id)
        with pytest.raises(NotFound):
            await threads.begin_creation(None, a_thread(agent, clock, forked_from_id=source.id), NO_ORIGIN)

    async def test_deleted_conversation_is_not_found_and_a_repeat_succeeds(
        self, threads: ConversationStore, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        thread, again = await opened(threads, agent, clock), key("DeleteConversation")
        with pytest.raises(NotFound):
            await threads.begin_deletion(None, OTHER_ORG, thread.id)
        assert await threads.begin_deletion(again, ORG, thread.id)
        assert await threads.begin_deletion(again, ORG, thread.id), "its parts are still there"
        with pytest.raises(NotFound):
            await threads.begin_deletion(None, ORG, thread.id)
        with pytest.raises(NotFound):
            await runs.start(None, a_run(agent, clock, conversation_id=thread.id), "me", reject_busy=False)
        await threads.remove(thread.id)
        assert not await threads.begin_deletion(again, ORG, thread.id)
        with pytest.raises(NotFound):
            await threads.get(ORG, thread.id)

    async def test_default_conversation_cannot_be_deleted(self, threads: ConversationStore, agent: Agent) -> None:
        with pytest.raises(FailedPrecondition):
            await threads.begin_deletion(key("DeleteConversation"), ORG, agent.default_conversation_id)
        assert (await threads.get(ORG, agent.default_conversation_id)).is_default

    async def test_conversations_are_deleted_with_their_agent(
        self, threads: ConversationStore, agents: AgentStore, agent: Agent, clock: FrozenClock
    ) -> None:
        thread = await opened(threads, agent, clock)
        await agents.begin_deletion(ORG, agent.id)
        with pytest.raises(NotFound):
            await threads.get(ORG, thread.id)
        assert (await threads.list(ORG, ConversationFilter(), "created_at", ALL)).items == ()
        await agents.remove(agent.id)
        await threads.activate(thread, None)
        assert await threads.list_unfinished() == ()

    async def test_update_takes_effect_once_for_each_request(
        self, threads: ConversationStore, agent: Agent, clock: FrozenClock
    ) -> None:
        thread = await opened(threads, agent, clock, summary="a", last_message_at=clock.now())

        def longer(thread: Conversation) -> Conversation:
            return replace(thread, summary=f"{thread.summary}!", archived=True)

        for _ in range(2):
            changed = await threads.update(key("UpdateConversation"), ORG, thread.id, longer)
            assert changed == replace(thread, summary="a!", archived=True)

        def refuse(_: Conversation) -> Conversation:
            raise MnemeshError("no")

        with pytest.raises(MnemeshError):
            await threads.update(key("UpdateConversation", "r-2"), ORG, thread.id, refuse)
        with pytest.raises(NotFound):
            await threads.update(None, OTHER_ORG, thread.id, longer)
        assert await threads.get(ORG, thread.id) == changed

    async def test_lists_apply_filters(
        self, threads: ConversationStore, agents: AgentStore, clock: FrozenClock
    ) -> None:
        agent, other = await made(agents, an_agent(clock)), await made(agents, an_agent(clock))
        tea = await opened(threads, agent, clock, summary="Tea at 5, 100%")
        old = await opened(threads, agent, clock, archived=True)
        defaults = {agent.default_conversation_id, other.default_conversation_id}
        wanted = {
            ConversationFilter(): {tea.id, old.id, *defaults},
            ConversationFilter(agent_id=agent.id): {tea.id, old.id, agent.default_conversation_id},
            ConversationFilter(archived=True): {old.id},
            ConversationFilter(agent_id=agent.id, archived=False): {tea.id, agent.default_conversation_id},
            ConversationFilter(summary_search="TEA"): {tea.id},
            ConversationFilter(summary_search="0%"): {tea.id},
            ConversationFilter(summary_search="T_a"): set(),
        }
        for where, ids in wanted.items():
            assert {found.id for found in (await threads.list(ORG, where, "created_at", ALL)).items} == ids, where
        assert (await threads.list(OTHER_ORG, ConversationFilter(), "created_at", ALL)).items == ()

    @pytest.mark.parametrize("ascending", [True, False])
    async def test_conversations_without_messages_are_last(
        self, threads: ConversationStore, runs: RunStore, agent: Agent, clock: FrozenClock, *, ascending: bool
    ) -> None:
        early = await opened(threads, agent, clock, last_message_at=clock.now())
        late = await opened(threads, agent, clock)
        clock.advance(5)
        claim = (await runs.start(None, a_run(agent, clock, conversation_id=late.id), "me", reject_busy=False)).claim
        assert claim is not None
        await runs.finish(claim.lease, RunEnd(an_end(claim.run, clock, step_count=1)), ())
        clock.advance(5)
        claim = (await runs.start(None, a_run(agent, clock, conversation_id=early.id), "me", reject_busy=False)).claim
        assert claim is not None
        await runs.finish(claim.lease, RunEnd(an_end(claim.run, clock, step_count=0)), ())
        seen: list[str] = []
        query = PageQuery(1, ascending=ascending)
        while True:
            page = await threads.list(ORG, ConversationFilter(), "last_message_at", query)
            seen += [found.id for found in page.items]
            if page.next_cursor is None:
                break
            query = replace(query, cursor=page.next_cursor)
        spoken = [early.id, late.id] if ascending else [late.id, early.id]
        assert seen == [*spoken, agent.default_conversation_id]
        behind = await threads.list(ORG, ConversationFilter(), "last_message_at", replace(ALL, after_id=late.id))
        assert agent.default_conversation_id in {found.id for found in behind.items}
