"""Tags of agents."""

from __future__ import annotations

from typing import Literal

import msgspec
from mnemesh.agents.v1 import agents_service_pb2 as rpc

from mnemesh_gateway.letta.convert.values import set_present
from mnemesh_gateway.letta.operations import Call, Operations
from mnemesh_gateway.letta.pages import PageQuery, listed

operations = Operations()


class ListTags(msgspec.Struct, kw_only=True):
    """The query of a list of tags."""

    before: str | None = None
    after: str | None = None
    limit: int | None = None
    order: Literal["asc", "desc"] | None = None
    query_text: str | None = None
    name: str | None = None


@operations.get("/tags/", query=ListTags, result=list[str])
async def list_tags(call: Call[ListTags, None]) -> list[str]:
    """Lists the tags of agents, in alphabetical order."""
    query = call.query
    request = rpc.ListTagsRequest()
    set_present(request, text_search=query.name or query.query_text)
    page = PageQuery(before=query.before, after=query.after, limit=query.limit, order=query.order)
    return await listed(call.mesh.agents.ListTags, request, "tags", page, default="asc")
