import asyncio
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from mnemesh_kit.failpoints import async_failpoint, failpoint, failpoint_after, install, observed_by
from mnemesh_kit.sql import Database


class SqlThingStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self) -> int:
        return await self._database.read(lambda conn: int(conn.execute(sa.text("SELECT 1")).scalar_one()))

    async def write(self) -> int:
        return await self._database.write(
            lambda conn: int(conn.execute(sa.text("SELECT 2")).scalar_one()), name="things.write"
        )


async def test_without_an_observer_nothing_happens() -> None:
    fn = partial(int, "1")
    assert failpoint_after(fn, "moment", "subject") is fn
    failpoint("moment", fn)
    await async_failpoint("moment", fn)


async def test_transaction_reports_its_moments(tmp_path: Path) -> None:
    database = Database.open(f"sqlite:///{tmp_path / 'things.db'}")
    store, reached = SqlThingStore(database), list[str]()
    with observed_by(reached.append):
        assert (await store.get(), await store.write()) == (1, 2)
    await store.write()
    await database.close()
    assert reached == [
        "sql.read.before:thing_store.get",
        "sql.write.before:things.write",
        "sql.write.before_commit:things.write",
        "sql.write.after_commit:things.write",
    ]


async def test_observer_that_raises_before_the_commit_rolls_back(tmp_path: Path) -> None:
    database = Database.open(f"sqlite:///{tmp_path / 'things.db'}")
    await database.write(lambda conn: conn.execute(sa.text("CREATE TABLE things (id INTEGER)")))

    def refuse(name: str) -> None:
        if "before_commit" in name:
            raise ConnectionError(name)

    with observed_by(refuse), pytest.raises(ConnectionError):
        await database.write(lambda conn: conn.execute(sa.text("INSERT INTO things VALUES (1)")))
    assert await database.read(lambda conn: conn.execute(sa.text("SELECT count(*) FROM things")).scalar_one()) == 0
    await database.close()


async def test_observer_delays_asynchronous_failpoints() -> None:
    release = asyncio.Event()

    async def hold(_: str) -> None:
        await release.wait()

    with observed_by(hold):
        held = asyncio.create_task(async_failpoint("call.before", "/mnemesh.blocks.v1.BlockService/EditBlock"))
        failpoint("sql.write.before_commit", "things.write")
        await asyncio.sleep(0)
        assert not held.done()
        release.set()
        await held


def test_observers_nest() -> None:
    outer, inner = list[str](), list[str]()
    with observed_by(outer.append):
        with observed_by(inner.append):
            failpoint("call.before", "/mnemesh.blocks.v1.BlockService/EditBlock")
        failpoint("sandbox.before_run", "roll_dice")
    install(None)
    failpoint("sandbox.after_run", "roll_dice")
    assert (outer, inner) == (["sandbox.before_run:roll_dice"], ["call.before:EditBlock"])
