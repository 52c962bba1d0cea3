"""The work of a call is counted without the work of other tasks."""

import asyncio
from pathlib import Path

import sqlalchemy as sa
from mnemesh_kit.sql import Database
from mnemesh_testkit.databases.query_plans import seen

COUNTED = sa.text(
    "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :most) "
    "SELECT count(*) FROM numbers"
)


async def test_statements_of_other_tasks_are_not_counted(tmp_path: Path) -> None:
    database = Database.open(f"sqlite:///{tmp_path / 'test.db'}", readers=1)

    async def count(most: int) -> None:
        await database.read(lambda conn: conn.execute(COUNTED, {"most": most}).scalar_one())

    alone = await seen(lambda: count(100))
    call_began, other_ended = asyncio.Event(), asyncio.Event()

    async def other() -> None:
        await call_began.wait()
        await count(100_000)
        other_ended.set()

    async def call() -> None:
        await count(50)
        call_began.set()
        await other_ended.wait()
        await count(50)

    background = asyncio.create_task(other())
    interrupted = await seen(call)
    await background
    assert len(interrupted.plans) == 2
    assert interrupted.work < 2 * alone.work

    before = interrupted.work
    await count(100_000)
    await database.close()
    assert interrupted.work == before
