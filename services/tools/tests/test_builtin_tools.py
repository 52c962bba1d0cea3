"""Built-in tools: every organization has them from its first request on, and may change or delete them."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from mnemesh.tools.v1 import tools_pb2
from mnemesh.tools.v1 import tools_service_pb2 as pb
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL, Principal
from mnemesh_kit.ids import RandomIds
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.secret_variables import SecretBox, SecretVariables
from mnemesh_kit.sql import Database
from mnemesh_kit.time import SystemClock
from mnemesh_tools.errors import ToolNameTaken
from mnemesh_tools.model.definitions import complete_spec
from mnemesh_tools.model.packages import ServerSupport
from mnemesh_tools.model.tools import BuiltinTools, Tool, ToolOrder, ToolSpec
from mnemesh_tools.store.tools import ToolStore
from mnemesh_tools.usecases.tools import SourceReader, ToolEnvironments, ToolService
from mnemesh_types.tools import ToolFilter, ToolType

OTHER = Principal("org-00000000-0000-4000-8000-00000000000b", "user-00000000-0000-4000-8000-00000000000b")
OWN = ToolSpec(source_code='def speak():\n    """Mine."""\n')


def release(name: str, **descriptions: str) -> BuiltinTools:
    schemas = [
        {"name": tool, "description": text, "parameters": {"type": "object", "properties": {}}}
        for tool, text in descriptions.items()
    ]
    specs = [complete_spec(ToolSpec(type=ToolType.BUILTIN, json_schema=json.dumps(schema))) for schema in schemas]
    return BuiltinTools(tuple(specs), name)


@pytest_asyncio.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A migrated database, on each engine."""
    opened = Database.open(database_url)
    await opened.migrate("mnemesh_tools")
    yield opened
    await opened.close()


def new_service(database: Database, builtin_tools: BuiltinTools) -> ToolService:
    """Returns the use cases of a process with these built-in tools."""
    store = ToolStore(database, SystemClock())
    return ToolService(
        store,
        SystemClock(),
        RandomIds(),
        builtin_tools,
        SourceReader(),
        ServerSupport(),
        lambda _: None,
        ToolEnvironments(SecretVariables(SecretBox(None), SystemClock())),
    )


async def list_by_name(service: ToolService, caller: Principal = DEFAULT_PRINCIPAL) -> dict[str, Tool]:
    page = await service.list_tools(caller, ToolFilter(), ToolOrder.NAME, PageQuery(50, ascending=True))
    return {tool.spec.name: tool for tool in page.items}


async def test_builtin_tools_are_listed_from_the_first_request_on(stubs: Any) -> None:
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


async def test_first_request_by_name_finds_builtin_tools(embedded: Any) -> None:
    batch = await embedded.tools.BatchGetTools(pb.BatchGetToolsRequest(names=["send_message"]))
    assert [tool.name for tool in batch.tools] == ["send_message"]


async def test_builtin_tools_cannot_be_overwritten(embedded: Any) -> None:
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


async def test_each_organization_has_its_own_copies(database: Database) -> None:
    builtin_tools = release("1", speak="Speaks.", search="Searches.")
    service = new_service(database, builtin_tools)
    mine = await list_by_name(service)
    await service.delete_tool(DEFAULT_PRINCIPAL, mine["speak"].id, None)
    theirs = await list_by_name(service, OTHER)
    assert list(theirs) == ["search", "speak"]
    assert {tool.id for tool in theirs.values()}.isdisjoint(tool.id for tool in mine.values())
    assert list(await list_by_name(service)) == ["search"], "a deleted tool must stay deleted"
    assert list(await list_by_name(new_service(database, builtin_tools))) == ["search"]


async def test_reads_write_nothing_once_the_tools_are_stored(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = release("1", speak="Speaks.")
    before = await list_by_name(new_service(database, first))

    async def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a read wrote something")

    monkeypatch.setattr(Database, "write", refuse)
    later = new_service(database, first)
    for _ in range(2):
        assert await list_by_name(later) == before
        assert await later.count_tools(DEFAULT_PRINCIPAL, ToolFilter()) == 1


async def test_new_release_adds_tools_and_keeps_changes_of_the_owner(database: Database) -> None:
    service = new_service(database, release("1", speak="Speaks.", search="Searches."))
    old = await list_by_name(service)
    await service.update_tool(
        DEFAULT_PRINCIPAL,
        old["speak"].id,
        ToolSpec(tags=("mine",), default_requires_approval=True),
        {"tags", "default_requires_approval"},
        None,
    )
    next_release = release("2", speak="Speaks up.", search="Searches.", forget="Forgets.")
    new = await list_by_name(new_service(database, next_release))
    assert list(new) == ["forget", "search", "speak"]
    speak = new["speak"]
    assert (speak.id, speak.spec.tags, speak.spec.default_requires_approval) == (old["speak"].id, ("mine",), True)
    assert json.loads(speak.spec.json_schema)["description"] == "Speaks up."
    assert new["search"] == old["search"]


async def test_custom_tool_with_the_name_of_a_builtin_tool_is_kept(database: Database) -> None:
    own = await new_service(database, BuiltinTools()).create_tool(DEFAULT_PRINCIPAL, OWN, None)
    service = new_service(database, release("1", speak="Speaks.", search="Searches."))
    tools = await list_by_name(service)
    assert tools["speak"] == own
    assert tools["search"].spec.type is ToolType.BUILTIN
    assert (await service.upsert_tool(DEFAULT_PRINCIPAL, OWN, {"description"}, None))[0].id == own.id
    other = ToolSpec(source_code='def search():\n    """Mine."""\n')
    with pytest.raises(ToolNameTaken):
        await service.upsert_tool(DEFAULT_PRINCIPAL, other, set(), None)


async def test_concurrent_first_requests_store_one_set_of_tools(database: Database) -> None:
    builtin_tools = release("1", speak="Speaks.", search="Searches.")
    results = await asyncio.gather(*(list_by_name(new_service(database, builtin_tools)) for _ in range(6)))
    assert all(result == results[0] for result in results)
    assert list(results[0]) == ["search", "speak"]
