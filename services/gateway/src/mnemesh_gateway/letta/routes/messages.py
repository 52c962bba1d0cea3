"""Messages of all agents: list, retrieve, search."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import NotFound
from mnemesh_kit.whole_answers import whole_answer

from mnemesh_gateway.letta.convert.messages import Shown, internal_from_proto, messages_from_proto
from mnemesh_gateway.letta.convert.values import present, set_present
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.mesh import Mesh
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations
from mnemesh_gateway.letta.pages import READ_SECONDS, PageQuery, listed
from mnemesh_gateway.letta.routes.agent_messages import scope_of, shown_by
from mnemesh_gateway.letta.schemas.messages import ListMessages

operations = Operations()
_MODES: Final = {
    "vector": rpc.SEARCH_MODE_VECTOR,
    "fts": rpc.SEARCH_MODE_TEXT,
    "hybrid": rpc.SEARCH_MODE_HYBRID,
}
_FOUND: Final = frozenset({"system_message", "user_message", "assistant_message", "reasoning_message"})
_TEXTS: Final = ("content", "reasoning")
_ROLES: Final = {
    "system": message_pb2.ROLE_SYSTEM,
    "user": message_pb2.ROLE_USER,
    "assistant": message_pb2.ROLE_ASSISTANT,
    "tool": message_pb2.ROLE_TOOL,
}


class SearchScope(msgspec.Struct, kw_only=True):
    """How and where to search."""

    search_mode: Literal["vector", "fts", "hybrid"] = "hybrid"
    agent_id: str | None = None
    conversation_id: str | None = None
    limit: int = 50
    start_date: datetime | None = None
    end_date: datetime | None = None


class SearchMessages(SearchScope, kw_only=True):
    """The query and the scope of a search."""

    query: str


class SearchStored(SearchScope, kw_only=True):
    """The query and the scope of a search. Without a query, the newest messages are found."""

    query: str | None = None
    roles: list[Literal["system", "user", "assistant", "tool"]] = msgspec.field(default_factory=list)


@operations.get("/messages/", query=ListMessages, result=list[dict[str, Any]])
async def list_all_messages(call: Call[ListMessages, None]) -> list[dict[str, Any]]:
    """Lists the messages of all agents, newest first."""
    query = call.query
    request = rpc.ListMessagesRequest()
    if query.conversation_id is not None:
        request.conversation.conversation_id = query.conversation_id
    page = PageQuery(before=query.before, after=query.after, limit=query.limit, order=query.order)
    rows = await listed(call.mesh.messages.ListMessages, request, "messages", page, default="desc", limit=100)
    return messages_from_proto(rows, shown_by(query))


@operations.get("/messages/{message_id}", result=list[dict[str, Any]])
async def retrieve_message(call: Call[NoQuery, None]) -> list[dict[str, Any]]:
    """Returns what clients see of a stored message."""
    request = rpc.GetMessagesRequest(message_ids=[call.path["message_id"]])
    found = (await call.mesh.messages.GetMessages(request, timeout=READ_SECONDS)).messages
    if not found:
        raise NotFound(f"There is no message {call.path['message_id']}.")
    return messages_from_proto(found, Shown())


@operations.post("/messages/search", body=SearchMessages, result=list[dict[str, Any]])
async def search_all_messages(call: Call[NoQuery, SearchMessages]) -> list[dict[str, Any]]:
    """Searches messages by meaning and by words, best first."""
    hits = await _hits(call.mesh, call.body, call.body.query)
    return [
        {
            "message_type": part["message_type"],
            "message_id": part["id"],
            "agent_id": hit.message.agent_id,
            "conversation_id": hit.message.conversation_id or None,
            "created_at": part["date"],
            **{name: part[name] for name in _TEXTS if name in part},
        }
        for hit in hits
        for part in messages_from_proto([hit.message], Shown(types=_FOUND))
    ]


@operations.post("/agents/messages/search", body=SearchStored, result=list[dict[str, Any]])
async def search_messages(call: Call[NoQuery, SearchStored]) -> list[dict[str, Any]]:
    """Searches messages by meaning and by words, best first, and returns them as they are stored."""
    return [
        {
            "embedded_text": hit.text,
            "message": internal_from_proto(hit.message),
            "fts_rank": present(hit, "text_rank"),
            "vector_rank": present(hit, "vector_rank"),
            "rrf_score": hit.score,
        }
        for hit in await _hits(call.mesh, call.body, call.body.query or "", call.body.roles)
    ]


async def _hits(mesh: Mesh, body: SearchScope, query: str, roles: Sequence[str] = ()) -> list[rpc.MessageHit]:
    if not 1 <= body.limit <= 100:
        raise invalid_field("Input should be between 1 and 100", "body", "limit")
    request = rpc.SearchMessagesRequest(
        query=query,
        mode=_MODES[body.search_mode],
        limit=body.limit,
        roles=[_ROLES[role] for role in roles],
    )
    set_present(
        request,
        agent_id=body.agent_id,
        start_date=body.start_date.isoformat() if body.start_date else None,
        end_date=body.end_date.isoformat() if body.end_date else None,
    )
    if body.conversation_id is not None:
        request.conversation.CopyFrom(scope_of(body.conversation_id, body.agent_id or ""))
    return list((await whole_answer(mesh.messages.SearchMessages, request, seconds=READ_SECONDS)).hits)
