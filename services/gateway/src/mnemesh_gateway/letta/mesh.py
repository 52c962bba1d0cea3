"""The services of the mesh: their stubs, the pages of their lists, and figures that rarely change."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any, Final, Literal, TypeVar

import grpc
import msgspec
from mnemesh.agents.v1 import (
    agents_service_pb2_grpc,
    conversations_service_pb2_grpc,
    groups_service_pb2_grpc,
    identities_service_pb2_grpc,
    models_service_pb2_grpc,
    runs_service_pb2_grpc,
    schedules_service_pb2_grpc,
)
from mnemesh.archival.v1 import archives_service_pb2_grpc, passages_service_pb2_grpc
from mnemesh.blocks.v1 import blocks_service_pb2_grpc
from mnemesh.files.v1 import agent_files_service_pb2_grpc, files_service_pb2_grpc, folders_service_pb2_grpc
from mnemesh.recall.v1 import messages_service_pb2_grpc
from mnemesh.server.v1 import server_service_pb2_grpc
from mnemesh.tools.v1 import execution_service_pb2_grpc, mcp_servers_service_pb2_grpc, tools_service_pb2_grpc
from mnemesh.types.v1 import paging_pb2
from mnemesh_client import Mnemesh
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.time import SystemClock

from mnemesh_gateway.http.errors import invalid_field
from mnemesh_gateway.usecases.agents import Cache

T = TypeVar("T")
_SECONDS: Final = 10.0
_MAX_ENTRIES: Final = 1000


class Mesh:
    """One stub per service. A call carries the principal of the HTTP request that it belongs to.

    Args:
        channel: to the orchestrator.
        client: for what takes several calls, such as agent files.
        stopping: is set when this gateway stops, so that what waits long ends.
    """

    def __init__(self, channel: grpc.aio.Channel, client: Mnemesh, stopping: asyncio.Event) -> None:
        self.client = client
        self.stopping = stopping
        self.server = server_service_pb2_grpc.ServerServiceStub(channel)
        self.agents = agents_service_pb2_grpc.AgentServiceStub(channel)
        self.runs = runs_service_pb2_grpc.RunServiceStub(channel)
        self.conversations = conversations_service_pb2_grpc.ConversationServiceStub(channel)
        self.groups = groups_service_pb2_grpc.GroupServiceStub(channel)
        self.identities = identities_service_pb2_grpc.IdentityServiceStub(channel)
        self.schedules = schedules_service_pb2_grpc.ScheduleServiceStub(channel)
        self.models = models_service_pb2_grpc.ModelServiceStub(channel)
        self.blocks = blocks_service_pb2_grpc.BlockServiceStub(channel)
        self.messages = messages_service_pb2_grpc.MessageServiceStub(channel)
        self.archives = archives_service_pb2_grpc.ArchiveServiceStub(channel)
        self.passages = passages_service_pb2_grpc.PassageServiceStub(channel)
        self.folders = folders_service_pb2_grpc.FolderServiceStub(channel)
        self.files = files_service_pb2_grpc.FileServiceStub(channel)
        self.agent_files = agent_files_service_pb2_grpc.AgentFileServiceStub(channel)
        self.tools = tools_service_pb2_grpc.ToolServiceStub(channel)
        self.execution = execution_service_pb2_grpc.ExecutionServiceStub(channel)
        self.mcp_servers = mcp_servers_service_pb2_grpc.McpServerServiceStub(channel)
        self._cache: Cache[tuple[str, str], Any] = Cache(_MAX_ENTRIES, _SECONDS, SystemClock())

    async def read_cached(self, key: str, read: Callable[[], Awaitable[T]]) -> T:
        """Returns the value of a key as read for this caller's organization in the last ten seconds, or reads it."""
        full = (current_principal().organization_id, key)
        known = self._cache.get(full)
        if known is not None:
            return known  # type: ignore[no-any-return]
        value = await read()
        self._cache.put(full, value)
        return value


