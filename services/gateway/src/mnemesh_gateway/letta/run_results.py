"""The stored messages of a run, as clients see them."""

from __future__ import annotations

from typing import Any

from mnemesh.agents.v1 import runs_pb2
from mnemesh.recall.v1 import messages_service_pb2

from mnemesh_gateway.letta.convert.messages import Shown, messages_from_proto
from mnemesh_gateway.letta.convert.runs import returned_types
from mnemesh_gateway.letta.mesh import Mesh
from mnemesh_gateway.letta.pages import PageQuery, listed


async def messages_of(mesh: Mesh, run_id: str, query: PageQuery) -> list[Any]:
    """Returns a page of the stored messages of a run, oldest first."""
    request = messages_service_pb2.ListMessagesRequest(run_id=run_id)
    return await listed(mesh.messages.ListMessages, request, "messages", query, default="asc", limit=100)


async def shown_messages(mesh: Mesh, run: runs_pb2.Run, query: PageQuery) -> list[dict[str, Any]]:
    """Returns a page of the messages of a run as clients see them, of the types that the run returns."""
    types = returned_types(run.config)
    rows = await messages_of(mesh, run.id, query)
    return messages_from_proto(rows, Shown(types=frozenset(types) if types else None))
