"""The audit of memories, and what is done about its findings, on each SQL engine."""

from datetime import timedelta
from typing import Any

import pytest
from mnemesh.recall.v1 import episodes_pb2, memory_findings_pb2
from mnemesh.recall.v1 import episodes_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument, PageTokenInvalid
from mnemesh_kit.ids import new_id
from mnemesh_kit.time import FrozenClock
from mnemesh_testkit.errors import catch_refusal

from .episode_requests import DAY, MINE, TEAM, at, held, learn, look_back, open_window, rests_on, summary

Finding = memory_findings_pb2.MemoryFinding
CLEAN = [
    "Ana lives in Porto",
    "Ana works at Acme as an engineer",
    "Ana likes green tea",
    "Ana likes black tea with milk",
    "Ana ran a marathon in 2019",
    "Ana ran a marathon in 2021",
    "Bo lives in Lisbon",
    "Bo works on Mondays and Fridays",
    "Room 12 has a projector",
    "Room 14 has a projector",
    "The order 1234567890123456 was delivered",
    "The password is changed every month",
    "Deploys happen on Tuesdays at 10:00",
]


async def audit(recall: Any, **more: Any) -> list[Finding]:
    found: list[Finding] = []
    token = ""
    while True:
        request = rpc.AuditMemoryRequest(page_token=token, **more)
        page = await recall.episodes.AuditMemory(request)
        found += page.findings
        token = page.next_page_token
        if not token:
            return found


def kinds(findings: list[Finding]) -> list[str]:
    prefix = len("MEMORY_FINDING_KIND_")
    return [memory_findings_pb2.MemoryFindingKind.Name(found.kind)[prefix:] for found in findings]


async def test_planted_problems_are_found_and_nothing_else(recall: Any, clock: FrozenClock) -> None:
    for text in CLEAN:
        await learn(recall, text)
    assert await audit(recall) == []
    old = await learn(recall, "Ana is 31 years old")
    near = await learn(recall, "Ana lives in Porto now, really")
    moved = await learn(recall, "Bo moved to Berlin")
    secret = await learn(recall, "The password of the router is hunter2!x")
    lost = await learn(recall, "Bo has a sister", source=rests_on(new_id("message")))
    soon = await learn(recall, "Bo starts a course tomorrow")
    clock.advance(2 * DAY)
    newer = await learn(recall, "Ana is 32 years old")
    elsewhere = await learn(recall, "Bo lives in Madrid", scope=TEAM)
    await recall.episodes.CommitEpisode(look_back(episode=summary("They shared the key sk-abcdefghijklmnopqrstuv.")))
    found = await audit(recall)
    assert [(kind, list(finding.memory_ids)[-1]) for kind, finding in zip(kinds(found), found, strict=True)][:-1] == [
        ("NEAR_DUPLICATE", near.id),
        ("CONTRADICTION", moved.id),
        ("SECRET", secret.id),
        ("ORPHAN", lost.id),
        ("STALE", soon.id),
        ("CONTRADICTION", newer.id),
    ]
    assert found[-2].memory_ids == [old.id, newer.id]
    assert found[-2].kept_id == newer.id
    assert "sk-abc" not in str(found)
    assert "hunter2" not in str(found)
    assert list(found[-1].texts) == ["They shared the key [API key removed]."]
    # A page has the findings of its memories; the ids stay the same.
    paged = await audit(recall, page_size=3)
    assert [finding.id for finding in paged] == [finding.id for finding in found]
    assert elsewhere.id not in str(found)
    assert kinds(await audit(recall, kinds=[memory_findings_pb2.MEMORY_FINDING_KIND_SECRET])) == ["SECRET"] * 2
    assert await audit(recall, scopes=[TEAM]) == []


async def test_old_facts_are_stale_until_they_are_confirmed(recall: Any, clock: FrozenClock) -> None:
    ended = clock.now() + timedelta(days=1)
    await learn(recall, "Ana drinks tea")
    await learn(recall, "The offer holds", invalid_time=at(ended))
    clock.advance(40 * DAY)
    assert kinds(await audit(recall, stale_days=60)) == ["STALE"]
    assert [finding.texts[0] for finding in await audit(recall, stale_days=30)] == ["Ana drinks tea", "The offer holds"]
    await learn(recall, "ana drinks the tea.")
    assert [finding.texts[0] for finding in await audit(recall, stale_days=30)] == ["The offer holds"]