MAX_PAGE: Final = 1000
READ_SECONDS: Final = 15.0
WRITE_SECONDS: Final = 60.0
"""The deadlines of calls that read and that change something."""


class PageQuery(msgspec.Struct, kw_only=True):
    """The parameters of every list. Subclasses set another default order where Letta has one."""

    before: str | None = None
    after: str | None = None
    limit: int | None = None
    order: Literal["asc", "desc"] | None = None


class Stamped(msgspec.Struct, kw_only=True):
    """Who made and changed a resource, and when."""

    created_by_id: str | None = None
    last_updated_by_id: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


class Origin(Stamped, kw_only=True):
    """Also where it comes from in Letta's cloud."""

    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None
    entity_id: str | None = None


async def list_page(
    method: Callable[..., Awaitable[Any]],
    request: Any,
    rows: str,
    query: PageQuery,
    *,
    default: Literal["asc", "desc"],
    limit: int = 50,
) -> list[Any]:
    """Returns the rows of a list RPC that a page has.

    The rows after `after` and before `before` in the order are the range; the page is its first `limit` rows. A page of
    more rows than a call returns takes several calls.

    Args:
        method: the method of the stub.
        request: its request with filters; the page is set here.
        rows: the name of the response's repeated field.
        query: the client's parameters.
        default: the order if the client names none.
        limit: the size of the page if the client names none.

    Raises:
        ValidationFailed: the limit is negative.
    """
    wanted = limit if query.limit is None else query.limit
    if wanted < 0:
        raise invalid_field("Input should be greater than or equal to 0", "query", "limit")
    request.order = order_to_proto(query.order or default)
    if query.after:
        request.after_id = query.after
    if query.before:
        request.before_id = query.before
    found: list[Any] = []
    while len(found) < wanted:
        request.page_size = min(wanted - len(found), MAX_PAGE)
        response = await method(request, timeout=READ_SECONDS)
        found += getattr(response, rows)
        if not response.next_page_token:
            break
        request.page_token = response.next_page_token
    return found[:wanted]


async def list_chronologically(
    method: Callable[..., Awaitable[Any]], request: Any, rows: str, query: PageQuery, *, limit: int
) -> list[Any]:
    """Returns the rows of a page, oldest first.

    By default these are the newest rows of the range, and the oldest for `order=asc`. The range is always the rows that
    are newer than `after` and older than `before`. The arguments are those of `list_page`.
    """
    if query.order == "asc":
        return await list_page(method, request, rows, query, default="asc", limit=limit)
    newest = PageQuery(before=query.after, after=query.before, limit=query.limit)
    return (await list_page(method, request, rows, newest, default="desc", limit=limit))[::-1]


async def list_pages(method: Callable[..., Awaitable[Any]], request: Any) -> AsyncIterator[Any]:
    """Yields the pages of a list RPC until the last one. Sets the page of the request."""
    request.page_size = MAX_PAGE
    while True:
        response = await method(request, timeout=READ_SECONDS)
        yield response
        if not response.next_page_token:
            return
        request.page_token = response.next_page_token


def order_to_proto(order: str) -> paging_pb2.SortOrder.ValueType:
    """Returns the order of a list."""
    return paging_pb2.SORT_ORDER_ASCENDING if order == "asc" else paging_pb2.SORT_ORDER_DESCENDING


def cut(rows: list[T], query: PageQuery, key: Callable[[T], str], *, limit: int = 50) -> list[T]:
    """Returns the page of rows that are all at hand, in their order, or reversed for `order=desc`."""
    ordered = rows[::-1] if query.order == "desc" else rows
    keys = [key(row) for row in ordered]
    start = keys.index(query.after) + 1 if query.after in keys else 0
    end = keys.index(query.before) if query.before in keys else len(ordered)
    return ordered[start:end][: limit if query.limit is None else max(0, query.limit)]
