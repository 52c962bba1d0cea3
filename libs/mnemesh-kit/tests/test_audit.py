"""The audit log on each engine: an entry is part of its change, is listed by page, and is deleted by its age."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from mnemesh.agents.v1 import agents_service_pb2
from mnemesh.blocks.v1 import blocks_service_pb2
from mnemesh_kit.audit import MAX_IDS, AuditFilter, AuditLog, audit_table, auditing, ids_in, note_change
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL, ROLE_KEY, Principal, Role, as_principal
from mnemesh_kit.failpoints import install
from mnemesh_kit.idempotency import Ledger, ledger_table, request_key
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.time import FrozenClock

metadata = sa.MetaData()
ledger = ledger_table(metadata)
audit_table(metadata)
changes = sa.Table("changes", metadata, sa.Column("name", sa.Text, primary_key=True))
ADA = Principal(new_id("org"), new_id("user"), Role.ADMIN)
BEN = Principal(ADA.organization_id, new_id("user"), Role.WRITER)
ADMIN = Principal(DEFAULT_PRINCIPAL.organization_id, DEFAULT_PRINCIPAL.subject_id, Role.ADMIN)
STRANGER = Principal(new_id("org"), ADA.subject_id, Role.ADMIN)
ALL = PageQuery(limit=100, ascending=True)


class Blocks:
    """A service whose only change is the deletion of a block, by calls that the pipeline would pass on."""

    def __init__(self, database: Database, clock: FrozenClock) -> None:
        self.database = database
        self.clock = clock
        self.log = AuditLog(database, clock, 400)
        self._ledger = Ledger(database, ledger, clock)

    async def delete(
        self,
        caller: Principal,
        block_id: str,
        *,
        request_id: str = "",
        effect: Callable[[sa.Connection], object] | None = None,
        of_service: bool = False,
        transactions: int = 1,
        completes: bool = False,
        method: str = "DeleteBlock",
    ) -> None:
        """Calls in a task of its own, as a server does."""
        request = blocks_service_pb2.DeleteBlockRequest(request_id=request_id, block_id=block_id)
        context = SimpleNamespace(invocation_metadata=lambda: [(ROLE_KEY, "service")] if of_service else [])

        async def handle(request: Any, _: Any) -> None:
            key = request_key(request, method)

            def change(conn: sa.Connection) -> list[str]:
                conn.execute(changes.insert().values(name=new_id("change")))
                if effect is not None:
                    effect(conn)
                return [new_id("agent"), "a text that is not an id"]

            for _ in range(transactions):
                await self._ledger.write_once(key, change)
            if completes:
                await self._ledger.write_once(None, change)

        async def serve() -> None:
            with as_principal(caller):
                path = f"/mnemesh.blocks.v1.BlockService/{method}"
                await auditing(path, handle, streams_requests=False)(request, context)

        await asyncio.create_task(serve())

    async def entries(self, caller: Principal, query: PageQuery = ALL, **filter_: Any) -> list[Any]:
        return list((await self.log.list(caller.organization_id, AuditFilter(**filter_), query)).items)

    async def changed(self) -> int:
        count = sa.select(sa.func.count()).select_from(changes)
        return await self.database.read(lambda conn: int(conn.execute(count).scalar_one()))


@pytest.fixture
async def blocks(database: Database) -> Blocks:
    await database.write(metadata.create_all)
    return Blocks(database, FrozenClock())


async def test_a_change_and_its_entry_are_one_transaction(blocks: Blocks) -> None:
    block_id = new_id("block")

    def fail(_: sa.Connection) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await blocks.delete(ADA, block_id, effect=fail)
    assert (await blocks.entries(ADA), await blocks.changed()) == ([], 0)
    await blocks.delete(ADA, block_id, request_id="r-1")
    (entry,) = await blocks.entries(ADA)
    assert (entry.subject_id, entry.role, entry.request_id) == (ADA.subject_id, "admin", "r-1")
    assert entry.method == "mnemesh.blocks.v1.BlockService/DeleteBlock"
    assert [each.partition("-")[0] for each in entry.resource_ids.split()] == ["block", "agent"]
    assert entry.created_at == blocks.clock.now()


async def test_an_effect_that_runs_again_after_a_conflict_has_one_entry(blocks: Blocks) -> None:
    attempts: list[int] = []

    def conflict_once(conn: sa.Connection) -> None:
        attempts.append(1)
        if len(attempts) == 1 and conn.dialect.name == "postgresql":
            conn.execute(sa.text("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$"))

    await blocks.delete(ADA, new_id("block"), effect=conflict_once)
    assert len(attempts) == (2 if blocks.database.dialect == "postgresql" else 1)
    assert len(await blocks.entries(ADA)) == 1


async def test_a_repeated_request_and_a_call_of_several_transactions_have_one_entry(blocks: Blocks) -> None:
    block_id = new_id("block")
    for _ in range(2):
        await blocks.delete(ADA, block_id, request_id="r-1")
        blocks.clock.advance(1)
    assert [entry.request_id for entry in await blocks.entries(ADA)] == ["r-1"]
    # The repeat of a request that was interrupted completes it.
    await blocks.delete(ADA, block_id, request_id="r-1", completes=True)
    assert len(await blocks.entries(ADA)) == 1
    await blocks.delete(BEN, block_id, transactions=2)
    assert [entry.subject_id for entry in await blocks.entries(ADA)] == [ADA.subject_id, BEN.subject_id]
    assert await blocks.changed() == 4


@pytest.mark.parametrize(("moment", "count"), [("before_commit", 0), ("after_commit", 1)])
async def test_a_kill_leaves_the_change_and_its_entry_or_neither(
    blocks: Blocks, database_url: str, moment: str, count: int
) -> None:
    child = await asyncio.create_subprocess_exec(sys.executable, __file__, database_url, moment)
    assert await child.wait() == -signal.SIGKILL
    assert (len(await blocks.entries(ADMIN)), await blocks.changed()) == (count, count)


async def test_services_and_background_work_have_no_entries(blocks: Blocks) -> None:
    service = Principal(ADA.organization_id, ADA.subject_id, Role.SERVICE)
    await blocks.delete(service, new_id("block"), of_service=True)
    await blocks.database.write(lambda conn: note_change(conn, blocks.clock.now()))
    assert await blocks.entries(ADA) == []
    await blocks.delete(service, new_id("block"))  # without authentication, clients have the role too
    await blocks.delete(ADA, new_id("block"), of_service=True)  # a client cannot say that it is a service
    assert len(await blocks.entries(ADA)) == 2


async def test_entries_are_filtered_and_belong_to_one_organization(blocks: Blocks) -> None:
    first, second = new_id("block"), new_id("block")
    start = blocks.clock.now()
    await blocks.delete(ADA, first)
    blocks.clock.advance(60)
    await blocks.delete(BEN, second, method="UpdateBlock")
    await blocks.delete(STRANGER, first)

    async def subjects(**filter_: Any) -> list[str]:
        return [entry.subject_id for entry in await blocks.entries(ADA, **filter_)]

    assert await subjects() == [ADA.subject_id, BEN.subject_id]
    assert await subjects(subject_id=BEN.subject_id) == [BEN.subject_id]
    assert await subjects(resource_id=first) == [ADA.subject_id]
    assert await subjects(resource_id=first[:-1]) == await subjects(resource_id="%") == []
    assert await subjects(method="UpdateBlock") == [BEN.subject_id]
    assert await subjects(method="mnemesh.blocks.v1.BlockService/DeleteBlock") == [ADA.subject_id]
    assert await subjects(start=start + timedelta(seconds=1)) == [BEN.subject_id]
    assert await subjects(end=start + timedelta(seconds=60)) == [ADA.subject_id]
    assert len(await blocks.entries(STRANGER)) == 1


@pytest.mark.parametrize("ascending", [True, False])
async def test_pages_have_each_entry_once_also_at_one_time(blocks: Blocks, ascending: bool) -> None:
    for number in range(7):
        await blocks.delete(ADA, new_id("block"))
        if number == 4:
            blocks.clock.advance(1)
    seen: list[Any] = []
    cursor = None
    while True:
        query = PageQuery(limit=2, ascending=ascending, cursor=cursor)
        page = await blocks.log.list(ADA.organization_id, AuditFilter(), query)
        seen += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    positions = [(entry.created_at, entry.id) for entry in seen]
    assert len(positions) == 7
    assert positions == sorted(positions, reverse=not ascending)


async def test_entries_are_deleted_by_their_age(blocks: Blocks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnemesh_kit.audit.PURGE_ROWS", 2)
    for _ in range(5):
        await blocks.delete(ADA, new_id("block"))
    blocks.clock.advance(400 * 86_400)
    await blocks.delete(ADA, new_id("block"))
    assert await blocks.log.purge() == 0
    blocks.clock.advance(1)
    assert await AuditLog(blocks.database, blocks.clock, 0).purge() == 0
    assert await blocks.log.purge() == 5
    assert len(await blocks.entries(ADA)) == 1


def test_ids_of_a_request_are_those_of_resources_and_bounded() -> None:
    agent_id, block_ids = new_id("agent"), [new_id("block") for _ in range(3)]
    request = agents_service_pb2.CreateAgentRequest(request_id=new_id("request"))
    request.agent.id, request.agent.name = agent_id, new_id("name")
    request.agent.metadata = new_id("text")
    request.block_ids.extend(block_ids)
    assert list(ids_in(request)) == [*block_ids, agent_id]
    many = blocks_service_pb2.CreateBlockRequest(agent_ids=[new_id("agent") for _ in range(MAX_IDS + 1)])
    assert len(list(ids_in(many))) == MAX_IDS + 1


async def _delete_until_killed(url: str, moment: str) -> None:
    """Deletes a block in a process that kills itself at a moment of the transaction."""

    def kill(reached: str) -> None:
        if reached == f"sql.write.{moment}:blocks.delete":
            os.kill(os.getpid(), signal.SIGKILL)

    install(kill)
    await Blocks(Database.open(url), FrozenClock()).delete(ADMIN, new_id("block"), request_id="r-1")


if __name__ == "__main__":
    asyncio.run(_delete_until_killed(*sys.argv[1:]))
