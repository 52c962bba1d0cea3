"""EpisodeService over the wire, on each SQL engine."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import grpc
from mnemesh.recall.v1 import contexts_pb2, episodes_pb2
from mnemesh.recall.v1 import episodes_service_pb2 as rpc
from mnemesh.recall.v1 import messages_service_pb2 as messages
from mnemesh.types.v1 import paging_pb2
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.ids import new_id
from mnemesh_kit.time import FrozenClock
from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.timeouts import scaled

from .episode_requests import (
    AGENT,
    CONVERSATION,
    DAY,
    MINE,
    PEER,
    TEAM,
    Operation,
    at,
    fact,
    held,
    learn,
    look_back,
    open_window,
    rests_on,
    summary,
    supersede,
)


async def test_episode_commit_is_atomic_and_idempotent(recall: Any, clock: FrozenClock) -> None:
    ids = await open_window(recall, "I moved to Paris", "and I like tea")
    berlin, tea, gone = [await learn(recall, text) for text in ("Lives in Berlin", "Likes tea", "Has a cat")]
    clock.advance(DAY)
    request = look_back(
        request_id="compaction/1",
        conversation_id=CONVERSATION,
        lease=contexts_pb2.WriterLease(run_id=new_id("run"), epoch=3),
        episode=summary(
            turn_ids=["turn_0001", "turn_0002"],
            salience=0.5,
            tags=["travel"],
            source=rests_on(*ids[1:], agent_id=AGENT),
        ),
        operations=[
            Operation(add=episodes_pb2.Fact(text="Speaks French", source=rests_on(ids[1]))),
            Operation(
                supersede=episodes_pb2.SupersedeOperation(
                    fact_id=berlin.id, fact=episodes_pb2.Fact(text="Lives in Paris")
                )
            ),
            Operation(confirm=episodes_pb2.ConfirmOperation(fact_id=tea.id, confidence=1.0, source=rests_on(ids[2]))),
            Operation(invalidate=episodes_pb2.InvalidateOperation(fact_id=gone.id, reason="ran away")),
        ],
    )
    done = await recall.episodes.CommitEpisode(request)
    assert [item.text for item in done.facts] == ["Speaks French", "Lives in Paris", "Likes tea", "Has a cat"]
    assert done.episode.scope == MINE
    assert (done.episode.start_time, done.episode.end_time) == (
        at(datetime(2026, 1, 2, tzinfo=UTC)),
        at(datetime(2026, 1, 3, tzinfo=UTC)),
    )
    assert done.facts[0].source.episode_id == done.episode.id
    assert await recall.episodes.CommitEpisode(request) == done
    assert sorted(await held(recall)) == ["Likes tea", "Lives in Paris", "Speaks French"]
    assert sorted(await held(recall, episode_id=done.episode.id)) == ["Lives in Paris", "Speaks French"]
    assert await held(recall, message_id=ids[2]) == ["Likes tea"]
    for wanted in (
        rpc.EpisodeFilter(agent_id=AGENT, turn_id="turn_0002"),
        rpc.EpisodeFilter(agent_id=AGENT),
        rpc.EpisodeFilter(message_id=ids[1], tags_any=["travel", "x"], tags_all=["travel"]),
    ):
        listed = await recall.episodes.ListEpisodes(rpc.ListEpisodesRequest(filter=wanted))
        assert list(listed.episodes) == [done.episode]
    unknown = rpc.EpisodeFilter(agent_id=AGENT, turn_id="turn_0003")
    assert not (await recall.episodes.ListEpisodes(rpc.ListEpisodesRequest(filter=unknown))).episodes
    window = (await recall.GetContext(messages.GetContextRequest(conversation_id=CONVERSATION))).context
    assert (window.version, window.epoch) == (1, 3)


async def test_failed_episode_commit_changes_nothing(recall: Any) -> None:
    await open_window(recall)
    old = await learn(recall, "Likes tea")
    new = (await supersede(recall, old, "Likes coffee")).fact
    add = Operation(add=episodes_pb2.Fact(text="Speaks French"))
    close = Operation(confirm=episodes_pb2.ConfirmOperation(fact_id=old.id))
    error = await catch_refusal(recall.episodes.CommitEpisode(look_back(episode=summary(), operations=[add, close])))
    assert error.metadata["superseded_by_id"] == new.id
    lease = contexts_pb2.WriterLease(run_id=new_id("run"), epoch=5)
    await recall.episodes.CommitEpisode(look_back(episode=summary("first"), conversation_id=CONVERSATION, lease=lease))
    lease.epoch = 4
    error = await catch_refusal(
        recall.episodes.CommitEpisode(look_back(episode=summary(), conversation_id=CONVERSATION, lease=lease))
    )
    assert error.reason == "LEASE_LOST"
    assert isinstance(
        await catch_refusal(
            recall.episodes.CommitEpisode(look_back(episode=summary(), conversation_id=new_id("conv")))
        ),
        NotFound,
    )
    assert await held(recall) == ["Likes coffee"]
    listed = await recall.episodes.ListEpisodes(rpc.ListEpisodesRequest())
    assert [episode.summary for episode in listed.episodes] == ["first"]


async def test_two_agents_share_only_a_named_scope(recall: Any) -> None:
    peers = episodes_pb2.MemoryScope(agent_id=PEER)
    await learn(recall, "The release is on Friday", scope=TEAM)
    await learn(recall, "Ada likes tea")
    await learn(recall, "Bob likes coffee", scope=peers)
    for own, text in ((MINE, "Ada likes tea"), (peers, "Bob likes coffee")):
        bundle = await recall.episodes.GetMemoryBundle(rpc.GetMemoryBundleRequest(scopes=[own, TEAM]))
        assert {item.text for item in bundle.facts} == {text, "The release is on Friday"}
    found = await recall.episodes.SearchFacts(
        rpc.SearchFactsRequest(query="who likes what", filter=rpc.FactFilter(scopes=[MINE, TEAM]))
    )
    assert found.hits[0].fact.text == "Ada likes tea"
    assert "Bob likes coffee" not in {hit.fact.text for hit in found.hits}
    await learn(recall, "Something else", scope=episodes_pb2.MemoryScope(name="team/sales"))
    scopes = (await recall.episodes.ListMemoryScopes(rpc.ListMemoryScopesRequest())).scopes
    assert sorted(item.scope.agent_id for item in scopes[:2]) == sorted((AGENT, PEER))
    assert [(item.scope.name, item.fact_count) for item in scopes[2:]] == [("team/sales", 1), ("team/support", 1)]
    named = rpc.ListMemoryScopesRequest(name_prefix="team/su")
    assert [item.scope for item in (await recall.episodes.ListMemoryScopes(named)).scopes] == [TEAM]
    behind = rpc.ListMemoryScopesRequest(after_id="team/sales")
    assert [item.scope for item in (await recall.episodes.ListMemoryScopes(behind)).scopes] == [TEAM]


async def test_bundle_has_the_newest_episodes_and_the_most_salient_facts(recall: Any, clock: FrozenClock) -> None:
    for number in range(5):
        await recall.episodes.CommitEpisode(look_back(episode=summary(f"episode {number}")))
        clock.advance(60)
    for number, salience in enumerate((0.1, 0.9, None, 0.5, 0.9)):
        await learn(recall, f"fact {number}", salience=salience)
        clock.advance(60)
    bundle = await recall.episodes.GetMemoryBundle(rpc.GetMemoryBundleRequest(scopes=[MINE], max_facts=3))
    assert [episode.summary for episode in bundle.episodes] == ["episode 2", "episode 3", "episode 4"]
    assert [item.text for item in bundle.facts] == ["fact 1", "fact 3", "fact 4"]
    none = rpc.GetMemoryBundleRequest(scopes=[MINE], max_facts=0, max_episodes=0)
    assert await recall.episodes.GetMemoryBundle(none) == rpc.GetMemoryBundleResponse()
    assert (await catch_refusal(recall.episodes.GetMemoryBundle(rpc.GetMemoryBundleRequest()))).field == "scopes"


async def test_search_finds_by_stem_and_respects_time_and_tags(recall: Any, clock: FrozenClock) -> None:
    old = await learn(recall, "Practises the guitar on Sundays", tags=["music"])
    await learn(recall, "Guitars are expensive", tags=["money"])
    await learn(recall, "Prefers tea")
    before = clock.now()
    clock.advance(DAY)
    await supersede(recall, old, "Plays the cello")

    async def find(query: str, **filters: Any) -> list[str]:
        request = rpc.SearchFactsRequest(
            query=query, mode=messages.SEARCH_MODE_TEXT, filter=rpc.FactFilter(scopes=[MINE], **filters)
        )
        return [hit.fact.text for hit in (await recall.episodes.SearchFacts(request)).hits]

    assert await find("practising guitars") == ["Guitars are expensive"]
    assert (await find("practising guitars", known_at_time=at(before)))[0] == "Practises the guitar on Sundays"
    assert await find("guitar", known_at_time=at(before), tags_all=["money"]) == ["Guitars are expensive"]
    assert await find("   ") == ["Plays the cello", "Prefers tea", "Guitars are expensive"]
    assert await find("zebra") == []
    long_ago = [at(datetime(2025, 6, day, tzinfo=UTC)) for day in (1, 3)]
    walk = summary("A long walk", start_time=long_ago[0], end_time=long_ago[1])
    await recall.episodes.CommitEpisode(look_back(episode=walk))
    for start, end, count in (("2025-06-02", None, 1), (None, "2025-05-31", 0), ("2025-06-04", None, 0)):
        request = rpc.SearchEpisodesRequest(query="walking", start_date=start, end_date=end)
        assert len((await recall.episodes.SearchEpisodes(request)).hits) == count


async def test_vector_search_finds_memories_after_indexing(recall: Any) -> None:
    await learn(recall, "Ada keeps a tortoise named Turing")
    request = rpc.SearchFactsRequest(
        query="tortoise Turing", mode=messages.SEARCH_MODE_VECTOR, filter=rpc.FactFilter(scopes=[MINE])
    )
    async with asyncio.timeout(scaled(60)):
        while not (hits := (await recall.episodes.SearchFacts(request)).hits):
            await asyncio.sleep(0.02)
    assert hits[0].fact.text == "Ada keeps a tortoise named Turing"
    both = rpc.SearchFactsRequest(query="tortoise", filter=rpc.FactFilter(scopes=[MINE]))
    hybrid = await recall.episodes.SearchFacts(both)
    assert (len(hybrid.hits), hybrid.degraded) == (1, False)
    await recall.episodes.DeleteFact(rpc.DeleteFactRequest(fact_id=hits[0].fact.id))
    assert not (await recall.episodes.SearchFacts(request)).hits


async def test_fields_of_episodes_and_facts_can_be_updated(recall: Any) -> None:
    created = (await recall.episodes.CommitEpisode(look_back(episode=summary(tags=["a"], salience=0.5)))).episode
    update = rpc.UpdateEpisodeRequest(episode=episodes_pb2.Episode(id=created.id, summary="Of trains.", tags=["b"]))
    update.update_mask.paths.extend(["summary", "tags", "salience"])
    changed = (await recall.episodes.UpdateEpisode(update)).episode
    assert (changed.summary, list(changed.tags), changed.HasField("salience")) == ("Of trains.", ["b"], False)
    found = await recall.episodes.SearchEpisodes(rpc.SearchEpisodesRequest(query="train travel"))
    assert [hit.episode.id for hit in found.hits] == [created.id]
    assert not (await recall.episodes.SearchEpisodes(rpc.SearchEpisodesRequest(query="travel", mode=2))).hits
    known = await learn(recall, "Likes tea", tags=["x"])
    again = rpc.UpdateFactRequest(fact=episodes_pb2.Fact(id=known.id, confidence=0.25, metadata='{"by": "hand"}'))
    again.update_mask.paths.extend(["confidence", "metadata", "tags"])
    fixed = (await recall.episodes.UpdateFact(again)).fact
    assert (fixed.text, fixed.confidence, fixed.metadata, list(fixed.tags)) == (
        "Likes tea", 0.25, '{"by": "hand"}', [],
    )  # fmt: skip
    for paths in (["text"], [], ["confidence", "id"]):
        del again.update_mask.paths[:]
        again.update_mask.paths.extend(paths)
        assert (await catch_refusal(recall.episodes.UpdateFact(again))).field == "update_mask"


async def test_repeated_request_id_returns_the_first_result(recall: Any) -> None:
    request = rpc.CreateFactRequest(request_id="f1", fact=fact("Likes tea"))
    first = await recall.episodes.CreateFact(request)
    assert await recall.episodes.CreateFact(request) == first
    request.fact.text = "Likes coffee"
    assert (await catch_refusal(recall.episodes.CreateFact(request))).reason == "REQUEST_ID_REUSED"
    operation = episodes_pb2.SupersedeOperation(fact_id=first.fact.id, fact=episodes_pb2.Fact(text="Likes water"))
    twice = rpc.SupersedeFactRequest(request_id="s1", operation=operation)
    assert await recall.episodes.SupersedeFact(twice) == await recall.episodes.SupersedeFact(twice)


async def test_invalid_requests_are_refused_by_field(recall: Any, clock: FrozenClock) -> None:
    now = at(clock.now())
    for wrong, field in (
        (fact(""), "fact.text"),
        (fact("x" * 10_001), "fact.text"),
        (episodes_pb2.Fact(text="x"), "fact.scope"),
        (fact("x", episodes_pb2.MemoryScope(name="")), "fact.scope.name"),
        (fact("x", episodes_pb2.MemoryScope(agent_id="ada")), "fact.scope.agent_id"),
        (fact("x", confidence=1.5), "fact.confidence"),
        (fact("x", salience=float("nan")), "fact.salience"),
        (fact("x", tags=[""]), "fact.tags[0]"),
        (fact("x", metadata="[]"), "fact.metadata"),
        (fact("x", valid_from_time=now, invalid_time=now), "fact.invalid_time"),
        (fact("x", source=episodes_pb2.MemorySource(message_ids=["m"])), "fact.source.message_ids[0]"),
    ):
        error = await catch_refusal(recall.episodes.CreateFact(rpc.CreateFactRequest(fact=wrong)))
        assert (type(error), error.field) == (InvalidArgument, field)
    for request, field in (
        (rpc.CommitEpisodeRequest(scope=MINE), "episode"),
        (rpc.CommitEpisodeRequest(episode=summary()), "episode.scope"),
        (look_back(episode=summary(" ")), "episode.summary"),
        (look_back(operations=[Operation()]), "operations[0]"),
        (look_back(episode=summary(), lease=contexts_pb2.WriterLease(run_id=new_id("run"))), "conversation_id"),
    ):
        error = await catch_refusal(recall.episodes.CommitEpisode(request))
        assert (type(error), error.field) == (InvalidArgument, field)
    filters = rpc.EpisodeFilter(turn_id="turn_0001")
    error = await catch_refusal(recall.episodes.ListEpisodes(rpc.ListEpisodesRequest(filter=filters)))
    assert error.field == "filter.agent_id"
    assert not (await recall.episodes.ListMemoryScopes(rpc.ListMemoryScopesRequest())).scopes


async def test_lists_are_ordered_and_paged(recall: Any, clock: FrozenClock) -> None:
    for number, confidence in enumerate((0.3, None, 0.9, 0.6)):
        await learn(recall, f"fact {number}", confidence=confidence)
        clock.advance(1)
    request = rpc.ListFactsRequest(
        page_size=3, order=paging_pb2.SORT_ORDER_DESCENDING, order_by=rpc.FACT_ORDER_BY_CONFIDENCE
    )
    first = await recall.episodes.ListFacts(request)
    assert [item.text for item in first.facts] == ["fact 2", "fact 3", "fact 0"]
    request.page_token = first.next_page_token
    rest = await recall.episodes.ListFacts(request)
    assert ([item.text for item in rest.facts], rest.next_page_token) == (["fact 1"], "")
    assert await held(recall, min_confidence=0.6) == ["fact 2", "fact 3"]
    bad = rpc.ListFactsRequest(after_id=new_id("fact"))
    assert (await catch_refusal(recall.episodes.ListFacts(bad))).code is grpc.StatusCode.NOT_FOUND


async def test_erasing_an_agent_deletes_its_memories_and_refuses_new_ones(recall: Any) -> None:
    await open_window(recall, "hello")
    conversation = episodes_pb2.MemoryScope(conversation_id=CONVERSATION)
    for scope in (conversation, TEAM):
        await recall.episodes.CommitEpisode(rpc.CommitEpisodeRequest(scope=scope, episode=summary()))
        await learn(recall, "Likes tea", scope=scope)
    before = await learn(recall, "Likes tea")
    await recall.EraseAgent(messages.EraseAgentRequest(agent_id=AGENT))
    scopes = (await recall.episodes.ListMemoryScopes(rpc.ListMemoryScopesRequest())).scopes
    assert [(item.scope, item.episode_count, item.fact_count) for item in scopes] == [(TEAM, 1, 1)]
    late = [
        recall.episodes.CreateFact(rpc.CreateFactRequest(fact=fact("late"))),
        recall.episodes.CommitEpisode(look_back(episode=summary("late"))),
    ]
    for call in late:
        assert (await catch_refusal(call)).reason == "ERASED"
    assert isinstance(await catch_refusal(learn(recall, "late", scope=conversation)), NotFound)
    assert isinstance(await catch_refusal(supersede(recall, before, "late")), NotFound)


async def test_erased_scope_can_be_written_again(recall: Any) -> None:
    await learn(recall, "The release is on Friday", scope=TEAM)
    await learn(recall, "Likes tea")
    await recall.episodes.CommitEpisode(rpc.CommitEpisodeRequest(scope=TEAM, episode=summary()))
    erase = rpc.EraseMemoryScopeRequest(scope=TEAM, request_id="e1")
    for _ in range(2):
        gone = await recall.episodes.EraseMemoryScope(erase)
        assert (gone.erased_episodes, gone.erased_facts) == (1, 1)
    assert [item.text for item in (await recall.episodes.ListFacts(rpc.ListFactsRequest())).facts] == ["Likes tea"]
    await learn(recall, "The release is on Monday", scope=TEAM)
    assert await held(recall, scopes=[TEAM]) == ["The release is on Monday"]


async def test_organizations_do_not_see_each_other(recall: Any) -> None:
    mine = await learn(recall, "Likes tea")
    shared = await learn(recall, "The release is on Friday", scope=TEAM)
    episode = (await recall.episodes.CommitEpisode(look_back(episode=summary()))).episode
    with as_principal(Principal(new_id("org"), new_id("user"))):
        for call in (
            recall.episodes.GetFact(rpc.GetFactRequest(fact_id=mine.id)),
            recall.episodes.GetEpisode(rpc.GetEpisodeRequest(episode_id=episode.id)),
            learn(recall, "intruder"),
            supersede(recall, shared, "intruder"),
            recall.episodes.ListFactHistory(rpc.ListFactHistoryRequest(fact_id=mine.id)),
        ):
            assert isinstance(await catch_refusal(call), NotFound)
        await recall.episodes.DeleteFact(rpc.DeleteFactRequest(fact_id=mine.id))
        await recall.episodes.DeleteEpisode(rpc.DeleteEpisodeRequest(episode_id=episode.id))
        await recall.episodes.EraseMemoryScope(rpc.EraseMemoryScopeRequest(scope=TEAM))
        assert not (await recall.episodes.ListFacts(rpc.ListFactsRequest())).facts
        assert not (await recall.episodes.SearchFacts(rpc.SearchFactsRequest(query="tea release"))).hits
        # A named scope belongs to one organization.
        await learn(recall, "ours", scope=TEAM)
    assert await held(recall, scopes=[TEAM]) == ["The release is on Friday"]
    assert await held(recall) == ["Likes tea"]
