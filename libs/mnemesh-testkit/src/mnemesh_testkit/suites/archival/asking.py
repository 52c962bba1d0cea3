"""SearchPassages: several queries, what surrounds a hit, and the times that queries name."""

from __future__ import annotations

from mnemesh.archival.v1.archives_pb2 import Passage
from mnemesh.archival.v1.passages_service_pb2 import (
    PASSAGE_CONTINUITY_CONTINUOUS,
    PASSAGE_SEARCH_MODE_TEXT,
    PassageFilter,
    ResolvedTimeRange,
    SearchPassagesRequest,
)

from mnemesh_testkit.suites.archival.calls import Archival, ArchivalCases, at


class Asking(ArchivalCases):
    """Queries the way agents ask them."""

    async def test_several_queries_find_what_each_of_them_finds(self, client: Archival, agent: str) -> None:
        await client.insert(agent, "The otter swims", "The stoat sleeps", "A gull", "Nothing")
        request = {"mode": PASSAGE_SEARCH_MODE_TEXT, "filter": PassageFilter(agent_id=agent)}
        found = await client.texts("otter swimming", further_queries=["sleeping stoat", " ", "gull"], **request)
        assert set(found) == {"The otter swims", "The stoat sleeps", "A gull"}
        assert await client.texts(" ", further_queries=["gull"], **request) == ["A gull"]
        assert len(await client.texts("", further_queries=["", " "], **request)) == 4

    async def test_a_hit_has_the_passages_of_its_text_around_it(self, client: Archival, agent: str) -> None:
        parts = [f"part {word}" for word in ("one", "two", "of the heron", "four")]
        await client.insert(agent, *parts, continuity=PASSAGE_CONTINUITY_CONTINUOUS)
        await client.insert(agent, "a fact by itself")
        found = await client.passages.SearchPassages(
            SearchPassagesRequest(
                query="heron", passages_before=1, passages_after=10, limit=1, filter=PassageFilter(agent_id=agent)
            )
        )
        (hit,) = found.hits
        assert [each.text for each in hit.before] == ["part two"]
        assert [each.text for each in hit.after] == ["part four"]

    async def test_passages_of_a_named_time_come_first_and_others_are_found(self, client: Archival, agent: str) -> None:
        months = {f"2025-{month:02d}-15T12:00": f"the beach, note {month}" for month in (3, 5, 7)}
        await client.insert(agent, *(Passage(text=text, create_time=at(time)) for time, text in months.items()))
        request = SearchPassagesRequest(
            query="the beach between February and April",
            mode=PASSAGE_SEARCH_MODE_TEXT,
            filter=PassageFilter(agent_id=agent, time_zone="Asia/Tokyo"),
            reference_time=at("2026-01-20T12:00"),
        )
        found = await client.passages.SearchPassages(request)
        assert found.hits[0].passage.text == "the beach, note 3"
        assert len(found.hits) == 3
        spring = ResolvedTimeRange(
            expression="between February and April",
            start_time=at("2025-01-31T15:00"),
            end_time=at("2025-04-30T15:00"),
        )
        assert list(found.time_ranges) == [spring]
        request.query = "the beach before 2020"
        (before,) = (await client.passages.SearchPassages(request)).time_ranges
        assert (before.HasField("start_time"), before.HasField("end_time")) == (False, True)
        request.ClearField("reference_time")
        assert not (await client.passages.SearchPassages(request)).time_ranges
