"""Passages: search in the archives of an agent, in one archive, or in all."""

from __future__ import annotations

from typing import Final

from mnemesh.agents.v1 import agents_service_pb2 as agents_rpc
from mnemesh.archival.v1 import passages_service_pb2 as rpc
from mnemesh_kit.whole_answers import whole_answer

from mnemesh_gateway.letta.convert.archives import passage_from_proto
from mnemesh_gateway.letta.convert.values import set_present
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations
from mnemesh_gateway.letta.pages import READ_SECONDS, PageQuery, listed
from mnemesh_gateway.letta.schemas.archives import FoundPassage, SearchAllPassages

operations = Operations()
_SECONDS: Final = 60.0


@operations.post("/passages/search", body=SearchAllPassages, result=list[FoundPassage])
async def search_passages(call: Call[NoQuery, SearchAllPassages]) -> list[FoundPassage]:
    """Searches passages, best first. Without a query, it lists the newest with the score 0."""
    body = call.body
    if body.agent_id:
        get = agents_rpc.GetAgentRequest(agent_id=body.agent_id)
        await call.mesh.agents.GetAgent(get, timeout=READ_SECONDS)
    match = rpc.TAG_MATCH_ALL if body.tag_match_mode == "all" else rpc.TAG_MATCH_ANY
    filters = rpc.PassageFilter(tags=body.tags or (), tag_match=match)
    set_present(
        filters,
        agent_id=body.agent_id or None,
        archive_id=body.archive_id or None,
        start_date=body.start_date.isoformat() if body.start_date else None,
        end_date=body.end_date.isoformat() if body.end_date else None,
    )
    if not body.query:
        newest = rpc.ListPassagesRequest(filter=filters)
        page = PageQuery(limit=body.limit)
        rows = await listed(call.mesh.passages.ListPassages, newest, "passages", page, default="desc")
        return [FoundPassage(passage=passage_from_proto(row), score=0.0) for row in rows]
    request = rpc.SearchPassagesRequest(query=body.query, limit=body.limit, filter=filters)
    hits = (await whole_answer(call.mesh.passages.SearchPassages, request, seconds=_SECONDS)).hits
    return [FoundPassage(passage=passage_from_proto(hit.passage), score=hit.score) for hit in hits]
