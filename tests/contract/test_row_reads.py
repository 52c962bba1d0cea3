"""Reads of many rows by their ids are bounded by bytes: a token continues without gap or repetition."""

from typing import Any

import pytest
from mnemesh_kit import paging
from mnemesh_kit.ids import new_id
from mnemesh_testkit.fuzzing.contract import new_request, service_of
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.stubs import PROTO_SERVICES

from .pages import LARGE, OVERHEAD, ROWS, pages_of, rows_of, size_of

BATCHES = {
    "BatchGetContextIds": ("mnemesh.recall.v1.MessageService", "conversation_ids"),
    "BatchGetCoreMemory": ("mnemesh.blocks.v1.BlockService", "agent_ids"),
    "BatchGetDirectories": ("mnemesh.files.v1.AgentFileService", "agent_ids"),
    "BatchGetTools": ("mnemesh.tools.v1.ToolService", "tool_ids"),
    "GetMessages": ("mnemesh.recall.v1.MessageService", "message_ids"),
}
"""The reads of rows by their ids: their services, and the fields of the ids."""


def batches() -> set[str]:
    """Returns the names of the RPCs that read many rows."""
    methods = [method for service in PROTO_SERVICES for method in service_of(service).methods]
    return {method.name for method in methods if method.name.startswith("BatchGet")}


async def test_every_read_of_many_ids_can_be_followed_in_pages_of_any_size(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert batches() | {"GetMessages"} == BATCHES.keys()
    client = mesh.client
    agents = [await client.agents.create(f"agent {number}", blocks={"notes": "x" * 200}) for number in range(ROWS)]
    folder = await client.folders.create("papers")
    for agent in agents:
        await agent.files.attach(folder.id)
    tools = [
        await client.tools.create(f'def tool_{number}() -> str:\n    """Answers."""\n    return "x"\n')
        for number in range(ROWS)
    ]
    windows = await client.messages.window_ids([agent.proto.default_conversation_id for agent in agents])
    ids = {
        "agent_ids": ("agent", [agent.id for agent in agents]),
        "conversation_ids": ("conv", [window.conversation_id for window in windows]),
        "message_ids": ("message", [window.message_ids[0] for window in windows]),
        "tool_ids": ("tool", [tool.id for tool in tools]),
    }
    for name, (service, field) in BATCHES.items():
        method = service_of(service).methods_by_name[name]
        kind, known = ids[field]
        request = new_request(method)
        getattr(request, field).extend([*known[:2], new_id(kind), *known[2:]])
        if name == "BatchGetTools":
            request.names.extend(["tool_1", "send_message", "unknown", "send_message"])
        (whole,) = [rows_of(page) async for page in pages_of(mesh, method, copied(request))]
        assert len(whole) >= ROWS, name
        for bound in (sum(size_of(part) for row in whole for part in row) // 3, 1):
            with monkeypatch.context() as patch:
                patch.setattr(paging, "MAX_PAGE_BYTES", bound)
                pages = [rows_of(page) async for page in pages_of(mesh, method, copied(request))]
            assert [row for rows in pages for row in rows] == whole, name
            sizes = [sum(size_of(part) for row in rows for part in row) for rows in pages]
            assert all(len(rows) == 1 or size <= bound for rows, size in zip(pages, sizes, strict=True) if rows), name
            assert len(pages) > 2, f"{name} has no bound"


@pytest.mark.full
async def test_large_rows_of_many_ids_fill_pages_of_3_mb(mesh: Mesh) -> None:
    client = mesh.client
    block = await client.blocks.create("notes", "x" * LARGE, limit=LARGE)
    agents = [(await client.agents.create(f"agent {number}")).id for number in range(ROWS)]
    for agent in agents:
        await client.blocks.attach(agent, block.id)  # No agent is created with more than fits into its window.
    source = 'def tool_{0}() -> str:\n    """Answers."""\n    return "{1}"\n'
    tools = [(await client.tools.create(source.format(number, "x" * 240_000))).id for number in range(14)]
    for name, field, wanted, numbers in (
        ("BatchGetCoreMemory", "agent_ids", agents, [3, 1]),
        ("BatchGetTools", "tool_ids", tools, [12, 2]),
    ):
        method = service_of(BATCHES[name][0]).methods_by_name[name]
        request = new_request(method)
        getattr(request, field).extend(wanted)
        pages = [page async for page in pages_of(mesh, method, request)]
        assert [len(rows_of(page)) for page in pages] == numbers, name
        assert all(page.ByteSize() <= paging.MAX_PAGE_BYTES + OVERHEAD for page in pages), name
    assert [memory.agent_id for memory in await client.blocks.core_memories(agents)] == agents
    assert [tool.id for tool in await client.tools.get_many(*tools)] == tools


def copied(request: Any) -> Any:
    """Returns a copy of a request, to which `pages_of` adds tokens."""
    copy = type(request)()
    copy.CopyFrom(request)
    return copy
