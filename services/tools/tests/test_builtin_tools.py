"""Built-in tools: there for every organization from the beginning, once, and its own from then on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from mnemesh.tools.v1 import tools_pb2
from mnemesh.tools.v1 import tools_service_pb2 as pb
from mnemesh_kit.clock import SystemClock
from mnemesh_kit.ids import RandomIds
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.principal import Principal, as_principal
from mnemesh_kit.sql import Database
from mnemesh_tools.errors import ToolNameTaken
from mnemesh_tools.model.builtin_tools import Builtins
from mnemesh_tools.model.definitions import settled
from mnemesh_tools.model.tools import Tool, ToolFilter, ToolOrder, ToolSpec, ToolType
from mnemesh_tools.store.sql.tools import SqlToolStore
from mnemesh_tools.usecases.tools import ToolService

OTHER = Principal("org-00000000-0000-4000-8000-00000000000b", "user-00000000-0000-4000-8000-00000000000b")
OWN = ToolSpec(source_code='def speak():\n    """Mine."""\n')


def release(name: str, **descriptions: str) -> Builtins:
    schemas = [
        {"name": tool, "description": text, "parameters": {"type": "object", "properties": {}}}
        for tool, text in descriptions.items()
    ]
    specs = [settled(ToolSpec(type=ToolType.BUILTIN, json_schema=json.dumps(schema))) for schema in schemas]
    return Builtins(tuple(specs), name)


@pytest_asyncio.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A migrated database on each engine."""
    opened = Database.open(database_url)
    await opened.migrate("mnemesh_tools")
    yield opened
    await opened.close()


def started(database: Database, builtins: Builtins) -> ToolService:
    """The use cases of a process of that release."""
    return ToolService(SqlToolStore(database, SystemClock()), SystemClock(), RandomIds(), builtins)


async def listed(service: ToolService) -> dict[str, Tool]:
    page = await service.list(ToolFilter(), ToolOrder.NAME, PageQuery(50, ascending=True))
    return {tool.spec.name: tool for tool in page.items}


async def test_they_are_listed_before_anybody_asked_for_them(stubs: Any) -> None:
    builtin = pb.ToolFilter(types=[tools_pb2.TOOL_TYPE_BUILTIN])
    tools = (await stubs.tools.ListTools(pb.ListToolsRequest(filter=builtin))).tools
    names = {tool.name for tool in tools}
    assert {"send_message", "conversation_search", "memory_insert", "archival_memory_search"} <= names
    assert (await stubs.tools.CountTools(pb.CountToolsRequest())).count == len(tools)
    for tool in tools:
        assert json.loads(tool.json_schema)["name"] == tool.name
        assert json.loads(tool.json_schema)["description"]
        assert (await stubs.tools.GetTool(pb.GetToolRequest(name=tool.name))).tool == tool
    again = (await stubs.tools.ListTools(pb.ListToolsRequest(filter=builtin))).tools
    assert list(again) == list(tools)


async def test_a_first_look_by_name_or_a_count_finds_them_too(embedded: Any) -> None:
    batch = await embedded.tools.BatchGetTools(pb.BatchGetToolsRequest(names=["send_message"]))
    assert [tool.name for tool in batch.tools] == ["send_message"]


async def test_nobody_writes_a_tool_over_one(embedded: Any) -> None:
    source = 'def send_message():\n    """Mine."""\n'
    tool = tools_pb2.Tool(source_code=source)
    for write in (
        embedded.tools.CreateTool(pb.CreateToolRequest(tool=tool)),
        embedded.tools.UpsertTool(pb.UpsertToolRequest(tool=tool)),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await write
        assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS
    kept = (await embedded.tools.GetTool(pb.GetToolRequest(name="send_message"))).tool
    assert (kept.type, kept.source_code) == (tools_pb2.TOOL_TYPE_BUILTIN, "")


async def test_each_organization_has_its_own(database: Database) -> None:
    service = started(database, release("1", speak="Speaks.", search="Searches."))
    mine = await listed(service)
    await service.delete(mine["speak"].id, None)
    with as_principal(OTHER):
        theirs = await listed(service)
        assert list(theirs) == ["search", "speak"]
    assert {tool.id for tool in theirs.values()}.isdisjoint(tool.id for tool in mine.values())
    assert list(await listed(service)) == ["search"], "what it deletes stays deleted"
    assert list(await listed(started(database, release("1", speak="Speaks.", search="Searches.")))) == ["search"]


async def test_a_look_writes_nothing_once_they_are_there(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    first = release("1", speak="Speaks.")
    before = await listed(started(database, first))

    async def refuse(*_: object) -> None:
        raise AssertionError("a look wrote something")

    monkeypatch.setattr(Database, "write", refuse)
    later = started(database, first)
    for _ in range(2):
        assert await listed(later) == before
        assert await later.count(ToolFilter()) == 1


async def test_another_release_brings_what_is_new_and_keeps_what_the_owner_set(database: Database) -> None:
    service = started(database, release("1", speak="Speaks.", search="Searches."))
    old = await listed(service)
    await service.update(
        old["speak"].id,
        ToolSpec(tags=("mine",), default_requires_approval=True),
        {"tags", "default_requires_approval"},
        None,
    )
    new = await listed(started(database, release("2", speak="Speaks up.", search="Searches.", forget="Forgets.")))
    assert list(new) == ["forget", "search", "speak"]
    speak = new["speak"]
    assert (speak.id, speak.spec.tags, speak.spec.default_requires_approval) == (old["speak"].id, ("mine",), True)
    assert json.loads(speak.spec.json_schema)["description"] == "Speaks up."
    assert new["search"] == old["search"]


async def test_an_own_tool_of_that_name_stays(database: Database) -> None:
    own = await started(database, Builtins()).create(OWN, None)
    service = started(database, release("1", speak="Speaks.", search="Searches."))
    tools = await listed(service)
    assert tools["speak"] == own
    assert tools["search"].spec.type is ToolType.BUILTIN
    assert (await service.upsert(OWN, {"description"}, None))[0].id == own.id
    with pytest.raises(ToolNameTaken):
        await service.upsert(ToolSpec(source_code='def search():\n    """Mine."""\n'), set(), None)


async def test_many_first_looks_at_once_make_one_set(database: Database) -> None:
    builtins = release("1", speak="Speaks.", search="Searches.")
    looks = await asyncio.gather(*(listed(started(database, builtins)) for _ in range(6)))
    assert all(look == looks[0] for look in looks)
    assert list(looks[0]) == ["search", "speak"]
