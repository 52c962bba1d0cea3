"""The tool store: organizations are separate."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL, Principal
from mnemesh_kit.ids import RandomIds
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.secret_variables import SecretBox, SecretVariables
from mnemesh_kit.sql import Database
from mnemesh_kit.time import SystemClock
from mnemesh_tools.errors import ToolNotFound
from mnemesh_tools.model.packages import ServerSupport
from mnemesh_tools.model.tools import BuiltinTools, ToolOrder, ToolSpec
from mnemesh_tools.store.tools import ToolStore
from mnemesh_tools.usecases.tools import SourceReader, ToolEnvironments, ToolService
from mnemesh_types.tools import ToolFilter

SPEC = ToolSpec(source_code='def f():\n    """F."""\n', tags=("t",))
OTHER = Principal("org-00000000-0000-4000-8000-00000000000b", "user-00000000-0000-4000-8000-00000000000b")


@pytest_asyncio.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A migrated database, on each engine."""
    opened = Database.open(database_url)
    await opened.migrate("mnemesh_tools")
    yield opened
    await opened.close()


@pytest.fixture
def service(database: Database) -> ToolService:
    """The use cases of tools on that database."""
    store = ToolStore(database, SystemClock())
    return ToolService(
        store,
        SystemClock(),
        RandomIds(),
        BuiltinTools(),
        SourceReader(),
        ServerSupport(),
        lambda _: None,
        ToolEnvironments(SecretVariables(SecretBox(None), SystemClock())),
    )


async def test_tools_of_other_organizations_are_not_found(service: ToolService) -> None:
    mine = await service.create_tool(DEFAULT_PRINCIPAL, SPEC, None)
    for call in (
        service.get_tool(OTHER, mine.id),
        service.get_tool_by_name(OTHER, "f"),
        service.update_tool(OTHER, mine.id, SPEC, {"tags"}, None),
    ):
        with pytest.raises(ToolNotFound):
            await call
    await service.delete_tool(OTHER, mine.id, None)
    assert await service.count_tools(OTHER, ToolFilter(tags_any=("t",))) == 0
    assert (await service.list_tools(OTHER, ToolFilter(), ToolOrder.NAME, PageQuery(10, True))).items == ()
    assert await service.batch_get_tools(OTHER, [mine.id], ["f"]) == [None, None]
    theirs = await service.create_tool(OTHER, SPEC, None)
    assert theirs.id != mine.id
    assert theirs.created_by_id == OTHER.subject_id
    assert await service.get_tool(DEFAULT_PRINCIPAL, mine.id) == mine
