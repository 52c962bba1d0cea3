"""The agents to which blocks belong, on each SQL engine. What a limited token may do with them is in tests/contract."""

from typing import TYPE_CHECKING

from mnemesh_blocks.store.tables import owners
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL
from mnemesh_kit.ids import new_id
from mnemesh_kit.sql import Database
from mnemesh_testkit.suites.blocks.calls import AGENT, PEER, create
from mnemesh_testkit.suites.blocks.conversations import isolate

if TYPE_CHECKING:
    from mnemesh.blocks.v1.blocks_service_pb2_grpc import BlockServiceAsyncStub

ORGANIZATION = DEFAULT_PRINCIPAL.organization_id


async def test_block_belongs_to_all_that_hold_it(blocks: "BlockServiceAsyncStub", database_url: str) -> None:
    shared = await create(blocks, "human", AGENT, PEER)
    held = await create(blocks, "task", AGENT)
    [copied] = await isolate(blocks, "task")
    free = await create(blocks, "loose")
    unknown, other_kind = new_id("block"), new_id("run")
    ids = [shared.id, held.id, copied.id, free.id, unknown, other_kind, "block-x"]
    database = Database.open(database_url)
    found = await owners(database).find(ORGANIZATION, ids)
    assert await owners(database).find(new_id("org"), [shared.id, free.id]) == {}
    await database.close()
    assert found == {
        shared.id: {AGENT, PEER},
        held.id: {AGENT},
        copied.id: {AGENT},
        free.id: {""},
        other_kind: set(),
        "block-x": set(),
    }