async def test_contradicted_fact_is_closed_in_favour_of_the_newer(recall: Any, clock: FrozenClock) -> None:
    (message,) = (await open_window(recall, "I moved to Porto."))[1:]
    old = await learn(recall, "Ana lives in Lisbon", source=rests_on(message))
    clock.advance(10 * DAY)
    new = await learn(recall, "Ana lives in Porto", source=rests_on(message), valid_from_time=at(clock.now()))
    (found,) = await audit(recall)
    operation = episodes_pb2.InvalidateOperation(fact_id=old.id, superseded_by_id=new.id, reason="contradicted")
    for _ in range(2):
        request = rpc.InvalidateFactRequest(operation=operation)
        closed = (await recall.episodes.InvalidateFact(request)).fact
        assert (closed.superseded_by_id, closed.invalid_reason) == (new.id, "contradicted")
    assert await audit(recall) == []
    assert await held(recall) == ["Ana lives in Porto"]
    assert await held(recall, valid_at_time=at(clock.now() - timedelta(days=1))) == ["Ana lives in Lisbon"]
    history = await recall.episodes.ListFactHistory(rpc.ListFactHistoryRequest(fact_id=new.id))
    assert [fact.id for fact in history.facts] == [old.id, new.id] == list(found.memory_ids)
    other = await learn(recall, "Ana lives in Faro", scope=TEAM)
    third = await learn(recall, "Ana lives in Braga")
    for fact_id, successor in ((third.id, other.id), (third.id, third.id), (third.id, new.id)):
        wrong = episodes_pb2.InvalidateOperation(fact_id=fact_id, superseded_by_id=successor)
        error = await catch_refusal(recall.episodes.InvalidateFact(rpc.InvalidateFactRequest(operation=wrong)))
        assert error.field == "operation.superseded_by_id"
    assert (await recall.episodes.GetFact(rpc.GetFactRequest(fact_id=third.id))).fact == third


async def test_duplicates_are_merged_with_their_evidence(recall: Any) -> None:
    first, second = (await open_window(recall, "I live in Porto.", "Still in Porto."))[1:]
    long = await learn(recall, "Ana really lives in Porto", source=rests_on(first))
    short = await learn(recall, "Ana lives in Porto", source=rests_on(second))
    (found,) = await audit(recall)
    assert (kinds([found]), found.kept_id) == (["NEAR_DUPLICATE"], long.id)
    operation = episodes_pb2.FactOperation
    confirm = episodes_pb2.ConfirmOperation(fact_id=long.id, source=short.source)
    close = episodes_pb2.InvalidateOperation(fact_id=short.id, superseded_by_id=long.id, reason="duplicate")
    request = look_back(
        request_id=found.id,
        operations=[operation(confirm=confirm), operation(invalidate=close)],
        require_source_messages=True,
    )
    for _ in range(2):
        await recall.episodes.CommitEpisode(request)
    kept = (await recall.episodes.GetFact(rpc.GetFactRequest(fact_id=long.id))).fact
    assert list(kept.source.message_ids) == [first, second]
    assert await held(recall) == ["Ana really lives in Porto"]
    assert await audit(recall) == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"page_size": -1}, "page_size"),
        ({"page_size": 1001}, "page_size"),
        ({"stale_days": 0}, "stale_days"),
        ({"stale_days": 36_501}, "stale_days"),
        ({"kinds": [0]}, "kinds[0]"),
        ({"kinds": [1, 99]}, "kinds[1]"),
        ({"scopes": [episodes_pb2.MemoryScope()]}, "scopes[0]"),
        ({"scopes": [episodes_pb2.MemoryScope(agent_id="x")]}, "scopes[0].agent_id"),
    ],
)
async def test_invalid_audits_are_refused(recall: Any, fields: dict[str, Any], field: str) -> None:
    error = await catch_refusal(recall.episodes.AuditMemory(rpc.AuditMemoryRequest(**fields)))
    assert isinstance(error, InvalidArgument)
    assert error.field == field


async def test_page_token_belongs_to_its_audit(recall: Any) -> None:
    for text in CLEAN[:3]:
        await learn(recall, text)
    page = await recall.episodes.AuditMemory(rpc.AuditMemoryRequest(page_size=2, scopes=[MINE]))
    assert page.examined_count == 2
    other = rpc.AuditMemoryRequest(page_size=2, scopes=[TEAM], page_token=page.next_page_token)
    assert isinstance(await catch_refusal(recall.episodes.AuditMemory(other)), PageTokenInvalid)


async def test_learned_near_duplicate_confirms_the_known_fact(recall: Any) -> None:
    first, second = (await open_window(recall, "I live in Porto.", "Still in Porto."))[1:]
    operation = episodes_pb2.FactOperation
    texts = ["Ana lives in Porto", "Ana now lives in Porto, really.", "Ana lives in Lisbon", "Bo lives in Porto"]
    for text, message in zip(texts, (first, second, second, second), strict=True):
        add = operation(add=episodes_pb2.Fact(text=text, source=rests_on(message)))
        await recall.episodes.CommitEpisode(look_back(operations=[add]))
    listed = await recall.episodes.ListFacts(rpc.ListFactsRequest(filter=rpc.FactFilter(scopes=[MINE])))
    evidence = {fact.text: list(fact.source.message_ids) for fact in listed.facts}
    assert evidence == {texts[0]: [first, second], texts[2]: [second], texts[3]: [second]}
    # In another scope, and said by a client, it is a fact of its own.
    add = operation(add=episodes_pb2.Fact(text=texts[1], source=rests_on(second)))
    await recall.episodes.CommitEpisode(rpc.CommitEpisodeRequest(scope=TEAM, operations=[add]))
    assert await held(recall, scopes=[TEAM]) == [texts[1]]
    await learn(recall, texts[1])
    assert texts[1] in await held(recall)
